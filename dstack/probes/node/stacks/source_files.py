"""Source files, whose names come from a process or from an untrusted snapshot, and what their code says.

Only a regular file whose real name is that of a program is ever opened, never a pipe or a device.
"""

from __future__ import annotations

import os
import stat
from typing import IO

from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.stacks.loops import FoundLoop, loop_at
from dstack.probes.node.stacks.next_calls import Function, Next, functions_in, next_at
from dstack.probes.node.stacks.source_syntax import FileNames

SUFFIXES = (".py", ".pyi", ".pyw", ".pyx", ".pxd", ".pxi")
NO_FILES = ("/dev/", "/proc/", "/sys/")
MAX_BYTES = 2_000_000
MAX_FILES = 2_000

Version = tuple[int, ...] | None


def read_source(path: str) -> list[str]:
    """The lines of a file; none where it is no readable source, or larger than 2 MB."""
    try:
        with open_source(path) as file:
            data = file.read(MAX_BYTES)
    except (OSError, ValueError):
        return []
    return data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def find_source(path: str) -> str | None:
    """The absolute name, without links in it, of a file that :func:`read_source` would read; else None."""
    try:
        with open_source(path) as file:
            return os.readlink(f"/proc/self/fd/{file.fileno()}")
    except (OSError, ValueError):
        return None


def open_source(path: str) -> IO[bytes]:
    """The file, for reading. Raises OSError or ValueError where it is no source file."""
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)  # opens no content yet, and refers to the same file from here on
    try:
        place = f"/proc/self/fd/{handle}"
        name, status = os.readlink(place), os.fstat(handle)
        is_source = name.endswith(SUFFIXES) and not name.startswith(NO_FILES)
        if not is_source or not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise ValueError("no source")
        return open(os.open(place, os.O_RDONLY | os.O_CLOEXEC), "rb")
    finally:
        os.close(handle)


class SourceFile:
    """One file, read and parsed once, and only as far as is asked for. Lines count from 1."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._loops: dict[int, FoundLoop] = {}

    @cached_property
    def lines(self) -> list[str]:
        """Its lines; none where it is no readable source."""
        return read_source(self._path)

    def loop_at(self, line: int) -> FoundLoop:
        """The loop around a line, and whether that only polls."""
        if line not in self._loops:
            self._loops[line] = loop_at(self.lines, line, lambda: self._names)
        return self._loops[line]

    def next_at(self, line: int) -> Next:
        """What the function may do next that is at a line."""
        return next_at(self._functions, line)

    @cached_property
    def _names(self) -> FileNames:
        return FileNames.of(self.lines)

    @cached_property
    def _functions(self) -> list[Function]:
        return functions_in("\n".join(self.lines))


class SourceFiles:
    """The source files of one node; each is as it was when a snapshot first needed it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Version, SourceFile]] = {}
        self._current: set[str] = set()

    def begin_snapshot(self) -> None:
        """Have files that change from now on be read again."""
        self._current.clear()

    def file(self, path: str) -> SourceFile:
        """The file of this absolute path."""
        if path not in self._current:
            if len(self._known) >= MAX_FILES:
                self._known.clear()
            version = version_of(path)
            known, file = self._known.get(path, (None, None))
            self._known[path] = version, file if file and version and version == known else SourceFile(path)
            self._current.add(path)
        return self._known[path][1]


def version_of(path: str) -> Version:
    """What changes with the content of a file; None where there is no file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
