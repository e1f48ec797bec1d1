"""The figures of calls between two nodes: how many, in which states, how long they run, and how often they are made."""

from __future__ import annotations

from dataclasses import dataclass, field

from dstack.analysis.history.task_index import Attempt

SHORTEST_SPAN_S = 1.0
"""The shortest span of a rate, so that a burst of calls is no high frequency."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts and durations of the calls of a method, an edge or a caller.

    ``attempts`` includes retries, ``tasks`` does not; ``attempts`` are ``pending``, ``running``, ``finished`` or
    ``failed``. ``run_s`` is the sum of the durations of the ``timed`` attempts that have ended. ``max_s`` is the
    longest duration, and at least so long if ``is_max_open``: that attempt still runs. ``first_at`` and ``last_at`` are
    when the first and the last known attempt was submitted. ``per_s`` is the number of calls per second between these,
    and within at least one second; for several methods together that of the most frequent one. ``live_bytes`` is the
    size of the live objects that the tasks have made.
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
        live_bytes=sum(part.live_bytes for part in parts),
    )


@dataclass(slots=True)
class Tally:
    """Counts attempts one by one; ``running`` and ``pending`` are the tasks of those that have not ended."""

    finished: int = 0
    failed: int = 0
    tasks: int = 0
    timed: int = 0
    run_s: float = 0.0
    max_s: float | None = None
    is_max_open: bool = False
    first_at: float | None = None
    last_at: float | None = None
    live_bytes: int = 0
    running: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)

    def add(self, attempt: Attempt, now: float | None) -> None:
        """Count an attempt; one that runs has run until ``now``."""
        match attempt.state:
            case "finished":
                self.finished += 1
            case "failed":
                self.failed += 1
            case "running":
                self.running.append(attempt.task.task_id)
            case "pending":
                self.pending.append(attempt.task.task_id)
        self._add_duration(attempt, now)
        at = attempt.submitted_at
        if at is not None:
            self.first_at = at if self.first_at is None or at < self.first_at else self.first_at
            self.last_at = at if self.last_at is None or at > self.last_at else self.last_at

    def _add_duration(self, attempt: Attempt, now: float | None) -> None:
        ended_at = attempt.ended_at
        is_open = ended_at is None
        end = (now if attempt.state == "running" else None) if is_open else ended_at
        if attempt.started_at is None or end is None:
            return
        duration_s = max(0.0, end - attempt.started_at)
        if not is_open:
            self.timed += 1
            self.run_s += duration_s
        if self.max_s is None or duration_s > self.max_s:
            self.max_s, self.is_max_open = duration_s, is_open

    @property
    def open_tasks(self) -> tuple[str, ...]:
        """The tasks that run, then those that are pending, each oldest first."""
        return (*self.running, *self.pending)

    def figures(self) -> Figures:
        """The figures of what was counted."""
        attempts = self.finished + self.failed + len(self.running) + len(self.pending)
        per_s = None
        if self.first_at is not None and self.last_at is not None:
            per_s = attempts / max(SHORTEST_SPAN_S, self.last_at - self.first_at)
        return Figures(
            attempts=attempts,
            tasks=self.tasks,
            pending=len(self.pending),
            running=len(self.running),
            finished=self.finished,
            failed=self.failed,
            timed=self.timed,
            run_s=self.run_s,
            max_s=self.max_s,
            is_max_open=self.is_max_open,
            first_at=self.first_at,
            last_at=self.last_at,
            per_s=per_s,
            live_bytes=self.live_bytes,
        )
