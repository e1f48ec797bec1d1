"""What must happen before an actor ends or a placement group is removed: somebody who can do it must go on.

An actor ends when the last handle of it is dropped, when somebody who has one kills it, when it exits by itself, and
with its owner or the driver of its job; one with a name, at the hands of anybody who can look it up. So it ends only if
one of these goes on: whoever runs in it or calls it, the processes that hold a handle, that of its owner (a detached
one's, as long as that lives), the driver; by its name, anybody in the jobs of its namespace. A handle inside another
object may be in anybody's hands in the job. A placement group is an id in anybody's hands in the job that created it.
Whoever might go on counts as able to.

A process goes on if one of its threads, coroutines or tasks does; an actor's that runs nothing, if somebody calls it,
who has its handle in turn. How handles show among the refs of a process (Ray 2.46 and 2.60): in a variable as
``local_uses``, as an argument of a task as ``argument_uses`` until it has ended, in a value as ``is_contained``; one
that was looked up by name shows nowhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

import msgspec

from dstack.analysis.graph.builder import FEW, GraphBuilder
from dstack.analysis.graph.child_processes import may_act
from dstack.analysis.graph.resources.amounts import Amounts, plain
from dstack.analysis.index import task_assignment
from dstack.analysis.naming import names
from dstack.analysis.naming.ray_libraries import is_machinery_actor, part
from dstack.diagnosis import Group, Target, Vertex, Wait
from dstack.model import ACTOR_HANDLE, Actor, Coroutine, Job, PlacementGroup, Ref, Task, Thread, Worker, actor_of_task
from dstack.vertex_keys import AnyKey, CoroutineKey, Key, ThreadKey, UnknownKey

EXECUTOR = ("concurrent/futures/thread.py", "multiprocessing/pool.py")
"""Threads that only sit in these wait for work from somebody in their process."""
OWN_THREADS = ("ray_", "PythonGCThread")
"""Names of threads that Ray runs for itself, in drivers and workers, begin so (2.46 and 2.60)."""

REMOVAL = "removal"
"""What the vertex of a placement group's removal is called in its key."""
QUIET = "library code that was idle in every reading stays idle"


