"""Stacks that Ray's agents return as py-spy's human-readable text, completed from the source files.

The target chooses the names in the text, so it is untrusted: every size is bounded, and lines of another form are
skipped. Seen with py-spy 0.4.3.

The text has neither the values of locals nor whole paths. So the source line of a blocked call says whether it has a
timeout. The source is searched beside the driver's script, on the host of dstack. It is used only if that line is in
a function of the frame's name and has just one call of the kind, whose arguments are certainly refs.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from dstack.call_sites import RAY_GET, RAY_WAIT
from dstack.model.snapshot import Job
from dstack.observed.call_site import Site
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.stacks.source_files import read_source
from dstack.probes.node.thread_stacks import AnyFrame, CodePosition, PythonThread, TextFrame, function_of, is_in

MAX_CHARACTERS = 4_000_000
MAX_THREADS = 2_000
MAX_FRAMES = 2_000
MAX_NAME = 300
MAX_NUMBER = 2**31 - 1
UNKNOWN_TERMS = "its timeout could not be read"
NAMES = {RAY_GET.id: "get", RAY_WAIT.id: "wait"}
CALL_FILES = ("ray/_private/worker.py", "ray/_private/client_mode_hook.py", "ray/_private/auto_init_hook.py")
CALL_FUNCTIONS = ("get_objects", "get", "wait", "wrapper", "auto_init_wrapper")

_PROCESS = re.compile(r"Process (\d{1,10}): (.*)")
_THREAD = re.compile(
    r"Thread (\d{1,19}|0x[0-9A-Fa-f]{1,16}) \((idle|active|active\+gil|gil|idle\+gil)\)(?:: \"(.*)\")?"
)


@dataclass(frozen=True)
class TextStacks:
    """The stacks of one process, and its title."""

    pid: int
    title: str
    threads: list[PythonThread[TextFrame]]


def parse(text: str) -> TextStacks | None:
    """Parses a text; None if it is not py-spy's. Skips lines of unknown form, and everything beyond the bounds."""
    lines = text[:MAX_CHARACTERS].split("\n")
    head = next((match for line in lines[:5] if (match := _PROCESS.fullmatch(line))), None)
    if head is None:
        return None
    threads: list[PythonThread[TextFrame]] = []
    frames: list[TextFrame] = []
    for line in lines:
        thread, position = _thread(line), _position(line)
        if thread is not None:
            frames = []
            threads.append(replace(thread, frames=frames))
        elif position and threads and len(frames) < MAX_FRAMES:
            frames.append(TextFrame(position))
        if len(threads) >= MAX_THREADS:
            break
    return TextStacks(int(head[1]), head[2][:MAX_NAME], threads)


def _thread(line: str) -> PythonThread[TextFrame] | None:
    """Parses a thread's headline, which has its OS id in decimal."""
    match = _THREAD.fullmatch(line)
    if match is None:
        return None
    known = match[1].isdigit() and int(match[1]) <= MAX_NUMBER
    return PythonThread(
        thread_id=0,
        os_thread_id=int(match[1]) if known else 0,
        name=(match[3] or "")[:MAX_NAME],
        frames=[],
        is_running=match[2].startswith("active"),
    )


def _position(line: str) -> CodePosition | None:
    """Parses ``    name (file:line)`` without a regular expression, which a hostile name could keep busy."""
    name, opening, place = line[4:-1].partition(" (")
    if not (line.startswith("    ") and line.endswith(")") and name and opening and place):
        return None
    file, _, number = place.rpartition(":")
    has_number = file and number.isdecimal() and len(number) <= 10
    name = name[:MAX_NAME]
    return CodePosition(
        file=(file if has_number else place)[:MAX_NAME],
        function=name.rpartition(".")[2],
        qualified=name,
        line=min(int(number), MAX_NUMBER) if has_number else 0,
    )


class Sources:
    """The source files beside the scripts of the jobs."""

    def __init__(self, jobs: Iterable[Job], is_user: Callable[[AnyFrame], bool]) -> None:
        self._folders = sorted({folder for job in jobs if (folder := _folder_of(job.entrypoint))})
        self._is_user = is_user

    def path_of(self, file: str) -> str | None:
        """The file of a shortened path, if it exists."""
        if os.path.isabs(file) or ".." in file.split("/") or "\0" in file or not file.endswith(".py"):
            return None
        found = [path for folder in self._folders if os.path.isfile(path := os.path.join(folder, file))]
        return found[0] if len(found) == 1 else None

    def terms_of(self, frames: Sequence[TextFrame], site: Site) -> tuple[float | None, str | None]:
        """The timeout of a call, which is None, and the assumption. Raises :class:`UnreadableMemory`."""
        frame = next((frame for frame in frames if not _is_of_the_call(frame)), None)
        path = frame.position.file if frame and self._is_user(frame) else ""
        if frame is None or not os.path.isabs(path):
            raise UnreadableMemory(UNKNOWN_TERMS)
        if not has_no_timeout(_text_of(path), frame.position.line, function_of(frame), NAMES[site.id]):
            raise UnreadableMemory(UNKNOWN_TERMS)
        return None, f"{os.path.basename(path)}:{frame.position.line} is the code that it runs"


def _is_of_the_call(frame: AnyFrame) -> bool:
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
