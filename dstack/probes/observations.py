"""Collects the observations of one cluster, and makes snapshots of them.

The answers of nodes are merged as they arrive, while others are awaited: their frames and stacks become those of one
table.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeVar

from msgspec.structs import replace

from dstack.files.snapshot_file import MAX_FRAMES
from dstack.model.snapshot import (
    ACTOR_HANDLE,
    FailedTask,
    Node,
    PlatformEvent,
    Sample,
    Snapshot,
    StoredObjects,
    TaskHistory,
    TaskTimes,
    TcpEnd,
    Worker,
    WorkerSample,
    producer_task_id,
)
from dstack.observed.calls import Call
from dstack.observed.ledgers import Collective, RecorderDump
from dstack.observed.node import (
    CoreWorkerReply,
    EnvironmentSetup,
    Failure,
    HostFigures,
    LogTail,
    NodeAnswer,
    RayletReport,
    Ref,
    StartingWorker,
)
from dstack.observed.outlines import ProgramOutline
from dstack.observed.processes import Coroutine, EndedTask, Frame, Process, Thread
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.hosts import clock_notes
from dstack.probes.node_access.answers import MalformedAnswer
from dstack.probes.node_access.node_readers import Reading
from dstack.probes.ray_state.control_plane import Inventory, client_notes
from dstack.probes.ray_state.repeated_calls import REPORTED_S
from dstack.probes.ray_state.task_events import EndedTasks, object_bytes
from dstack.probes.ray_state.workers import Liveness
from dstack.version import __version__

_T = TypeVar("_T")


class Table(Generic[_T]):
    """Distinct ``items``, each with an index."""

    def __init__(self) -> None:
        self.items: list[_T] = []
        self._indices: dict[_T, int] = {}

    def enter(self, item: _T) -> int:
        """The index of an item, which is added if it is new."""
        index = self._indices.setdefault(item, len(self.items))
        if index == len(self.items):
            self.items.append(item)
        return index


class Assembly:
    """The tables of one snapshot, over all nodes and samples."""

    def __init__(self) -> None:
        self._frames: Table[Frame] = Table()
        self._stacks: Table[tuple[int, ...]] = Table()
        self.sources: dict[str, dict[int, str]] = {}
        self._hosts: dict[str, tuple[HostFigures, float | None]] = {}

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Every distinct frame, in the order of their indices."""
        return tuple(self._frames.items)

    @property
    def stacks(self) -> tuple[tuple[int, ...], ...]:
        """Every distinct stack as indices of frames, in the order of their indices."""
        return tuple(self._stacks.items)

    def with_host(self, node: Node) -> Node:
        """The node with the figures of its host, if its probe has answered."""
        if node.node_id not in self._hosts:
            return node
        host, clock_ahead_s = self._hosts[node.node_id]
        return replace(node, host=host, clock_ahead_s=clock_ahead_s)

    def add(
        self,
        node_ids: Iterable[str],
        answer: NodeAnswer,
        sample: int,
        among: Collection[str] | None = None,
        clock_ahead_s: float | None = None,
    ) -> tuple[dict[str, Process], list[Failure]]:
        """Adds one probe's answer; returns its processes by worker id, and the failures.

        Adds only processes ``among`` the known workers, and all that are starting, with their frames, stacks and
        sources. The answer is used up: the stacks of its processes become indices of :attr:`stacks`. ``clock_ahead_s``
        is that of :class:`dstack.model.snapshot.Node`. Raises :class:`MalformedAnswer`.
        """
        processes = {id: process for id, process in answer.processes.items() if among is None or id in among}
        placing = _Placing(answer, self._frames, self._stacks, self.sources)
        try:
            placed = [*processes.values(), *(worker.process for worker in answer.starting)]
            for process in placed:
                placing.place(process)
            placing.place_dumps()
            _require_bounded(placed, self._stacks.items)
        except (LookupError, ValueError) as error:
            raise MalformedAnswer from error
        if answer.host:
            self._hosts.update(dict.fromkeys(node_ids, (answer.host, clock_ahead_s)))
        return processes, [dataclasses.replace(failure, sample=sample) for failure in answer.failures]


