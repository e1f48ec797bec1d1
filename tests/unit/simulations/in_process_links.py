"""Small random clusters whose threads also wait on objects of their own process, and that can be run to their end.

Some threads of the process are known to reach an object, or the actor's instance does, and so do all its calls.
A thread that is not blocked ends at some time. A wait on an object ends once any work has ended that may have reached
the object: the known threads, any other thread of the process, and any work that can call into it. Where nothing is
known to reach an object, its wait may end at any time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from hypothesis import strategies as st

from dstack.model.vertex_keys import Key
from tests.unit.scenes import Call, Scene, SceneProcess, SceneThread

DRIVER = 0
Timeout = Literal["none", "polls", "gives up"]


@dataclass(frozen=True)
class Wait:
    """A ``ray.get`` of all these works, or if ``on_object``, a wait on an object of the own process."""

    works: tuple[int, ...] = ()
    on_object: bool = False
    reached_by: tuple[int, ...] = ()
    by_actor: bool = False
    timeout: Timeout = "none"


@dataclass
class Thread:
    """A thread of a process; it runs the work with its number, which is a call if the process is an actor's."""

    process: int
    wait: Wait | None = None


@dataclass
class SimulatedCluster:
    """Processes, the first of the driver and the others of actors, their threads, and queued calls.

    Works are the threads by number, then the queued calls, each at an actor whose slots are all in use. ``handles``
    are the actors that each process can call; the driver can call all actors.
    """

    processes: int
    threads: list[Thread]
    queued: list[int]
    handles: dict[int, set[int]]
    ended: set[int] = field(default_factory=set)

    def of_process(self, process: int) -> list[int]:
        """The works in a process, including queued calls."""
        running = [number for number, thread in enumerate(self.threads) if thread.process == process]
        return running + [len(self.threads) + n for n, actor in enumerate(self.queued) if actor == process]

    def users(self, process: int) -> set[int]:
        """The processes that can call into this one, directly or through other processes."""
        found, ahead = {process}, [process]
        while ahead:
            one = ahead.pop()
            callers = {p for p, handles in self.handles.items() if one in handles}
            new = (callers | ({DRIVER} if one != DRIVER else set())) - found
            found |= new
            ahead += new
        return found

    def steps(self) -> Iterator[int]:
        """The works that may end next."""
        for number in range(len(self.threads) + len(self.queued)):
            if number not in self.ended and self._can_end(number):
                yield number

    def _can_end(self, number: int) -> bool:
        if number >= len(self.threads):
            actor = self.queued[number - len(self.threads)]
            return any(one in self.ended for one in self.of_process(actor) if one < len(self.threads))
        thread = self.threads[number]
        wait = thread.wait
        if wait is None or wait.timeout == "gives up":
            return True
        if not wait.on_object:
            return not wait.works or not self.ended.isdisjoint(wait.works)  # one that fails ends a get of several
        if not self._is_linked(thread.process, wait):
            return True
        able = {work for process in self.users(thread.process) for work in self.of_process(process)}
        return not self.ended.isdisjoint(able)

    def idle_services(self) -> set[int]:
        """The threads that wait as an idle service does: on objects that only such threads reach."""
        found = {n for n, one in enumerate(self.threads) if one.wait and one.wait.on_object}
        while active := {number for number in found if not self._is_idle_service(self.threads[number], found)}:
            found -= active
        return found

    def _is_idle_service(self, thread: Thread, others: set[int]) -> bool:
        wait = thread.wait
        is_called = any(work >= len(self.threads) for work in self.of_process(thread.process))
        assert wait is not None, "the thread waits on an object"
        return wait.timeout == "none" and not (wait.by_actor and is_called) and others.issuperset(wait.reached_by)

    def without_waits(self, threads: set[int]) -> SimulatedCluster:
        """The same cluster, in which these threads do not wait."""
        free = [Thread(one.process, None if n in threads else one.wait) for n, one in enumerate(self.threads)]
        return replace(self, threads=free, ended=set(self.ended))

    def suspected(self) -> set[int]:
        """The threads whose waits are assumed to end by known works only, or that are assumed to only poll."""
        waits = ((number, thread.wait) for number, thread in enumerate(self.threads))
        return {number for number, wait in waits if wait and (wait.on_object or wait.timeout == "polls")}

    def stuck_under_assumptions(self) -> set[int]:
        """The threads that are stuck even if all waits without an assumption end."""
        cluster = self.without_waits(set())
        cluster.ended = set(range(len(self.threads) + len(self.queued))) - self.suspected()
        cluster.run(random.Random(0))
        return cluster.unfinished()

    def _is_linked(self, process: int, wait: Wait) -> bool:
        """Whether any thread or call is known to reach the object."""
        is_called = any(work >= len(self.threads) for work in self.of_process(process))
        return bool(wait.reached_by) or (wait.by_actor and is_called)

    def run(self, order: random.Random) -> None:
        """Ends all works that can end, in random order."""
        while possible := list(self.steps()):
            self.ended.add(order.choice(possible))

    def unfinished(self) -> set[int]:
        return set(range(len(self.threads) + len(self.queued))) - self.ended


