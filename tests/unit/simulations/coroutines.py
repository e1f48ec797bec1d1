"""Small random clusters of async actors that can be run to their end.

The calls of an actor share its event loop, which one of them may block, and its one lock. A work that is not blocked,
and whose loop is free, ends at some time; a work that begins during the simulation does not block. A work that ends
fails if it may, and cancels the works that it watches: so what is unfinished in the end is so in every future.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from hypothesis import strategies as st

from dstack.model.vertex_keys import Key
from dstack.observed.calls import Timer
from tests.unit.scenes import Call, Scene, SceneCoroutine, SceneProcess, SceneThread

Phase = Literal["runs", "queued", "ended"]
DRIVER = -1
SCOPE = Timer(name="anyio.CancelScope", left_s=9.0, stops=True)


@dataclass(frozen=True)
class Block:
    """A blocking call that needs this many of these works and of ``others``, which are unknown, or needs the lock.

    ``by_coroutine`` awaits works of the same actor as coroutines instead of their refs; with ``in_helper``, a thread
    gets all refs, and the work awaits that thread. One that ``is_timed`` times out, or is cancelled by the deadline of
    its scope. With ``fails_fast`` it ends with an error once a work fails. ``cancellers`` are works of the same actor
    that hold the waiter's asyncio task and cancel it.
    """

    works: tuple[int, ...]
    needs: int
    others: int = 0
    is_timed: bool = False
    wants_lock: bool = False
    by_coroutine: bool = False
    in_helper: bool = False
    in_scope: bool = False
    fails_fast: bool = False
    cancellers: tuple[int, ...] = ()


@dataclass
class Work:
    """A task on a thread, or a call of an async actor: suspended, running on the loop's thread, or not begun.

    It fails when it ends, except if its source shows that it raises nothing: then not ``may_fail``.
    """

    actor: int | None
    phase: Phase
    block: Block | None = None
    is_on_loop: bool = False
    has_begun: bool = True
    holds_lock: bool = False
    may_fail: bool = True


@dataclass
class SimulatedCluster:
    """Works by number, actors by number with their slots, and the driver, perhaps in an event loop of its own."""

    slots: list[int]
    works: list[Work]
    driver: Block | None
    is_driver_async: bool
    all_fail: bool = False
    """Whether also works fail whose source shows no failure."""

    def steps(self) -> Iterator[tuple[str, int]]:
        """The possible next steps: an action and the number of a work, or the driver."""
        for number, work in enumerate(self.works):
            if work.phase == "runs" and self.has_loop(work) and self.is_satisfied(work.block, work.actor):
                yield "ends", number
            elif work.phase == "queued" and self.has_free_slot(work):
                yield "begins", number
        if self.driver and self.is_satisfied(self.driver, None):
            yield "proceeds", DRIVER

    def apply(self, step: tuple[str, int]) -> None:
        what, number = step
        if what == "proceeds":
            self.driver = None
        elif what == "ends":
            self.works[number].phase = "ended"
            self._cut_short(number)
        else:
            self.works[number].phase = "runs"
            self.works[number].has_begun = self.on_loop(self.works[number].actor) is None

    def _cut_short(self, number: int) -> None:
        """Wakes the works that a work cancels when it ends, and those that its failure ends."""
        has_failed = self.all_fail or self.works[number].may_fail
        for other in self.works:
            block = other.block
            if block and (number in block.cancellers or (block.fails_fast and has_failed and number in block.works)):
                other.block = None
        driver = self.driver
        if driver and driver.fails_fast and has_failed and number in driver.works:
            self.driver = None

    def run(self, order: random.Random, steps: int | None = None) -> None:
        """Applies this many possible steps in random order, or all."""
        while (possible := list(self.steps())) and steps != 0:
            self.apply(order.choice(possible))
            steps = None if steps is None else steps - 1

    def unfinished(self) -> set[int]:
        """The works that have not ended, and the driver if it is blocked."""
        unfinished = {number for number, work in enumerate(self.works) if work.phase != "ended"}
        return unfinished | {DRIVER} if self.driver else unfinished

    def running(self, actor: int | None) -> list[int]:
        """The works that an actor runs, whether or not they have begun."""
        return [n for n, work in enumerate(self.works) if work.actor == actor is not None and work.phase == "runs"]

    def on_loop(self, actor: int | None) -> int | None:
        """The work that blocks an actor's loop."""
        return next((number for number in self.running(actor) if self.works[number].is_on_loop), None)

    def holder(self, actor: int | None) -> int | None:
        """The work that holds an actor's lock."""
        return next((number for number in self.running(actor) if self.works[number].holds_lock), None)

    def has_loop(self, work: Work) -> bool:
        return work.is_on_loop or self.on_loop(work.actor) is None

    def has_free_slot(self, work: Work) -> bool:
        return work.actor is not None and len(self.running(work.actor)) < self.slots[work.actor]

    def is_satisfied(self, block: Block | None, actor: int | None) -> bool:
        if block is None or block.is_timed:
            return True
        if block.wants_lock:
            return self.holder(actor) is None
        if block.fails_fast and block.others:
            return True
        return sum(self.works[number].phase == "ended" for number in block.works) + block.others >= block.needs


