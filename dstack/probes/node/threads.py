"""Threads and frames, the same for both readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from dstack.observed.processes import Origin

ASYNCIO = "/asyncio/"
"""The folder of asyncio's files."""
LOOP_THREAD = "AsyncIO Thread"
"""The name that Ray gives the threads of async actors' event loops; seen on Ray 2.46 and 2.60."""


@dataclass(frozen=True, eq=False)
class Position:
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


class Frame(Protocol):
    """A frame of a stack."""

    @property
    def position(self) -> Position:
        """Its file, function and line."""

    def has(self, name: str) -> bool:
        """Whether a local variable of this name has a value."""


@dataclass(frozen=True)
class ShownFrame:
    """A frame that is known by its text alone, as from py-spy; ``values`` are the texts of its locals, if any."""

    position: Position
    values: Mapping[str, str] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether a local variable of this name has a value."""
        return name in self.values


F = TypeVar("F", bound=Frame, covariant=True)


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


AnyThread = PythonThread[Frame]


def function_of(frame: Frame) -> str:
    """The plain name of the frame's function."""
    return frame.position.function


def is_in(frame: Frame, file: str, *functions: str) -> bool:
    """Whether a frame is in a file whose path ends so, and in one of these functions if any are given."""
    position = frame.position
    return (not functions or position.function in functions) and position.file.endswith(file)


def is_event_loop(thread: AnyThread) -> bool:
    """Whether the thread runs an async actor's event loop, by its name."""
    return thread.name.startswith(LOOP_THREAD)
