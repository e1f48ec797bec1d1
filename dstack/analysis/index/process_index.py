"""The processes of one sample, indexed: threads, coroutines and child processes by worker and id.

A sample is never changed. What others show beside it is :class:`KnownElsewhere`, and the lookups here answer with both:
:meth:`ProcessIndex.call_of` is the call of a thread as far as anything shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, TypeAlias

from dstack import words
from dstack.analysis.index.ranks import Ranks, ranks_of
from dstack.model.snapshot import Sample, Snapshot, WorkerSample
from dstack.model.vertex_keys import ChildThreadKey, CoroutineKey, Key, ThreadKey
from dstack.observed.calls import Call
from dstack.observed.node import Ref, Task
from dstack.observed.processes import Access, Coroutine, Frame, Process, Role, Thread
from dstack.words import grouped

ExecutionKey: TypeAlias = ThreadKey | CoroutineKey


@dataclass(frozen=True, slots=True)
class CallRate:
    """How often a loop makes a call that succeeds, and for how long at least, None if unknown."""

    name: str
    per_second: float
    for_s: float | None = None

    def __str__(self) -> str:
        since = f" for {words.duration(self.for_s)}" if self.for_s else ""
        return f"{self.name} ({self.per_second:.1f} calls per second{since})"


@dataclass(frozen=True, slots=True)
class PolledActors:
    """A loop asks actors for something again and again, by calls that succeed."""

    actors: tuple[str, ...]
    rates: tuple[CallRate, ...]

    @property
    def name(self) -> str:
        """``polls Buffer.size (2.0 calls per second for 3 min)``, each method by its name."""
        return f"polls {words.listed(list(map(str, self.rates)))}"


@dataclass(frozen=True, slots=True)
class OwnTasks:
    """A loop checks, without a wait, whether unfinished tasks of its process have ended."""

    name: ClassVar[str] = "polls its own tasks"


@dataclass(frozen=True, slots=True)
class Poll:
    """A loop that only polls: what it polls for, its stack while it does, and its own frame.

    ``target`` is the call with a timeout that it makes again and again, or what it does instead of one such call.
    """

    target: Call | PolledActors | OwnTasks
    stack: int
    at: Frame

    @property
    def has_flag(self) -> bool:
        """Whether the loop also ends by a flag that code of its process sets."""
        return self.at.only_polls and self.at.body is not None and bool(self.at.body.until)

    @property
    def call(self) -> Call | None:
        """The call in which it polls, if that blocks."""
        return self.target if isinstance(self.target, Call) else None


Polls = Mapping[Key, Poll]
"""By the key of their thread or coroutine."""


@dataclass(frozen=True, slots=True)
class KnownElsewhere:
    """What is known beside one sample, from another sample or from readings.

    ``calls`` are those of executions whose call the sample shows not at all, or less completely. ``polls`` are the
    loops that only poll, and ``values`` are refs that have a value. The sample ``other`` counts for all workers and
    states that this one lacks, except for workers that have ``ended``; and for the processes of workers of which this
    one is ``incomplete``.
    """

    calls: Mapping[ExecutionKey, Call] = field(default_factory=dict)
    polls: Polls = field(default_factory=dict)
    values: Collection[str] = ()
    other: Sample | None = None
    ended: Collection[str] = ()
    incomplete: Collection[str] = ()


NOTHING_ELSE = KnownElsewhere()


def execution_key(worker_id: str, execution: Thread | Coroutine) -> ExecutionKey:
    """The key of a thread or coroutine of a worker's process."""
    if isinstance(execution, Coroutine):
        return CoroutineKey(worker_id, execution.coroutine_id)
    return ThreadKey(worker_id, execution.os_thread_id)


def newest_processes(snapshot: Snapshot) -> dict[str, Process]:
    """The process of each worker from the newest sample that has its figures, by the worker's id."""
    samples = (worker for sample in snapshot.samples for worker in sample.workers)
    return {one.worker_id: one.process for one in samples if one.process and one.process.started_at}


