"""The phases of an attempt as slices of time, and lanes in which slices do not overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import Literal

from dstack.analysis.history.task_index import Attempt

Phase = Literal["arguments", "resources", "sent", "queue", "running"]
"""What an attempt waits for, in this order, or that it runs.

Its arguments; resources, or for an actor call its actor and earlier calls; the start of its worker, only for tasks that
are no actor calls; the queue of its actor.
"""
NOTICED_LATE_S = 0.05
"""Calls of an actor that overlap by no more count as one after the other: see :func:`trimmed`."""
PHASES: tuple[Phase, ...] = ("arguments", "resources", "sent", "queue", "running")


@dataclass(frozen=True, slots=True)
class Slice:
    """One phase of an attempt, in Unix seconds by one clock; an open one had not ended when the history was read."""

    attempt: Attempt
    phase: Phase
    began_at: float
    ended_at: float
    is_open: bool = False

    @property
    def duration_s(self) -> float:
        """How long it lasts, at least so far."""
        return self.ended_at - self.began_at


def slices_of(attempt: Attempt, asked_at: float) -> Iterator[Slice]:
    """All phases of an attempt whose beginning is known, in order and without gaps.

    A phase lasts until the next one that is known. Clocks that disagree may give a phase an end before its beginning:
    it then has no length, and begins where the one before it ends. If an attempt has finished but its start is not
    known, as within a second of its end, the end of its last wait is not known either, and that is left out.
    """
    phases = _beginnings(attempt)
    has_unknown_start = attempt.state == "finished" and attempt.started_at is None
    ends = [time for _, time in phases[1:]]
    if not has_unknown_start:
        ends.append(asked_at if attempt.ended_at is None else attempt.ended_at)
    at = phases[0][1] if phases else 0.0
    for number, ((phase, _), end) in enumerate(zip(phases, ends, strict=False), 1):
        until = max(at, end)
        yield Slice(attempt, phase, at, until, attempt.ended_at is None and number == len(phases))
        at = until


def running_slice(attempt: Attempt, asked_at: float) -> Slice | None:
    """The phase in which it runs, None if it has not begun to."""
    if attempt.started_at is None:
        return None
    before = (attempt.submitted_at, attempt.ready_at, attempt.sent_at, attempt.arrived_at, attempt.started_at)
    began = max(time for time in before if time is not None)
    end = asked_at if attempt.ended_at is None else attempt.ended_at
    return Slice(attempt, "running", began, max(began, end), attempt.ended_at is None)


def trimmed(slices: Sequence[Slice]) -> list[Slice]:
    """Slices of a process that runs one task at a time, by their beginning: each ends when the next begins.

    The end of a task is when its caller noticed it, usually 1 ms later than the worker began the next one.
    """
    found = sorted(slices, key=_times)
    for number, (one, following) in enumerate(pairwise(found)):
        if one.ended_at > following.began_at:
            found[number] = replace(one, ended_at=following.began_at, is_open=False)
    return found


def overlap_s(slices: Sequence[Slice]) -> float:
    """The longest time for which a slice overlaps an earlier one; the slices are in the order of their beginning."""
    longest, end = 0.0, float("-inf")
    for one in slices:
        longest = max(longest, min(end, one.ended_at) - one.began_at)
        end = max(end, one.ended_at)
    return longest


def in_lanes(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Slices in as few lanes as possible, so that no two in a lane overlap; the longest free lane is used first."""
    lanes: list[list[Slice]] = []
    free_at: list[tuple[float, int]] = []
    for one in sorted(slices, key=_times):
        if free_at and free_at[0][0] <= one.began_at:
            _, number = heappop(free_at)
        else:
            number = len(lanes)
            lanes.append([])
        lanes[number].append(one)
        heappush(free_at, (one.ended_at, number))
    return lanes


def _beginnings(attempt: Attempt) -> list[tuple[Phase, float]]:
    """The known beginnings; a call is with its actor as soon as it is sent.

    A call of an actor that runs one at a time is reported as arrived only when it begins to run (Ray 2.46 to 2.60).
    """
    sent, queued = attempt.sent_at, attempt.arrived_at
    if attempt.task.kind == "ACTOR_TASK" and sent is not None:
        sent, queued = None, sent
    times = (attempt.submitted_at, attempt.ready_at, sent, queued, attempt.started_at)
    return [(phase, time) for phase, time in zip(PHASES, times, strict=True) if time is not None]


def _times(one: Slice) -> tuple[float, float]:
    return one.began_at, one.ended_at
