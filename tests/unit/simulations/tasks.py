"""Small random clusters of tasks and actors that can be run to their end, to find stuck works without any graph.

A cluster is a list of works, each a task or an actor call in some phase. It runs in single steps as long as any step is
possible: a work that is not blocked ends at some time, and a work that begins does not block. Works that have not ended
when no step is possible are stuck for good. A scene can show the state of a cluster at any time.

A work that goes on may fail, cancels what its process holds refs of, and kills the actors of which it has handles. So
what is unfinished in the end is so in every future.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from hypothesis import strategies as st

from dstack.model.vertex_keys import Key
from dstack.observed.node import Ref
from dstack.observed.processes import StopCall
from tests.unit.scenes import Call, Scene, SceneProcess, SceneThread

Phase = Literal["runs", "queued", "on its way", "lacks arguments", "behind", "wants a GPU", "impossible", "ended"]
Kind = Literal["get", "wait", "timed", "timed wait", "polled", "polled wait", "none"]
DRIVER = -1
BLOCKS: tuple[Kind, ...] = ("get", "get", "get", "wait", "wait", "timed", "none")
POLLS: tuple[Kind, ...] = ("get", "get", "wait", "polled", "polled", "polled wait", "none")
"""Blocks in which each wait with a timeout belongs to a loop that only polls."""
POLLS_AND_TIMEOUTS: tuple[Kind, ...] = (*POLLS, "timed", "timed wait")


@dataclass(frozen=True)
class Block:
    """A blocking call that needs this many of these works, and perhaps a value that another work has put.

    A block that ``is_timed`` times out at some time, and the work proceeds; if it only ``polls``, the work waits again,
    and a ``ray.wait`` ends once another work has ended since the start.
    """

    works: tuple[int, ...]
    needs: int
    is_wait: bool = False
    is_timed: bool = False
    polls: bool = False
    in_helper: bool = False
    with_value_of: int | None = None
    by_signal: bool = False
    """Whether a handler of ``signal.alarm`` takes the main thread out of it."""


@dataclass(frozen=True)
class Stops:
    """What a work that goes on cancels, with all that descends from it, and the actors that it kills.

    One that ``is_shown`` does so by its source. Of another one, only the refs and handles in its process are known.
    """

    works: tuple[int, ...] = ()
    actors: tuple[int, ...] = ()
    is_shown: bool = True


@dataclass
class Work:
    """A task or actor call; it runs in this ``slot`` of its actor, which belongs to its concurrency group.

    One that is not blocked fails when it ends, except if its source shows that it raises nothing: not ``may_fail``.
    """

    actor: int | None
    owner: int
    phase: Phase
    block: Block | None = None
    arguments: tuple[int, ...] = ()
    has_gpu: bool = False
    slot: int = 0
    group: int = 0
    may_fail: bool = True
    stops: Stops | None = None


@dataclass
class SimulatedCluster:
    """Works by number, actors by number with the slots of their concurrency groups, and the driver."""

    slots: list[tuple[int, ...]]
    works: list[Work]
    driver: Block | None
    free_gpus: int
    reads_tasks: bool = False
    ended_at_start: frozenset[int] = frozenset()
    """The works that had ended before the first sample."""
    works_fail: bool = True
    """Whether a work that ends may fail."""
    all_fail: bool = False
    """Whether also works fail whose source shows no failure."""
    all_stop: bool = False
    """Whether also works cancel and kill whose source shows nothing of it."""
    driver_stops: Stops | None = None

    def steps(self) -> Iterator[tuple[str, int]]:
        """The possible next steps: an action and the number of a work, or the driver."""
        for number, work in enumerate(self.works):
            if work.phase == "runs" and self.is_satisfied(work.block):
                yield "ends", number
            elif work.phase == "queued" and self.free_slots(work):
                yield "begins", number
            elif work.phase == "on its way":
                yield "arrives", number
            elif work.phase in ("lacks arguments", "behind") and self.is_ready(number):
                yield "is sent", number
            elif work.phase == "wants a GPU" and self.free_gpus:
                yield "gets a GPU", number
            if work.phase != "ended" and self.is_stopped(number):
                yield "is stopped", number
        if self.driver and self.is_satisfied(self.driver):
            yield "proceeds", DRIVER

    def apply(self, step: tuple[str, int]) -> None:
        what, number = step
        if what == "proceeds":
            self.driver = None
            return
        work = self.works[number]
        match what:
            case "ends" | "is stopped":
                work.phase = "ended"
                self.free_gpus += work.has_gpu
            case "begins":
                work.slot = self.free_slots(work)[0]
                work.phase = "runs"
            case "arrives":
                work.phase = "queued"
            case "gets a GPU":
                self.free_gpus -= 1
                work.has_gpu = True
                work.phase = "runs"
            case "is sent":
                work.phase = "runs" if work.actor is None else "queued"

    def mutually_polling_loops(self) -> set[int]:
        """The works that are stuck because loops that only poll wait for each other, and for nothing else."""
        cluster = copy.deepcopy(self)
        for work in cluster.works:
            is_loop = work.phase == "runs" and work.block and work.block.polls and not work.block.in_helper
            work.phase = "runs" if is_loop else "ended"
        is_loop = cluster.driver and cluster.driver.polls and not cluster.driver.in_helper
        cluster.driver = cluster.driver if is_loop else None
        cluster.works_fail = False
        cluster.run(random.Random(0))
        return cluster.unfinished()

    def run(self, order: random.Random, steps: int | None = None) -> None:
        """Applies this many possible steps in random order, or all."""
        while (possible := list(self.steps())) and steps != 0:
            self.apply(order.choice(possible))
            steps = None if steps is None else steps - 1

    def unfinished(self) -> set[int]:
        """The works that have not ended, and the driver if it is blocked."""
        unfinished = {number for number, work in enumerate(self.works) if work.phase != "ended"}
        return unfinished | {DRIVER} if self.driver else unfinished

    def is_satisfied(self, block: Block | None) -> bool:
        if block is None or (block.is_timed and not block.polls):
            return True
        ended = {number for number in block.works if self.works[number].phase == "ended"}
        if len(ended) >= block.needs or block.by_signal:
            return True
        # a poll returns what has ended when it times out, and a get ends with an error as soon as one work fails
        new = ended - self.ended_at_start
        if block.is_wait:
            return block.polls and bool(new)
        return self.works_fail and any(self.all_fail or self.works[number].may_fail for number in new)

    def is_stopped(self, number: int) -> bool:
        """Whether a work that has gone on cancels this one, or a work that it descends from, or kills its actor."""
        work = self.works[number]
        done = [
            (DRIVER, self.driver_stops if self.driver is None else None),
            *((other, one.stops if one.phase == "ended" else None) for other, one in enumerate(self.works)),
        ]
        active = [(other, stops) for other, stops in done if stops and (stops.is_shown or self.all_stop)]
        reached = [self.reach(other) for other, _ in active]
        if any(work.actor in actors for _, actors in reached):
            return True
        family = {number, *self.ancestors(number)}
        return not self.never_runs(work) and any(not family.isdisjoint(works) for works, _ in reached)

    def never_runs(self, work: Work) -> bool:
        """Whether a task can run on no node: a finding says so, whether or not it is cancelled."""
        has_gpus = self.free_gpus + sum(other.has_gpu for other in self.works) > 0
        return work.phase == "impossible" or (work.phase == "wants a GPU" and not has_gpus)

    def reach(self, number: int) -> tuple[set[int], set[int]]:
        """The works of which the process of this work holds refs, and the actors of which it has handles."""
        actor = None if number == DRIVER else self.works[number].actor
        near = [number] if actor is None else [n for n, work in enumerate(self.works) if work.actor == actor]
        found = [self.driver_stops] if number == DRIVER else [self.works[one].stops for one in near]
        held = [stops for stops in found if stops]
        return {one for stops in held for one in stops.works}, {one for stops in held for one in stops.actors}

    def ancestors(self, number: int) -> set[int]:
        """The works that submitted this one, directly or through others."""
        owner = self.works[number].owner
        return set() if owner == DRIVER else {owner, *self.ancestors(owner)}

    def blocks(self) -> list[Block]:
        """The blocking calls of running works and of the driver."""
        running = [work.block for work in self.works if work.phase == "runs"]
        return [block for block in (*running, self.driver) if block]

    def free_slots(self, work: Work) -> list[int]:
        """The free slots of the work's concurrency group."""
        assert work.actor is not None
        groups = self.slots[work.actor]
        first = sum(groups[: work.group])
        used = {other.slot for other in self.works if other.actor == work.actor and other.phase == "runs"}
        return [slot for slot in range(first, first + groups[work.group]) if slot not in used]

    def is_ready(self, number: int) -> bool:
        return self.has_arguments(self.works[number]) and not self.is_behind(number)

    def has_arguments(self, work: Work) -> bool:
        return all(self.works[argument].phase == "ended" for argument in work.arguments)

    def is_behind(self, number: int) -> bool:
        """Whether an earlier call by the same owner of the same actor lacks an argument."""
        work = self.works[number]
        return work.actor is not None and any(
            (earlier.owner, earlier.actor, earlier.phase) == (work.owner, work.actor, "lacks arguments")
            for earlier in self.works[:number]
        )