class _Placing:
    """Enters the stacks of one answer into the snapshot's tables, each once."""

    def __init__(
        self,
        answer: NodeAnswer,
        frames: Table[Frame],
        stacks: Table[tuple[int, ...]],
        sources: dict[str, dict[int, str]],
    ) -> None:
        self._answer = answer
        self._answered_sources = dict(answer.sources)
        self._frames = frames
        self._stacks = stacks
        self._sources = sources
        self._placed: dict[int, int] = {}
        self._placed_frames: dict[int, int] = {}

    def place(self, process: Process) -> None:
        """Replaces the stacks of the process by those in the snapshot's table."""
        if any(child.children for child in process.children):
            raise ValueError("children of a child process")
        if not all(one.has_sound_ledgers for one in process.family):
            raise ValueError("a ledger of no group, or with no such collective")
        self._place_all(process.with_stacks())

    def place_dumps(self) -> None:
        """The same for the dumps of flight recorders."""
        if not all(one.has_sound_ledgers for one in self._answer.recorder_dumps):
            raise ValueError("a ledger of no group, or with no such collective")
        for dump in self._answer.recorder_dumps:
            self._place_all(dump.collectives)

    def _place_all(self, those: Iterable[Thread | Coroutine | EndedTask | Collective]) -> None:
        for execution in those:
            # In place: nothing else has these values yet, and copies of 100,000 threads would take 0.3 s.
            object.__setattr__(execution, "stack", self._stack(execution.stack))

    def _stack(self, index: int) -> int:
        if index not in self._placed:
            self._placed[index] = self._stacks.enter(tuple(map(self._frame, _item(self._answer.stacks, index))))
        return self._placed[index]

    def _frame(self, index: int) -> int:
        if index not in self._placed_frames:
            frame = _item(self._answer.frames, index)
            self._placed_frames[index] = self._frames.enter(frame)
            if lines := self._answered_sources.pop(frame.file, None):
                self._sources.setdefault(frame.file, {}).update(lines)
        return self._placed_frames[index]


def _item(items: Sequence[_T], index: int) -> _T:
    """The item; unlike in Python, a negative index raises :class:`IndexError`."""
    if index < 0:
        raise IndexError(index)
    return items[index]


def _require_bounded(processes: Iterable[Process], stacks: Sequence[tuple[int, ...]]) -> None:
    """Raises :class:`ValueError` unless every call has its frame, and a snapshot file may have as many frames."""
    executions = list(chain.from_iterable(process.with_stacks() for process in processes))
    calls = ((one.call, one.stack) for one in executions if isinstance(one, (Thread, Coroutine)) and one.call)
    if any(call.frame >= max(1, len(stacks[stack])) for call, stack in calls):
        raise ValueError("a call without its frame")
    if sum(len(stacks[one.stack]) for one in executions) > MAX_FRAMES:
        raise ValueError("too many frames")


