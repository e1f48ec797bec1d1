"""Which frame of a stack stands for it. Stacks are given leaf first."""

from __future__ import annotations

from dstack.observed import Frame


def user_frame(frames: tuple[Frame, ...], *, outermost: bool = False) -> Frame | None:
    """The innermost or outermost frame of user code; None if there is none."""
    own = [frame for frame in frames if frame.origin == "user"]
    return own[-1 if outermost else 0] if own else None


def innermost_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost user frame, else the innermost frame."""
    return user_frame(frames) or (frames[0] if frames else None)


def is_of_dstack(frame: Frame) -> bool:
    """Whether a frame is of dstack, which a driver may call to check itself."""
    return frame.origin == "library" and "/dstack/" in frame.file


def is_ray_core(frames: tuple[Frame, ...]) -> bool:
    """Whether only code of Ray's core runs, as in the threads that Ray starts: it acts on messages of Ray only."""
    return any(map(_is_of_core, frames)) and all(_is_of_core(one) or one.origin == "stdlib" for one in frames)


def _is_of_core(frame: Frame) -> bool:
    return frame.origin == "ray" and _is_private(frame)


def _is_private(frame: Frame) -> bool:
    return "/ray/_private/" in f"/{frame.file}"


def library_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame outside of the standard library and Ray's core, else the innermost frame."""
    parts = (one for one in frames if one.origin != "stdlib" and not _is_private(one))
    return next(parts, frames[0] if frames else None)