@dataclass
class ClusterScene:
    """The scene of a simulated cluster; ``update`` brings it up to date."""

    cluster: SimulatedCluster
    scene: Scene = field(default_factory=Scene)
    procs: dict[int, SceneProcess] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    values: dict[int, str] = field(default_factory=dict)
    blocks: dict[Key, Block] = field(default_factory=dict)
    """The blocking call of each thread, by its vertex."""

    def __post_init__(self) -> None:
        works = self.cluster.works
        self.gpus = self.cluster.free_gpus + sum(work.has_gpu for work in works)
        self.node = self.scene.node(CPU=8.0, GPU=float(self.gpus))
        self.driver = self.scene.driver()
        self.actors = [self._actor(slots) for slots in self.cluster.slots]
        self.dead = self.scene.actor("Dead")
        self.scene.dies(self.dead)
        for number, work in enumerate(works):
            if work.phase == "runs":
                self.procs[number] = self._place(work)
        for work in works:
            self.calls.append(self._submit(work, by=self.owner(work)))
            if work.owner != DRIVER:
                self.calls[-1].becomes(parent_task_id=self.calls[work.owner].task.task_id)
        for number in self.procs:
            self.procs[number].running = [self.calls[number]]
            self.values[number] = self.procs[number].puts()
        self.update()

    def owner(self, work: Work) -> SceneProcess:
        return self.driver if work.owner == DRIVER else self.procs[work.owner]

    def update(self) -> None:
        """Brings the scene up to date with the cluster."""
        self._show_records()
        for proc in self.scene.procs:
            proc.running = []
            proc.tasks_read = self.cluster.reads_tasks
            proc.known.pop("handled_signals", None)
            del proc.threads[max(1, self._slots_of(proc)) + self._is_threaded(proc) :]
            for thread in proc.threads if proc is not self.driver else ():
                thread.role, thread.task_id = "ray", None
                thread.computes()
                thread.stops, thread.may_fail, thread.only_polls = None, True, True
        for number, work in enumerate(self.cluster.works):
            if work.phase == "runs":
                proc = self.procs[number] = self.procs.get(number) or self._place(work)
                proc.running.append(self.calls[number])
                self._thread(number).role = "task"
                self._thread(number).task_id = self.calls[number].task.task_id
                self._thread(number).may_fail = work.may_fail
                self._show_stops(self._thread(number), work.stops)
                self._show_block(proc, self._thread(number), work.block)
        self._show_stops(self.driver.threads[0], self.cluster.driver_stops)
        self._show_block(self.driver, self.driver.threads[0], self.cluster.driver)
        self.scene.available[self.node.node_id]["GPU"] = float(self.cluster.free_gpus)

    def work_numbers(self) -> dict[Key, int]:
        """The number of the work that each vertex executes, or DRIVER."""
        keys = {call.key: number for number, call in enumerate(self.calls)} | {self.driver.key: DRIVER}
        for number, work in enumerate(self.cluster.works):
            if work.phase == "runs":
                keys[self._thread(number).key] = number
        helped = {f"helper of {key}": number for key, number in keys.items()}
        for proc in self.scene.procs:
            for thread in proc.threads:
                if thread.name in helped:
                    keys[thread.key] = helped[thread.name]
        return keys

    def _actor(self, groups: tuple[int, ...]) -> SceneProcess:
        return self.scene.actor() if groups == (1,) else self.scene.threaded_actor(sum(groups))

    def _is_threaded(self, proc: SceneProcess) -> bool:
        return self._slots_of(proc) > 1

    def _thread(self, number: int) -> SceneThread:
        """The thread of a work; the main thread of a threaded actor runs no work."""
        proc = self.procs[number]
        return proc.threads[self.cluster.works[number].slot + self._is_threaded(proc)]

    def _slots_of(self, proc: SceneProcess) -> int:
        return sum(self.cluster.slots[self.actors.index(proc)]) if proc in self.actors else 1

    def _place(self, work: Work) -> SceneProcess:
        return self.scene.worker() if work.actor is None else self.actors[work.actor]

    def _submit(self, work: Work, by: SceneProcess) -> Call:
        if work.actor is not None:
            return self.scene.call(self.actors[work.actor], "work", by=by)
        if work.phase == "impossible":
            return self.scene.call(self.dead, "work", by=by, state="PENDING_NODE_ASSIGNMENT")
        gpus = {"GPU": 1.0} if work.has_gpu or work.phase == "wants a GPU" else {}
        return self.scene.task("work", by=by, required_resources=gpus)

    def _show_records(self) -> None:
        for proc in self.scene.procs:
            proc.submitted.clear()
            proc.refs = {ref: known for ref, known in proc.refs.items() if ref in self.values.values()}
        for work, call in zip(self.cluster.works, self.calls, strict=True):
            owner = self.owner(work)
            if work.phase == "ended":
                owner.has(call)
                continue
            owner.submitted.append(call.becomes(state=_state(work)))
            call.has_arrived = work.phase == "queued" and not self.cluster.free_slots(
                work
            )  # otherwise it begins at once
            if work.phase == "lacks arguments":
                missing = [a for a in work.arguments if self.cluster.works[a].phase != "ended"]
                owner.passes(*(self.calls[a] for a in missing))

    def _show_stops(self, thread: SceneThread, stops: Stops | None) -> None:
        """Shows the refs and handles of an execution, and whether its source uses them."""
        if stops is None:
            return
        thread.only_polls = False
        thread.stops = StopCall(name="ray.cancel", line=thread.line) if stops.is_shown else None
        for number in stops.works:
            ref, holder = self.calls[number].ref, thread.process
            known = holder.refs.get(ref, Ref(ref=ref, holder_id=holder.worker_id))
            holder.refs[ref] = replace(known, local_uses=1)
        for actor in stops.actors:
            thread.process.holds(self.actors[actor])

    def _show_block(self, proc: SceneProcess, thread: SceneThread, block: Block | None) -> None:
        thread.computes()
        self.blocks.pop(thread.key, None)
        if block is None:
            return
        blocked = thread
        if block.in_helper:
            blocked = proc.thread(f"helper of {thread.key}", "user")
            thread.joins(blocked)
        self.blocks[blocked.key] = block
        if block.by_signal:
            proc.known["handled_signals"] = ("SIGALRM",)
        refs = [self.calls[number].ref for number in block.works]
        timeout_s = 1.0 if block.is_timed else None
        if block.is_wait:
            blocked.waits(*refs, num_returns=block.needs, timeout_s=timeout_s)
        else:
            value = self.values.get(DRIVER if block.with_value_of is None else block.with_value_of)
            blocked.gets(*refs, *([value] if value else []), timeout_s=timeout_s)


