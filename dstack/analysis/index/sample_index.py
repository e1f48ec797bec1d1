"""One sample of a snapshot, indexed for the graph: tables of the control plane, tasks, and which thread runs which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from dstack.analysis.index.process_index import NOTHING_ELSE, KnownElsewhere, ProcessIndex
from dstack.analysis.index.refs import RefIndex
from dstack.call_sites import EVENT_LOOP, OTHER_LOOP, kind_of
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import ACTOR_HANDLE, Actor, GoneWorker, Sample, Snapshot, Worker, actor_of_task
from dstack.model.vertex_keys import CoroutineKey, TaskKey, ThreadKey
from dstack.observed.calls import Call, End, Holder, ServeRequest
from dstack.observed.node import Task
from dstack.observed.processes import Coroutine, EndedTask, Frame, Halt, LibraryState, Process, Thread
from dstack.words import grouped

Place: TypeAlias = "tuple[str, int | None]"
"""A worker, and the pid of a process below it, or None for its own."""


class SampleIndex(ProcessIndex):
    """Lookups in one sample; nothing is concluded.

    ``workers``, ``actors``, ``nodes``, ``jobs`` and ``placement_groups`` are all of their kind, by id.
    """

    def __init__(self, snapshot: Snapshot, sample: Sample, known: KnownElsewhere = NOTHING_ELSE) -> None:
        super().__init__(sample, known)
        self.snapshot = snapshot
        self.refs = RefIndex(self)
        self._frames: dict[int, tuple[Frame, ...]] = {}
        self.workers = {worker.worker_id: worker for worker in snapshot.workers}
        self.actors = {actor.actor_id: actor for actor in snapshot.actors}
        self.nodes = {node.node_id: node for node in snapshot.nodes}
        self.jobs = {job.job_id: job for job in snapshot.jobs}
        self.placement_groups = {group.placement_group_id: group for group in sample.placement_groups}

    @property
    def began_at(self) -> float:
        """When this sample began, in Unix seconds."""
        return self.snapshot.taken_at + self.sample.began_s

    def execution_of(self, vertex: Vertex) -> Thread | Coroutine | None:
        """The thread or coroutine of an execution, also of a child process, if it was read."""
        if vertex.coroutine_id is not None:
            return self.coroutine(vertex.worker_id, vertex.coroutine_id)
        if vertex.child_pid is not None:
            return self.child_thread(vertex.worker_id, vertex.child_pid, vertex.os_thread_id or vertex.child_pid)
        return self.thread(vertex.worker_id, vertex.os_thread_id)

    def worker_of(self, vertex: Vertex) -> Worker | None:
        """The worker or driver that an execution is in."""
        return self.workers.get(vertex.worker_id or "")

    def actor_of_worker(self, worker_id: str | None) -> Actor | None:
        """The actor whose process a worker is, if it is one."""
        worker = self.workers.get(worker_id or "")
        return self.actors.get((worker.actor_id if worker else None) or "")

    def actor_of_call(self, task_id: str | None) -> Actor | None:
        """The actor that a task id names, if the control plane lists it."""
        return self.actors.get(actor_of_task(task_id or "") or "")

    def call_of_vertex(self, vertex: Vertex) -> Call | None:
        """The call that the execution of a vertex is blocked in, if it was read."""
        execution = self.execution_of(vertex)
        return self.call_of(vertex.worker_id or "", execution) if execution else None

    def frames_of_vertex(self, vertex: Vertex) -> tuple[Frame, ...]:
        """The frames of the execution of a vertex; none if it was not read."""
        execution = self.execution_of(vertex) if vertex.kind == "execution" else None
        return self.frames_of(vertex.worker_id or "", execution) if execution else ()

    def frames_of(self, worker_id: str, execution: Thread | Coroutine) -> tuple[Frame, ...]:
        """The frames of a thread or coroutine, leaf first; of a polling loop while it polls."""
        stack = self.stack_of(worker_id, execution) if self.known.polls else execution.stack
        frames = self._frames.get(stack)
        if frames is None:
            frames = self._frames[stack] = tuple(self.snapshot.frames[i] for i in self.snapshot.stacks[stack])
        return frames

    # Workers

    def places_of(self, worker_id: str, end: End) -> list[tuple[Holder, Place | None]]:
        """The processes at the other end of what a thread of a worker's host waits on; None for those of no job."""
        if end.mirrored is None:
            return [(holder, self._by_pid.get((self._host_of(worker_id), holder.pid))) for holder in end.holders]
        other = self.snapshot.tcp_ends.get(end.mirrored)
        node = self.nodes.get(other.node_id) if other else None
        found = other.holders if other else ()
        return [(holder, self._by_pid.get((node.ip if node else "", holder.pid))) for holder in found]

    @cached_property
    def _by_pid(self) -> dict[tuple[str, int], Place]:
        found: dict[tuple[str, int], Place] = {}
        for worker_id, process in self.processes.items():
            host = self._host_of(worker_id)
            found.update({(host, child.pid): (worker_id, child.pid) for child in process.children})
            found[host, process.pid] = worker_id, None
        return found

    def _host_of(self, worker_id: str) -> str:
        """The address of a worker's host: several nodes of a cluster may be on one."""
        worker = self.workers.get(worker_id)
        return worker.ip if worker else worker_id

    @cached_property
    def present_workers(self) -> tuple[Worker, ...]:
        """The workers that existed during this sample: without those that only another sample has."""
        read = {worker.worker_id for sample in self.snapshot.samples for worker in sample.workers}
        elsewhere = read - self.worker_samples.keys()
        return tuple(worker for worker in self.snapshot.workers if worker.worker_id not in elsewhere)

    @cached_property
    def drivers(self) -> dict[str, str]:
        """The first driver of each job, by worker id."""
        drivers = (worker for worker in reversed(self.present_workers) if worker.is_driver and worker.job_id)
        return {worker.job_id: worker.worker_id for worker in drivers if worker.job_id}

    @cached_property
    def dead_workers(self) -> dict[str, GoneWorker]:
        """Dead workers that owned awaited refs, by id."""
        return {worker.worker_id: worker for worker in self.snapshot.gone_workers}

    @cached_property
    def incomplete_workers(self) -> set[str]:
        """The workers that did not report all of their tasks and refs."""
        failures = (failure for failure in self.snapshot.failures if failure.stage == "core worker")
        return {failure.worker_id for failure in failures if failure.worker_id}

    @cached_property
    def starting_workers(self) -> dict[str, list[Worker]]:
        """The workers that take no tasks yet, by node."""
        found = (worker for worker in self.present_workers if self._is_starting(worker.worker_id))
        return grouped((worker.node_id, worker) for worker in found)

    def _is_starting(self, worker_id: str) -> bool:
        process, sample = self.process(worker_id), self.worker_samples.get(worker_id)
        return process is not None and process.starting is not None and not (sample and sample.running_task_ids)

    def is_unresponsive(self, worker_id: str) -> bool:
        """Whether a worker exists but did not report its tasks and refs."""
        sample = self.worker_samples.get(worker_id)
        return worker_id in self.workers and (sample is None or sample.running_task_ids is None)

    @cached_property
    def threads_that_ran(self) -> set[tuple[str, int]]:
        """The threads, by worker and id, that a sample or reading shows on a CPU, or that ran while they were read."""
        in_samples = set(_threads_that_ran(self.snapshot.samples))
        polling = {(key.worker_id, key.os_thread_id) for key in self.known.polls if isinstance(key, ThreadKey)}
        return in_samples - polling | set(_threads_that_ran(self.snapshot.readings))

    @cached_property
    def ended_tasks(self) -> dict[Place, tuple[EndedTask, ...]]:
        """The asyncio tasks that have ended with an exception, by process: the last sample that shows any counts."""
        return {place: process.ended_tasks for place, process in self._readings if process.ended_tasks}

    @cached_property
    def halts(self) -> dict[Place, Halt]:
        """What keeps processes from running, by all readings of each; of one thread by several, as others are short."""
        found = grouped((place, process.halt) for place, process in self._readings)
        return {
            place: halts[0]
            for place, halts in found.items()
            if halts[0] and set(halts) == {halts[0]} and (len(halts) > 1 or halts[0].os_thread_id is None)
        }

    @cached_property
    def library_states(self) -> dict[str, list[LibraryState]]:
        """What libraries have decided, by worker: the states that all readings of its process show, as the last has it.

        A count that a reading lacks is left out: the library may have been about to change it.
        """
        found: dict[str, list[LibraryState]] = {}
        for worker_id, readings in grouped(
            (place[0], one) for place, one in self._readings if place[1] is None
        ).items():
            samples = [
                {(one.library, one.app, one.name, one.state): one for one in each.library_states} for each in readings
            ]
            lasting = set(samples[0]).intersection(*samples[1:])
            states = [(one, [sample[key] for sample in samples]) for key, one in samples[-1].items() if key in lasting]
            found[worker_id] = [_with_lasting_counts(one, each) for one, each in states]
        return {worker_id: states for worker_id, states in found.items() if states}

    @property
    def _readings(self) -> Iterator[tuple[Place, Process]]:
        """The processes of all samples, with those below them."""
        for sample in self.snapshot.samples:
            for worker in sample.workers:
                for process in worker.process.family if worker.process else ():
                    yield (worker.worker_id, process.parent_pid and process.pid), process

    # The control plane

    @cached_property
    def serve_replicas(self) -> dict[str, list[Actor]]:
        """The replicas of Serve that are not dead, by the name of their class, which has the deployment's."""
        return grouped(
            (actor.class_name, actor)
            for actor in self.snapshot.actors
            if actor.class_name.startswith("ServeReplica:") and actor.state != "DEAD"
        )

    # Tasks

    @cached_property
    def tasks(self) -> dict[str, Task]:
        """Unfinished tasks by id, as their owners report them, with creations of actors by the control plane."""
        owned = {task.task_id: task for task in self.tasks_reported}
        return {task.task_id: task for task in self._recreations()} | owned

    def _recreations(self) -> Iterator[Task]:
        """Restarts of actors, which no process owns, and creations whose owner is dead (seen on Ray 2.60)."""
        for actor in self.snapshot.actors:
            is_orphan = actor.state == "PENDING_CREATION" and actor.owner_id not in self.workers
            if actor.state == "RESTARTING" or is_orphan:
                yield Task(
                    task_id=ACTOR_HANDLE + actor.actor_id,
                    owner_id=actor.owner_id or "",
                    name=f"{actor.class_name}.__init__" + f" (restart {actor.num_restarts})" * bool(actor.num_restarts),
                    kind="ACTOR_CREATION_TASK",
                    state="SUBMITTED_TO_WORKER" if actor.worker_id else "PENDING_NODE_ASSIGNMENT",
                    job_id=actor.job_id,
                    actor_id=actor.actor_id,
                    attempt=actor.num_restarts,
                    required_resources=actor.required_resources,
                    placement_group_id=actor.placement_group_id,
                )

    @cached_property
    def creations(self) -> dict[str, Task]:
        """By actor: its creation, while that is unfinished."""
        return {t.actor_id: t for t in self.tasks.values() if t.actor_id and t.kind == "ACTOR_CREATION_TASK"}

    @cached_property
    def worker_of_task(self) -> dict[str, str]:
        """The worker that runs a task, by task id: as it reports, or if it did not answer, as its memory shows."""
        reported = {task: key for key, worker in self.worker_samples.items() for task in worker.running_task_ids or ()}
        return dict(self._read_in_memory()) | reported

    def _read_in_memory(self) -> Iterator[tuple[str, str]]:
        """The tasks on threads of workers that did not answer, as where C code holds the GIL, with these workers."""
        for worker_id, worker in self.worker_samples.items():
            if worker.running_task_ids is None and self.has_read_tasks(worker_id):
                threads = self.threads_with_role(worker_id, "task")
                yield from ((one.task_id, worker_id) for one in threads if one.task_id and not one.torn)

    @cached_property
    def tasks_of_owner(self) -> Mapping[str, list[Task]]:
        """By worker: the unfinished tasks that it submitted."""
        return grouped((task.owner_id, task) for task in self.tasks.values())

    @cached_property
    def tasks_of_job(self) -> Mapping[str, list[Task]]:
        """By job: its unfinished tasks."""
        return grouped((task.job_id, task) for task in self.tasks.values())

    # Actor calls

    @cached_property
    def pending_calls(self) -> Mapping[str, list[Task]]:
        """By actor: its calls that do not run, and its creation if that does not run."""
        pending = (task for task in self.tasks.values() if task.task_id not in self.worker_of_task)
        return grouped((task.actor_id, task) for task in pending if task.actor_id)

    def has_arrived(self, call: Task) -> bool:
        """Whether an actor call is known to be with its actor, with all its arguments."""
        return self.sample.arrived.get(call.task_id) == call.attempt

    def calls_in_transit(self, call: Task) -> Sequence[str]:
        """Calls by the same caller, sent to the same actor, that neither run nor are known to have arrived."""
        return self._calls_in_transit.get((call.owner_id, call.actor_id), ())

    @cached_property
    def _calls_in_transit(self) -> dict[tuple[str, str | None], list[str]]:
        calls: dict[tuple[str, str | None], list[str]] = defaultdict(list)
        for task in self.tasks_reported:
            is_sent = task.kind == "ACTOR_TASK" and task.state == "SUBMITTED_TO_WORKER"
            if is_sent and task.task_id not in self.worker_of_task and not self.has_arrived(task):
                calls[task.owner_id, task.actor_id].append(task.task_id)
        return calls

    @cached_property
    def calls_without_arguments(self) -> dict[tuple[str, str], list[Task]]:
        """By caller and actor: the calls that wait for an argument, without those that a worker runs meanwhile."""
        return grouped(
            ((task.owner_id, task.actor_id), task)
            for task in self.tasks_reported
            if task.actor_id and task.state == "PENDING_ARGS_AVAIL" and task.task_id not in self.worker_of_task
        )

    # What runs each task

    @cached_property
    def task_of_thread(self) -> dict[tuple[str, int], str]:
        """By worker and OS thread: its task, as read there, or the only task if the worker has one thread and one task.

        That of an event loop is the task that it runs at the moment; its other tasks are suspended.
        """
        samples = ((key, worker.running_task_ids or ()) for key, worker in self.worker_samples.items())
        return {
            (worker_id, thread): task
            for worker_id, running in samples
            for thread, task in self._tasks_of_threads(worker_id, running)
        }

    def _tasks_of_threads(self, worker_id: str, running: Sequence[str]) -> Iterator[tuple[int, str]]:
        threads = self.threads_with_role(worker_id, "task")
        loops = self.threads_with_role(worker_id, "loop")
        if self.has_read_tasks(worker_id):
            yield from ((t.os_thread_id, t.task_id) for t in threads if t.task_id and self._runs(worker_id, t.task_id))
        elif len(running) == len(threads) == 1 and not loops and running[0]:
            yield threads[0].os_thread_id, running[0]
        for loop in loops if self.has_read_coroutines(worker_id) else ():
            if loop.task_id and self._runs(worker_id, loop.task_id) and loop.task_id not in self.coroutine_of_task:
                yield loop.os_thread_id, loop.task_id

    def _runs(self, worker_id: str, task_id: str) -> bool:
        return self.worker_of_task.get(task_id) == worker_id

    @cached_property
    def thread_of_task(self) -> dict[str, tuple[str, int]]:
        """Worker and OS thread by task, the inverse of :attr:`task_of_thread`."""
        return {task_id: thread for thread, task_id in self.task_of_thread.items()}

    @cached_property
    def coroutine_of_task(self) -> dict[str, tuple[str, str]]:
        """Worker and coroutine by task, for tasks that run as a coroutine that is suspended."""
        return {
            coroutine.task_id: (worker_id, coroutine.coroutine_id)
            for worker_id, coroutine in self.all_coroutines
            if coroutine.is_task and coroutine.task_id and self._runs(worker_id, coroutine.task_id)
        }

    @cached_property
    def request_of_task(self) -> dict[str, ServeRequest]:
        """The requests that replicas of Serve execute, by the task of the replica."""
        return {
            coroutine.task_id: coroutine.request
            for _, coroutine in self.all_coroutines
            if coroutine.is_task and coroutine.task_id and coroutine.request
        }

    @cached_property
    def request_of_thread(self) -> dict[tuple[str, int], ServeRequest]:
        """The requests whose sync methods threads execute, by worker and OS thread."""
        return {
            (worker_id, thread): coroutine.request
            for worker_id, coroutine in self.all_coroutines
            if coroutine.request and (call := self.call_of(worker_id, coroutine)) and call.site != OTHER_LOOP.id
            for thread in call.threads
        }