@dataclass
class Observations:
    """Samples, partial samples, failures, and requests for task events.

    ``starting`` are the workers of any sample that Ray did not list then, by id. ``holders`` are, by task, the workers
    that held a result of it in the last sample. ``object_bytes`` are, by task, the sizes of the objects alive in the
    first one. ``stored`` is what the last sample shows of the object store.
    """

    began: float = field(default_factory=time.monotonic)
    taken_at: float = field(default_factory=time.time)
    assembly: Assembly = field(default_factory=Assembly)
    samples: list[Sample] = field(default_factory=list)
    readings: list[Sample] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    task_times: Future[dict[str, TaskTimes]] | None = None
    platform_events: Future[tuple[PlatformEvent, ...]] | None = None
    setups: dict[tuple[str, int], EnvironmentSetup] = field(default_factory=dict)
    tcp_ends: dict[str, TcpEnd] = field(default_factory=dict)
    raylets: dict[str, RayletReport] = field(default_factory=dict)
    log_tails: dict[tuple[str, int | None, str], LogTail] = field(default_factory=dict)
    outlines: dict[str, ProgramOutline] = field(default_factory=dict)
    recorder_dumps: list[RecorderDump] = field(default_factory=list)
    ended_tasks: Future[EndedTasks] | None = None
    starting: dict[str, Worker] = field(default_factory=dict)
    holders: dict[str, set[str]] = field(default_factory=dict)
    history: Future[tuple[TaskHistory | None, Failure | None]] | None = None
    object_bytes: dict[str, int] = field(default_factory=dict)
    stored: StoredObjects | None = None
    notes: dict[str, None] = field(default_factory=dict)

    def note_refs(self, refs: Sequence[Ref]) -> None:
        """Notes the tasks whose results the processes of a sample hold, and the sizes of objects for the history."""
        if self.history is not None and not self.object_bytes:
            self.object_bytes = object_bytes(refs)
        self.holders = {}
        for ref in refs:
            if ref.local_uses and not ref.ref.startswith(ACTOR_HANDLE):
                self.holders.setdefault(producer_task_id(ref.ref), set()).add(ref.holder_id)

    def failures_of(self, sample: int) -> list[Failure]:
        """The failures of one sample."""
        return [failure for failure in self.failures if failure.sample == sample]

    def add_setups(self, answer: NodeAnswer) -> None:
        """Adds the installations that a node's probe has found; probes of one host may find the same."""
        for setup in answer.setups:
            self.setups[setup.node_id, setup.pid] = setup

    def add_log_tails(self, reading: Reading) -> None:
        """Adds the logs that a node's probe has read, in place of those that it has read before."""
        for tail in reading.answer.log_tails:
            self.log_tails[tail.node_id or tail.worker_id or "", tail.pid, tail.path] = tail

    def add_recorder_dumps(self, reading: Reading) -> None:
        """Adds the dumps of flight recorders that a node's probe has read."""
        self.recorder_dumps += (
            dataclasses.replace(one, node_id=reading.nodes[0]) for one in reading.answer.recorder_dumps
        )

    def add_tcp_ends(self, reading: Reading) -> None:
        """Adds the holders of TCP sockets that a node's probe has found."""
        for end, holders in reading.answer.tcp_ends.items():
            if reading.nodes:
                self.tcp_ends[end] = TcpEnd(node_id=reading.nodes[0], holders=holders)

    def add_starting(self, workers: Iterable[StartingWorker], inventory: Inventory) -> Iterator[WorkerSample]:
        """Adds workers that are starting; returns what a sample has of them: they run no task yet."""
        ips = {node.node_id: node.ip for node in inventory.nodes}
        for one in workers:
            self.starting[one.worker_id] = Worker(
                worker_id=one.worker_id,
                node_id=one.node_id,
                ip=ips.get(one.node_id, ""),
                port=0,
                pid=one.process.pid,
                job_id=one.job_id,
            )
            yield WorkerSample(worker_id=one.worker_id, running_task_ids=(), process=one.process)

    def _unlisted(self, listed: Iterable[Worker]) -> Iterator[Worker]:
        """The workers that were starting and that Ray has not listed since."""
        pids = {(worker.node_id, worker.pid) for worker in listed}
        return (one for one in self.starting.values() if (one.node_id, one.pid) not in pids)

    def since_began_s(self, at: float) -> float:
        """The time from the start of the snapshot to a ``time.monotonic()``."""
        return round(at - self.began, 4)

    def _of_applications(self, history: TaskHistory, liveness: Liveness) -> TaskHistory:
        """The history without the tasks of dstack's own probes."""
        attempts = tuple(one for one in history.attempts if not liveness.is_own_job(one.job_id))
        return replace(history, attempts=attempts, object_bytes=self.object_bytes)

    def snapshot(
        self, cluster: Cluster, inventory: Inventory, liveness: Liveness, *, with_history: bool = True
    ) -> Snapshot:
        """The snapshot; waits for the times of tasks and the history, if they were requested."""
        nodes = tuple(map(self.assembly.with_host, inventory.nodes))
        ended = self.ended_tasks.result() if self.ended_tasks else EndedTasks()
        history, failure = self.history.result() if self.history and with_history else (None, None)
        if lack := self._lack_of_events(inventory, nodes, ended, history, failure):
            history = history if history and history.kept else None
        return Snapshot(
            dstack_version=__version__,
            taken_at=self.taken_at,
            address=cluster.address,
            ray_version=cluster.ray_version,
            autoscaler=inventory.autoscaler,
            autoscaler_state=inventory.autoscaler_state,
            platform_events=self.platform_events.result() if self.platform_events else (),
            is_of_one_driver=inventory.is_of_one_driver,
            nodes=nodes,
            jobs=inventory.jobs,
            actors=inventory.actors,
            workers=(
                *map(liveness.with_ids, liveness.present(inventory.workers)),
                *self._unlisted(inventory.workers),
            ),
            gone_workers=liveness.gone_among(_owners(self.samples)),
            frames=self.assembly.frames,
            stacks=self.assembly.stacks,
            sources=self.assembly.sources,
            samples=tuple(self.samples),
            readings=tuple(self.readings),
            failed_tasks=tuple(self.not_retried(ended.failed)),
            repeated_calls=ended.repeated,
            task_event_window=ended.window,
            history=self._of_applications(history, liveness) if history else None,
            environment_setups=tuple(self.setups.values()),
            tcp_ends=self.tcp_ends,
            raylet_reports=tuple(self.raylets.values()),
            log_tails=tuple(self.log_tails.values()),
            outlines=tuple(one for one in self.outlines.values() if not liveness.is_own_job(one.job_id)),
            recorder_dumps=tuple(self.recorder_dumps),
            stored=self.stored,
            task_times=self.task_times.result() if self.task_times else {},
            failures=liveness.concern([*self.failures, *filter(None, [lack])], inventory.workers),
            notes=(*cluster.notes, *self.notes, *client_notes(inventory.jobs), *clock_notes(nodes)),
            total_s=round(time.monotonic() - self.began, 3),
        )

    def _lack_of_events(
        self,
        inventory: Inventory,
        nodes: Iterable[Node],
        ended: EndedTasks,
        history: TaskHistory | None,
        failure: Failure | None,
    ) -> Failure | None:
        """What task events lack; no events at all are a lack only if tasks ran, and were to be reported by now."""
        if history is not None and history.kept:
            return failure
        is_empty = history is not None or (ended.window is not None and not ended.window.kept)
        ahead_s = next((node.clock_ahead_s or 0.0 for node in nodes if node.is_head and node.alive), 0.0)
        age_s = self.taken_at + ahead_s - (inventory.oldest_job_at or self.taken_at)
        if is_empty and not (age_s > REPORTED_S and self._has_run()):
            return None
        return failure or ended.failure

    def _has_run(self) -> bool:
        """Whether a worker has finished a task."""
        return any(worker.executed_tasks for sample in self.samples for worker in sample.workers)

    def not_retried(self, failed: Iterable[FailedTask]) -> Iterable[FailedTask]:
        """The failed tasks that their owners do not retry, with the holders of their results."""
        unfinished = {task.task_id for sample in self.samples[-1:] for task in sample.tasks}
        for task in failed:
            if task.task_id not in unfinished:
                holders = tuple(sorted(self.holders.get(task.task_id, ())))
                yield replace(task, is_held=bool(holders), holders=holders)


