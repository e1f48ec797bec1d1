"""Whether a thread has run since the last question, and whether it runs now, by the kernel's counters."""

from __future__ import annotations

import contextlib
import os
from typing import Literal

Activity = Literal["running", "changed", "unchanged", "ended"]
"""``running``: on a CPU or ready for one. ``changed``: it ran meanwhile. ``unchanged``: it executed no instruction."""
_STAT_BYTES = 512
_COUNTER_BYTES = 64
_NOT_COUNTED = b"0 "
"""The beginning of ``schedstat`` if the kernel does not count: no thread has run for 0 ns."""


class ThreadActivity:
    """The activity of one thread. Keeps the file of its counters open, since opening takes longer than reading."""

    def __init__(self, pid: int, thread: int) -> None:
        folder = f"/proc/{pid}/task/{thread}"
        self._counters = _File(f"{folder}/schedstat")
        self._stat = _File(f"{folder}/stat")
        self._last = b""

    def poll(self) -> Activity:
        """The activity since the last call; the first call never returns ``unchanged``."""
        counters = self._counters.read(_COUNTER_BYTES)
        if counters and counters == self._last and not counters.startswith(_NOT_COUNTED):
            return "unchanged"
        self._last = counters
        stat = self._stat.read(_STAT_BYTES)
        if not stat:
            return "ended"
        at = stat.rfind(b")") + 2  # the name before it may contain anything
        return "running" if stat[at : at + 1] == b"R" else "changed"

    def close(self) -> None:
        """Close its files."""
        self._counters.close()
        self._stat.close()


class _File:
    """A file of the kernel's; it stays open, unless this process has too many open files."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1
        with contextlib.suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, size: int) -> bytes:
        """Its first ``size`` bytes; empty if the thread has ended."""
        try:
            if self._descriptor >= 0:
                return os.pread(self._descriptor, size, 0)
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(descriptor, size)
            finally:
                os.close(descriptor)
        except OSError:
            return b""

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
