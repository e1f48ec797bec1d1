"""The figures of calls between two nodes: how many, in which states, how long they run, and how often they are made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter

from dstack.analysis.history.task_index import Attempt

SHORTEST_SPAN_S = 1.0
"""The shortest span of a rate."""
HIGH_RATE_PER_S = 10.0
"""Calls at this rate, or more frequent, are marked."""
HIGH_RATE_CALLS = 20
"""Fewer repeated calls have no high rate."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts and durations of the calls of a method, an edge or a caller.

    ``attempts`` includes retries, ``tasks`` does not; ``attempts`` are ``pending``, ``running``, ``finished`` or
    ``failed``. ``run_s`` is the sum of the durations of the ``timed`` attempts that have ended. ``max_s`` is the
    longest duration, and at least so long if ``is_max_open``: that attempt still runs. ``first_at`` and ``last_at`` are
    when the first and the last known attempt was submitted. ``per_s`` is the number of calls per second between these,
    and within at least one second; for several methods together that of the most frequent one. ``is_frequent`` says
    whether a method is called again and again at a high rate, as by a loop that polls: after earlier calls of it on the
    same actor have ended, which a burst of calls is not. ``live_bytes`` is the size of the live objects that the tasks
    have made.
    """

    attempts: int = 0
    tasks: int = 0
    pending: int = 0
    running: int = 0
    finished: int = 0
    failed: int = 0
    timed: int = 0
    run_s: float = 0.0
    max_s: float | None = None
    is_max_open: bool = False
    first_at: float | None = None
    last_at: float | None = None
    per_s: float | None = None
    is_frequent: bool = False
    live_bytes: int = 0

    @property
    def mean_s(self) -> float | None:
        """The mean duration of the attempts that have ended."""
        return self.run_s / self.timed if self.timed else None


def total(parts: list[Figures]) -> Figures:
    """The figures of all these calls together."""
    if len(parts) == 1:
        return parts[0]
    longest = max(parts, key=lambda part: part.max_s or 0.0, default=Figures())
    first = [part.first_at for part in parts if part.first_at is not None]
    last = [part.last_at for part in parts if part.last_at is not None]
    return Figures(
        attempts=sum(part.attempts for part in parts),
        tasks=sum(part.tasks for part in parts),
        pending=sum(part.pending for part in parts),
        running=sum(part.running for part in parts),
        finished=sum(part.finished for part in parts),
        failed=sum(part.failed for part in parts),
        timed=sum(part.timed for part in parts),
        run_s=sum(part.run_s for part in parts),
        max_s=longest.max_s,
        is_max_open=longest.is_max_open,
        first_at=min(first, default=None),
        last_at=max(last, default=None),
        per_s=max((part.per_s for part in parts if part.per_s is not None), default=None),
        is_frequent=any(part.is_frequent for part in parts),
        live_bytes=sum(part.live_bytes for part in parts),
    )


@dataclass(slots=True)
class Tally:
    """Attempts with one caller and one method, the number of their tasks, and the size of these tasks' live objects."""

    attempts: list[Attempt] = field(default_factory=list)
    tasks: int = 0
    live_bytes: int = 0

    @property
    def open_tasks(self) -> tuple[str, ...]:
        """The tasks that run, then those that are pending, each oldest first."""
        return tuple(
            one.task.task_id for state in ("running", "pending") for one in self.attempts if one.state == state
        )

    def figures(self, now: float | None) -> Figures:
        """The figures of these attempts; those that run have run until ``now``."""
        states = Counter(one.state for one in self.attempts)
        submitted = [one.submitted_at for one in self.attempts if one.submitted_at is not None]
        first_at, last_at = min(submitted, default=None), max(submitted, default=None)
        durations = [found for one in self.attempts if (found := _duration(one, now))]
        ended = [duration_s for duration_s, is_open in durations if not is_open]
        max_s, is_max_open = max(durations, key=itemgetter(0), default=(None, False))
        per_s = None if first_at is None else len(self.attempts) / max(SHORTEST_SPAN_S, (last_at or 0.0) - first_at)
        return Figures(
            attempts=len(self.attempts),
            tasks=self.tasks,
            pending=states["pending"],
            running=states["running"],
            finished=states["finished"],
            failed=states["failed"],
            timed=len(ended),
            run_s=sum(ended, 0.0),
            max_s=max_s,
            is_max_open=is_max_open,
            first_at=first_at,
            last_at=last_at,
            per_s=per_s,
            is_frequent=(per_s or 0.0) >= HIGH_RATE_PER_S and self._repeated() >= HIGH_RATE_CALLS,
            live_bytes=self.live_bytes,
        )

    def _repeated(self) -> int:
        """The number of calls that were submitted after an earlier one on the same actor had ended."""
        first_end: dict[str | None, float] = {}
        for one in self.attempts:
            if one.ended_at is not None:
                actor = one.task.actor_id
                first_end[actor] = min(one.ended_at, first_end.get(actor, one.ended_at))
        never = float("inf")
        return sum(
            one.submitted_at >= first_end.get(one.task.actor_id, never)
            for one in self.attempts
            if one.submitted_at is not None
        )


def _duration(attempt: Attempt, now: float | None) -> tuple[float, bool] | None:
    """How long an attempt has run, and whether it still runs; None if that is unknown."""
    is_open = attempt.ended_at is None
    end = (now if attempt.state == "running" else None) if is_open else attempt.ended_at
    return None if attempt.started_at is None or end is None else (max(0.0, end - attempt.started_at), is_open)
