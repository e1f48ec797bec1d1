"""The phases of attempts as slices of time, lanes in which slices do not overlap, and the bars drawn of them."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import accumulate, compress, pairwise
from operator import attrgetter
from typing import Literal, NamedTuple

from dstack.analysis.history.task_index import Attempt

Phase = Literal["arguments", "resources", "sent", "queue", "running"]
"""What an attempt waits for, in this order, or that it runs.

Its arguments; resources, or for an actor call its actor and earlier calls; the start of its worker, only for tasks that
are no actor calls; the queue of its actor.
"""
NOTICED_LATE_S = 0.05
"""Calls of an actor that overlap by no more count as one after the other: see :func:`trimmed`."""
PHASES: tuple[Phase, ...] = ("arguments", "resources", "sent", "queue", "running")
NOTHING, ARGUMENTS, RESOURCES, SENT, QUEUE, FINISHED, RUNNING, WAITING, STUCK, FAILED = range(10)
"""What an attempt waits for, or how its run ended; of several in one cell of the screen, the highest is drawn.

Of those that have begun and not ended, the snapshot shows some in a wait, and some of these can never proceed.
"""
OPEN = (RUNNING, WAITING, STUCK)
"""The kinds of attempts that have begun and not ended."""


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


class Bar(NamedTuple):
    """What an attempt did from when to when, in Unix seconds; ``label`` numbers the text by which it is found."""

    began_at: float
    ended_at: float
    kind: int
    attempt: Attempt
    label: int


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars one after another, by time: columns of :class:`Bar`."""

    begins: array[float]
    ends: array[float]
    kinds: bytes
    attempts: Sequence[Attempt]
    labels: array[int]

    @classmethod
    def of(cls, bars: Sequence[Bar]) -> Bars:
        """Bars that are sorted and do not overlap."""
        begins, ends, kinds, attempts, labels = zip(*bars, strict=True) if bars else ((), (), (), (), ())
        return cls(array("d", begins), array("d", ends), bytes(kinds), attempts, array("L", labels))

    def __len__(self) -> int:
        return len(self.attempts)

    def within(self, began_at: float, ended_at: float) -> range:
        """The numbers of the bars that overlap a half-open interval; one without a duration is in that of its time."""
        first = bisect_left(self.ends, began_at)
        if first < len(self.ends) and self.ends[first] == began_at > self.begins[first]:
            first += 1
        return range(first, max(first, bisect_left(self.begins, ended_at)))

    def only(self, wanted: bytes) -> Bars:
        """Those whose byte is not zero."""
        return Bars(
            array("d", compress(self.begins, wanted)),
            array("d", compress(self.ends, wanted)),
            bytes(compress(self.kinds, wanted)),
            tuple(compress(self.attempts, wanted)),
            array("L", compress(self.labels, wanted)),
        )


class Levels:
    """Bars that may overlap, by their beginning, and how many of them there are at each time, by kind.

    ``peak`` is the largest number at one time; of a part of the bars it is that of all, so that both have one scale.
    """

    def __init__(self, bars: Bars, peak: int | None = None) -> None:
        self.bars = bars
        base = bars.begins[0] if bars.begins else 0.0
        self._by_kind = {
            kind: _Level(compress(bars.begins, mine), compress(bars.ends, mine), base)
            for kind in sorted(set(bars.kinds))
            if (mine := bars.kinds.translate(bytes(one == kind for one in range(256))))
        }
        self.peak = peak or max(1, _Level(bars.begins, bars.ends, base).peak())

    @classmethod
    def of(cls, bars: Iterable[Bar]) -> Levels:
        """Any bars."""
        return cls(Bars.of(sorted(bars, key=attrgetter("began_at"))))

    def __len__(self) -> int:
        return len(self.bars)

    def means(self, edges: Sequence[float]) -> Iterator[tuple[int, float, int]]:
        """For each interval between two edges: the most frequent kind, the mean of all, and how many overlap it."""
        areas = {kind: [level.area(edge) for edge in edges] for kind, level in self._by_kind.items()}
        for at in range(len(edges) - 1):
            began, ended = edges[at], edges[at + 1]
            kind, most, total, touching = NOTHING, -1.0, 0.0, 0
            for one, level in self._by_kind.items():
                if count := level.touching(began, ended):
                    area = areas[one][at + 1] - areas[one][at]
                    touching, total = touching + count, total + area
                    kind, most = (one, area) if area >= most else (kind, most)
            yield kind, total / (ended - began), touching

    def within(self, began_at: float, ended_at: float) -> list[int]:
        """The numbers of the bars that overlap an interval, by their beginning."""
        ends = self.bars.ends
        return [number for number in range(bisect_left(self.bars.begins, ended_at)) if ends[number] > began_at]

    def only(self, wanted: bytes) -> Levels:
        """Those whose byte is not zero."""
        return Levels(self.bars.only(wanted), self.peak)


class _Level:
    """Bars of one kind. Times are relative to ``base``, as sums of them would lose digits otherwise."""

    __slots__ = ("_base", "_begin_sums", "_begins", "_end_sums", "_ends")

    def __init__(self, begins: Iterable[float], ends: Iterable[float], base: float) -> None:
        self._base = base
        self._begins = array("d", sorted(begin - base for begin in begins))
        self._ends = array("d", sorted(end - base for end in ends))
        self._begin_sums = array("d", accumulate(self._begins, initial=0.0))
        self._end_sums = array("d", accumulate(self._ends, initial=0.0))

    def touching(self, began_at: float, ended_at: float) -> int:
        """The number of bars that overlap an interval."""
        begun = bisect_left(self._begins, ended_at - self._base)
        return max(0, begun - bisect_right(self._ends, began_at - self._base))

    def area(self, until: float) -> float:
        """The sum of the durations of all bars up to a time, in seconds."""
        until -= self._base
        begun, ended = bisect_right(self._begins, until), bisect_right(self._ends, until)
        return begun * until - self._begin_sums[begun] - (ended * until - self._end_sums[ended])

    def peak(self) -> int:
        """The largest number at one time."""
        most = ended = 0
        for begun, begin in enumerate(self._begins, 1):
            while ended < len(self._ends) and self._ends[ended] <= begin:
                ended += 1
            most = max(most, begun - ended)
        return most