class ClusterScene:
    """The scene of a simulated cluster, before any work has ended."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.scene = Scene()
        self.driver = self.scene.driver()
        self.procs = [self.driver]
        for process in range(1, cluster.processes):
            slots = sum(thread.process == process for thread in cluster.threads)
            self.procs.append(self.scene.threaded_actor(slots, owner_id=self.driver.worker_id))
        self.threads: list[SceneThread] = []
        self.calls: list[Call] = []
        for process, proc in enumerate(self.procs):
            proc.works_for()
            proc.tasks_read = True
            self._fill(process, proc)
        queued = (self.scene.call(self.procs[actor], "queued", by=self.driver).arrives() for actor in cluster.queued)
        self.calls += queued
        for process, handles in cluster.handles.items():
            for actor in handles:
                self.procs[process].holds(self.procs[actor])
        for number in range(len(cluster.threads)):
            self.show_thread(number)

    def _fill(self, process: int, proc: SceneProcess) -> None:
        """Adds the threads of a process; the threads of an actor are its slots, and each runs a call."""
        own = [number for number, thread in enumerate(self.cluster.threads) if thread.process == process]
        if process == DRIVER:
            self.threads += [proc.threads[0], *(proc.thread(f"thread {n}", "user") for n in own[1:])]
            self.calls += [Call(self.scene.task("main", by=proc).task) for _ in own]
            proc.submitted.clear()
        else:
            self.threads += proc.slots
            self.calls += [self.scene.call(proc, "run", by=self.driver) for _ in own]
            proc.runs(*self.calls[-len(own) :])

    def show_thread(self, number: int) -> None:
        """Puts a thread into its wait."""
        thread, wait = self.threads[number], self.cluster.threads[number].wait
        is_call = self.cluster.threads[number].process != DRIVER
        thread.computes().is_torn = False
        thread.function, thread.task_id = "run", self.calls[number].task.task_id if is_call else None
        if wait is None:
            return
        timeout_s = None if wait.timeout == "none" else 1.0
        if wait.on_object:
            thread.is_in("threading.Condition.wait", hex(number + 1), timeout_s=timeout_s)
            thread.is_reached_by(*(self.threads[one] for one in wait.reached_by), actor=wait.by_actor)
        else:
            thread.gets(*(self.calls[work] for work in wait.works), timeout_s=timeout_s)

    def work_numbers(self) -> dict[Key, int]:
        """The number of the work of each vertex."""
        keys: dict[Key, int] = {thread.key: number for number, thread in enumerate(self.threads)}
        queued = range(len(self.threads), len(self.calls))
        return keys | {self.calls[number].key: number for number in queued}


@st.composite
def linked_clusters(draw: st.DrawFn, *, timeouts: tuple[Timeout, ...] = ("none",)) -> SimulatedCluster:
    """A driver and up to two actors with a few threads each, most of them blocked; gets are of calls only."""
    counts = draw(st.lists(st.sampled_from([1, 1, 2, 2, 3]), min_size=1, max_size=3))
    threads = [Thread(process) for process, count in enumerate(counts) for _ in range(count)]
    actors = list(range(1, len(counts)))
    queued = draw(st.lists(st.sampled_from(actors), max_size=2)) if actors else []
    handles: dict[int, set[int]] = {}
    for process in actors:
        handles[process] = set(draw(st.lists(st.sampled_from(actors), max_size=1))) - {process}
    cluster = SimulatedCluster(len(counts), threads, queued, handles)
    for number, thread in enumerate(threads):
        thread.wait = draw(_waits(cluster, number, timeouts))
    return cluster


@st.composite
def _waits(draw: st.DrawFn, cluster: SimulatedCluster, number: int, timeouts: tuple[Timeout, ...]) -> Wait | None:
    process = cluster.threads[number].process
    works = [n for n, other in enumerate(cluster.threads) if other.process != DRIVER]
    works += range(len(cluster.threads), len(cluster.threads) + len(cluster.queued))
    kind = draw(st.sampled_from(["get", "get", "get", "get", "object", "object", "object", "none"]))
    timeout = draw(st.sampled_from(timeouts))
    if kind == "get" and works:
        return Wait(
            works=tuple(draw(st.lists(st.sampled_from(works), min_size=1, max_size=2, unique=True))), timeout=timeout
        )
    if kind == "object":
        mates = [n for n, other in enumerate(cluster.threads) if other.process == process and n != number]
        reached = draw(st.lists(st.sampled_from(mates), max_size=2, unique=True)) if mates else []
        by_actor = process != DRIVER and draw(st.booleans())
        return Wait(on_object=True, reached_by=tuple(reached), by_actor=by_actor, timeout=timeout)
    return None
