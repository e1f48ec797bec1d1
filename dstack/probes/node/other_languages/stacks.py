"""Threads and frames of other languages, as their tools print them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dstack.probes.node.threads import Position

MAX_NAME = 300
"""The longest name of a function, thread or file that is kept."""


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


def of_call(positions: Sequence[Position]) -> int:
    """How many of the innermost frames belong to the call that the user's code has made; 0 without code of the user."""
    return next((index for index, one in enumerate(positions) if one.origin == "user"), 0)


def ray_call(positions: Sequence[Position], kinds: Mapping[str, str], *, is_endless: bool) -> RayCall | None:
    """The call that the user's code has made, if it is in one of these functions; ``kinds`` by function."""
    count = of_call(positions)
    found = next((one.qualified for one in positions[:count] if one.qualified in kinds), None)
    return RayCall(kinds[found], count - 1, is_endless) if found else None
