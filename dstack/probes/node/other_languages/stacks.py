"""Threads and frames of other languages, as their tools print them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dstack.probes.node.threads import Position

Section = tuple[re.Match[str], list[re.Match[str]]]
MAX_NAME = 300
"""The longest name of a function, thread or file that is kept."""


MAX_THREADS, MAX_FRAMES = 10_000, 10_000


@dataclass(frozen=True)
class RayCall:
    """A call of Ray's: its kind, the index of the frame that user code has called, and whether it has no timeout."""

    kind: str
    frame: int
    is_endless: bool


@dataclass(frozen=True)
class NativeThread:
    """A thread with its frames, leaf first.

    ``call`` is the call of Ray's that it is in. ``runs_task`` says that it executes a task, ``is_main`` that the
    program began with it, and ``is_service`` that it belongs to the language's runtime or to a library.
    """

    os_thread_id: int
    name: str
    positions: Sequence[Position]
    call: RayCall | None = None
    runs_task: bool = False
    is_main: bool = False
    is_service: bool = False


def sections(text: str, thread: re.Pattern[str], frame: re.Pattern[str]) -> Iterator[Section]:
    """The lines that begin threads, each with the lines of its frames; at most so many of both."""
    found: list[Section] = []
    for line in text.splitlines():
        if begin := thread.fullmatch(line):
            found.append((begin, []))
        elif found and len(found[-1][1]) < MAX_FRAMES and (match := frame.fullmatch(line)):
            found[-1][1].append(match)
    return itertools.islice((one for one in found if one[1]), MAX_THREADS)


def of_call(positions: Sequence[Position]) -> int:
    """How many of the innermost frames belong to the call that the user's code has made; 0 without code of the user."""
    return next((index for index, one in enumerate(positions) if one.origin == "user"), 0)


def ray_call(positions: Sequence[Position], kinds: Mapping[str, str], *, is_endless: bool) -> RayCall | None:
    """The call that the user's code has made, if it is in one of these functions; ``kinds`` by function."""
    count = of_call(positions)
    found = next((one.qualified for one in positions[:count] if one.qualified in kinds), None)
    return RayCall(kinds[found], count - 1, is_endless) if found else None
