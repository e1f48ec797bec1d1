"""The lines of the application's source on which the time of a profile was spent."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dstack.analysis.stacks.profiles import ProfileInterval, profile_stacks
from dstack.model.profile import PathStep, Profile

MOST_FILES = 3
MOST_LINES = 200
"""The most lines of one file: those with the most time, and what is around them."""
CONTEXT_LINES = 2


@dataclass(frozen=True, slots=True)
class HotLine:
    """A line of source, with the time of all paths that go through it, and of those whose last frame is there.

    ``text`` is None if it was not read. ``is_after_gap`` says that lines before it are left out or not known.
    """

    number: int
    text: str | None
    weight_us: int = 0
    own_us: int = 0
    is_after_gap: bool = False


@dataclass(frozen=True, slots=True)
class HotFile:
    """A file of the application, with the time of all paths through it, out of ``total_us``."""

    file: str
    weight_us: int
    own_us: int
    total_us: int
    lines: tuple[HotLine, ...]

    def share(self, weight_us: int) -> float:
        """The part of all time, in percent."""
        return 100 * weight_us / self.total_us if self.total_us else 0.0


def hot_files(profile: Profile, most: int = MOST_FILES, within: ProfileInterval | None = None) -> list[HotFile]:
    """The files with the most time, each with its lines; a path counts once for each file and line it goes through."""
    total_us, files = 0, Counter[str]()
    own: defaultdict[str, Counter[int]] = defaultdict(Counter)
    lines: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for one in profile_stacks(profile, within).stacks:
        weight_us, frames = one.weight, list(_own_frames(one.frames))
        total_us += weight_us
        for file in {frame.file for frame in frames}:
            files[file] += weight_us
        for file, line in {(frame.file, frame.line) for frame in frames}:
            lines[file][line] += weight_us
        if (last := _last_frame(one.frames)) and last in frames:
            own[last.file][last.line] += weight_us
    hottest = sorted(files, key=lambda file: (-files[file], -own[file].total(), file))
    return [
        HotFile(
            file,
            files[file],
            own[file].total(),
            total_us,
            tuple(_lines(lines[file], own[file], profile.sources.get(file, {}))),
        )
        for file in hottest[:most]
        if files[file]
    ]


def _last_frame(path: Iterable[PathStep]) -> PathStep | None:
    """The last frame of a path."""
    return next((step for step in reversed(tuple(path)) if step.is_frame), None)


def _own_frames(path: Iterable[PathStep]) -> Iterator[PathStep]:
    """The frames of the application that have a line of source."""
    return (step for step in path if step.is_frame and step.origin == "user" and step.line > 0)


def _lines(weights: Counter[int], own: Counter[int], known: Mapping[int, str]) -> Iterator[HotLine]:
    """The hot lines and those around them, in the order of the file."""
    shown: set[int] = set()
    for number, _ in weights.most_common():
        around = range(number - CONTEXT_LINES, number + CONTEXT_LINES + 1)
        shown |= {number, *(one for one in around if one in known)}
        if len(shown) >= MOST_LINES:
            break
    before = 0
    for number in sorted(shown):
        yield HotLine(number, known.get(number), weights[number], own[number], number != before + 1)
        before = number