def _with_lasting_counts(state: LibraryState, readings: Sequence[LibraryState]) -> LibraryState:
    counts = {name: count for name, count in state.counts.items() if all(name in one.counts for one in readings)}
    return replace(state, counts=counts)


def _threads_that_ran(samples: Iterable[Sample]) -> Iterator[tuple[str, int]]:
    processes = ((w.worker_id, w.process) for sample in samples for w in sample.workers if w.process)
    for worker_id, process in processes:
        yield from ((worker_id, one.os_thread_id) for one in process.threads if one.on_cpu or one.torn)


ANY_CODE = "__ray_call__"
"""The method of each actor in which Ray's libraries run their code, in a concurrency group of the caller's choice."""


def is_graph_loop(task: Task) -> bool:
    """Whether a task may be the loop of an actor in a compiled graph, or another call of the same method."""
    return task.name.endswith(f".{ANY_CODE}")


def task_of(index: SampleIndex, worker_id: str, thread: Thread) -> str | None:
    """The task that a thread runs, if that is certain."""
    return index.task_of_thread.get((worker_id, thread.os_thread_id))


def key_of_task(index: SampleIndex, task_id: str) -> CoroutineKey | ThreadKey | TaskKey:
    """The vertex of a task: the coroutine or thread that runs it if that is certain, else one for the task."""
    if suspended := index.coroutine_of_task.get(task_id):
        return CoroutineKey(*suspended)
    place = index.thread_of_task.get(task_id)
    return ThreadKey(*place) if place else TaskKey(task_id)


