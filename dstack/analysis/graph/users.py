"""The users of an actor, a process or a job: all code that can proceed there, call it, or get a handle of it.

An actor's users are its own threads and tasks, its callers, the processes that hold a handle, and its owner's process;
if it has a name, also all code in the jobs of its namespace. A handle inside another object may reach all code of the
job. A process that could not be read counts as a user.

A process can proceed if one of its threads, coroutines or tasks can. The process of an idle actor can proceed if a user
of the actor calls it. Handles show among the refs of a process (Ray 2.46 and 2.60): in a variable as ``local_uses``, as
an argument of an unfinished task as ``argument_uses``, in a value as ``is_contained``. A handle that was looked up by
name shows nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from dstack.analysis.graph.builder import FEW, GraphBuilder, waits_for
from dstack.analysis.index import subjects
from dstack.analysis.index.ray_libraries import is_machinery_actor, part_of
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.shown_frames import is_ray_core
from dstack.call_sites import KERNEL
from dstack.model.diagnosis import Group, Target, Vertex, Wait
from dstack.model.snapshot import Actor, PlacementGroup, Worker
from dstack.model.vertex_facts import ProcessName, Subject, assumption, reason, subject
from dstack.model.vertex_keys import AnyKey, ChildThreadKey, CoroutineKey, Helper, Id, Key, ThreadKey, UnknownKey
from dstack.observed.calls import End, KernelObjects
from dstack.observed.node import Ref, Task
from dstack.observed.processes import Coroutine, Frame, Thread

IDLE = assumption("idle library")
EXECUTOR = ("concurrent/futures/thread.py", "multiprocessing/pool.py")
"""Threads with only frames of these files wait for work from another thread of their process."""


class Alternatives:
    """Adds helpers of kind ``lifetime`` to a graph, each once; their targets may be helpers that lead back to them.

    ``idle`` are the keys of library code that is assumed to stay idle: helpers do not wait for it.
    """

    def __init__(self, graph: GraphBuilder) -> None:
        self.idle: set[Key] = set()
        self._graph = graph
        self._unfinished: list[tuple[Vertex, Callable[[], Iterable[Target]]]] = []
        self._is_building = False
        self._found: dict[Key, Sequence[Target]] = {}

    def without_idle(self, targets: Iterable[Target]) -> Iterator[Target]:
        """The targets without library code that is assumed to stay idle."""
        return (target for target in targets if target.vertex not in self.idle)

    def any_of(self, kind: Helper, owner: Id, subject: Subject, find: Callable[[], Iterable[Target]]) -> Target:
        """The helper for any of the targets that ``find`` returns; ``owner`` is the id of what they can use."""
        return self.add(Vertex(key=AnyKey(kind, (owner,)), kind="lifetime", subject=subject), find)

    def few(self, kind: Helper, owner: Id, subject: Subject, find: Callable[[], Iterable[Target]]) -> Sequence[Target]:
        """The targets that ``find`` returns, found once; if they are many, a helper for any of them."""
        key = AnyKey(kind, (owner,))
        if key not in self._found:
            found = tuple(dict.fromkeys(find()))
            self._found[key] = (self.any_of(kind, owner, subject, lambda: found),) if len(found) > FEW else found
        return self._found[key]

    def add(self, vertex: Vertex, find: Callable[[], Iterable[Target]]) -> Target:
        """A helper as a target; its wait is built now, or after that of the helper that is being built."""
        if vertex.key not in self._graph.vertices:
            self._graph.add(vertex)
            self._unfinished.append((vertex, find))
            self._build()
        return Target(vertex=vertex.key)

    def _build(self) -> None:
        if self._is_building:
            return
        self._is_building = True
        while self._unfinished:
            vertex, find = self._unfinished.pop()
            targets = tuple(dict.fromkeys(find())) or (
                self._graph.unknown("ender", vertex.key, subject=Subject(what="unread process")),
            )
            self._graph.add(msgspec.structs.replace(vertex, wait=self._wait_for(targets)))
        self._is_building = False

    def _wait_for(self, targets: tuple[Target, ...]) -> Wait:
        """The wait for any of the targets, without idle library code if there are others."""
        active = tuple(self.without_idle(targets))
        if not active or len(active) == len(targets):
            return _wait_for_any(targets)
        proven = Group(needs=1, targets=targets)
        return msgspec.structs.replace(_wait_for_any(active), assumed=(IDLE,), proven_groups=(proven,))


def _wait_for_any(targets: tuple[Target, ...]) -> Wait:
    return waits_for("lifetime", *targets, inferred=reason("any ender") if len(targets) > 1 else None)


class Users:
    """The users of actors, processes and jobs in one sample, as targets; a helper represents many."""

    def __init__(self, graph: GraphBuilder) -> None:
        self.alternatives = Alternatives(graph)
        self._graph = graph
        self._index = graph.index

    # Processes

    def of_process(self, worker_id: str) -> Iterable[Target]:
        """What can proceed in a process or in its child processes; for an actor's process, the actor's users."""
        return [*self.in_process(worker_id), *self._children(worker_id)]

    def _children(self, worker_id: str) -> Iterator[Target]:
        """What can proceed in the processes below a worker; those that were not read may run."""
        process = self._index.process(worker_id)
        for child in process.children if process else ():
            yield from self.of_child(worker_id, child.pid)
        if process is not None and process.children_left_out:
            children = subject("child processes", subjects.process(self._index, worker_id))
            yield self._graph.unknown("process", worker_id, "children", subject=children)

    def of_child(self, worker_id: str, pid: int) -> Iterable[Target]:
        """What can proceed in a process below a worker."""
        return self.alternatives.few(
            "process", (worker_id, pid), subject("some thread of child", pid), lambda: self._in_child(worker_id, pid)
        )

    def _in_child(self, worker_id: str, pid: int) -> Iterator[Target]:
        child = self._index.child(worker_id, pid)
        for thread in child.threads if child else ():
            key = ChildThreadKey(worker_id, pid, thread.os_thread_id)
            is_native = not self._index.frames_of(worker_id, thread)
            if key in self._graph.vertices or is_native or not self.only_serves(worker_id, thread):
                yield self._graph.child(worker_id, pid, thread.os_thread_id)
        for coroutine in child.coroutines if child else ():
            yield self._coroutine(worker_id, coroutine)
        if child is None or not child.threads:
            yield self._graph.child(worker_id, pid)

    def in_process(self, worker_id: str) -> Iterable[Target]:
        """What can proceed in a process, without its child processes."""
        if actor := self._index.actor_of_worker(worker_id):
            return [self.of_actor(actor)]
        worker = self._index.workers.get(worker_id)
        process = subjects.worker(self._index, worker) if worker else ProcessName(sort="ended process")
        thread = subject("some thread", process)
        return self.alternatives.few("process", worker_id, thread, lambda: self._plain_process(worker_id))

    def inside(self, worker_id: str) -> Iterator[Target]:
        """What can proceed in a process without a call into it."""
        return self._threads_and_tasks(worker_id)

    def _plain_process(self, worker_id: str) -> Iterator[Target]:
        worker = self._index.workers.get(worker_id)
        if worker is None:
            yield self._graph.unknown("process", worker_id, subject=subject("process in no list"))
            return
        yield from self._threads_and_tasks(worker_id)
        sample = self._index.worker_samples.get(worker_id)
        if not worker.is_driver and not (sample and sample.running_task_ids):
            yield self._graph.unknown("worker", worker_id, "idle", subject=subject("idle worker"))

    def unobserved(self, worker_id: str) -> Target:
        """A worker that could not be read, or did not answer."""
        worker = self._index.workers.get(worker_id)
        process = replace(subjects.worker(self._index, worker), pid=worker.pid) if worker else ProcessName()
        is_read = bool(self._index.threads(worker_id))
        unread = subject("silent" if is_read else "observed by nothing", process)
        place = worker_id if is_read else None
        return self._graph.unknown("worker", worker_id, subject=unread, unobserved=True, worker_id=place)

    def _unresponsive(self) -> Iterable[Target]:
        """The workers of any job that did not report their refs: they may have received a handle with a call."""
        return self.alternatives.few("silent", "any", subject("any unread process"), self._find_unresponsive)

    def _find_unresponsive(self) -> Iterator[Target]:
        for worker in self._index.present_workers:
            if self._index.is_unresponsive(worker.worker_id):
                yield self.unobserved(worker.worker_id)

    # Threads, coroutines and tasks

    def _threads_and_tasks(self, worker_id: str) -> Iterator[Target]:
        sample = self._index.worker_samples.get(worker_id)
        if sample is None or sample.running_task_ids is None or not self._index.threads(worker_id):
            yield self.unobserved(worker_id)
            return
        for task_id in sample.running_task_ids:
            yield self._graph.task(task_id)
        for thread in self._index.threads(worker_id):
            yield from self._thread(worker_id, thread)
        for coroutine in self._index.coroutines(worker_id):
            yield self._coroutine(worker_id, coroutine)

    def _thread(self, worker_id: str, thread: Thread) -> Iterator[Target]:
        """A thread that may act by itself, unlike one that serves Ray or an executor."""
        key = ThreadKey(worker_id, thread.os_thread_id)
        if key in self._graph.vertices:
            yield Target(vertex=key)
        elif not self.only_serves(worker_id, thread):
            yield self._library(key, worker_id, thread)

    def _coroutine(self, worker_id: str, coroutine: Coroutine) -> Target:
        key = CoroutineKey(worker_id, coroutine.coroutine_id)
        if key in self._graph.vertices:
            return Target(vertex=key)
        return self._library(key, worker_id, coroutine)

    def _library(self, key: Key, worker_id: str, execution: Thread | Coroutine) -> Target:
        if is_idle_library(self._index, worker_id, execution):
            self.alternatives.idle.add(UnknownKey("library", (key,)))
        what = subjects.of_library(self._index, worker_id, execution)
        return self._graph.unknown("library", key, subject=what, worker_id=worker_id)

    def workers_with_idle_libraries(self) -> set[str]:
        """The workers in which library code was idle in every reading, of those that were followed."""
        idle = self.alternatives.idle
        libraries = (key.ids[0] for key in idle if isinstance(key, UnknownKey) and key.what == "library")
        return {key.worker_id for key in libraries if isinstance(key, ThreadKey | CoroutineKey)}

    def only_serves(self, worker_id: str, thread: Thread) -> bool:
        """Whether a thread only runs what another thread of its process, or its event loop, gives it."""
        if thread.role == "loop":
            return self._index.has_read_coroutines(worker_id)
        frames = self._index.frames_of(worker_id, thread)
        worker = self._index.workers.get(worker_id)
        is_main = worker is not None and thread.os_thread_id == worker.pid and not worker.is_driver
        is_idle = any(frame.file.endswith(EXECUTOR) for frame in frames) and all(f.origin == "stdlib" for f in frames)
        return not frames or is_main or is_idle or is_ray_core(frames)

    def _task(self, task: Task) -> Target:
        return self._graph.task(task.task_id)

    def tasks_of(self, worker_id: str, *, besides: str | None = None) -> Iterator[Target]:
        """The unfinished tasks that a worker has submitted, without ``besides`` and calls of library machinery."""
        for task in self._index.tasks_of_owner.get(worker_id, ()):
            actor = self._index.actors.get(task.actor_id or "")
            if task.task_id != besides and not (actor and is_machinery_actor(actor)):
                yield self._task(task)

    # Actors

    def of_listed_actor(self, actor_id: str) -> Iterable[Target]:
        """The users of an actor and its child processes; empty for an actor that is not listed."""
        actor = self._index.actors.get(actor_id)
        return [self.of_actor(actor), *self._children(actor.worker_id or "")] if actor else []

    def of_actor(self, actor: Actor) -> Target:
        """The users of an actor, as one helper."""
        users = subject("users", actor)
        return self.alternatives.any_of("reach of", actor.actor_id, users, lambda: self.each_of_actor(actor))

    def each_of_actor(self, actor: Actor) -> Iterator[Target]:
        """Each user of an actor."""
        if actor.worker_id:
            yield from self._threads_and_tasks(actor.worker_id)
        if creation := self._index.creations.get(actor.actor_id):
            yield self._task(creation)
        elif _may_start(actor):
            start = subject("start of actor", actor, actor.state)
            yield self._graph.unknown("start of actor", actor.actor_id, subject=start)
        yield from map(self._task, self._index.pending_calls.get(actor.actor_id, ()))
        if actor.owner_id and (actor.owner_id in self._index.workers or not actor.is_detached):
            yield from self.in_process(actor.owner_id)
        for handle in self._index.refs.handles_of.get(actor.actor_id, ()):
            yield from self._through(handle, actor)
        if actor.name:
            yield from self.of_namespace(actor.namespace, actor.actor_id, actor)
        yield from self._unresponsive()

    def _through(self, handle: Ref, actor: Actor) -> Iterator[Target]:
        """The code that can get a handle which some process reports."""
        yield from self.in_process(handle.holder_id)
        if handle.argument_uses:
            yield self._receivers(handle.holder_id)
        if handle.is_contained:
            yield self.of_job(actor.job_id)

    def _receivers(self, worker_id: str) -> Target:
        """The tasks that a worker submitted: any of them may have received a handle."""
        tasks = self._index.tasks_of_owner.get(worker_id, ())
        return self.alternatives.any_of("tasks of", worker_id, subject("receivers"), lambda: map(self._task, tasks))

    def pending_calls_in(self, worker_id: str) -> Iterator[Target]:
        """The calls of a worker's actor that do not run yet."""
        worker = self._index.workers.get(worker_id)
        return map(self._task, self._index.pending_calls.get((worker.actor_id if worker else None) or "", ()))

    # Jobs

    def of_job(self, job_id: str) -> Target:
        """All code of a job, as one helper."""
        job = self._index.jobs.get(job_id)
        code = subject("job", job or job_id)
        return self.alternatives.any_of("job", job_id, code, lambda: self._each_of_job(job_id))

    def _each_of_job(self, job_id: str) -> Iterator[Target]:
        yield from self.driver_of(job_id)
        for worker in self._index.present_workers:
            if worker.job_id == job_id and not worker.is_driver:
                yield from self._in_worker(worker)
        yield from map(self._task, self._index.tasks_of_job.get(job_id, ()))
        starting = (a for a in self._index.snapshot.actors if a.job_id == job_id and _may_start(a))
        yield from map(self.of_actor, starting)
        yield from self._unresponsive()

    def _in_worker(self, worker: Worker) -> Iterable[Target]:
        """What can proceed in a worker; for an actor's worker its users, which may be of another job."""
        actor = self._index.actor_of_worker(worker.worker_id)
        if actor is None:
            return self._threads_and_tasks(worker.worker_id)
        target = self.of_actor(actor)
        if self._is_idle_machinery(actor):
            self.alternatives.idle.add(target.vertex)
        return [target]

    def _is_idle_machinery(self, actor: Actor) -> bool:
        """Whether an actor serves a library itself, and neither runs a call nor has a pending one."""
        sample = self._index.worker_samples.get(actor.worker_id or "")
        is_idle = sample is not None and sample.running_task_ids == ()
        return is_idle and not self._index.pending_calls.get(actor.actor_id, ()) and is_machinery_actor(actor)

    def driver_of(self, job_id: str) -> Iterable[Target]:
        """What can proceed in the driver of a job."""
        if driver := self._index.drivers.get(job_id):
            return self.in_process(driver)
        job = self._index.jobs.get(job_id)
        if job and job.is_dead:
            return [self._graph.unknown("end of job", job_id, subject=subject("end of job", job_id))]
        return [self._graph.unknown("driver", job_id, subject=subject("driver", job_id), unobserved=True)]

    def of_namespace(self, namespace: str, owner: str, named: Actor | PlacementGroup) -> Iterator[Target]:
        """All code in the jobs of a namespace, or if there are none, a client that may connect later.

        ``owner`` is the id of what they can look up, which is ``named``.
        """
        jobs = [job for job in self._index.snapshot.jobs if job.namespace == namespace and not job.is_dead]
        yield from (self.of_job(job.job_id) for job in jobs)
        if not jobs:
            target = self._graph.unknown("lookup", owner, subject=subject("client", named))
            if (actor := self._index.actors.get(owner)) and part_of(actor):
                self.alternatives.idle.add(target.vertex)
            yield target


