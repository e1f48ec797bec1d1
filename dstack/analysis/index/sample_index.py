"""One sample of a snapshot, indexed for the questions that waits ask of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from dstack.analysis.index.ranks import Ranks, ranks_of
from dstack.model import (
    ACTOR_HANDLE,
    Access,
    Actor,
    BlockedCall,
    Coroutine,
    Frame,
    GoneWorker,
    Job,
    Node,
    PlacementGroup,
    Process,
    Ref,
    Role,
    Sample,
    ServeRequest,
    Snapshot,
    Task,
    Thread,
    Worker,
    WorkerSample,
    producer_task_id,
)
from dstack.vertex_keys import Key

ENDED = ("FINISHED", "FAILED")
OF_GRPC = "(_poll_wrapper)"
"""Names of the threads in which grpc.aio waits for its own events, in native code, end so (grpcio 1.85)."""

OTHER_LOOP = "start on another event loop"
"""What probes call a wait for a coroutine that another event loop has yet to begin."""


class Poll(NamedTuple):
    """A loop that only polls: its call and stack while it does, and its own frame.

    It polls for what the call waits for; or by calls of the ``actors``; or, where ``own_tasks`` is true, for the
    unfinished tasks that its process has submitted.
    """

    call: BlockedCall
    stack: int
    at: Frame
    actors: tuple[str, ...] = ()
    own_tasks: bool = False


Polls = Mapping[Key, Poll]


class SampleIndex:
    """What was seen in one sample. Everything is looked up, nothing is concluded but whether a value is there."""

    def __init__(
        self, snapshot: Snapshot, sample: Sample, *, given: Collection[str] = (), polls: Polls | None = None
    ) -> None:
        """``given`` are refs whose values are known to be there otherwise, ``polls`` the loops that only poll."""
        self.snapshot = snapshot
        self.sample = sample
        self.polls: Polls = polls or {}
        self._given = given
        self._ranks: dict[tuple[str, int | None], Ranks] = {}

    @property
    def began_at(self) -> float:
        """When this sample began, in Unix seconds."""
        return self.snapshot.taken_at + self.sample.began_s

    @cached_property
    def worker_samples(self) -> dict[str, WorkerSample]:
        """What each worker showed in this sample, by its id."""
        return {worker.worker_id: worker for worker in self.sample.workers}

    @cached_property
    def workers(self) -> dict[str, Worker]:
        """All workers by id."""
        return {worker.worker_id: worker for worker in self.snapshot.workers}

    @cached_property
    def present_workers(self) -> tuple[Worker, ...]:
        """The workers that were there when this sample was taken: not those that only another sample has."""
        elsewhere = {
            w.worker_id for sample in self.snapshot.samples for w in sample.workers
        } - self.worker_samples.keys()
        return tuple(worker for worker in self.snapshot.workers if worker.worker_id not in elsewhere)

    @cached_property
    def dead_workers(self) -> dict[str, GoneWorker]:
        """Dead workers by id, as far as somebody waits for what they owned."""
        return {worker.worker_id: worker for worker in self.snapshot.gone_workers}

    @cached_property
    def owner_of(self) -> dict[str, str]:
        """The worker that owns a ref, by ref, as those know it who wait for it and are there to be told by Ray."""
        there = (worker for worker in self.sample.workers if worker.running_task_ids is not None)
        calls = _calls(there)
        return {ref: owner for call in calls for ref, owner in zip(call.refs, call.owners, strict=False) if owner}

    @cached_property
    def awaited_tasks(self) -> set[str]:
        """The tasks of which somebody waits for a value that is not there."""
        calls = _calls(self.sample.workers)
        return {producer_task_id(ref) for call in calls for ref in call.refs if not self.has_value(ref)}

    @cached_property
    def refs_without_owner(self) -> set[str]:
        """The refs that name no owner where somebody waits for them."""
        calls = _calls(self.sample.workers)
        return {ref for call in calls for ref, owner in zip(call.refs, call.owners, strict=False) if not owner}

    @cached_property
    def actors(self) -> dict[str, Actor]:
        """All actors by id."""
        return {actor.actor_id: actor for actor in self.snapshot.actors}

    @cached_property
    def serve_replicas(self) -> dict[str, list[Actor]]:
        """The replicas of Serve that are not dead, by the name of their class, which has the deployment's."""
        replicas: dict[str, list[Actor]] = defaultdict(list)
        for actor in self.snapshot.actors:
            if actor.class_name.startswith("ServeReplica:") and actor.state != "DEAD":
                replicas[actor.class_name].append(actor)
        return replicas

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """All nodes by id."""
        return {node.node_id: node for node in self.snapshot.nodes}

    @cached_property
    def jobs(self) -> dict[str, Job]:
        """All jobs by id."""
        return {job.job_id: job for job in self.snapshot.jobs}

    @cached_property
    def tasks(self) -> dict[str, Task]:
        """Unfinished tasks by id, as their owners know them, and creations that are the control plane's own task."""
        owned = {task.task_id: task for task in self.sample.tasks}
        return {task.task_id: task for task in self._recreations()} | owned

    def _recreations(self) -> Iterator[Task]:
        """Restarts of actors, which are no process's tasks, and creations whose owner is gone (seen on Ray 2.60)."""
        for actor in self.snapshot.actors:
            is_left_alone = actor.state == "PENDING_CREATION" and actor.owner_id not in self.workers
            if actor.state == "RESTARTING" or is_left_alone:
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
    def placement_groups(self) -> dict[str, PlacementGroup]:
        """Placement groups by id."""
        return {group.placement_group_id: group for group in self.sample.placement_groups}

    @cached_property
    def worker_of_task(self) -> dict[str, str]:
        """The worker that runs a task, by task id."""
        return {task: w.worker_id for w in self.sample.workers for task in w.running_task_ids or ()}

    @cached_property
    def _refs(self) -> dict[str, list[Ref]]:
        by_ref: dict[str, list[Ref]] = defaultdict(list)
        for ref in self.sample.refs:
            by_ref[ref.ref].append(ref)
        return by_ref

    @cached_property
    def arguments_of_owner(self) -> dict[str, list[str]]:
        """By worker: refs that some task it submitted takes as an argument, and that are not known there to be given.

        A borrowed ref is among them also when its owner says that the value is there: the borrower may not have heard.
        """
        by_owner: dict[str, list[str]] = defaultdict(list)
        for ref in self.sample.refs:
            is_argument = ref.argument_uses and not ref.ref.startswith(ACTOR_HANDLE)
            is_borrowed = ref.state is None and ref.size_bytes < 0
            if is_argument and (is_borrowed or not self.has_value(ref.ref)):
                by_owner[ref.holder_id].append(ref.ref)
        return by_owner

    @cached_property
    def creations(self) -> dict[str, Task]:
        """By actor: its creation, while that is unfinished."""
        return {t.actor_id: t for t in self.tasks.values() if t.actor_id and t.kind == "ACTOR_CREATION_TASK"}

    def has_arrived(self, call: Task) -> bool:
        """Whether an actor call is known to be with its actor, with all its arguments."""
        return self.sample.arrived.get(call.task_id) == call.attempt

    def calls_in_transit(self, call: Task) -> Sequence[str]:
        """Calls by the same caller, sent to the same actor, that neither run nor are known to have arrived."""
        return self._calls_in_transit.get((call.owner_id, call.actor_id), ())

    @cached_property
    def _calls_in_transit(self) -> dict[tuple[str, str | None], list[str]]:
        calls: dict[tuple[str, str | None], list[str]] = defaultdict(list)
        for task in self.sample.tasks:
            is_sent = task.kind == "ACTOR_TASK" and task.state == "SUBMITTED_TO_WORKER"
            if is_sent and task.task_id not in self.worker_of_task and not self.has_arrived(task):
                calls[task.owner_id, task.actor_id].append(task.task_id)
        return calls

    @cached_property
    def calls_without_arguments(self) -> dict[tuple[str, str], list[Task]]:
        """By caller and actor: the calls of which an argument is not there yet."""
        calls: dict[tuple[str, str], list[Task]] = defaultdict(list)
        for task in self.sample.tasks:
            if task.actor_id and task.state == "PENDING_ARGS_AVAIL":
                calls[task.owner_id, task.actor_id].append(task)
        return calls

    def has_value(self, ref: str) -> bool:
        """Whether some process knows the ref's value, or an error in its place, to be there.

        A ref that the task's executor owns itself was made by ``ray.put`` and is known with its size at once. A value
        that was lost keeps the size it had, though its task runs again.
        """
        known = self._refs.get(ref, ())
        if not known and ref in self._given:
            return True
        return not any(map(_is_remade, known)) and any(one.size_bytes >= 0 or one.state in ENDED for one in known)

    def refs_of(self, ref: str) -> list[Ref]:
        """What each process that knows a ref says of it."""
        return self._refs.get(ref, [])

    def held_refs(self, worker_id: str) -> list[Ref]:
        """The refs in variables of a worker, as it tells itself; of one whose memory was read there may be more."""
        return self._held.get(worker_id, [])

    @cached_property
    def _held(self) -> dict[str, list[Ref]]:
        held: dict[str, list[Ref]] = defaultdict(list)
        for ref in self.sample.refs:
            if ref.local_uses and not ref.ref.startswith(ACTOR_HANDLE):
                held[ref.holder_id].append(ref)
        return held

    @cached_property
    def incomplete_workers(self) -> set[str]:
        """The workers that did not tell of everything that they run and know."""
        told = (f for f in self.snapshot.failures if f.stage == "core worker")
        return {failure.worker_id for failure in told if failure.worker_id}

    def access(self, worker_id: str) -> Access:
        """How much of a worker could be read."""
        process = self.process(worker_id)
        return process.access if process and process.threads else "state only"

    def is_unresponsive(self, worker_id: str) -> bool:
        """Whether a worker is there but did not say what it runs and owns."""
        sample = self.worker_samples.get(worker_id)
        return worker_id in self.workers and (sample is None or sample.running_task_ids is None)

    def process(self, worker_id: str) -> Process | None:
        """A worker's process, if it was seen."""
        worker = self.worker_samples.get(worker_id)
        return worker.process if worker else None

    def ranks(self, worker_id: str, child_pid: int | None = None) -> Ranks:
        """The ranks and labels of a worker's process, or of one that it has started; none if it was not seen."""
        key = (worker_id, child_pid)
        if key not in self._ranks:
            process = self.process(worker_id) if child_pid is None else self.child(worker_id, child_pid)
            self._ranks[key] = ranks_of(process)
        return self._ranks[key]

    @cached_property
    def _threads_by_role(self) -> dict[tuple[str, Role], list[Thread]]:
        by_role: dict[tuple[str, Role], list[Thread]] = defaultdict(list)
        for worker in self.sample.workers:
            for thread in self.threads(worker.worker_id):
                by_role[worker.worker_id, thread.role].append(thread)
        return by_role

    def threads_with_role(self, worker_id: str, role: Role) -> list[Thread]:
        """Those of a worker's threads that are for this."""
        return self._threads_by_role.get((worker_id, role), [])

    @cached_property
    def _thread_by_id(self) -> dict[tuple[str, int], Thread]:
        return {
            (worker.worker_id, thread.os_thread_id): thread
            for worker in reversed(self.sample.workers)
            for thread in reversed(self.threads(worker.worker_id))
        }

    def thread(self, worker_id: str | None, os_thread_id: int | None) -> Thread | None:
        """One thread of a worker, if it was seen."""
        return self._thread_by_id.get((worker_id or "", os_thread_id or 0))

    @cached_property
    def task_of_thread(self) -> dict[tuple[str, int], str]:
        """By worker and OS thread: the task it runs, as read there, or the only one where each has but one.

        An event loop's is the one that it runs right now, while all others of its tasks are suspended.
        """
        tasks: dict[tuple[str, int], str] = {}
        for worker in self.sample.workers:
            running = worker.running_task_ids or ()
            threads = self.threads_with_role(worker.worker_id, "task")
            if self.has_read_tasks(worker.worker_id):
                read = {t.os_thread_id: t.task_id for t in threads if self._runs(worker, t.task_id)}
            else:
                is_certain = len(running) == len(threads) == 1 and not self.threads_with_role(worker.worker_id, "loop")
                read = {threads[0].os_thread_id: running[0]} if is_certain else {}
            tasks.update({(worker.worker_id, thread): task for thread, task in read.items() if task})
            if self.has_read_coroutines(worker.worker_id):
                for loop in self.threads_with_role(worker.worker_id, "loop"):
                    if loop.task_id and self._runs(worker, loop.task_id) and loop.task_id not in self.coroutine_of_task:
                        tasks[worker.worker_id, loop.os_thread_id] = loop.task_id
        return tasks

    def _runs(self, worker: WorkerSample, task_id: str | None) -> bool:
        return self.worker_of_task.get(task_id or "") == worker.worker_id

    @cached_property
    def thread_of_task(self) -> dict[str, tuple[str, int]]:
        """The other way round: worker and OS thread by task."""
        return {task_id: place for place, task_id in self.task_of_thread.items()}

    @cached_property
    def coroutine_of_task(self) -> dict[str, tuple[str, str]]:
        """Worker and coroutine by task, of those that run as one and are suspended."""
        return {
            coroutine.task_id: (worker.worker_id, coroutine.coroutine_id)
            for worker in self.sample.workers
            for coroutine in self.coroutines(worker.worker_id)
            if coroutine.is_task and coroutine.task_id and self._runs(worker, coroutine.task_id)
        }

    @cached_property
    def request_of_task(self) -> dict[str, ServeRequest]:
        """The requests that replicas of Serve execute, by the task of the replica."""
        return {
            coroutine.task_id: coroutine.request
            for worker in self.sample.workers
            for coroutine in self.coroutines(worker.worker_id)
            if coroutine.is_task and coroutine.task_id and coroutine.request
        }

    @cached_property
    def request_of_thread(self) -> dict[tuple[str, int], ServeRequest]:
        """The requests whose sync methods threads execute, by worker and OS thread."""
        return {
            (worker.worker_id, thread): coroutine.request
            for worker in self.sample.workers
            for coroutine in self.coroutines(worker.worker_id)
            if coroutine.request and coroutine.call and coroutine.call.what != OTHER_LOOP
            for threads in coroutine.call.all_of
            for thread in threads
        }

    def has_read_coroutines(self, worker_id: str) -> bool:
        """Whether a worker's event loops were read, so that all of its suspended coroutines are known."""
        process = self.process(worker_id)
        return process is not None and process.coroutines_read

    def coroutines(self, worker_id: str) -> tuple[Coroutine, ...]:
        """A worker's suspended coroutines, none if its process was not seen."""
        process = self.process(worker_id)
        return process.coroutines if process else ()

    def coroutine(self, worker_id: str | None, coroutine_id: str | None) -> Coroutine | None:
        """One coroutine of a worker, if it was seen."""
        return self._coroutine_by_id.get((worker_id or "", coroutine_id or ""))

    @cached_property
    def _coroutine_by_id(self) -> dict[tuple[str, str], Coroutine]:
        return {
            (worker.worker_id, coroutine.coroutine_id): coroutine
            for worker in self.sample.workers
            for coroutine in self.coroutines(worker.worker_id)
        }

    def has_read_tasks(self, worker_id: str) -> bool:
        """Whether it was read which task each of a worker's threads runs."""
        process = self.process(worker_id)
        return process is not None and process.tasks_read

    def child(self, worker_id: str | None, pid: int) -> Process | None:
        """A process that a worker has started, if it was seen."""
        process = self.process(worker_id or "")
        return next((child for child in process.children if child.pid == pid), None) if process else None

    def child_thread(self, worker_id: str | None, pid: int, os_thread_id: int) -> Thread | None:
        """One thread of such a process, if it was seen."""
        child = self.child(worker_id, pid)
        threads = child.threads if child else ()
        return next((thread for thread in threads if thread.os_thread_id == os_thread_id), None)

    def children(self) -> Iterator[tuple[str, Process]]:
        """All processes that workers have started, each with the id of the worker."""
        processes = ((worker.worker_id, worker.process) for worker in self.sample.workers)
        return ((key, child) for key, process in processes if process for child in process.children)

    def is_idle_library(self, worker_id: str, execution: Thread | Coroutine) -> bool:
        """Whether library code was off the CPU in every sample and reading, and waits for nothing outside."""
        frames = self.snapshot.frames_of(execution)
        is_library = bool(frames) and not any(frame.origin == "user" for frame in frames)
        return is_library and _rests(execution, frames) and (worker_id, _id_of(execution)) not in self._running

    @cached_property
    def _running(self) -> set[tuple[str, int | str]]:
        """The threads, by worker and id, that a sample or reading shows on a CPU, or that ran while they were read."""
        samples = (*self.snapshot.samples, *self.snapshot.readings)
        processes = ((w.worker_id, w.process) for sample in samples for w in sample.workers if w.process)
        return {
            (worker_id, thread.os_thread_id)
            for worker_id, process in processes
            for thread in process.threads
            if thread.on_cpu or thread.torn
        }

    def threads(self, worker_id: str) -> tuple[Thread, ...]:
        """A worker's threads, none if its process was not seen."""
        process = self.process(worker_id)
        return process.threads if process else ()


def _rests(execution: Thread | Coroutine, frames: Sequence[Frame]) -> bool:
    """Whether library code is Ray's own, or waits for something in its process: not for a socket, nor as a timer."""
    if any(frame.origin == "ray" for frame in frames) or execution.name.endswith(OF_GRPC):
        return True
    is_stdlib = all(frame.origin == "stdlib" for frame in frames)  # as threading.Timer
    return execution.call is not None and not (is_stdlib and execution.call.timeout_s is not None)


def _id_of(execution: Thread | Coroutine) -> int | str:
    return execution.os_thread_id if isinstance(execution, Thread) else execution.coroutine_id


def _calls(workers: Iterable[WorkerSample]) -> Iterator[BlockedCall]:
    """All calls that threads and coroutines of these workers are blocked in."""
    return (call for worker in workers if worker.process for call in worker.process.calls())


def _is_remade(ref: Ref) -> bool:
    """Whether a value that was lost is made again, by what its owner says: its task is at a further attempt.

    Only of a task's first ref: a generator's items are there while its task runs (seen on Ray 2.60).
    """
    return ref.size_bytes >= 0 and ref.attempt > 0 and ref.state not in (None, *ENDED) and ref.ref.endswith("01000000")