def is_task(index: SampleIndex, worker_id: str, coroutine: Coroutine) -> bool:
    """Whether a coroutine is a Ray task that its worker runs, not one that a task started."""
    place = index.coroutine_of_task.get(coroutine.task_id or "")
    return coroutine.is_task and place == (worker_id, coroutine.coroutine_id)


def is_user_code(index: SampleIndex, worker_id: str, execution: Thread | Coroutine) -> bool:
    """Whether a thread or coroutine runs user code."""
    return any(frame.origin == "user" for frame in index.frames_of(worker_id, execution))


def is_in_user_code(index: SampleIndex, vertex: Vertex) -> bool:
    """Whether the execution of a vertex was read, and runs user code."""
    execution = index.execution_of(vertex)
    return execution is not None and is_user_code(index, vertex.worker_id or "", execution)


def has_one_slot(index: SampleIndex, worker_id: str) -> bool:
    """Whether an actor runs its calls on the main thread of its process: then it has one slot.

    Threaded actors and actors with concurrency groups run calls on other threads, async actors in coroutines. Seen on
    Ray 2.46 and 2.60.
    """
    process = index.process(worker_id)
    threads = [thread.os_thread_id for thread in index.threads_with_role(worker_id, "task")]
    return process is not None and threads == [process.pid] and (worker_id, process.pid) in index.task_of_thread


