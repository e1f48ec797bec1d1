"""Reads bytes of another process from ``/proc/PID/mem``: no ptrace, no signal, no pause.

Memory that is not there gives :class:`Unreadable`. :mod:`dstack.probes.node.cpython.objects` interprets the bytes.
"""

from __future__ import annotations

import contextlib
import os
import platform
import struct
from collections.abc import Iterator
from typing import Any

MAX_BYTES = 1 << 24
MAX_TEXT = 128
PAGE = 4096
MAX_PAGES = 1 << 16
"""How many pages are kept of one process, 256 MiB; what lies in further ones is unreadable."""
MACHINE = "x86_64"

PTHREAD_TID = 720
"""Where glibc's struct pthread keeps the OS thread id; seen with glibc 2.36 on x86-64."""


class Unreadable(Exception):
    """Memory is not mapped, not permitted, or not the object it was taken for."""


class ProcessMemory:
    """Reads of one process's memory, each bounded.

    With ``keeps_pages`` nothing is read but once, so that what changes later is not seen, and at most ``MAX_PAGES``
    pages. Raises :class:`Unreadable` from every method when the memory is not there, and on construction
    ``PermissionError``, ``ProcessLookupError``, or another ``OSError`` where the machine is not supported.
    """

    def __init__(self, pid: int, *, keeps_pages: bool = False) -> None:
        if platform.machine() != MACHINE:
            raise OSError(f"dstack reads memory on Linux {MACHINE} only, and this is {platform.machine()}")
        self.pid = pid
        self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        self._pages: dict[int, bytes] | None = {} if keeps_pages else None
        self._is_sealed = False

    def close(self) -> None:
        """Lets go of the process's memory."""
        os.close(self._fd)

    def read_again(self) -> None:
        """Reads anew, at one go, all that it has kept; from then on there is nothing else to be read."""
        assert self._pages is not None
        for address in self._pages:
            self._pages[address] = self._read(address, PAGE)
        self._is_sealed = True

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes at ``address``."""
        if not 0 <= size <= MAX_BYTES:
            raise Unreadable(f"{size} bytes at {address:#x}: no size to read at once")
        offset = address % PAGE
        if self._pages is None:
            return self._read(address, size)
        if offset + size <= PAGE:
            return self._page(address - offset)[offset : offset + size]
        pages = map(self._page, range(address - offset, address + size, PAGE))
        return b"".join(pages)[offset : offset + size]

    def _page(self, address: int) -> bytes:
        assert self._pages is not None
        if address not in self._pages:
            if len(self._pages) >= MAX_PAGES:
                raise Unreadable(f"page at {address:#x}: {MAX_PAGES} others were read already")
            self._pages[address] = self._read(address, PAGE)
        return self._pages[address]

    def _read(self, address: int, size: int) -> bytes:
        if self._is_sealed:
            raise Unreadable(f"{size} bytes at {address:#x}: not read before")
        try:
            data = os.pread(self._fd, size, address)
        except (OSError, OverflowError, ValueError) as error:
            raise Unreadable(f"{size} bytes at {address:#x}: {error}") from error
        if len(data) != size:
            raise Unreadable(f"{size} bytes at {address:#x}: only {len(data)} are mapped")
        return data

    def pointer(self, address: int) -> int:
        """The pointer stored at ``address``."""
        return int.from_bytes(self.read(address, 8), "little")

    def unpack(self, layout: str, address: int) -> tuple[Any, ...]:
        """What stands at ``address``, in this layout: the quickest way where there is much of the same."""
        offset = address % PAGE
        if self._pages is None or offset + struct.calcsize(layout) > PAGE:
            return struct.unpack(layout, self.read(address, struct.calcsize(layout)))
        return struct.unpack_from(layout, self._page(address - offset), offset)

    def pointers(self, address: int, count: int) -> tuple[int, ...]:
        """So many pointers from ``address`` on."""
        return struct.unpack(f"<{count}Q", self.read(address, 8 * count)) if count else ()

    def mapped_words(self, address: int, size: int) -> tuple[int, ...]:
        """As many words as are mapped of these bytes."""
        while size >= 8:
            with contextlib.suppress(Unreadable):
                return self.pointers(address, size // 8)
            size //= 2
        return ()

    def int64(self, address: int) -> int:
        """The signed 64-bit integer stored at ``address``."""
        return int.from_bytes(self.read(address, 8), "little", signed=True)

    def int32(self, address: int) -> int:
        """The signed 32-bit integer stored at ``address``."""
        return int.from_bytes(self.read(address, 4), "little", signed=True)

    def c_string(self, address: int) -> str:
        """The text up to the next zero byte, or as much of it as a name may have."""
        text = b""
        while len(text) < MAX_TEXT and b"\0" not in text:
            start = address + len(text)
            text += self.read(start, min(MAX_TEXT, PAGE - start % PAGE))  # the next page may not be there
        return text.split(b"\0", 1)[0].decode("ascii", "replace")


@contextlib.contextmanager
def open_memory(pid: int, *, keeps_pages: bool = False) -> Iterator[ProcessMemory]:
    """A process's memory for the length of a ``with`` block."""
    memory = ProcessMemory(pid, keeps_pages=keeps_pages)
    try:
        yield memory
    finally:
        memory.close()
