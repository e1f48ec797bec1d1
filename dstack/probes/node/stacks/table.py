"""Turns raw frames into a table in which every distinct frame and stack stands once, and says whose code each is."""

from __future__ import annotations

import importlib.util
import os
import re
import site
import sysconfig
from typing import Any

from dstack.probes.node.asyncio.event_loops import is_event_loop
from dstack.probes.node.pyspy.parser import RawThread
from dstack.probes.node.stacks.redaction import masked_source
from dstack.probes.node.stacks.source_lines import read_source
from dstack.probes.node.waits.blocked_call import RAY_WORKER_FILE
from dstack.probes.node.waits.known_waits import RawFrame, function_of

CONTEXT_LINES = 2
MAX_LINE = 160
PACKAGES = re.compile(r"/(?:site|dist)-packages/([^/]*)")
STANDARD = re.compile(r"<frozen |/(?:.*/)?lib(?:64)?/python3\.\d+/")
"""What is installed, and the standard library, of other Pythons than the reader's own."""


class Origins:
    """Whose code a frame runs, by where its file lies: the user's, a library's, Ray's or the standard library's."""

    def __init__(self) -> None:
        ray = importlib.util.find_spec("ray")
        libraries = [*site.getsitepackages(), site.getusersitepackages()]
        standard = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
        self._roots = (
            *((path + "/", "ray") for path in ((ray and ray.submodule_search_locations) or ())),
            *((path + "/", "library") for path in libraries),
            *((path + "/", "stdlib") for path in standard),
        )

    def of(self, frame: RawFrame) -> str:
        """``user``, ``library``, ``ray`` or ``stdlib``."""
        file = str(frame["filename"])
        if frame.get("module"):
            return "library"
        for root, origin in self._roots:
            if file.startswith(root):
                return origin
        if packages := PACKAGES.findall(file):
            return "ray" if packages[-1] == "ray" else "library"
        return "stdlib" if STANDARD.match(file) else "user"


class StackTable:
    """Distinct frames and stacks of one node, and the source lines around user frames."""

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._frames: dict[tuple[str, str, int], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self.frames: list[dict[str, Any]] = []
        self.stacks: list[list[int]] = []
        self.sources: dict[str, dict[int, str]] = {}
        self._files: dict[str, list[str]] = {}

    def add(self, frames: list[RawFrame], cwd: str) -> int:
        """The index of the stack of these frames, leaf first."""
        indices = tuple(self._frame(frame, cwd) for frame in frames)
        if indices not in self._stacks:
            self._stacks[indices] = len(self.stacks)
            self.stacks.append(list(indices))
        return self._stacks[indices]

    def _frame(self, frame: RawFrame, cwd: str) -> int:
        key = (str(frame["name"]), str(frame["module"] or frame["filename"]), int(frame["line"]))
        if key not in self._frames:
            function, file, line = key
            origin = self._origins.of(frame)
            self._frames[key] = len(self.frames)
            self.frames.append({"function": function, "file": file, "line": line, "origin": origin})
            if origin == "user":
                self._keep_source(file, line, cwd)
        return self._frames[key]

    def _keep_source(self, file: str, line: int, cwd: str) -> None:
        if file not in self._files:
            self._files[file] = read_source(os.path.join(cwd, file))
        lines = self._files[file]
        for number in range(max(1, line - CONTEXT_LINES), min(len(lines), line + CONTEXT_LINES) + 1):
            self.sources.setdefault(file, {})[number] = masked_source(lines[number - 1][:MAX_LINE])


def role_of(thread: RawThread, *, pid: int, is_driver: bool, origins: Origins) -> str:
    """What a thread is for, as :class:`dstack.model.Thread` words it.

    A worker's main thread sits in ``main_loop`` and runs sync tasks above it; threaded actors run theirs on threads
    that C++ made, so without Python's bootstrap below. Seen on Ray 2.46 and 2.60.
    """
    frames = thread["frames"]
    if is_event_loop(thread):
        return "loop"
    if not frames:
        return "ray"
    if thread["os_thread_id"] == pid:
        return "user" if is_driver else "ray" if _is_idle(frames) else "task"
    if is_made_by_python(thread):
        return "user" if any(origins.of(frame) == "user" for frame in frames) else "ray"
    return "user" if is_driver else "task"


def is_made_by_python(thread: RawThread) -> bool:
    """Whether the thread began in Python's own bootstrap; those that C++ made, and main threads, did not."""
    frames = thread["frames"]
    return bool(frames) and function_of(frames[-1]) == "_bootstrap" and "threading" in str(frames[-1]["filename"])


def _is_idle(frames: list[RawFrame]) -> bool:
    """Whether a worker's main thread runs no task: it waits for one, or has not begun to."""
    main_loop = [function_of(frame) == "main_loop" and frame["filename"].endswith(RAY_WORKER_FILE) for frame in frames]
    return main_loop[0] or not any(main_loop)