def is_blocked_loop(index: SampleIndex, worker_id: str, thread: Thread) -> bool:
    """Whether an event loop's thread is in a blocking call or in user code, so that the loop cannot run coroutines.

    For a thread that Ray did not create for a loop only a call shows it: its user code may run the loop.
    """
    call = index.call_of(worker_id, thread)
    if call is None and index.poll_of(worker_id, thread) is not None:
        return True
    if call is not None:
        return kind_of(call) != "await" and call.site != EVENT_LOOP.id
    return thread.role == "loop" and is_user_code(index, worker_id, thread)


def blocked_loop(index: SampleIndex, worker_id: str, coroutine: Coroutine) -> Thread | None:
    """The thread that must run a coroutine, if it blocks its event loop."""
    thread = index.thread(worker_id, coroutine.os_thread_id)
    return thread if thread and is_blocked_loop(index, worker_id, thread) else None


def concurrency_group_of(index: SampleIndex, task_id: str) -> str | None:
    """The concurrency group of a call's method, empty for the default one; None if unknown.

    A call may have a name of its own, so only names of the form ``Class.method`` count as methods.
    """
    task = index.tasks.get(task_id)
    actor = index.actors.get((task and task.actor_id) or "")
    process = index.process((actor and actor.worker_id) or "")
    if task is None or actor is None or process is None or process.concurrency_groups is None:
        return None
    class_name, _, method = task.name.rpartition(".")
    if method == ANY_CODE:
        return None
    return process.concurrency_groups.get(method, "") if class_name == actor.class_name else None
