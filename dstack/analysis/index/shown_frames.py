"""Which frames of a stack are shown, and which one stands for it. Stacks are given leaf first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from dstack.observed.processes import Frame

IMPORTERS = ("importlib/__init__.py", "importlib/_bootstrap.py", "importlib/_bootstrap_external.py", "/zipimport.py")
FROZEN_IMPORTERS = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", "<frozen zipimport>")
LOCKING = ("acquire", "__enter__")
"""The functions of importlib in which a thread waits for the import of another thread; seen on CPython 3.10 to 3.15."""
MODULE = "<module>"
SPANS_FILE = "/dstack/spans.py"
"""The file of the frames around a function that is decorated with ``dstack.span``."""
ROOT = re.compile(r".*(?:/(?:site|dist)-packages/|/lib(?:64)?/python3\.\d+/|\.(?:zip|egg|whl)/)")
"""What precedes the name of a module in the path of its file."""


def user_frame(frames: tuple[Frame, ...], *, outermost: bool = False) -> Frame | None:
    """The innermost or outermost frame of user code; None if there is none."""
    own = [frame for frame in frames if frame.origin == "user"]
    return own[-1 if outermost else 0] if own else None


def innermost_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost user frame, else the innermost frame."""
    return user_frame(frames) or (frames[0] if frames else None)


def innermost_shown(frames: tuple[Frame, ...]) -> Frame | None:
    """The same with imports folded."""
    return user_frame(frames) or next((one.frame for one in fold_imports(frames)), None)


@dataclass(frozen=True, slots=True)
class FoldedFrame:
    """A frame as it is shown, with its indices from the leaf.

    Several frames are one import: ``frame`` is the innermost module in it, and has ``imports NAME`` as its function.
    """

    first: int
    last: int
    frame: Frame

    @property
    def is_import(self) -> bool:
        """Whether it stands for the frames of an import."""
        return self.last > self.first


def fold_imports(frames: Sequence[Frame], call: int | None = None) -> Iterator[FoldedFrame]:
    """The frames of a stack, those of each import as one: importlib, and the modules that it executes in turn.

    Frames of the user stay, and so do the frame of ``call`` and those inside of it.
    """
    index = 0
    while index < len(frames):
        last = index if call is not None and index <= call else _end_of_import(frames, index)
        yield FoldedFrame(index, last, _as_import(frames, index, last) if last > index else frames[index])
        index = last + 1


def import_of(frames: Sequence[Frame]) -> str:
    """``imports transformers.models``, if the innermost code of the user imports others' code; else empty."""
    innermost = takewhile(lambda shown: shown.frame.origin != "user", fold_imports(frames))
    return next((shown.frame.function for shown in innermost if shown.is_import), "")


def all_frames(frames: Sequence[Frame]) -> Iterator[FoldedFrame]:
    """All frames of a stack, none folded."""
    return (FoldedFrame(index, index, frame) for index, frame in enumerate(frames))


def own_frames(shown: Sequence[FoldedFrame]) -> list[FoldedFrame]:
    """The user's frames, and the imports that they began, unless those led to code of the user again."""
    users = [one.frame.origin == "user" for one in shown]
    outermost = max((at for at, is_users in enumerate(users) if is_users), default=-1)
    return [
        one
        for at, one in enumerate(shown)
        if users[at] or (one.is_import and at < outermost and not (at and users[at - 1]))
    ]


def is_importer(frame: Frame) -> bool:
    """Whether a frame is of Python's import system."""
    is_frozen = frame.file in FROZEN_IMPORTERS and frame.function.rpartition(".")[2] not in LOCKING
    return is_frozen or (frame.origin == "stdlib" and frame.file.endswith(IMPORTERS))


def _end_of_import(frames: Sequence[Frame], begin: int) -> int:
    """The index of the outermost frame of the import whose innermost frame is at ``begin``; ``begin`` if it has none.

    Libraries that import lazily have functions between the frames of importlib.
    """
    last = begin
    if not is_importer(frames[begin]) and not _is_executed(frames, begin):
        return begin
    for index in range(begin, len(frames)):
        if frames[index].origin == "user":
            break
        if is_importer(frames[index]):
            last = index
    return last


def _is_executed(frames: Sequence[Frame], index: int) -> bool:
    """Whether it is a module of others, executed by an import."""
    is_module = frames[index].function == MODULE and frames[index].origin != "user"
    return is_module and index + 1 < len(frames) and is_importer(frames[index + 1])


def _as_import(frames: Sequence[Frame], first: int, last: int) -> Frame:
    """The frame that stands for an import.

    What the code inside of it imports is only known once its module runs; until then it is named by what imports it.
    """
    inner = frames[max(0, first - 1)]
    begun = inner if inner.function == MODULE else None
    modules = (frame for frame in frames[first : last + 1] if frame.function == MODULE)
    at = begun or next(modules, None)
    name = f"imports {module_name(at.file)}" if at else "imports a module"
    return replace(at or frames[first], function=name, origin=frames[first].origin)


def module_name(file: str) -> str:
    """``transformers.models`` for the path of its file; outside of the known folders only the last part."""
    if file.startswith("<frozen "):
        return file.removeprefix("<frozen ").removesuffix(">")
    rooted = ROOT.sub("", file)
    path = re.sub(r"(?:/__init__)?\.pyc?$", "", rooted)
    return path.replace("/", ".") if rooted != file else path.rpartition("/")[2]


def is_of_dstack(frame: Frame) -> bool:
    """Whether a frame is of dstack, which a driver may call to check itself; not of a function in a span."""
    return frame.origin == "library" and "/dstack/" in frame.file and not frame.file.endswith(SPANS_FILE)


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