@dataclass
class ClusterScene:
    """The scene of a simulated cluster; ``update`` brings it up to date."""

    cluster: SimulatedCluster
    scene: Scene = field(default_factory=Scene)
    procs: dict[int, SceneProcess] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    work_numbers: dict[Key, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.driver = self.scene.driver()
        self.actors = [self.scene.async_actor() for _ in self.cluster.slots]
        for number, work in enumerate(self.cluster.works):
            self.procs[number] = self.scene.worker() if work.actor is None else self.actors[work.actor]
            self.calls.append(self._submit(work))
        self.update()

    def update(self) -> None:
        """Brings the scene up to date with the cluster, and records the keys of its works."""
        self._show_records()
        for proc in self.scene.procs:
            proc.running, proc.coros, proc.coroutines_read = [], [], True
            del proc.threads[2 if proc in self.actors else 1 :]
        for actor in self.actors:
            actor.threads[-1].call, actor.threads[-1].task_id, actor.threads[-1].is_idle_loop = None, None, True
        shown = [number for number, work in enumerate(self.cluster.works) if work.phase == "runs"]
        executions = {number: self._begin(number) for number in shown}
        for number, execution in executions.items():
            if execution is not None:
                self._record(execution, number)
                self._block(number, execution, self.cluster.works[number].block)
        self._show_driver()

    def _submit(self, work: Work) -> Call:
        if work.actor is None:
            return self.scene.task("work", by=self.driver)
        return self.scene.call(self.actors[work.actor], "work", by=self.driver)

    def _show_records(self) -> None:
        self.driver.submitted.clear()
        for number, (work, call) in enumerate(zip(self.cluster.works, self.calls, strict=True)):
            self.work_numbers[call.key] = number
            call.has_arrived = work.phase == "queued" and not self.cluster.has_free_slot(work)
            if work.phase == "ended":
                self.driver.has(call)
            else:
                self.driver.submitted.append(call)

    def _begin(self, number: int) -> SceneThread | SceneCoroutine | None:
        """Starts a work in the scene, and returns its execution; None where it has not begun."""
        work, proc, call = self.cluster.works[number], self.procs[number], self.calls[number]
        if work.actor is None:
            proc.runs(call)
            proc.threads[0].may_fail = work.may_fail
            return proc.threads[0]
        if work.is_on_loop:
            proc.running.append(call)
            proc.threads[1].computes().task_id = call.task.task_id
            proc.threads[1].may_fail = work.may_fail
            return proc.threads[1]
        if not work.has_begun and self.cluster.on_loop(work.actor) is not None:
            proc.running.append(call)
            return None
        coro = proc.begins(call)
        coro.number = number + 1
        coro.may_fail = work.may_fail
        return coro

    def _show_driver(self) -> None:
        execution: SceneThread | SceneCoroutine = self.driver.threads[0].computes()
        self._record(execution, DRIVER)
        if self.cluster.is_driver_async:
            execution = self.driver.coroutine()
            self.driver.threads[0].awaits(execution)
            self._record(execution, DRIVER)
        self._block(DRIVER, execution, self.cluster.driver)

    def _record(self, execution: SceneThread | SceneCoroutine, number: int) -> None:
        self.work_numbers[execution.key] = number

    def _block(self, number: int, execution: SceneThread | SceneCoroutine, block: Block | None) -> None:
        if block is None:
            return
        timeout_s = 1.0 if block.is_timed else None
        if block.wants_lock:
            self._wants_lock(number, execution, timeout_s)
            return
        blocked: SceneThread | SceneCoroutine = execution
        if block.in_helper:
            blocked = execution.process.thread("helper", "user")
            self._record(blocked, number)
            execution.joins(blocked) if isinstance(execution, SceneThread) else execution.awaits((blocked,))
        if isinstance(blocked, SceneThread):
            refs = [self.calls[work].ref for work in block.works]
            needs = max(1, block.needs - block.others)  # threads wait only for refs
            blocked.waits(*refs, num_returns=needs, timeout_s=timeout_s)
            return
        things = [self._awaited(number, work, block) for work in block.works]
        known = {"others": block.others, "count": block.needs, "fails_fast": block.fails_fast}
        blocked.awaits(*things, timeout_s=timeout_s, **known)
        if block.in_scope and isinstance(blocked, SceneCoroutine):
            blocked.is_in_scope(SCOPE)
        if block.cancellers and isinstance(blocked, SceneCoroutine):
            blocked.is_cut_short_by(*map(self._watcher, block.cancellers))

    def _watcher(self, number: int) -> SceneCoroutine | SceneThread:
        """The execution of a work that cancels another one of its actor."""
        is_thread = self.cluster.works[number].is_on_loop
        return self.procs[number].threads[1] if is_thread else SceneCoroutine(self.procs[number], number + 1, None)

    def _awaited(self, number: int, other: int, block: Block) -> Call | SceneCoroutine:
        """The ref of a work, or its coroutine if that is suspended."""
        mine, work = self.cluster.works[number] if number != DRIVER else None, self.cluster.works[other]
        is_near = mine is not None and mine.actor == work.actor is not None
        if not (block.by_coroutine and is_near and work.phase == "runs" and work.has_begun):
            return self.calls[other]
        return SceneCoroutine(self.procs[other], other + 1, None)

    def _wants_lock(self, number: int, execution: SceneThread | SceneCoroutine, timeout_s: float | None) -> None:
        holder = self.cluster.holder(self.cluster.works[number].actor)
        if holder is None:
            execution.is_in("the lock that is free") if isinstance(execution, SceneCoroutine) else execution.computes()
            return
        is_thread = self.cluster.works[holder].is_on_loop
        held = self.procs[holder].threads[1] if is_thread else SceneCoroutine(self.procs[holder], holder + 1, None)
        execution.wants_lock("0x1", held, timeout_s=timeout_s)


@st.composite
def coroutine_clusters(draw: st.DrawFn) -> SimulatedCluster:
    """Clusters of a few works, most of them blocked."""
    cluster = SimulatedCluster(
        slots=draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)),
        works=[],
        driver=None,
        is_driver_async=draw(st.booleans()),
    )
    count = draw(st.integers(1, 7))
    for _ in range(count):
        cluster.works.append(draw(_works(cluster)))
    for number, work in enumerate(cluster.works):
        if work.phase == "runs" and work.has_begun:
            work.block = draw(_blocks(count))
            work.block = _valid_block(cluster, number, work.block)
            work.may_fail = draw(st.booleans()) or not _shows_its_end(cluster, work)
    for number, work in enumerate(cluster.works):
        if work.block and _is_coroutine(work) and not work.block.in_helper and not work.block.wants_lock:
            near = [
                other for other in cluster.running(work.actor) if cluster.works[other].has_begun and other != number
            ]
            if draw(st.booleans()) and near:
                cancellers = draw(st.lists(st.sampled_from(near), min_size=1, max_size=2, unique=True))
                work.block = replace(work.block, cancellers=tuple(cancellers))
    cluster.driver = draw(_blocks(count))
    if cluster.driver and cluster.driver.wants_lock:
        cluster.driver = None
    if cluster.driver and (cluster.driver.in_helper or not cluster.is_driver_async):
        cluster.driver = _block_of_thread(cluster.driver)
    return cluster