def _state(work: Work) -> str:
    return {
        "lacks arguments": "PENDING_ARGS_AVAIL",
        "runs": "SUBMITTED_TO_WORKER",
        "queued": "SUBMITTED_TO_WORKER",
        "on its way": "SUBMITTED_TO_WORKER",
    }.get(work.phase, "PENDING_NODE_ASSIGNMENT")


@st.composite
def task_clusters(draw: st.DrawFn, *, exact: bool = False, kinds_of_block: Sequence[Kind] = BLOCKS) -> SimulatedCluster:
    """Clusters of a few works, most of them blocked.

    One sample of an ``exact`` cluster is complete: it shows which thread runs what, no actor has concurrency groups, no
    call is on its way, and each owner lists at most one missing argument, which no actor call lacks. Where loops poll,
    nothing cancels: code that does is in none that only polls.
    """
    is_stopped = kinds_of_block == BLOCKS
    kinds = [(1,), (2,)] if exact else [(1,), (1,), (2,), (1, 1), (1, 2)]
    cluster = SimulatedCluster(
        slots=draw(st.lists(st.sampled_from(kinds), max_size=3)),
        works=[],
        driver=None,
        free_gpus=draw(st.integers(0, 1)),
        reads_tasks=exact or draw(st.booleans()),
    )
    count = draw(st.integers(1, 7))
    for number in range(count):
        cluster.works.append(draw(_works(cluster, number, count, exact)))
    for work in cluster.works:
        if work.phase == "runs":
            work.block = draw(_blocks(count, kinds_of_block))
            work.may_fail = work.block is not None or draw(st.booleans())
            work.stops = draw(_stops(count, len(cluster.slots))) if is_stopped else None
    cluster.driver = draw(_blocks(count, kinds_of_block))
    cluster.driver_stops = draw(_stops(count, len(cluster.slots))) if is_stopped else None
    for work in cluster.works:
        work.block = _valid_block(cluster, work, work.block)
    _settle(cluster)
    cluster.ended_at_start = frozenset(number for number, work in enumerate(cluster.works) if work.phase == "ended")
    return cluster


