"""Threads with their frames, the same for every reader, and the call sites in them.

A thread waits if its innermost frame is at a ``leaf`` place of a site, and the kernel shows it blocked. Outward from
there, each frame at a ``caller`` place gives the wait a better name, up to the first frame of the user's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from dstack.call_sites import SITES
from dstack.libraries.torch import OPERATOR
from dstack.observed.call_site import At, Place, Site
from dstack.observed.processes import Origin

ASYNCIO = "/asyncio/"
"""The folder of asyncio's files."""
LOOP_THREAD = "AsyncIO Thread"
"""The name that Ray gives the threads of async actors' event loops; seen on Ray 2.46 and 2.60."""


@dataclass(frozen=True, eq=False)
class CodePosition:
    """A line of a function. Compared by identity: a reader uses one object for each position, so it can be a key.

    ``qualified`` is the function's qualified name where that is known. ``module`` is the shared library of a frame of
    C, which has no line of Python. ``origin`` is given where the file does not show it, as in Java.
    """

    file: str
    function: str
    qualified: str
    line: int
    module: str | None = None
    origin: Origin | None = None


class AnyFrame(Protocol):
    """A frame of a stack."""

    @property
    def position(self) -> CodePosition:
        """Its file, function and line."""

    def has(self, name: str) -> bool:
        """Whether a local variable of this name has a value."""


@dataclass(frozen=True)
class TextFrame:
    """A frame that is known by its text alone, as from py-spy; ``values`` are the texts of its locals, if any."""

    position: CodePosition
    values: Mapping[str, str] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether a local variable of this name has a value."""
        return name in self.values


F = TypeVar("F", bound=AnyFrame, covariant=True)


@dataclass(frozen=True)
class PythonThread(Generic[F]):
    """A Python thread: its pthread id, its OS id or 0 where that is not known, its name, and its frames, leaf first.

    ``is_running`` says that it was on a CPU or ready for one.
    """

    thread_id: int
    os_thread_id: int
    name: str
    frames: Sequence[F]
    is_running: bool = False


AnyThread = PythonThread[AnyFrame]


def function_of(frame: AnyFrame) -> str:
    """The plain name of the frame's function."""
    return frame.position.function


def is_in(frame: AnyFrame, file: str, *functions: str) -> bool:
    """Whether a frame is in a file whose path ends so, and in one of these functions if any are given."""
    position = frame.position
    return (not functions or position.function in functions) and position.file.endswith(file)


def is_event_loop(thread: AnyThread) -> bool:
    """Whether the thread runs an async actor's event loop, by its name."""
    return thread.name.startswith(LOOP_THREAD)


Table = dict[str, list[tuple[Place, Site]]]


def _by_function(fits: Callable[[Place], bool]) -> Table:
    """Places by function, the most specific file first: ``/ray/util/queue.py`` before ``/queue.py``."""
    places = [(place, site) for site in SITES.values() for place in site.places if fits(place)]
    table: Table = {}
    for place, site in sorted(places, key=lambda pair: -len(pair[0].file)):
        table.setdefault(place.function, []).append((place, site))
    return table


def _at(*where: At) -> Table:
    return _by_function(lambda place: place.at in where and place.every_s is None)


IN_LEAF, IN_CALLERS = _at("leaf", "leaf or caller"), _at("channel", "caller", "leaf or caller")
IN_CHANNEL, IN_COROUTINE = _at("channel"), _at("coroutine")
"""The tables for :func:`site_in`, by the place of a frame in its stack."""
_POLLS = _by_function(lambda place: place.every_s is not None)


def _place_in(frame: AnyFrame, table: Table) -> tuple[Place, Site] | None:
    position = frame.position
    for place, site in table.get(position.function, ()):
        if position.file.endswith(place.file) and (place.having is None or frame.has(place.having)):
            return place, site
    return None


def site_in(frame: AnyFrame, table: Table) -> Site | None:
    """The site of a table that this frame is in."""
    found = _place_in(frame, table)
    return found[1] if found else None


def site_of_leaf(frames: Sequence[AnyFrame]) -> Site | None:
    """The site of the innermost frame, or of its caller if the frame is an operator of torch."""
    site = site_in(frames[0], IN_LEAF)
    if site is None and len(frames) > 1 and is_in(frames[0], *OPERATOR):
        return site_in(frames[1], IN_LEAF)
    return site


def poll_of(leaf: AnyFrame) -> tuple[Site, float] | None:
    """The site at which a thread that sleeps in this frame polls, with the seconds of each sleep; None for others."""
    found = _place_in(leaf, _POLLS)
    return (found[1], found[0].every_s or 0.0) if found else None


def sites_outward(frames: Sequence[AnyFrame], is_user: Callable[[AnyFrame], bool]) -> Iterator[tuple[int, Site]]:
    """Frames that name a wait, with their index from the leaf, up to the user's own code."""
    for index, frame in enumerate(frames):
        if is_user(frame):
            return
        site = site_in(frame, IN_CALLERS if index else IN_LEAF)
        if site:
            yield index, site
