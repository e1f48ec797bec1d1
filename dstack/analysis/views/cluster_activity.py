"""How busy a cluster is: by the polls of this run, else by what one snapshot has. Tasks per second, load of nodes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from dstack.analysis.naming.names import script
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.snapshot import ClusterPoll, Job, Node, TaskHistory

MAX_MOMENTS = 600
"""So many polls are kept: half an hour of them at 3 s."""
RECENT = 10
"""The mean rate is that of so many intervals."""
BINS = 40
"""The rate of a snapshot's history is that of so many equal parts of its time."""
ENDED = ("FINISHED", "FAILED")


@dataclass(frozen=True, slots=True)
class Load:
    """Shares from 0 to 1 of what a node has that are in use, None if unknown; GPUs on average."""

    name: str
    cpu: float | None = None
    memory: float | None = None
    gpu: float | None = None
    gpu_memory: float | None = None

    @classmethod
    def of(cls, node: Node) -> Load:
        """The load of a node's host."""
        host = node.host
        gpus = host.gpus or ()
        busy = [one.utilisation_percent / 100 for one in gpus if one.utilisation_percent is not None]
        sizes = [(one.memory_used_bytes or 0, one.memory_total_bytes) for one in gpus if one.memory_total_bytes]
        return cls(
            name=node.ip + (" (head)" if node.is_head else ""),
            cpu=None if host.cpu_percent is None else host.cpu_percent / 100,
            memory=_used(host.memory_total_bytes, host.memory_available_bytes),
            gpu=sum(busy) / len(busy) if busy else None,
            gpu_memory=sum(used for used, _ in sizes) / sum(size for _, size in sizes) if sizes else None,
        )


def _used(total: int | None, available: int | None) -> float | None:
    return None if not total or available is None else 1 - available / total


@dataclass(frozen=True, slots=True)
class Activity:
    """The state of a cluster ``at`` one time, in Unix seconds.

    ``rates`` are tasks finished per second in successive intervals, None where unknown, within the last ``over_s``;
    ``per_s`` is the mean of the last ones.
    ``pending`` are the tasks that were submitted and do not run.
    """

    at: float
    jobs: Sequence[Job] = ()
    rates: Sequence[float | None] = ()
    per_s: float | None = None
    over_s: float = 0.0
    running: int = 0
    pending: int = 0
    workers: int = 0
    loads: Sequence[Load] = ()


class ClusterActivity:
    """Follows a cluster from poll to poll."""

    def __init__(self) -> None:
        self._polls: deque[tuple[float, float | None]] = deque(maxlen=MAX_MOMENTS)
        self._last: ClusterPoll | None = None
        self._finished: dict[str, int] = {}
        self._marked: object = None

    def add(self, poll: ClusterPoll, at: float) -> None:
        """Add a poll, made at this time in Unix seconds."""
        rate, before = None, self._finished
        kept = {worker_id: before[worker_id] for worker_id in poll.silent if worker_id in before}
        self._finished = {worker.worker_id: worker.finished for worker in poll.workers} | kept
        if self._last is not None and (over_s := at - self._polls[-1][0]) > 0:
            done = (max(0, count - before.get(worker_id, 0)) for worker_id, count in self._finished.items())
            rate = sum(done) / over_s
        self._polls.append((at, rate))
        self._last = poll
        if self._marked is None:
            self.mark()

    def mark(self) -> None:
        """Take the last poll as the state that a snapshot shows."""
        self._marked = _state(self._last) if self._last else None

    @property
    def has_changed(self) -> bool:
        """Whether tasks, workers or nodes are others than those at the mark."""
        return self._last is not None and _state(self._last) != self._marked

    def interrupt(self) -> None:
        """Forget the last poll: nothing is known of the time until the next one."""
        self._last = None

    def latest(self) -> Activity | None:
        """The state of the last poll; None without one."""
        poll = self._last
        if poll is None:
            return None
        running = {task_id for worker in poll.workers for task_id in worker.running}
        pending = {task_id for worker in poll.workers for task_id in worker.pending or ()} - running
        rates = [rate for _, rate in self._polls]
        return Activity(
            at=self._polls[-1][0],
            jobs=_live(poll.jobs),
            rates=rates,
            per_s=_recent(rates),
            over_s=self._polls[-1][0] - self._polls[0][0],
            running=len(running),
            pending=len(pending),
            workers=sum(not worker.is_driver for worker in poll.workers) + len(poll.silent),
            loads=[Load.of(node) for node in poll.nodes],
        )


def _state(poll: ClusterPoll) -> object:
    """What a snapshot would show otherwise if it changes."""
    tasks = {
        one.worker_id: (one.running, one.pending, one.finished, one.counters if one.pending is None else ())
        for one in poll.workers
    }
    return tasks, {node.node_id for node in poll.nodes}, frozenset(poll.silent)


def _live(jobs: Sequence[Job]) -> Sequence[Job]:
    return [job for job in jobs if not job.is_dead]


def activity_of(analysed: AnalysedSnapshot) -> Activity:
    """The state that a snapshot shows; rates are those of its history, else the one of the time that it took."""
    snapshot, progress = analysed.snapshot, analysed.diagnosis.progress
    rates, over_s = _rates(snapshot.history) if snapshot.history else ([], 0.0)
    last = snapshot.samples[-1] if snapshot.samples else None
    running = {task_id for worker in last.workers for task_id in worker.running_task_ids or ()} if last else set()
    return Activity(
        at=snapshot.taken_at + (last.ended_s if last else 0.0),
        jobs=_live(snapshot.jobs),
        rates=rates,
        per_s=progress.per_s if progress and progress.per_s is not None else _recent(rates),
        over_s=over_s,
        running=len(running),
        pending=len({task.task_id for task in last.tasks} - running) if last else 0,
        workers=sum(not worker.is_driver for worker in snapshot.workers),
        loads=[Load.of(node) for node in snapshot.nodes if node.alive],
    )


def _recent(rates: Sequence[float | None]) -> float | None:
    """The mean of the last ones that are known."""
    known = [rate for rate in rates[-RECENT:] if rate is not None]
    return sum(known) / len(known) if known else None


def _rates(history: TaskHistory) -> tuple[list[float | None], float]:
    """Tasks finished per second in each part of the time of a history, and its length."""
    ends = [at for one in history.attempts for state, at in one.states.items() if state in ENDED]
    began = min((at for one in history.attempts for at in one.states.values()), default=history.asked_at)
    over_s = history.asked_at - began
    if not ends or over_s <= 0:
        return [], 0.0
    counts = Counter(min(BINS - 1, max(0, int((at - began) / over_s * BINS))) for at in ends)
    return [counts[number] * BINS / over_s for number in range(BINS)], over_s


def jobs_in_words(jobs: Sequence[Job]) -> str:
    """``train.py (01000000)``, and how many others there are."""
    named = [f"{script(job.entrypoint)} ({job.job_id})" if job.entrypoint else job.job_id for job in jobs]
    return named[0] + (f" and {len(named) - 1} more" if named[1:] else "") if named else "none"