def _valid_block(cluster: SimulatedCluster, work: Work, block: Block | None) -> Block | None:
    """The block in a form that is possible for this work: signals end only the calls of main threads.

    Helpers of a work outlive its cancellation, so there are none where works are cancelled.
    """
    if block is None:
        return None
    is_main = work.actor is None or cluster.slots[work.actor] == (1,)
    has_stops = any(one.stops for one in cluster.works) or cluster.driver_stops
    return replace(block, by_signal=block.by_signal and is_main, in_helper=block.in_helper and not has_stops)


def _stops(count: int, actors: int) -> st.SearchStrategy[Stops | None]:
    """Mostly nothing, sometimes a call of ``ray.cancel`` or ``ray.kill``, which the source may show."""
    some = st.builds(
        lambda work, actor, is_work, is_shown: Stops(
            works=(work,) if is_work or not actors else (),
            actors=(actor % actors,) if actors and not is_work else (),
            is_shown=is_shown,
        ),
        st.integers(0, count - 1),
        st.integers(0, 2),
        st.booleans(),
        st.booleans(),
    )
    return st.one_of(st.none(), some)


def _settle(cluster: SimulatedCluster) -> None:
    """Ends works whose arguments are all available, and holds calls behind a call that lacks an argument."""
    while complete := [
        work for work in cluster.works if work.phase == "lacks arguments" and cluster.has_arguments(work)
    ]:
        for work in complete:
            work.phase = "ended"
    for number, work in enumerate(cluster.works):
        if work.phase in ("queued", "on its way") and cluster.is_behind(number):
            work.phase = "behind"