def awaited_refs(processes: Iterable[Process]) -> set[str]:
    """The refs that threads and coroutines of these processes, and of their children, wait for."""
    return {ref for call in _calls(one for process in processes for one in process.family) for ref in call.refs}


def has_children(samples: Iterable[Sample]) -> bool:
    """Whether a worker or driver has child processes: a second reading shows whether they wait, or have moved."""
    return any(worker.process and worker.process.children for sample in samples for worker in sample.workers)


def ends_elsewhere(samples: Iterable[Sample]) -> dict[str, None]:
    """The other ends of TCP connections in which threads wait, where none is on their own node."""
    processes = (worker.process for sample in samples for worker in sample.workers if worker.process)
    calls = _calls(one for process in processes for one in process.family)
    ends = (end for call in calls for end in call.ends)
    return dict.fromkeys(end.mirrored for end in ends if end.mirrored)


def _owners(samples: Iterable[Sample]) -> set[str]:
    """The owners of the refs that waits depend on."""
    processes = (worker.process for sample in samples for worker in sample.workers if worker.process)
    return {owner for call in _calls(processes) for owner in call.owners}


def _calls(processes: Iterable[Process]) -> Iterable[Call]:
    return (call for process in processes for call in process.calls())


class MergedAnswers:
    """What the nodes have answered about these workers; frames, stacks, hosts and installations go to the record.

    ``replies`` and ``processes`` are by worker id. ``asked`` are the nodes that have asked their core workers.
    ``own_of`` returns those of some workers with their answers that run for dstack: nothing of their processes is kept.
    ``starting`` are the workers of these nodes that are starting, and that the ``inventory`` does not list.
    ``unchanged`` are the workers whose process is that of the last round.
    """

    def __init__(
        self,
        record: Observations,
        workers: Iterable[Worker],
        sample: int,
        own_of: Callable[[Mapping[str, CoreWorkerReply]], Collection[str]],
        inventory: Inventory,
    ) -> None:
        self.replies: dict[str, CoreWorkerReply] = {}
        self.processes: dict[str, Process] = {}
        self.asked: set[str] = set()
        self.starting: list[StartingWorker] = []
        self.unchanged: set[str] = set()
        self._inventory = inventory
        self._middles_at: list[float] = []
        self._failures: list[Failure] = []
        self._node_of = {worker.worker_id: worker.node_id for worker in workers}
        self._observed = record
        self._sample = sample
        self._own_of = own_of

    def add(self, reading: Reading) -> None:
        """Adds the answer of a probe. Raises ``MalformedAnswer``; then no worker of these nodes has an answer."""
        starting = [one for one in reading.answer.starting if one.node_id in reading.nodes]
        answer = dataclasses.replace(reading.answer, starting=tuple(filter(self._inventory.is_unlisted, starting)))
        replies = {id: one for id, one in answer.core_workers.items() if self._node_of.get(id) in reading.nodes}
        kept = self._node_of.keys() - self._own_of(replies)
        processes, failures = self._observed.assembly.add(
            reading.nodes, answer, self._sample, kept, reading.clock_ahead_s
        )
        self._observed.add_setups(answer)
        self._observed.add_tcp_ends(reading)
        self._observed.add_log_tails(reading)
        self._observed.add_recorder_dumps(reading)
        self._observed.outlines.update((one.job_id, one) for one in answer.outlines)
        self._observed.raylets.update((one.node_id, one) for one in answer.raylets if one.node_id in reading.nodes)
        self.replies.update(replies)
        self.processes.update(processes)
        self.starting += answer.starting
        self._middles_at.append(reading.middle_at)
        self.unchanged.update(kept.intersection(answer.unchanged))
        self._node_of.update((one.worker_id, one.node_id) for one in answer.starting)
        self._failures += (one for one in failures if self._node_of.get(one.worker_id or "") in reading.nodes)
        if answer.cannot_ask is None:
            self.asked.update(reading.nodes)

    @property
    def spread_ms(self) -> float:
        """The time between the middles of the first and the last reading; 0 for one reading."""
        at = self._middles_at or [0.0]
        return round(1000 * (max(at) - min(at)), 3)

    def failures_of(self, worker_ids: Collection[str]) -> list[Failure]:
        """What failed with these workers."""
        of_these = (one for one in self._failures if one.worker_id in worker_ids)
        return [dataclasses.replace(one, node_id=self._node_of[one.worker_id or ""]) for one in of_these]
