"""Reads source files whose names come from a process or from an untrusted snapshot.

Only a regular file whose real name is that of a program is ever opened, never a pipe or a device.
"""

from __future__ import annotations

import os
import stat
from typing import IO

SUFFIXES = (".py", ".pyi", ".pyw", ".pyx", ".pxd", ".pxi")
NO_FILES = ("/dev/", "/proc/", "/sys/")
MAX_BYTES = 2_000_000


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