class Lifetimes:
    """Adds a vertex for each end and removal that is asked for, and for whoever they depend on."""

    def __init__(self, graph: GraphBuilder) -> None:
        self._graph = graph
        self._seen = graph.index
        self._ahead: list[tuple[Vertex, Callable[[], Iterable[Target]]]] = []
        self._is_building = False
        self._found: dict[Key, Sequence[Target]] = {}
        self._quiet: set[Key] = set()

    def end_of(self, actor: Actor) -> Target:
        """The end of an actor that holds resources."""
        what = f"end of {names.actor(actor)}, which holds {_told(actor.held or actor.required_resources)}"
        return self._build(
            Vertex(
                key=AnyKey("end of actor", (actor.actor_id,)),
                kind="lifetime",
                label=what,
                holder=names.actor(actor),
                worker_id=actor.worker_id,
                os_thread_id=self._only_thread(actor.worker_id),
            ),
            lambda: self._enders(actor),
        )

    def removal_of(self, group: PlacementGroup) -> Target:
        """The removal of a placement group that has its place."""
        what = f"removal of {names.placement_group(group)}, which holds {names.bundles(group)}"
        key = AnyKey(REMOVAL, (group.placement_group_id,))
        vertex = Vertex(key=key, kind="lifetime", label=what, holder=names.placement_group(group))
        return self._build(vertex, lambda: self._removers(group))

    def users_of_process(self, worker_id: str) -> Iterable[Target]:
        """What can proceed in a process, or in its child processes; in an actor's, also what calls it or can."""
        return [*self._process(worker_id), *self._children(worker_id)]

    def _children(self, worker_id: str) -> Iterator[Target]:
        """The child processes that may run: what they do is not followed."""
        process = self._seen.process(worker_id)
        if process is not None and may_act(self._seen, process):
            yield self._graph.unknown(
                "process", worker_id, "children", label=f"child process of {self._name_of(worker_id)}"
            )

    def _name_of(self, worker_id: str) -> str:
        """``actor Trainer "left"`` or ``driver train.py``."""
        worker = self._seen.workers.get(worker_id)
        actor = self._seen.actors.get((worker.actor_id if worker else None) or "")
        return names.actor(actor) if actor else names.worker(self._seen, worker) if worker else "a process"

    def users_of_actor(self, actor_id: str) -> Iterable[Target]:
        """What can change an actor's state: what runs in it, calls it or can; nothing for an actor not listed."""
        actor = self._seen.actors.get(actor_id)
        return [self._reach(actor), *self._children(actor.worker_id or "")] if actor else []

    def pending_calls_in(self, worker_id: str) -> Iterator[Target]:
        """The calls of a worker's actor that do not run yet."""
        worker = self._seen.workers.get(worker_id)
        return map(self._task, self._calls[(worker.actor_id if worker else None) or ""])

    def code_of_job(self, job_id: str) -> Target:
        """Anything in a job that can proceed."""
        return self._job(job_id)

    def tasks_of_actor(self, actor_id: str) -> Iterable[Target]:
        """The unfinished tasks that an actor has submitted."""
        actor = self._seen.actors.get(actor_id)
        return self.tasks_of(actor.worker_id, besides=None) if actor and actor.worker_id else []

    def tasks_of(self, worker_id: str, *, besides: str | None) -> Iterator[Target]:
        """The unfinished tasks that a worker has submitted, ``besides`` one; not those for machinery of a library."""
        for task in self._of_owner[worker_id]:
            actor = self._seen.actors.get(task.actor_id or "")
            if task.task_id != besides and not (actor and is_machinery_actor(actor)):
                yield self._task(task)

    def awake(self, targets: Iterable[Target]) -> Iterator[Target]:
        """These, without library code that was idle in every reading."""
        return (target for target in targets if target.vertex not in self._quiet)

    def workers_with_idle_libraries(self) -> set[str]:
        """The workers in which library code was idle in every reading, of those that were followed."""
        libraries = (key.ids[0] for key in self._quiet if isinstance(key, UnknownKey) and key.what == "library")
        return {key.worker_id for key in libraries if isinstance(key, ThreadKey | CoroutineKey)}

    # Who can bring it about

    def _enders(self, actor: Actor) -> Iterator[Target]:
        yield from self._users(actor)
        if actor.is_detached:
            yield from self._namespace(actor.namespace, actor.actor_id, names.actor(actor))
        else:
            yield from self._driver(actor.job_id)

    def _removers(self, group: PlacementGroup) -> Iterator[Target]:
        creator = self._seen.actors.get(group.creator_actor_id or "")
        if creator and not group.is_detached:
            yield self._reach(creator)
        if group.job_id and not (group.is_detached and self._is_over(group.job_id)):
            yield self._job(group.job_id)
        if group.is_detached or group.name or not group.job_id:
            yield from self._namespace(group.namespace, group.placement_group_id, names.placement_group(group))

    def _reach(self, actor: Actor) -> Target:
        """Anybody who runs in an actor, calls it, or can."""
        vertex = self._anybody("reach of", actor.actor_id, f"code that can use {names.actor(actor)}")
        return self._build(vertex, lambda: self._users(actor))

    def _users(self, actor: Actor) -> Iterator[Target]:
        if actor.worker_id:
            yield from self._threads_and_tasks(actor.worker_id)
        if creation := self._seen.creations.get(actor.actor_id):
            yield self._task(creation)
        elif self._may_start(actor):
            label = f"start of {names.actor(actor)} ({actor.state})"
            yield self._graph.unknown("start of actor", actor.actor_id, label=label)
        yield from map(self._task, self._calls[actor.actor_id])
        if actor.owner_id and (actor.owner_id in self._seen.workers or not actor.is_detached):
            yield from self._process(actor.owner_id)
        for handle in self._handles[actor.actor_id]:
            yield from self._holder(handle, actor)
        if actor.name:
            yield from self._namespace(actor.namespace, actor.actor_id, names.actor(actor))
        yield from self._silent()

    def _holder(self, handle: Ref, actor: Actor) -> Iterator[Target]:
        """Those through whom a handle that some process knows may come into use."""
        yield from self._process(handle.holder_id)
        if handle.argument_uses:
            yield self._submitted(handle.holder_id)
        if handle.is_contained:
            yield self._job(actor.job_id)

    def _namespace(self, namespace: str, whose: str, name: str) -> Iterator[Target]:
        """Anybody in the jobs of a namespace; somebody from outside where there is none."""
        jobs = [job for job in self._seen.snapshot.jobs if job.namespace == namespace and not job.is_dead]
        yield from (self._job(job.job_id) for job in jobs)
        if not jobs:
            label = f"client outside of all running jobs that looks up {name}"
            target = self._graph.unknown("lookup", whose, label=label)
            if (actor := self._seen.actors.get(whose)) and part(actor.class_name, actor.name, actor.actor_id):
                self._quiet.add(target.vertex)
            yield target

    # Anybody of many

    def _driver(self, job_id: str) -> Iterable[Target]:
        drivers = self._drivers.get(job_id)
        if drivers:
            return self._process(drivers[0])
        job = self._seen.jobs.get(job_id)
        if job and job.is_dead:
            return [self._graph.unknown("end of job", job_id, label=f"end of job {job_id}, whose driver has ended")]
        label = f"driver of job {job_id}, which was not observed"
        return [self._graph.unknown("driver", job_id, label=label, unobserved=True)]

    def _job(self, job_id: str) -> Target:
        vertex = self._anybody("job", job_id, f"code of {_job_name(self._seen.jobs.get(job_id), job_id)}")
        return self._build(vertex, lambda: self._members(job_id))

    def _members(self, job_id: str) -> Iterator[Target]:
        yield from self._driver(job_id)
        for worker in self._seen.present_workers:
            if worker.job_id == job_id and not worker.is_driver:
                yield from self._in_worker(worker)
        yield from map(self._task, self._of_job[job_id])
        starting = (a for a in self._seen.snapshot.actors if a.job_id == job_id and self._may_start(a))
        yield from map(self._reach, starting)
        yield from self._silent()

    def _in_worker(self, worker: Worker) -> Iterable[Target]:
        """Anybody in a worker; in that of an actor also who may call it, and be of another job."""
        actor = self._seen.actors.get(worker.actor_id or "")
        if actor is None:
            return self._threads_and_tasks(worker.worker_id)
        target = self._reach(actor)
        if self._is_idle_machinery(actor):
            self._quiet.add(target.vertex)
        return [target]

    def _is_idle_machinery(self, actor: Actor) -> bool:
        """Whether an actor serves a library itself, and runs and has been sent nothing."""
        sample = self._seen.worker_samples.get(actor.worker_id or "")
        is_idle = sample is not None and sample.running_task_ids == ()
        return is_idle and not self._calls[actor.actor_id] and is_machinery_actor(actor)

    def _may_start(self, actor: Actor) -> bool:
        """Whether the control plane may start it, as it does again after a crash, without any task that shows."""
        return actor.state not in ("ALIVE", "DEAD")

    def _submitted(self, worker_id: str) -> Target:
        vertex = self._anybody("tasks of", worker_id, "a task that received it as an argument")
        return self._build(vertex, lambda: map(self._task, self._of_owner[worker_id]))

    def _process(self, worker_id: str) -> Iterable[Target]:
        """Anybody in a process: of an actor's, also who can call it."""
        worker = self._seen.workers.get(worker_id)
        actor = self._seen.actors.get((worker.actor_id if worker else None) or "")
        if actor:
            return [self._reach(actor)]
        who = names.worker(self._seen, worker) if worker else "a process that has ended"
        return self._few("process", worker_id, f"a thread of {who}", lambda: self._in_process(worker_id))

    def _in_process(self, worker_id: str) -> Iterator[Target]:
        """Anybody in the process of a driver or of a worker that is no actor's."""
        worker = self._seen.workers.get(worker_id)
        if worker is None:
            yield self._graph.unknown("process", worker_id, label="process that Ray does not list")
            return
        yield from self._threads_and_tasks(worker_id)
        seen = self._seen.worker_samples.get(worker_id)
        if not worker.is_driver and not (seen and seen.running_task_ids):
            label = "idle worker, which may receive a task or end"
            yield self._graph.unknown("worker", worker_id, "idle", label=label)

    def _silent(self) -> Iterable[Target]:
        """Workers of any job that did not say what they hold: a handle may have been passed to them with a call."""
        return self._few("silent", "any", "an unreadable process", self._unheard)

    def _unheard(self) -> Iterator[Target]:
        for worker in self._seen.present_workers:
            sample = self._seen.worker_samples.get(worker.worker_id)
            if sample is None or sample.running_task_ids is None:
                yield self.unobserved(worker.worker_id)

    def _threads_and_tasks(self, worker_id: str) -> Iterator[Target]:
        seen = self._seen.worker_samples.get(worker_id)
        if seen is None or seen.running_task_ids is None or not self._seen.threads(worker_id):
            yield self.unobserved(worker_id)
            return
        for task_id in seen.running_task_ids:
            yield Target(vertex=task_assignment.key_of_task(self._seen, task_id))
        for thread in self._seen.threads(worker_id):
            yield from self._thread(worker_id, thread)
        for coroutine in self._seen.coroutines(worker_id):
            yield self._coroutine(worker_id, coroutine)

    def _thread(self, worker_id: str, thread: Thread) -> Iterator[Target]:
        """A thread that may do something of its own accord; one that serves Ray or an executor does not."""
        key = ThreadKey(worker_id, thread.os_thread_id)
        if key in self._graph.vertices:
            yield Target(vertex=key)
        elif not self.only_serves(worker_id, thread):
            yield self._library(key, f'thread "{thread.name}" of a library', worker_id, thread)

    def _coroutine(self, worker_id: str, coroutine: Coroutine) -> Target:
        key = CoroutineKey(worker_id, coroutine.coroutine_id)
        if key in self._graph.vertices:
            return Target(vertex=key)
        return self._library(key, f'asyncio task "{coroutine.name}" of a library', worker_id, coroutine)

    def _library(self, key: Key, label: str, worker_id: str, execution: Thread | Coroutine) -> Target:
        if self._seen.is_idle_library(worker_id, execution):
            self._quiet.add(UnknownKey("library", (key,)))
        return self._graph.unknown("library", key, label=label, worker_id=worker_id)

    def only_serves(self, worker_id: str, thread: Thread) -> bool:
        """Whether a thread only runs what another one of its process gives it, or what its event loop has."""
        if thread.role == "loop":
            return self._seen.has_read_coroutines(worker_id)
        frames = self._seen.snapshot.frames_of(thread)
        worker = self._seen.workers.get(worker_id)
        is_main = worker is not None and thread.os_thread_id == worker.pid and not worker.is_driver
        is_idle = any(frame.file.endswith(EXECUTOR) for frame in frames) and all(f.origin == "stdlib" for f in frames)
        return not frames or is_main or is_idle or thread.name.startswith(OWN_THREADS)

    def _task(self, task: Task) -> Target:
        return Target(vertex=task_assignment.key_of_task(self._seen, task.task_id))

    def unobserved(self, worker_id: str) -> Target:
        """A worker that could not be read."""
        worker = self._seen.workers.get(worker_id)
        who = f"{names.worker(self._seen, worker)} (pid {worker.pid})" if worker else "worker"
        return self._graph.unknown("worker", worker_id, label=f"{who}, which was not observed", unobserved=True)

    # Building

    def _few(self, kind: str, whose: str, label: str, find: Callable[[], Iterable[Target]]) -> Sequence[Target]:
        """These, found once; if they are many, one vertex that stands for any of them."""
        key = AnyKey(kind, (whose,))
        if key not in self._found:
            found = tuple(dict.fromkeys(find()))
            many = len(found) > FEW
            self._found[key] = (self._build(self._anybody(kind, whose, label), lambda: found),) if many else found
        return self._found[key]

    @staticmethod
    def _anybody(kind: str, whose: str, label: str) -> Vertex:
        return Vertex(key=AnyKey(kind, (whose,)), kind="lifetime", label=label)

    def _build(self, vertex: Vertex, targets: Callable[[], Iterable[Target]]) -> Target:
        """The vertex as a target, built now or, while another is being built, after that: handles may go in circles."""
        if vertex.key not in self._graph.vertices:
            self._graph.add(vertex)
            self._ahead.append((vertex, targets))
            self._build_all()
        return Target(vertex=vertex.key)

    def _build_all(self) -> None:
        if self._is_building:
            return
        self._is_building = True
        while self._ahead:
            vertex, targets = self._ahead.pop()
            found = tuple(dict.fromkeys(targets())) or (
                self._graph.unknown("ender", vertex.key, label="unreadable process"),
            )
            self._graph.add(self._waiting(vertex, found))
        self._is_building = False

    def _waiting(self, vertex: Vertex, targets: tuple[Target, ...]) -> Vertex:
        """The vertex with its wait, for any of the targets; quiet library code is assumed to stay so."""
        awake = tuple(target for target in targets if target.vertex not in self._quiet)
        if not awake or len(awake) == len(targets):
            return _waiting(vertex, targets)
        found = _waiting(vertex, awake)
        assert found.wait is not None, "it was given one"
        wait = msgspec.structs.replace(found.wait, assumed=(QUIET,), proven_groups=(Group(needs=1, targets=targets),))
        return msgspec.structs.replace(found, wait=wait)

    def _only_thread(self, worker_id: str | None) -> int | None:
        threads = self._seen.threads_with_role(worker_id, "task") if worker_id else []
        return threads[0].os_thread_id if len(threads) == 1 else None

    def _is_over(self, job_id: str) -> bool:
        job = self._seen.jobs.get(job_id)
        return job is None or job.is_dead

    # Look-ups

    @cached_property
    def _handles(self) -> dict[str, list[Ref]]:
        """By actor: the handles that some process knows."""
        handles: dict[str, list[Ref]] = defaultdict(list)
        for ref in self._seen.sample.refs:
            if ref.ref.startswith(ACTOR_HANDLE):
                handles[actor_of_task(ref.ref[:48]) or ""].append(ref)
        return handles

    @cached_property
    def _calls(self) -> dict[str, list[Task]]:
        """By actor: its calls, and its creation, that do not run."""
        calls: dict[str, list[Task]] = defaultdict(list)
        for task in self._seen.tasks.values():
            if task.actor_id and task.task_id not in self._seen.worker_of_task:
                calls[task.actor_id].append(task)
        return calls

    @cached_property
    def _of_owner(self) -> dict[str, list[Task]]:
        return _by(self._seen.tasks.values(), lambda task: task.owner_id)

    @cached_property
    def _of_job(self) -> dict[str, list[Task]]:
        return _by(self._seen.tasks.values(), lambda task: task.job_id)

    @cached_property
    def _drivers(self) -> dict[str, list[str]]:
        drivers: dict[str, list[str]] = defaultdict(list)
        for worker in self._seen.present_workers:
            if worker.is_driver and worker.job_id:
                drivers[worker.job_id].append(worker.worker_id)
        return drivers


def _waiting(vertex: Vertex, targets: tuple[Target, ...]) -> Vertex:
    """The vertex with its wait, for any of the targets."""
    wait = Wait(kind="lifetime", groups=(Group(needs=1, targets=targets),), total=len(targets))
    if len(targets) > 1:
        reason = "any of these may cause it"
        wait = msgspec.structs.replace(wait, inferred=reason)
    return msgspec.structs.replace(vertex, wait=wait)


def _by(tasks: Iterable[Task], whose: Callable[[Task], str]) -> dict[str, list[Task]]:
    found: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        found[whose(task)].append(task)
    return found


def _job_name(job: Job | None, job_id: str) -> str:
    return f"job {job_id} ({names.script(job.entrypoint)})" if job and job.entrypoint else f"job {job_id}"


def _told(amounts: Amounts) -> str:
    return names.amounts(dict(sorted(plain(amounts).items())))
