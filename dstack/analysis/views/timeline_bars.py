"""What one row of the timeline draws: bars that do not overlap, or how many of something there are at each time."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from operator import attrgetter
from typing import NamedTuple

from dstack.analysis.history.task_index import Attempt

NOTHING, ARGUMENTS, RESOURCES, SENT, QUEUE, FINISHED, RUNNING, WAITING, STUCK, FAILED = range(10)
"""What an attempt waits for, or how its run ended; of several in one cell of the screen, the highest is drawn.

Of those that have begun and not ended, the snapshot shows some in a wait, and some of these can never proceed.
"""
OPEN = (RUNNING, WAITING, STUCK)
"""The kinds of attempts that have begun and not ended."""


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
