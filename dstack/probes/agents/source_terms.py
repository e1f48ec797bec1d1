"""Whether a blocked call has a timeout, by the source line of the call.

For stacks that came as text, which have neither the values of locals nor whole paths. The source is searched beside the
driver's script, on the host of dstack. It is used only if that line is in a function of the frame's name and has just
one call of the kind, whose arguments are certainly refs.
"""

from __future__ import annotations

import ast
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache

from dstack.model import Job
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.stacks.source_lines import read_source
from dstack.probes.node.threads import Frame, ShownFrame, function_of, is_in
from dstack.probes.node.wire import Dependencies

UNKNOWN_TERMS = "its timeout could not be read"
NAMES = {"ray.get": "get", "ray.wait": "wait"}
CALL_FILES = ("ray/_private/worker.py", "ray/_private/client_mode_hook.py", "ray/_private/auto_init_hook.py")
CALL_FUNCTIONS = ("get_objects", "get", "wait", "wrapper", "auto_init_wrapper")


class Sources:
    """The source files beside the scripts of the jobs."""

    def __init__(self, jobs: Iterable[Job], is_user: Callable[[Frame], bool]) -> None:
        self._folders = sorted({folder for job in jobs if (folder := _folder_of(job.entrypoint))})
        self._is_user = is_user

    def path_of(self, file: str) -> str | None:
        """The file of a shortened path, if it exists."""
        if os.path.isabs(file) or ".." in file.split("/") or "\0" in file or not file.endswith(".py"):
            return None
        found = [path for folder in self._folders if os.path.isfile(path := os.path.join(folder, file))]
        return found[0] if len(found) == 1 else None

    def terms_of(self, frames: Sequence[ShownFrame], kind: str) -> Dependencies:
        """``timeout_s``, which is None, and the assumption. Raises :class:`Unreadable`."""
        frame = next((frame for frame in frames if not _is_of_the_call(frame)), None)
        path = frame.position.file if frame and self._is_user(frame) else ""
        if frame is None or not os.path.isabs(path):
            raise Unreadable(UNKNOWN_TERMS)
        if not has_no_timeout(_text_of(path), frame.position.line, function_of(frame), NAMES[kind]):
            raise Unreadable(UNKNOWN_TERMS)
        return {
            "timeout_s": None,
            "assumed": f"{os.path.basename(path)}:{frame.position.line} is the code that it runs",
        }


def _is_of_the_call(frame: Frame) -> bool:
    """Whether the frame is below the caller of ``ray.get`` or ``ray.wait`` (seen on Ray 2.46 and 2.60)."""
    return any(is_in(frame, file, *CALL_FUNCTIONS) for file in CALL_FILES)


def has_no_timeout(text: str, line: int, function: str, name: str) -> bool:
    """Whether all calls of this name on a line have one plain argument, in a function of that name."""
    tree = _parsed(text)
    owner = _function_at(tree, line) if tree else None
    if owner is None or owner.name != function:
        return False
    calls = [node for node in ast.walk(owner) if isinstance(node, ast.Call) and node.lineno <= line <= _end(node)]
    named = [call for call in calls if _name_of(call) == name]
    return len(named) == 1 and _is_plain(named[0], ("num_returns",) if name == "wait" else ())


def _is_plain(call: ast.Call, allowed: Collection[str]) -> bool:
    """Whether it has one positional argument and otherwise only allowed ones, so certainly no timeout."""
    is_starred = any(isinstance(one, ast.Starred) for one in call.args)
    return len(call.args) == 1 and not is_starred and all(one.arg in allowed for one in call.keywords)


def _name_of(call: ast.Call) -> str:
    """``get`` of ``ray.get(...)``; a bare ``get(...)`` might be anything."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="ray"), attr=name):
            return name
    return ""


def _function_at(tree: ast.Module, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The innermost function around a line."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.lineno <= line <= _end(node)
    ]
    return max(found, key=lambda node: node.lineno, default=None)


def _end(node: ast.expr | ast.stmt) -> int:
    return node.end_lineno or node.lineno


@lru_cache(64)
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _text_of(path: str) -> str:
    return "\n".join(read_source(path))


def _folder_of(entrypoint: str) -> str | None:
    """The directory of a job's script, by an entrypoint such as ``python /app/train.py --steps 3``."""
    try:
        words = shlex.split(entrypoint)
    except ValueError:
        return None
    script = next((word for word in words if word.endswith(".py")), "")
    return os.path.dirname(script) if os.path.isabs(script) else None
