"""Values of local variables in the frames of calls on process groups."""

from __future__ import annotations

from collections.abc import Sequence

from dstack.probes.node.cpython.frames import Frame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.threads import is_in


def number_in(objects: Objects, frame: Frame, name: str) -> int | None:
    """The number in a local, None where it has none."""
    address = frame.local(name)
    return int(objects.number(address) or 0) if objects.is_a(address, "int") else None


def text_in(objects: Objects, frame: Frame, name: str, longest: int) -> str:
    """The text of a local, empty where it has none."""
    address = frame.local(name)
    return objects.text(address, longest) if objects.is_a(address, "str") else ""


def frame_in(frames: Sequence[Frame], file: str, function: str) -> Frame | None:
    """The innermost frame in this function."""
    return next((frame for frame in frames if is_in(frame, file, function)), None)