def _is_coroutine(work: Work) -> bool:
    return work.actor is not None and not work.is_on_loop


def _shows_its_end(cluster: SimulatedCluster, work: Work) -> bool:
    """Whether the source of a work is about to be executed: it is not blocked, nor its loop by another one."""
    return work.block is None and cluster.has_loop(work)


def _valid_block(cluster: SimulatedCluster, number: int, block: Block | None) -> Block | None:
    """The block in a form that is possible for this work."""
    work = cluster.works[number]
    if block is None:
        return None
    if block.wants_lock:
        return block if cluster.holder(work.actor) not in (None, number) else None
    return _block_of_thread(block) if work.actor is None or work.is_on_loop or block.in_helper else block


def _block_of_thread(block: Block) -> Block:
    """The block in a form for threads, which have no unknown dependencies."""
    needs = min(block.needs, len(block.works))
    return Block(works=block.works, needs=needs, is_timed=block.is_timed, in_helper=block.in_helper)


@st.composite
def _works(draw: st.DrawFn, cluster: SimulatedCluster) -> Work:
    work = Work(
        actor=draw(st.sampled_from([None, *range(len(cluster.slots)), *range(len(cluster.slots))])), phase="runs"
    )
    if work.actor is None:
        work.phase = draw(st.sampled_from(["runs", "runs", "ended"]))
    elif not cluster.has_free_slot(work):
        work.phase = "queued"
    elif cluster.on_loop(work.actor) is not None:
        work.has_begun = draw(st.booleans())
    else:
        work.is_on_loop = draw(st.sampled_from([False, False, True]))
    if work.actor is not None and work.has_begun and work.phase == "runs" and cluster.holder(work.actor) is None:
        work.holds_lock = draw(st.booleans())
    return work


def _blocks(count: int) -> st.SearchStrategy[Block | None]:
    """Mostly an await of one to three works, all or some, sometimes the lock, a timeout, or no block."""

    def block(
        works: list[int], needs: int, others: int, kind: str, by_coroutine: bool, in_helper: bool, fails_fast: bool
    ) -> Block | None:
        if kind == "none":
            return None
        total = len(works) + others
        return Block(
            works=tuple(works),
            needs=total if kind == "all" else min(needs, total),
            others=others,
            is_timed=kind in ("timed", "scope"),
            in_scope=kind == "scope" and not in_helper,
            wants_lock=kind == "lock",
            by_coroutine=by_coroutine,
            in_helper=in_helper,
            fails_fast=fails_fast and kind == "all" and not in_helper,
        )

    return st.builds(
        block,
        st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True),
        st.integers(1, 3),
        st.sampled_from([0, 0, 0, 1, 2]),
        st.sampled_from(["all", "all", "all", "some", "lock", "lock", "timed", "scope", "none", "none"]),
        st.booleans(),
        st.sampled_from([False, False, False, True]),
        st.booleans(),
    )