def _may_start(actor: Actor) -> bool:
    """Whether the control plane may start it, as after a crash, without a task that shows it."""
    return actor.state not in ("ALIVE", "DEAD")


def is_idle_library(index: SampleIndex, worker_id: str, execution: Thread | Coroutine) -> bool:
    """Whether library code was off the CPU in every sample and reading, and waits for nothing outside."""
    frames = index.frames_of(worker_id, execution)
    is_library = bool(frames) and not any(frame.origin == "user" for frame in frames)
    has_run = isinstance(execution, Thread) and (worker_id, execution.os_thread_id) in index.threads_that_ran
    return is_library and not has_run and _waits_inside(index, worker_id, execution, frames)


def _waits_inside(index: SampleIndex, worker_id: str, execution: Thread | Coroutine, frames: Sequence[Frame]) -> bool:
    """Whether library code is Ray's own, or waits in its process: neither for another process nor as a timer."""
    if any(frame.origin == "ray" for frame in frames):
        return True
    call, poll = index.call_of(worker_id, execution), index.poll_of(worker_id, execution)
    if call is not None and isinstance(call.need, KernelObjects):
        own, is_known = {index.pid_of(worker_id)}, call.site != KERNEL.id
        if any(_leads_outside(end, own) for end in call.need.ends) or (call.timeout_s is not None and not is_known):
            return False
    is_timed = poll is not None or (call is not None and call.timeout_s is not None)
    is_stdlib = all(frame.origin == "stdlib" for frame in frames)  # as threading.Timer
    return index.is_waiting(worker_id, execution) and not (is_stdlib and is_timed)


def _leads_outside(end: End, own: set[int | None]) -> bool:
    """Whether something else than its own process can act at the other end: grpc has both ends of pairs of sockets."""
    return end.what != "eventfd" and {holder.pid for holder in end.holders} != own
