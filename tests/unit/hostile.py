"""Memory that is not a process's: copied from this one and changed, with what a reader asks for counted."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass

from dstack.probes.node.cpython.memory import PAGE, ProcessMemory, Unreadable

MIB = 1 << 20
MOST_READS, MOST_BYTES = 100_000, 160 * MIB
"""Of one call; the most that is asked for at a time are the 16 MiB of the largest set."""
END = 2**47
HOSTILE = (0, 1, 2, 7, 8, 127, 2**12, 2**16, 2**20, 2**20 + 1, 2**21, 2**24, 2**31, 2**32, 2**62, 2**63, 2**64 - 1)
"""Words that make trouble as sizes."""


class TooMuch(BaseException):
    """No error that a reader may handle: it reads without end."""


class CountedMemory(ProcessMemory):
    """Memory that is not a process's, and that ends the test where it is read without end."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._pages = None
        self.reads = 0
        self.bytes = 0

    def _read(self, address: int, size: int) -> bytes:
        self.reads += 1
        self.bytes += size
        if self.reads > MOST_READS or self.bytes > MOST_BYTES:
            raise TooMuch(f"{self.reads} reads of {self.bytes} bytes")
        if not 0 <= address <= END - size:
            raise Unreadable("not mapped")
        return self.bytes_at(address, size)

    def bytes_at(self, address: int, size: int) -> bytes:
        raise NotImplementedError

    def begin(self) -> None:
        """Counts anew."""
        self.reads = self.bytes = 0


@dataclass(frozen=True)
class Change:
    """A word that is another one from some read on, or with ``value`` None a page that is gone."""

    address: int
    after: int
    value: int | None


class Copied(CountedMemory):
    """Pages of this process as they once were, changed."""

    def __init__(self, pages: dict[int, bytes], changes: list[Change]) -> None:
        super().__init__()
        self._copied, self._changes = pages, changes

    def bytes_at(self, address: int, size: int) -> bytes:
        start = address - address % PAGE
        data = b"".join(self._page(page) for page in range(start, address + size, PAGE))
        return data[address - start : address - start + size]

    def _page(self, address: int) -> bytes:
        if address not in self._copied:
            raise Unreadable("not mapped")
        data = bytearray(self._copied[address])
        for change in self._changes:
            if self.reads > change.after and address <= change.address < address + PAGE:
                if change.value is None:
                    raise Unreadable("no longer mapped")
                struct.pack_into("<Q", data, change.address - address, change.value)
        return bytes(data)


class Recorder(ProcessMemory):
    """This process's memory, of which it keeps the pages and the words that are read."""

    def __init__(self) -> None:
        super().__init__(os.getpid())
        self.kept: dict[int, bytes] = {}
        self.touched: set[int] = set()

    def _read(self, address: int, size: int) -> bytes:
        for page in range(address - address % PAGE, address + size, PAGE):
            self.kept.setdefault(page, super()._read(page, PAGE))
        self.touched.update(range(address - address % 8, address + min(size, 256), 8))
        return super()._read(address, size)


def ends_well(memory: CountedMemory, read: Callable[[], object]) -> None:
    """A value or :class:`Unreadable`, and nothing without end."""
    memory.begin()
    try:
        read()
    except Unreadable:
        return
