"""The iterations of a loop in a profile: how long they took, and what the longest ones had that others had not.

A loop is recognised by the lines of one function of a root: they go forward, and come back at each iteration. If it
is on one line only, or the others are too short for samples, by the waits of that line: each is another one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from dstack.analysis.stacks.profiles import ProfileInterval, chain_key, end_of, times_of
from dstack.model.profile import PathStep, Profile, RootTime
from dstack.words import grouped

FEWEST = 3
"""So many whole iterations are needed to say anything."""
MIXED = 0.05
"""A root that is at several places at once for more of its time has no order of lines."""
MISSED = 1.5
"""A line further on begins the loop if it comes back so many times as often at most: samples miss short first lines."""
LONG = 1.25
"""Iterations that took so many times the median are long."""
MOST_EXTRA = 3
NOTABLE = 0.1
"""Less of the time by which long iterations are longer is not named."""


@dataclass(frozen=True, slots=True)
class ExtraTime:
    """A chain's end with its mean time in the long iterations and in the others."""

    end: tuple[PathStep, ...]
    long_us: float
    others_us: float


@dataclass(frozen=True, slots=True)
class Iterations:
    """The whole iterations of a root's loop, in the order of time.

    ``place`` is the function at the first line of the loop, up to ``last_line``. ``long`` are the indices of the long
    ones, the longest first; it is one of them even if all are alike, and then ``extra`` is empty.
    """

    root: str
    place: PathStep
    last_line: int
    each: tuple[ProfileInterval, ...]
    long: tuple[int, ...]
    extra: tuple[ExtraTime, ...]

    @property
    def median_us(self) -> float:
        """The median of their durations."""
        return median(one.length_us for one in self.each)

    @property
    def longest(self) -> ProfileInterval:
        """The longest one."""
        return self.each[self.long[0]]


@dataclass(slots=True)
class _Stay:
    """A time in which a root is at one place, its own frames, outermost first, and in one wait."""

    frames: tuple[PathStep, ...]
    nth_wait: int
    from_us: int
    to_us: int


def iterations_of(profile: Profile) -> list[Iterations]:
    """The outermost loop of each root that has one."""
    by_root = grouped((one.root, one) for one in times_of(profile))
    return [found for root, times in by_root.items() if (found := _iterations(root, times))]


def _iterations(root: str, times: Sequence[RootTime]) -> Iterations | None:
    stays = _stays(times)
    for depth in range(max((len(one.frames) for one in stays), default=0)):
        in_function = grouped((_functions(one.frames[: depth + 1]), one) for one in stays if len(one.frames) > depth)
        for inside in _longest_first(in_function.values()):
            begins = _begins([(one.frames[depth].line, one.from_us) for one in inside])
            if begins:
                frames = [one.frames[depth] for one in inside if begins[0] <= one.from_us < begins[-1]]
                place = min(frames, key=lambda frame: frame.line)
                last_line = max(frame.line for frame in frames)
                return _described(root, place, last_line, begins, times)
    for inside in _longest_first(grouped((one.frames, one) for one in stays if one.frames).values()):
        begins = [one.from_us for before, one in pairwise(inside) if one.nth_wait != before.nth_wait]
        if len(begins) > FEWEST:
            place = inside[0].frames[-1]
            return _described(root, place, place.line, begins, times)
    return None


def _longest_first(groups: Iterable[Sequence[_Stay]]) -> list[Sequence[_Stay]]:
    return sorted(groups, key=lambda stays: -sum(one.to_us - one.from_us for one in stays))


def _stays(times: Sequence[RootTime]) -> list[_Stay]:
    """Where a root was, in the order of time; nothing if it was at several places at once."""
    stays: list[_Stay] = []
    mixed_us = until_us = 0
    for one in times:
        frames, to_us = _own_frames(one.path), one.began_us + one.lasted_us
        if stays and (stays[-1].frames, stays[-1].nth_wait) == (frames, one.nth_wait):
            stays[-1].to_us = max(stays[-1].to_us, to_us)
        else:
            mixed_us += max(0, min(until_us, to_us) - one.began_us)
            stays.append(_Stay(frames, one.nth_wait, one.began_us, to_us))
        until_us = max(until_us, to_us)
    return stays if mixed_us <= MIXED * until_us else []


def _own_frames(path: Sequence[PathStep]) -> tuple[PathStep, ...]:
    """The frames of a root itself, up to what it waits for."""
    begin = 1 if path and not path[0].is_frame and not path[0].state else 0
    end = next((at for at in range(begin, len(path)) if not path[at].is_frame), len(path))
    return tuple(step for step in path[begin:end] if step.origin == "user" and step.line)


def _functions(frames: Sequence[PathStep]) -> tuple[tuple[str, str], ...]:
    return tuple((frame.function, frame.file) for frame in frames)


def _begins(lines: Sequence[tuple[int, int]]) -> list[int]:
    """When the iterations of a loop began, from its lines with their times: where they come back to its first lines.

    An inner loop comes back more often, but not so far.
    """
    found: list[int] = []
    most = 0.0
    for first in sorted({line for line, _ in lines})[:-1]:
        begins = [at_us for (before, _), (line, at_us) in pairwise(lines) if line <= first < before]
        if not found and len(begins) > FEWEST:
            found, most = begins, MISSED * len(begins)
        elif len(found) < len(begins) <= most:
            found = begins
    return found


def _described(
    root: str, place: PathStep, last_line: int, begins: Sequence[int], times: Sequence[RootTime]
) -> Iterations:
    each = [ProfileInterval(*edge) for edge in pairwise(begins)]
    usual_us = median(one.length_us for one in each)
    order = sorted(range(len(each)), key=lambda at: -each[at].length_us)
    long = tuple(at for at in order if each[at].length_us >= LONG * usual_us)
    extra = tuple(_extra(each, long, times)) if long else ()
    return Iterations(root, place, last_line, tuple(each), long or (order[0],), extra)


def _extra(each: Sequence[ProfileInterval], long: Sequence[int], times: Sequence[RootTime]) -> Iterator[ExtraTime]:
    """The ends of chains that the long iterations have more of, the largest difference first."""
    spent = [Counter[object]() for _ in each]
    ends: dict[object, tuple[PathStep, ...]] = {}
    begins = [one.from_us for one in each]
    for one in times:
        key = chain_key(one.path)
        ends.setdefault(key, end_of(one.path))
        first = max(0, bisect_right(begins, one.began_us) - 1)
        for at in range(first, bisect_left(begins, one.began_us + one.lasted_us)):
            spent[at][key] += each[at].of(one)
    others = [at for at in range(len(each)) if at not in long]
    means = {
        key: (fmean(spent[at][key] for at in long), fmean(spent[at][key] for at in others) if others else 0.0)
        for key in ends
    }
    least_us = NOTABLE * (fmean(each[at].length_us for at in long) - median(one.length_us for one in each))
    ordered = sorted(means.items(), key=lambda item: item[1][1] - item[1][0])
    for key, (long_us, others_us) in ordered[:MOST_EXTRA]:
        if long_us - others_us >= least_us:
            yield ExtraTime(ends[key], long_us, others_us)
