"""Profiles as weighted stacks, and the chains of waits on which most of their time was spent."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from dstack.analysis.stacks.weighted_stacks import WeightedStack, WeightedStacks
from dstack.model.profile import PathStep, Profile, RootTime
from dstack.words import grouped

MAX_SLICES = 5_000
"""The most slices into which the time of a root is cut to draw it in its order."""
MAX_PARTS = 500_000
"""The most parts of all slices: as many as paths share each of them."""


@dataclass(frozen=True, slots=True)
class ProfileInterval:
    """A part of a profile, in microseconds since its begin."""

    from_us: int
    to_us: int

    @property
    def length_us(self) -> int:
        """How long it is."""
        return self.to_us - self.from_us

    def of(self, time: RootTime) -> int:
        """The part of a time that is in the interval."""
        inside = min(self.to_us, time.began_us + time.lasted_us) - max(self.from_us, time.began_us)
        return round(time.weight_us * inside / time.lasted_us) if inside > 0 else 0


def whole(profile: Profile) -> ProfileInterval:
    """All of a profile."""
    return ProfileInterval(0, round(profile.duration_s * 1e6))


def halves(profile: Profile) -> tuple[ProfileInterval, ProfileInterval]:
    """The first and the last half of a profile."""
    end = round(profile.duration_s * 1e6)
    return ProfileInterval(0, end // 2), ProfileInterval(end // 2, end)


def times_of(profile: Profile) -> list[RootTime]:
    """The times of all roots, in the order of their begin."""
    paths = [tuple(profile.steps[index] for index in path) for path in profile.paths]
    return [RootTime(profile.roots[one.root], paths[one.path], *one[2:]) for one in profile.shares]


def profile_stacks(profile: Profile, within: ProfileInterval | None = None) -> WeightedStacks:
    """A profile as stacks below their roots; only what is ``within`` an interval."""
    interval = within or whole(profile)
    stacks = (((one.root,), one.path, interval.of(one)) for one in times_of(profile))
    return WeightedStacks.summed("profile", "microseconds", stacks)


def stacks_in_time(profile: Profile, within: ProfileInterval | None = None) -> WeightedStacks:
    """As :func:`profile_stacks`, but in the order of time, one root after the other; a stack may come back later.

    The paths that share a time are side by side in it.
    """
    interval = within or whole(profile)
    by_root = grouped((one.root, one) for one in times_of(profile))
    slices = ((root, path, us) for root, times in by_root.items() for path, us in _in_time(times, interval))
    found = (
        WeightedStack((root,), path, sum(us for _, _, us in same))
        for (root, path), same in groupby(slices, key=lambda one: one[:2])
    )
    return WeightedStacks("profile", "microseconds", tuple(found))


def _in_time(times: Sequence[RootTime], within: ProfileInterval) -> Iterator[tuple[tuple[PathStep, ...], int]]:
    """The paths of one root with their times; the last path before continues first."""
    cuts = _cuts(times, within)
    ahead, now, last = deque(times), list[RootTime](), tuple[PathStep, ...]()
    for one in (ProfileInterval(*edge) for edge in pairwise(cuts)):
        while ahead and ahead[0].began_us < one.to_us:
            now.append(ahead.popleft())
        now = [time for time in now if time.began_us + time.lasted_us > one.from_us]
        weights: Counter[tuple[PathStep, ...]] = Counter()
        for time in now:
            weights[time.path] += one.of(time)
        for path in sorted(+weights, key=lambda path: (path != last, path)):
            yield path, weights[path]
            last = path


def _cuts(times: Sequence[RootTime], within: ProfileInterval) -> list[int]:
    """Where the time of a root is cut: where a path begins or ends, or at fewer places."""
    edges = {edge for one in times for edge in (one.began_us, one.began_us + one.lasted_us)}
    cuts = sorted({min(max(edge, within.from_us), within.to_us) for edge in edges})
    crossed = sum(bisect_left(cuts, one.began_us + one.lasted_us) - bisect_left(cuts, one.began_us) for one in times)
    step = 1 + max(len(cuts) // MAX_SLICES, crossed // MAX_PARTS)
    return [*cuts[:-1:step], *cuts[-1:]]


@dataclass(frozen=True, slots=True)
class Chain:
    """All paths with one end: the same functions of the last execution, in the same state.

    ``end`` and ``way``, the steps before it, are those of the heaviest path, which has ``heaviest_us`` of
    ``weight_us``. ``queued_us`` is the time that is on a way through a queue. ``first_us`` and ``last_us`` are the
    times in the two halves of the profile.
    """

    root: str
    way: tuple[PathStep, ...]
    end: tuple[PathStep, ...]
    weight_us: int
    heaviest_us: int
    queued_us: int
    first_us: int
    last_us: int


def chains_of(profile: Profile) -> list[Chain]:
    """The chains of a profile, the heaviest first."""
    first, last = halves(profile)
    by_end: dict[object, list[RootTime]] = defaultdict(list)
    for one in times_of(profile):
        by_end[chain_key(one.path)].append(one)
    chains = (_chain(times, first, last) for times in by_end.values())
    return sorted(chains, key=lambda chain: (-chain.weight_us, chain.end, chain.way))


def _chain(times: Sequence[RootTime], first: ProfileInterval, last: ProfileInterval) -> Chain:
    weights: Counter[tuple[str, tuple[PathStep, ...]]] = Counter()
    for one in times:
        weights[one.root, one.path] += one.weight_us
    (root, path), heaviest_us = max(weights.items(), key=lambda item: (item[1], item[0]))
    end = end_of(path)
    return Chain(
        root=root,
        way=path[: len(path) - len(end)],
        end=end,
        weight_us=weights.total(),
        heaviest_us=heaviest_us,
        queued_us=sum(one.weight_us for one in times if any(step.state == "queue" for step in one.path)),
        first_us=sum(map(first.of, times)),
        last_us=sum(map(last.of, times)),
    )


def end_of(path: tuple[PathStep, ...]) -> tuple[PathStep, ...]:
    """The last execution of a path: from its name, or for a root from its outermost frame, to its state."""
    first = len(path) - 1
    while first > 0 and (path[first - 1].is_frame or path[first - 1].is_span):
        first -= 1
    is_named = first > 0 and not path[first - 1].state
    return path[first - is_named :]


def chain_key(path: tuple[PathStep, ...]) -> object:
    """Equal for the paths of one chain: the same functions of the last execution, whichever of their lines."""
    return tuple((step.name, step.file, step.function, step.state) for step in end_of(path))


def total_us(profile: Profile) -> int:
    """The time of all roots, on whatever path."""
    return sum(one.weight_us for one in profile.shares)
