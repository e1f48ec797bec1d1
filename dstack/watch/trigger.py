"""What has made no progress since when, by polls, and when that is worth a snapshot.

Three things can be without progress: a task that the same worker runs, a task that its owner has in the same state, and
a driver or busy worker whose counters do not change. Only a snapshot distinguishes a hung task from a long healthy one.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from dstack import words
from dstack.model.snapshot import ClusterPoll, WorkerPoll

Item = tuple[object, ...]
"""Something that may make no progress, by the id of its worker and its state: progress makes it another item."""

POLL_S = 15.0
"""The time limit of a poll; the first one starts the probes."""
FIRST_REPEAT = 5.0
"""Unchanged items get another snapshot after this multiple of ``stuck_after_s``, then after twice the time before."""
MAX_GAP_S = 1800.0
MAX_DOUBLINGS = 30


class ProgressTracker:
    """Since when each item has been unchanged. Remembers only the items of the last poll."""

    def __init__(self) -> None:
        self._since: dict[Item, float] = {}
        self._workers: set[str] = set()

    def update(self, poll: ClusterPoll, now_s: float) -> None:
        """Adds a poll. The items of workers that did not answer count as unchanged."""
        silent = set(poll.silent)
        kept = {item: since for item, since in self._since.items() if item[0] in silent}
        polled = {item: self._since.get(item, now_s) for worker in poll.workers for item in _items(worker)}
        self._since = kept | polled
        self._workers = silent | {worker.worker_id for worker in poll.workers}

    def unchanged_for(self, seconds: float, now_s: float) -> frozenset[Item]:
        """The items that have been unchanged for at least this time."""
        return frozenset(item for item, since in self._since.items() if now_s - since >= seconds)

    def longest_unchanged_s(self, now_s: float) -> float:
        """The longest time that an item has been unchanged; 0 without items."""
        return max((now_s - since for since in self._since.values()), default=0.0)

    @property
    def present(self) -> Set[str]:
        """The ids of all tasks and workers of the last poll."""
        return self._workers | {item[1] for item in self._since if isinstance(item[1], str)}


def _items(worker: WorkerPoll) -> Iterator[Item]:
    for task_id in worker.running:
        yield worker.worker_id, task_id
    for task_id, state in (worker.pending or {}).items():
        yield worker.worker_id, task_id, state
    if worker.is_driver or worker.running or worker.pending or worker.pending is None:
        yield worker.worker_id, worker.counters


class SnapshotTrigger:
    """Decides when a snapshot is due.

    New unchanged items get a snapshot at once. The same items get further ones at increasing intervals. On average,
    snapshots use at most ``share`` of one core.
    """

    def __init__(self, stuck_after_s: float, share: float) -> None:
        self._stuck_after_s = stuck_after_s
        self._share = share
        self._known: frozenset[Item] = frozenset()
        self._not_before_s = self._last_s = float("-inf")
        self._again_at_s = float("inf")
        self._gap_s = 0.0
        self._failures = 0

    def reason(self, unchanged: frozenset[Item], now_s: float, *, has_progress: bool = False) -> str | None:
        """The reason for a snapshot now, or None. ``has_progress`` is set if a member of a finding has proceeded."""
        self._known &= unchanged
        if now_s < self._not_before_s:
            return None
        if has_progress:
            return "a member of a finding has made progress"
        if new := unchanged - self._known:
            return f"no progress for {self._stuck_after_s:g} s: {_counted(new)}"
        if unchanged and now_s >= self._again_at_s:
            return f"still no progress, {now_s - self._last_s:.0f} s after the last snapshot: {_counted(unchanged)}"
        return None

    def may_predict(self, now_s: float) -> bool:
        """Whether the last snapshot is so old that one for a prediction alone is due."""
        return now_s >= max(self._not_before_s, self._last_s + self._stuck_after_s)

    def note_snapshot(
        self, unchanged: frozenset[Item], now_s: float, cost_s: float, *, has_unproven: bool = False
    ) -> None:
        """Notes a snapshot of these items, and the CPU time that it used.

        With ``has_unproven`` findings in it, the next one is due after another ``stuck_after_s``.
        """
        is_new = bool(unchanged - self._known)
        first_s = FIRST_REPEAT * self._stuck_after_s
        self._gap_s = first_s if is_new or not self._gap_s else min(2 * self._gap_s, max(first_s, MAX_GAP_S))
        self._known = unchanged
        self._failures = 0
        self._last_s = now_s
        self._not_before_s = now_s + cost_s / self._share
        self._again_at_s = now_s + (self._stuck_after_s if has_unproven else self._gap_s)

    def note_cost(self, now_s: float, cost_s: float) -> None:
        """Notes CPU time that was used beside a snapshot; it delays the next one."""
        self._not_before_s = max(self._not_before_s, now_s) + cost_s / self._share

    def note_failure(self, now_s: float) -> None:
        """Notes a failed snapshot; the pause before the next one doubles each time."""
        self._not_before_s = now_s + min(self._stuck_after_s * 2**self._failures, max(self._stuck_after_s, MAX_GAP_S))
        self._failures = min(self._failures + 1, MAX_DOUBLINGS)


def _counted(items: frozenset[Item]) -> str:
    """The number of calls, which two workers may report each, and of workers with unchanged counters."""
    calls = {item[1] for item in items if _is_call(item)}
    workers = {item[0] for item in items if not _is_call(item)}
    counts = ((len(calls), "call", "calls"), (len(workers), "driver or busy worker", "drivers or busy workers"))
    return words.listed([words.plural(*count) for count in counts if count[0]])


def _is_call(item: Item) -> bool:
    return isinstance(item[1], str)