class ProcessIndex:
    """Lookups in the processes of workers and drivers; a process that was not read has no threads."""

    def __init__(self, sample: Sample, known: KnownElsewhere = NOTHING_ELSE) -> None:
        self.sample = sample
        self.known = known
        self._ranks: dict[tuple[str, int | None], Ranks] = {}

    # What workers report

    @cached_property
    def worker_samples(self) -> dict[str, WorkerSample]:
        """The state of each worker, by its id; for its process see :meth:`process`."""
        own = {worker.worker_id: worker for worker in self.sample.workers}
        silent = {worker_id for worker_id, worker in own.items() if worker.running_task_ids is None}
        return own | {key: worker for key, worker in self._others.items() if key in silent or key not in own}

    @cached_property
    def _others(self) -> dict[str, WorkerSample]:
        """The workers of the other sample, without those that have ended."""
        workers = self.known.other.workers if self.known.other else ()
        return {worker.worker_id: worker for worker in workers if worker.worker_id not in self.known.ended}

    @cached_property
    def tasks_reported(self) -> Sequence[Task]:
        """The unfinished tasks, as their owners report them."""
        others = self.known.other.tasks if self.known.other else ()
        return (*self.sample.tasks, *(task for task in others if self._is_by_other(task.owner_id)))

    @cached_property
    def refs_reported(self) -> Sequence[Ref]:
        """The refs, as the processes that know them report them."""
        others = self.known.other.refs if self.known.other else ()
        return (*self.sample.refs, *(ref for ref in others if self._is_by_other(ref.holder_id)))

    def _is_by_other(self, worker_id: str) -> bool:
        """Whether the state of a worker is that of the other sample."""
        return worker_id not in self._answered and worker_id not in self.known.ended

    @cached_property
    def _answered(self) -> set[str]:
        return {worker.worker_id for worker in self.sample.workers if worker.running_task_ids is not None}

    # Processes

    @cached_property
    def processes(self) -> dict[str, Process]:
        """The process of each worker, by the worker's id, if it was found."""
        own = ((worker.worker_id, self._own_process(worker)) for worker in self.sample.workers)
        found = {key: self._complete(key, process) for key, process in own}
        others = {key: worker.process for key, worker in self._others.items() if key not in found}
        return {key: process for key, process in (found | others).items() if process is not None}

    def _own_process(self, worker: WorkerSample) -> Process | None:
        return None if worker.worker_id in self.known.incomplete else worker.process

    def _complete(self, worker_id: str, process: Process | None) -> Process | None:
        """The process itself, or if it has no threads, that of the other sample."""
        other = self._others.get(worker_id)
        return process if other is None or (process and process.threads) else other.process

    def process(self, worker_id: str) -> Process | None:
        """A worker's process, if it was found."""
        return self.processes.get(worker_id)

    def pid_of(self, worker_id: str) -> int | None:
        """The pid of a worker's process, if that was found."""
        process = self.process(worker_id)
        return process.pid if process else None

    def access(self, worker_id: str) -> Access:
        """How much of a worker could be read."""
        process = self.process(worker_id)
        return process.access if process and process.threads else "state only"

    def ranks(self, worker_id: str, child_pid: int | None = None) -> Ranks:
        """The ranks and labels of a worker's process, or of its child process; none if it was not read."""
        key = (worker_id, child_pid)
        if key not in self._ranks:
            process = self.process(worker_id) if child_pid is None else self.child(worker_id, child_pid)
            self._ranks[key] = ranks_of(process)
        return self._ranks[key]

    def has_read_coroutines(self, worker_id: str) -> bool:
        """Whether a worker's event loops were read, so that all of its suspended coroutines are known."""
        process = self.process(worker_id)
        return process is not None and process.coroutines_read

    def has_read_tasks(self, worker_id: str) -> bool:
        """Whether the task of each of a worker's threads was read."""
        process = self.process(worker_id)
        return process is not None and process.tasks_read

    # Threads

    def threads(self, worker_id: str) -> tuple[Thread, ...]:
        """A worker's threads."""
        process = self.process(worker_id)
        return process.threads if process else ()

    def threads_with_role(self, worker_id: str, role: Role) -> list[Thread]:
        """A worker's threads that have this role."""
        return self._threads_by_role.get((worker_id, role), [])

    def thread(self, worker_id: str | None, os_thread_id: int | None) -> Thread | None:
        """One thread of a worker, if it was read."""
        return self._thread_by_id.get((worker_id or "", os_thread_id or 0))

    @cached_property
    def _threads_by_role(self) -> dict[tuple[str, Role], list[Thread]]:
        return grouped(
            ((worker_id, thread.role), thread)
            for worker_id, process in self.processes.items()
            for thread in process.threads
        )

    @cached_property
    def _thread_by_id(self) -> dict[tuple[str, int], Thread]:
        return {
            (worker_id, thread.os_thread_id): thread
            for worker_id, process in self.processes.items()
            for thread in reversed(process.threads)
        }

    # Coroutines

    def coroutines(self, worker_id: str) -> tuple[Coroutine, ...]:
        """A worker's suspended coroutines."""
        process = self.process(worker_id)
        return process.coroutines if process else ()

    def coroutine(self, worker_id: str | None, coroutine_id: str | None) -> Coroutine | None:
        """One coroutine of a worker, or of a process below it, if it was read."""
        return self._coroutine_by_id.get((worker_id or "", coroutine_id or ""))

    @cached_property
    def _coroutine_by_id(self) -> dict[tuple[str, str], Coroutine]:
        in_children = ((key, coroutine) for key, child in self.children() for coroutine in child.coroutines)
        return {(key, one.coroutine_id): one for key, one in (*in_children, *self.all_coroutines)}

    def child_of(self, key: Key) -> int | None:
        """The pid of the child process that a thread or coroutine is in; None if it is in a worker or driver."""
        match key:
            case ChildThreadKey(pid=pid):
                return pid
            case CoroutineKey(worker_id, coroutine_id):
                return self._child_of_coroutine.get((worker_id, coroutine_id))
            case _:
                return None

    def loop_thread(self, worker_id: str, coroutine: Coroutine) -> Thread | None:
        """The thread that runs the event loop of a coroutine, which may be in a child process, if it was read."""
        pid = self.child_of(CoroutineKey(worker_id, coroutine.coroutine_id))
        os_thread_id = coroutine.os_thread_id or 0
        return self.thread(worker_id, os_thread_id) if pid is None else self.child_thread(worker_id, pid, os_thread_id)

    @cached_property
    def _child_of_coroutine(self) -> dict[tuple[str, str], int]:
        return {(key, one.coroutine_id): child.pid for key, child in self.children() for one in child.coroutines}

    @cached_property
    def all_coroutines(self) -> list[tuple[str, Coroutine]]:
        """All suspended coroutines, each with the id of its worker."""
        return [(key, coroutine) for key, process in self.processes.items() for coroutine in process.coroutines]

    def execution(self, key: ExecutionKey) -> Thread | Coroutine | None:
        """The thread or coroutine with this key, if it was read."""
        if isinstance(key, CoroutineKey):
            return self.coroutine(key.worker_id, key.coroutine_id)
        return self.thread(key.worker_id, key.os_thread_id)

    # Threads and coroutines, with what is known of them beside the sample

    def poll_of(self, worker_id: str, execution: Thread | Coroutine) -> Poll | None:
        """The poll of an execution that only polls."""
        polls = self.known.polls
        return polls.get(execution_key(worker_id, execution)) if polls else None

    def call_of(self, worker_id: str, execution: Thread | Coroutine) -> Call | None:
        """The call that an execution is blocked in."""
        if not self.known.calls and not self.known.polls:
            return execution.call
        key = execution_key(worker_id, execution)
        poll = self.known.polls.get(key)
        return poll.call if poll else self.known.calls.get(key, execution.call)

    def calls_in(self, worker_id: str) -> Iterator[Call]:
        """The calls that the threads and coroutines of a worker's process are blocked in."""
        process = self.process(worker_id)
        if process is None:
            return iter(())
        if not self.known.calls and not self.known.polls:
            return process.calls()
        calls = (self.call_of(worker_id, execution) for execution in process.executions())
        return (call for call in calls if call is not None)

    def stack_of(self, worker_id: str, execution: Thread | Coroutine) -> int:
        """The stack of an execution, as an index into ``Snapshot.stacks``; of a polling loop while it polls."""
        poll = self.poll_of(worker_id, execution)
        return poll.stack if poll else execution.stack

    def is_still(self, worker_id: str, execution: Thread | Coroutine) -> bool:
        """Whether its call and its stack belong together: it did not run meanwhile, or other readings show its call."""
        if execution.still:
            return True
        key = execution_key(worker_id, execution)
        return key in self.known.calls or key in self.known.polls

    def is_on_cpu(self, worker_id: str, execution: Thread | Coroutine) -> bool:
        """Whether it is a thread on a CPU; what only polls does nothing there."""
        return isinstance(execution, Thread) and execution.on_cpu and not self.poll_of(worker_id, execution)

    def is_torn(self, worker_id: str, execution: Thread | Coroutine) -> bool:
        """Whether it is a thread that ran during every reading of its stack."""
        return isinstance(execution, Thread) and execution.torn and not self.poll_of(worker_id, execution)

    def is_waiting(self, worker_id: str, execution: Thread | Coroutine) -> bool:
        """Whether an execution is blocked in a call, or only polls."""
        is_in_call = self.call_of(worker_id, execution) is not None
        return is_in_call or self.poll_of(worker_id, execution) is not None

    # Child processes

    def child(self, worker_id: str | None, pid: int) -> Process | None:
        """A child process of a worker, if it was read."""
        process = self.process(worker_id or "")
        return next((child for child in process.children if child.pid == pid), None) if process else None

    def child_thread(self, worker_id: str | None, pid: int, os_thread_id: int) -> Thread | None:
        """One thread of a child process, if it was read."""
        child = self.child(worker_id, pid)
        threads = child.threads if child else ()
        return next((thread for thread in threads if thread.os_thread_id == os_thread_id), None)

    def children(self) -> Iterator[tuple[str, Process]]:
        """All child processes, each with the id of its worker."""
        return ((key, child) for key, process in self.processes.items() for child in process.children)
