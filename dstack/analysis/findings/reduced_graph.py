"""What the rules of findings look at: a sample's graph, reduced."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property

from dstack import words
from dstack.analysis.evidence.coverage import seen_workers
from dstack.analysis.evidence.progress import progress_of
from dstack.analysis.graph.idle_services import may_be_idle
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.task_assignment import is_user_code
from dstack.analysis.naming.ray_libraries import machinery
from dstack.analysis.naming.vertex_details import execution_of
from dstack.analysis.solve import reduction
from dstack.analysis.solve.digraph import Digraph
from dstack.analysis.solve.open_chains import OpenChain, open_chains
from dstack.analysis.solve.requirements import Waits, targets_of, waits_of
from dstack.diagnosis import SERVE_REQUEST, Progress, Vertex
from dstack.model import Thread, job_of_task
from dstack.vertex_keys import AnyKey, Key

SHOWN_LOOPS = 3


class ReducedGraph:
    """The graph of what holds, with who in it can never go on, and the open knots of all others.

    ``watched_s`` is how long it was watched: from the end of the first look to the beginning of the second, None where
    there was but one.
    """

    def __init__(self, index: SampleIndex, vertices: Mapping[Key, Vertex], watched_s: float | None = None) -> None:
        self.index = index
        self.vertices = vertices
        self.watched_s = watched_s
        self.waits = waits_of(vertices.values())
        self.stuck = self._residue()
        self._progress: dict[tuple[str, ...], Progress | None] = {}

    def _residue(self) -> set[Key]:
        """What can never proceed; loops that poll, and such waits alone, are no deadlock: other input may end them."""
        while True:
            stuck = reduction.residue(self.waits)
            weak = [key for key in stuck if (wait := self.vertices[key].wait) and wait.is_suspected]
            cores = reduction.cores(self.waits, reduction.stuck_graph(self.waits, stuck)) if weak else []
            soft = {key for core in cores if not any(map(self._is_hard, core)) for key in core.intersection(weak)}
            if not soft:
                return stuck
            for key in soft:
                del self.waits[key]

    def _is_hard(self, key: Key) -> bool:
        """Whether it is an execution, task or placement group that waits as no service at rest does."""
        vertex = self.vertices[key]
        is_open = vertex.wait is None or vertex.wait.polls is not None or may_be_idle(vertex.wait)
        return vertex.is_counted and not is_open

    def progress(self, jobs: tuple[str, ...]) -> Progress | None:
        """What moved in these jobs between the samples."""
        if jobs not in self._progress:
            self._progress[jobs] = progress_of(self.index.snapshot, jobs)
        return self._progress[jobs]

    def idle_waiters(self) -> list[Vertex]:
        """The tasks and drivers that wait for nothing in Ray, and what else does that others wait for."""
        ends = {
            key: vertex
            for key, vertex in self.vertices.items()
            if vertex.wait and vertex.kind == "execution" and self._ends_outside(vertex)
        }
        awaited = {target for vertex in self.vertices.values() for target in targets_of(vertex)} if ends else set()
        return [vertex for key, vertex in ends.items() if vertex.task_id or key in awaited or self.is_driver(vertex)]

    def _ends_outside(self, vertex: Vertex) -> bool:
        targets = [self.vertices[target] for target in targets_of(vertex)]
        return bool(targets) and all(map(is_outside, targets))

    def is_driver(self, vertex: Vertex) -> bool:
        """Whether it is the main thread of a driver."""
        worker = self.index.workers.get(vertex.worker_id or "")
        return worker is not None and worker.is_driver and worker.pid == vertex.os_thread_id

    def may_poll(self, repeating: Collection[str] = ()) -> tuple[list[Vertex], list[Vertex]]:
        """The loops that may only poll, and all that could never proceed if they did; nothing where no more is stuck.

        Such are waits with a timeout, tasks of library code that sleep, and what runs in the ``repeating`` workers,
        which call an actor again and again.
        """
        sleeping: Waits = {
            key: [(1, [])]
            for key, vertex in self.vertices.items()
            if self._may_be_controller(vertex) or (vertex.worker_id in repeating and self._may_sleep(vertex))
        }
        unlinked: Waits = {key: [(1, [])] for key, vertex in self.vertices.items() if vertex.waker_of}
        candidates = {key for key, vertex in self.vertices.items() if _is_timed(vertex)} | sleeping.keys()
        if not candidates:
            return [], []
        waits = waits_of(self.vertices.values(), with_timed=True)
        at_worst = reduction.residue({**waits, **sleeping, **unlinked}) - unlinked.keys()
        more = at_worst - self.stuck
        if more <= sleeping.keys() and not repeating:
            return [], []
        return [self.vertices[key] for key in more & candidates], [self.vertices[key] for key in at_worst]

    def _may_be_controller(self, vertex: Vertex) -> bool:
        return vertex.task_id is not None and self._may_sleep(vertex) and not self.is_in_users_code(vertex.key)

    def _may_sleep(self, vertex: Vertex) -> bool:
        execution = execution_of(self.index, vertex)
        is_running = isinstance(execution, Thread) and execution.on_cpu
        return vertex.kind == "execution" and vertex.wait is None and execution is not None and not is_running

    @cached_property
    def certain(self) -> set[Key]:
        """Who can never go on by what was seen twice alone, whatever may be assumed besides."""
        return reduction.residue(waits_of((v for v in self.vertices.values() if v.is_confirmed), proven_only=True))

    @cached_property
    def seen_twice(self) -> set[Key]:
        """Who can never go on by what was seen twice, if what is assumed of it is right."""
        return reduction.residue(waits_of(v for v in self.vertices.values() if v.is_confirmed))

    def assumed(self, keys: Iterable[Key]) -> tuple[str, ...]:
        """What is assumed of those that were seen twice, nothing where they were not."""
        if not self.seen_twice.issuperset(keys):
            return ()
        waits = [wait for key in keys if (wait := self.vertices[key].wait)]
        loops = sorted({wait.polls for wait in waits if wait.polls})
        shown, more = loops[:SHOWN_LOOPS], len(loops) - SHOWN_LOOPS
        places = words.listed([*shown, f"{more} more places"] if more > 0 else shown)
        polls = f"the {words.word(len(loops), 'loop')} at {places} only {words.word(len(loops), 'polls', 'poll')}"
        texts = sorted({text for wait in waits for text in wait.assumed})
        return (polls, *texts) if loops else tuple(texts)

    @cached_property
    def graph(self) -> Digraph[Key]:
        """Who is stuck, and which of the stuck each of them needs."""
        return reduction.stuck_graph(self.waits, self.stuck)

    @cached_property
    def chains(self) -> list[OpenChain]:
        """The separate knots of waits that may still end."""
        return open_chains(self.vertices, self.stuck)

    def behind(self, keys: Iterable[Key]) -> tuple[Key, ...]:
        """All who are stuck because those are."""
        return tuple(sorted(reduction.behind(self.graph, keys), key=str))

    def directly_behind(self, keys: Iterable[Key]) -> set[Key]:
        """Those who are stuck because they wait for one of those, be it through a vertex that does not count."""
        begin = ahead = set(keys)
        found: set[Key] = set()
        while ahead:
            ahead = {waiter for key in ahead for waiter in self.graph.predecessors(key)} - begin - found
            found |= ahead
            ahead = {key for key in ahead if not self.is_counted(key)}
        return set(filter(self.is_counted, found))

    def pollers_of(self, keys: Iterable[Key]) -> tuple[Key, ...]:
        """The waiters with a timeout for any of these, directly or through a helper."""
        found: set[Key] = set()
        ahead = list(keys)
        while ahead:
            new = set(self._pollers.get(ahead.pop(), ())) - found
            found |= new
            ahead += (key for key in new if not self.is_counted(key))
        return tuple(sorted(filter(self.is_counted, found), key=str))

    @cached_property
    def _pollers(self) -> dict[Key, list[Key]]:
        pollers: dict[Key, list[Key]] = defaultdict(list)
        for vertex in self.vertices.values():
            if vertex.wait is not None and vertex.wait.is_timed:
                for target in targets_of(vertex):
                    pollers[target].append(vertex.key)
        return pollers

    @cached_property
    def running_tasks(self) -> dict[tuple[str, str | None], list[Vertex]]:
        """What runs a task, by the task's name and job."""
        named: dict[tuple[str, str | None], list[Vertex]] = defaultdict(list)
        for vertex in self.vertices.values():
            if vertex.worker_id is not None and vertex.task_id is not None:
                named[vertex.label, self.job_of(vertex)].append(vertex)
        return named

    @cached_property
    def runners(self) -> dict[str | None, list[Vertex]]:
        """By job: those whose code runs, or where nobody could see what does; of no job where that is not known.

        What a library of Ray's does for itself is left out.
        """
        runners: dict[str | None, list[Vertex]] = defaultdict(list)
        machines = machinery(self.index, self.vertices)
        for vertex in self.vertices.values():
            if vertex.unobserved or (vertex.key not in machines and self._runs(vertex)):
                runners[None if vertex.unobserved else self.job_of(vertex)].append(vertex)
        return runners

    def _runs(self, vertex: Vertex) -> bool:
        """Whether it runs a task or a driver's main code and does not wait for good; of all else, if it may act.

        A coroutine that sleeps in the user's code may. Threads of libraries sleep between their rounds for ever, so of
        them it is only who is on a CPU.
        """
        if vertex.worker_id is None or (vertex.wait is not None and not vertex.wait.is_timed):
            return False
        if vertex.task_id is not None or vertex.wait is not None:
            return True
        if self.is_driver(vertex):
            return True
        execution = execution_of(self.index, vertex)
        is_on_cpu = isinstance(execution, Thread) and execution.on_cpu
        return is_on_cpu or (execution is not None and is_user_code(self.index, execution))

    @cached_property
    def hidden_jobs(self) -> set[str | None]:
        """The jobs of processes that were not seen, None among them where nobody knows whom one works for."""
        snapshot = self.index.snapshot
        seen = seen_workers(snapshot)
        return {worker.job_id for worker in snapshot.workers if worker.worker_id not in seen}

    def is_counted(self, key: Key) -> bool:
        """Whether a vertex is counted and listed, see :attr:`Vertex.is_counted`."""
        return self.vertices[key].is_counted

    def is_helper(self, key: Key) -> bool:
        """Whether a vertex only stands for others, and is not the end of something that holds resources."""
        vertex = self.vertices[key]
        return (isinstance(key, AnyKey) and vertex.holder is None) or self.is_passed_on(vertex)

    def is_passed_on(self, vertex: Vertex) -> bool:
        """Whether it is Serve's own code that waits for the user's method, and so tells nothing by itself."""
        return vertex.wait is not None and vertex.wait.kind == SERVE_REQUEST

    def is_open_to_many(self, key: Key) -> bool:
        """Whether many could end a wait, of which all are stuck."""
        vertex = self.vertices[key]
        return vertex.kind == "lifetime" or (vertex.wait is not None and vertex.wait.is_suspected)

    def is_in_users_code(self, key: Key) -> bool:
        """Whether it is an execution with a frame of the user's own code."""
        execution = execution_of(self.index, self.vertices[key])
        return self.vertices[key].kind == "execution" and execution is not None and is_user_code(self.index, execution)

    def is_library_code(self, key: Key) -> bool:
        """Whether it is a thread or coroutine that runs no task and has no frame of the user's own code."""
        vertex = self.vertices[key]
        return vertex.kind == "execution" and vertex.task_id is None and not self.is_in_users_code(key)

    def weight(self, key: Key) -> float:
        """How little a vertex explains: least weighs what the user has written or asked for."""
        if self.is_helper(key):
            return 4.0
        return 3.0 if self.is_library_code(key) else 1.0

    def resources(self, keys: Iterable[Key]) -> tuple[str, ...]:
        """What those wait for that wait for resources."""
        waits = (self.vertices[key].wait for key in keys)
        return tuple(sorted({name for wait in waits if wait for name in wait.resources}))

    def job_of(self, vertex: Vertex) -> str | None:
        """The job a vertex belongs to, as far as known."""
        if vertex.task_id:
            return job_of_task(vertex.task_id)
        worker = self.index.workers.get(vertex.worker_id or "")
        group = self.index.placement_groups.get(vertex.placement_group_id or "")
        return (worker and worker.job_id) or (group and group.job_id) or None

    def jobs_of(self, keys: Iterable[Key]) -> tuple[str, ...]:
        """The jobs those belong to."""
        return tuple(sorted({job for key in keys if (job := self.job_of(self.vertices[key]))}))


def is_outside(vertex: Vertex) -> bool:
    """Whether a vertex is something outside of what Ray runs, that ends a call: whoever does, or a child process."""
    return vertex.waker_of is not None or vertex.child_pid is not None


def _is_timed(vertex: Vertex) -> bool:
    return vertex.wait is not None and vertex.wait.is_timed
