"""What a vertex is to a finding: user code or library code, helper or counted, running or not, and of which job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from dstack.analysis.evidence.coverage import read_workers
from dstack.analysis.evidence.rest import Rest
from dstack.analysis.graph.users import is_idle_library
from dstack.analysis.index.ray_libraries import is_library_actor, is_machinery_actor, is_passed_through, machinery
from dstack.analysis.index.sample_index import SampleIndex, is_in_user_code
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Vertex, Wait
from dstack.model.snapshot import Actor, job_of_task
from dstack.model.vertex_facts import SubjectKind
from dstack.model.vertex_keys import AnyKey, CoroutineKey, Key, ThreadKey, UnknownKey
from dstack.observed.processes import Thread

FOR_USERS: tuple[SubjectKind, ...] = (
    *("batch", "client's request", "exit", "named", "queued request", "stage", "starting worker", "transfer"),
)
"""What may have no frame of the user's code, and yet is no work of a library for itself."""
MAX_MACHINERY = 50
"""Vertices of machinery that are followed to code of the application."""


class VertexRoles:
    """The vertices of one sample's graph, and questions about single ones.

    ``rest`` says what did nothing between the samples; None for one sample alone.
    """

    def __init__(self, index: SampleIndex, vertices: Mapping[Key, Vertex], rest: Rest | None) -> None:
        self.index = index
        self.vertices = vertices
        self.rest = rest
        self._machinery: dict[Key, bool] = {}

    def vertices_of(self, keys: Iterable[Key]) -> list[Vertex]:
        """The vertices of these keys."""
        return [self.vertices[key] for key in keys]

    def is_counted(self, key: Key) -> bool:
        """Whether a vertex is counted and listed, see :attr:`Vertex.is_counted`."""
        return self.vertices[key].is_counted

    def is_helper(self, key: Key) -> bool:
        """Whether a vertex only stands for others, and is not the end of something that holds resources."""
        vertex = self.vertices[key]
        return (isinstance(key, AnyKey) and vertex.holder is None) or self.is_passed_on(vertex)

    def is_passed_on(self, vertex: Vertex) -> bool:
        """Whether it is a request that Serve's own code passes on to the user's method."""
        return vertex.wait is not None and vertex.wait.kind == "Serve request"

    def is_driver(self, vertex: Vertex) -> bool:
        """Whether it is the main thread of a driver."""
        worker = self.index.worker_of(vertex)
        return worker is not None and worker.is_driver and worker.pid == vertex.os_thread_id

    def is_open_to_many(self, key: Key) -> bool:
        """Whether any of many targets could end its wait."""
        vertex = self.vertices[key]
        return vertex.kind == "lifetime" or (vertex.wait is not None and vertex.wait.is_suspected)

    def is_in_users_code(self, key: Key) -> bool:
        """Whether it is an execution with a frame of the user's own code."""
        return self.vertices[key].kind == "execution" and is_in_user_code(self.index, self.vertices[key])

    def is_library_code(self, key: Key) -> bool:
        """Whether it is an execution that runs no task and has no frame of the user's own code."""
        vertex = self.vertices[key]
        return vertex.kind == "execution" and vertex.task_id is None and not self.is_in_users_code(key)

    def is_of_application(self, key: Key) -> bool:
        """Whether it counts, and is no machinery of a library."""
        return self.is_counted(key) and not self.is_machinery(key)

    def is_machinery(self, key: Key) -> bool:
        """Whether it is work of a library for itself, or stands between the user's code and what that waits for.

        So does what only shows that such work may end a wait. The report names neither where it can name the user's.
        """
        if key not in self._machinery:
            self._machinery[key] = self._is_machinery(self.vertices[key])
        return self._machinery[key]

    def _is_machinery(self, vertex: Vertex) -> bool:
        if isinstance(vertex.key, UnknownKey):
            return vertex.key.what == "library" or vertex.key.is_available_value
        if vertex.subject.what == "users":
            actor = vertex.subject.of[0]
            return isinstance(actor, Actor) and is_library_actor(actor)
        if vertex.kind not in ("execution", "task") or self.is_in_users_code(vertex.key):
            return False
        if vertex.task_id is not None:
            return is_passed_through(self.index, vertex)
        execution = self.index.execution_of(vertex)
        is_timer = isinstance(execution, Thread) and execution.timer is not None
        is_of_users = vertex.child_pid is not None or self.is_driver(vertex) or vertex.subject.what in FOR_USERS
        return execution is not None and not is_timer and not is_of_users

    def behind_machinery(self, key: Key, waiter: Key) -> list[Key]:
        """The application's code that machinery waits for, directly or through other machinery, without its waiter."""
        passed, found = {key: None}, dict[Key, None]()
        ahead = [key]
        while ahead and len(passed) <= MAX_MACHINERY:
            targets = dict.fromkeys(one for one in targets_of(self.vertices[ahead.pop(0)]) if one not in passed)
            machinery = [one for one in targets if self.is_machinery(one)]
            ahead += machinery
            passed |= dict.fromkeys(machinery)
            found |= dict.fromkeys(one for one in targets if one != waiter and not self.is_machinery(one))
        return [one for one in found if not self.is_any_code(one) and not self.vertices[one].waker_of]

    def is_any_code(self, key: Key) -> bool:
        """Whether it stands for all code that can use something, or that received it."""
        vertex = self.vertices[key]
        return vertex.kind == "lifetime" and vertex.holder is None

    def weight(self, key: Key) -> float:
        """The cost of a vertex in a cycle: least for the user's code and requests, which explain most."""
        if self.is_helper(key):
            return 4.0
        return 3.0 if self.is_library_code(key) else 1.0

    def resources(self, keys: Iterable[Key]) -> tuple[str, ...]:
        """The resources that these wait for."""
        waits = (self.vertices[key].wait for key in keys)
        return tuple(sorted({name for wait in waits if wait for name in wait.resources}))

    def job_of(self, vertex: Vertex) -> str | None:
        """The job of a vertex, if known."""
        if vertex.task_id:
            return job_of_task(vertex.task_id)
        worker = self.index.worker_of(vertex)
        group = self.index.placement_groups.get(vertex.placement_group_id or "")
        return (worker and worker.job_id) or (group and group.job_id) or None

    def jobs_of(self, keys: Iterable[Key]) -> tuple[str, ...]:
        """The jobs of these vertices."""
        return tuple(sorted({job for key in keys if (job := self.job_of(self.vertices[key]))}))

    def jobs_that_reach(self, keys: Iterable[Key]) -> tuple[str, ...]:
        """The jobs of these vertices, and those that may call the actors which these are in.

        A process that looked up a named actor is not known to hold its handle, and may be in any namespace (Ray 2.60).
        """
        keys = list(keys)
        running = (self.index.actor_of_worker(self.vertices[key].worker_id) for key in keys)
        actors = {actor.actor_id: actor for actor in running if actor}
        jobs = {*self.jobs_of(keys), *(job for actor_id in actors for job in self._jobs_of_holders(actor_id))}
        if any(actor.name and not is_machinery_actor(actor) for actor in actors.values()):
            jobs.update(worker.job_id for worker in self.index.present_workers if worker.job_id)
        return tuple(sorted(jobs))

    def _jobs_of_holders(self, actor_id: str) -> Iterator[str]:
        """The jobs of the processes that hold a handle of an actor."""
        holders = (self.index.workers.get(handle.holder_id) for handle in self.index.refs.handles_of.get(actor_id, ()))
        return (holder.job_id for holder in holders if holder and holder.job_id)

    # What runs

    def is_idle_library(self, vertex: Vertex) -> bool:
        """Whether it represents code of a library that is not followed, and was idle in every sample and reading."""
        (key,) = vertex.key.ids if isinstance(vertex.key, UnknownKey) else (None,)
        execution = self.index.execution(key) if isinstance(key, ThreadKey | CoroutineKey) else None
        return execution is not None and is_idle_library(self.index, vertex.worker_id or "", execution)

    def is_resting(self, vertex: Vertex) -> bool:
        """Whether it is a thread, or a library's coroutine, that only woke and slept again between the samples."""
        return self.rest is not None and self.rest.is_resting(vertex)

    def computes(self, vertex: Vertex) -> bool | None:
        """Whether a thread used a CPU between the samples; None if it was not read twice."""
        return self.rest.computes(vertex) if self.rest is not None else None

    def sleeps_between(self, vertex: Vertex) -> bool:
        """Whether one of the samples shows a thread in ``time.sleep``."""
        return self.rest is not None and self.rest.sleeps_between(vertex)

    @cached_property
    def running_tasks(self) -> dict[tuple[str, str | None], list[Vertex]]:
        """The executions that run a task, by the task's name and job."""
        named: dict[tuple[str, str | None], list[Vertex]] = defaultdict(list)
        for vertex in self.vertices.values():
            if vertex.worker_id is not None and vertex.task_id is not None:
                named[describe(vertex), self.job_of(vertex)].append(vertex)
        return named

    @cached_property
    def runners(self) -> dict[str | None, list[Vertex]]:
        """The executions that run, and what is waited for and unread, by job; None for those whose job is not known.

        Ray libraries at work for themselves are left out, as is what only they wait for.
        """
        runners: dict[str | None, list[Vertex]] = defaultdict(list)
        machines = machinery(self.index, self.vertices)
        awaited = {target for vertex in self.vertices.values() for target in targets_of(vertex)}
        for vertex in self.vertices.values():
            if vertex.unobserved and vertex.key in awaited:
                runners[None].append(vertex)
            elif not vertex.unobserved and vertex.key not in machines and self._may_run(vertex):
                runners[self.job_of(vertex)].append(vertex)
        return runners

    @cached_property
    def unread_jobs(self) -> set[str | None]:
        """The jobs of unread processes; None among them if the job of one is not known."""
        snapshot = self.index.snapshot
        read = read_workers(snapshot)
        return {worker.job_id for worker in snapshot.workers if worker.worker_id not in read}

    def _may_run(self, vertex: Vertex) -> bool:
        """Whether it runs a task or a driver's main code and its wait may end, or may act by itself.

        A coroutine that sleeps in the user's code may act, and so may what waits for a signal, or at a terminal.
        Threads of libraries always sleep between their rounds, so they count only while on a CPU.
        """
        if vertex.wait is not None and _is_for_signal_or_input(vertex.wait):
            return True
        if vertex.worker_id is None or (vertex.wait is not None and not vertex.wait.is_timed):
            return False
        if self.is_resting(vertex):
            return False
        if vertex.task_id is not None or vertex.wait is not None or self.is_driver(vertex):
            return True
        index, execution = self.index, self.index.execution_of(vertex)
        if execution is None:
            return False
        return index.is_on_cpu(vertex.worker_id, execution) or is_in_user_code(index, vertex)


def _is_for_signal_or_input(wait: Wait) -> bool:
    """Whether a signal, or what a person types at a terminal, ends a wait."""
    return any(end.what in ("terminal", "signal") and not end.is_write for end in wait.ends)


def is_outside(vertex: Vertex) -> bool:
    """Whether a vertex is outside of what Ray runs: an unknown waker, a signal, or a child process."""
    is_signal = isinstance(vertex.key, UnknownKey) and vertex.key.is_signal
    return vertex.waker_of is not None or vertex.child_pid is not None or is_signal