@st.composite
def _works(draw: st.DrawFn, cluster: SimulatedCluster, number: int, count: int, exact: bool) -> Work:
    runners = [number for number, work in enumerate(cluster.works) if work.phase == "runs"]
    actor = draw(st.sampled_from([None, *range(len(cluster.slots))]))
    work = Work(actor=actor, owner=draw(st.sampled_from([DRIVER, *runners])), phase="runs")
    if actor is not None:
        work.group = draw(st.integers(0, len(cluster.slots[actor]) - 1))
    others = [other for other in range(count) if other != number]
    is_certain = actor is None and work.owner not in {other.owner for other in cluster.works if other.arguments}
    lacking: list[Phase] = ["lacks arguments"] if others and (is_certain or not exact) else []
    on_its_way: list[Phase] = [] if exact else ["on its way"]
    phases: list[Phase]
    if actor is None:
        phases = ["runs", "runs", "runs", "wants a GPU", "impossible", "ended", *lacking]
    elif free := cluster.free_slots(work):
        work.slot = free[0]
        phases = ["runs", "runs", "runs", *on_its_way, *lacking]
    else:
        phases = ["queued", "queued", "queued", *on_its_way, *lacking]
    work.phase = draw(st.sampled_from(phases))
    if work.phase == "lacks arguments":
        arguments = st.lists(st.sampled_from(others), min_size=1, max_size=1 if exact else 2, unique=True)
        work.arguments = tuple(draw(arguments))
    work.has_gpu = actor is None and work.phase == "runs" and draw(st.booleans())
    return work


def _blocks(count: int, kinds: Sequence[Kind]) -> st.SearchStrategy[Block | None]:
    """Mostly a get of a few works, sometimes a wait for some, a timeout, or no block."""

    def block(
        works: list[int], needs: int, kind: Kind, in_helper: bool, value: int | None, by_signal: bool
    ) -> Block | None:
        if kind == "none":
            return None
        is_wait = kind in ("wait", "polled wait", "timed wait")
        return Block(
            works=tuple(works),
            needs=min(needs, len(works)) if is_wait else len(works),
            is_wait=is_wait,
            is_timed=kind in ("timed", "timed wait", "polled", "polled wait"),
            polls=kind in ("polled", "polled wait"),
            in_helper=in_helper,
            with_value_of=value,
            by_signal=by_signal and not in_helper,
        )

    return st.builds(
        block,
        st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True),
        st.integers(1, 3),
        st.sampled_from(kinds),
        st.sampled_from([False, False, False, True]),
        st.one_of(st.none(), st.integers(0, count - 1)),
        st.sampled_from([False] * 9 + [True]),
    )
