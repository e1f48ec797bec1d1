"""What has not moved since when, as cheap looks show it, and when that is worth a full one.

Three things can stand still: a task that the same worker runs, a task that its owner has in the same state, and a
driver or busy worker that counts nothing new. A long healthy task stands as well as a hung one: only a full look tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from dstack import words
from dstack.cluster_poll import ClusterPoll, WorkerPoll

Item = tuple[object, ...]
"""Something that may stand still; another one as soon as anything of it changes. The first is the worker that tells."""

SLOW = 5.0
"""A picture that was looked at is looked at again when it has lasted so many times as long, then ever less often."""
SLOWEST_S = 1800.0
MOST_DOUBLINGS = 30


class ProgressTracker:
    """Since when each thing stands. Remembers only what the last look has shown."""

    def __init__(self) -> None:
        self._since: dict[Item, float] = {}
        self._workers: set[str] = set()

    def see(self, glance: ClusterPoll, now_s: float) -> None:
        """Takes in a look. Of who did not answer, what was known stands: nothing shows that it moved."""
        silent = set(glance.silent)
        kept = {item: since for item, since in self._since.items() if item[0] in silent}
        seen = {item: self._since.get(item, now_s) for worker in glance.workers for item in _items(worker)}
        self._since = kept | seen
        self._workers = silent | {worker.worker_id for worker in glance.workers}

    def older_than(self, age_s: float, now_s: float) -> frozenset[Item]:
        """All that stands for at least so long."""
        return frozenset(item for item, since in self._since.items() if now_s - since >= age_s)

    def longest_s(self, now_s: float) -> float:
        """For how long something stands at most; 0 where nothing does."""
        return max((now_s - since for since in self._since.values()), default=0.0)

    @property
    def present(self) -> Set[str]:
        """The ids of all tasks and workers of the last look."""
        return self._workers | {item[1] for item in self._since if isinstance(item[1], str)}


def _items(worker: WorkerPoll) -> Iterator[Item]:
    for task_id in worker.running:
        yield worker.worker_id, task_id
    for task_id, state in (worker.pending or {}).items():
        yield worker.worker_id, task_id, state
    if worker.is_driver or worker.running or worker.pending or worker.pending is None:
        yield worker.worker_id, worker.counters


class SnapshotTrigger:
    """Decides when a full look is due.

    A picture, that is all that stands for ``stuck_after_s``, is looked at once, again at once when something is new in
    it, and else ever less often. On average full looks take up no more than ``share`` of one core.
    """

    def __init__(self, stuck_after_s: float, share: float) -> None:
        self._stuck_after_s = stuck_after_s
        self._share = share
        self._seen: frozenset[Item] = frozenset()
        self._not_before_s = float("-inf")
        self._again_at_s = float("inf")
        self._slow_s = 0.0
        self._looked_s = 0.0
        self._failures = 0

    def reason(self, picture: frozenset[Item], now_s: float, *, touched: bool = False) -> str | None:
        """Why to look now, in words; None for not now. ``touched`` says that somebody in a finding has moved."""
        self._seen &= picture
        if now_s < self._not_before_s:
            return None
        if touched:
            return "a member of a finding has made progress"
        if new := picture - self._seen:
            return f"no progress for {self._stuck_after_s:g} s: {_things(new)}"
        if picture and now_s >= self._again_at_s:
            return f"still no progress, {now_s - self._looked_s:.0f} s after the last snapshot: {_things(picture)}"
        return None

    def looked(self, picture: frozenset[Item], now_s: float, cost_s: float, *, is_doubtful: bool = False) -> None:
        """Takes in that there was a full look at this picture, and that it took so much CPU time.

        What was ``is_doubtful`` in it is looked at again as soon as it has stood once more as long.
        """
        is_new = bool(picture - self._seen)
        first_s = SLOW * self._stuck_after_s
        self._slow_s = first_s if is_new or not self._slow_s else min(2 * self._slow_s, max(first_s, SLOWEST_S))
        self._seen = picture
        self._failures = 0
        self._looked_s = now_s
        self._not_before_s = now_s + cost_s / self._share
        self._again_at_s = now_s + (self._stuck_after_s if is_doubtful else self._slow_s)

    def failed(self, now_s: float) -> None:
        """Takes in that a full look was tried and gave nothing: the next one waits, longer each time."""
        self._not_before_s = now_s + min(self._stuck_after_s * 2**self._failures, max(self._stuck_after_s, SLOWEST_S))
        self._failures = min(self._failures + 1, MOST_DOUBLINGS)


def _things(items: frozenset[Item]) -> str:
    """How many calls, each of which two may tell of, and how many who do not count anything new."""
    calls = {item[1] for item in items if _is_call(item)}
    workers = {item[0] for item in items if not _is_call(item)}
    counts = ((len(calls), "call", "calls"), (len(workers), "driver or busy worker", "drivers or busy workers"))
    return words.listed([words.plural(*count) for count in counts if count[0]])


def _is_call(item: Item) -> bool:
    return isinstance(item[1], str)
