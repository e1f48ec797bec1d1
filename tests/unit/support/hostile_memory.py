"""Stand-ins for the memory of a process: copied from this one and corrupted, with counted reads."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dstack.probes.node.cpython.memory import PAGE, ProcessMemory, UnreadableMemory

MIB = 1 << 20
MOST_READS, MOST_BYTES = 100_000, 160 * MIB
"""Limits of one call; the largest single read is the 16 MiB of the largest set."""
END = 2**48
HOSTILE = (0, 1, 2, 7, 8, 127, 2**12, 2**16, 2**20, 2**20 + 1, 2**21, 2**24, 2**31, 2**32, 2**62, 2**63, 2**64 - 1)
"""Words that are difficult sizes."""


class TooMuch(BaseException):
    """A reader reads without end; readers must not handle this error."""


class CountedMemory(ProcessMemory):
    """Memory that fails the test when it is read without end."""

    def __init__(self, *, keeps_pages: bool = True) -> None:
        super().__init__(os.getpid(), keeps_pages=keeps_pages)
        os.close(self._fd)
        self.reads = 0
        self.bytes = 0

    def close(self) -> None:
        self._is_sealed = True

    def read(self, address: int, size: int) -> bytes:
        self._count(0)
        return super().read(address, size)

    def pointer(self, address: int) -> int:
        self._count(0)
        return super().pointer(address)

    def pointers(self, address: int, count: int) -> tuple[int, ...]:
        self._count(0)
        return super().pointers(address, count)

    def unpack(self, layout: str, address: int) -> tuple[Any, ...]:
        self._count(0)
        return super().unpack(layout, address)

    def _read(self, address: int, size: int) -> bytes:
        self._count(size)
        if not 0 <= address <= END - size:
            raise UnreadableMemory("not mapped")
        return self.bytes_at(address, size)

    def _read_spans(self, spans: Sequence[Sequence[int]]) -> bytes:
        pages = []
        for page in (page for start, size in spans for page in range(start, start + size, PAGE)):
            try:
                pages.append(self._read(page, PAGE))
            except UnreadableMemory:
                break
        return b"".join(pages)

    def _count(self, size: int) -> None:
        self.reads += 1
        self.bytes += size
        if self.reads > MOST_READS or self.bytes > MOST_BYTES:
            raise TooMuch(f"{self.reads} reads of {self.bytes} bytes")

    def bytes_at(self, address: int, size: int) -> bytes:
        raise NotImplementedError

    def begin(self) -> None:
        """Resets the counters."""
        self.reads = self.bytes = 0


@dataclass(frozen=True)
class Change:
    """A word that changes at a certain read, or with ``value`` None a page that becomes unreadable."""

    address: int
    after: int
    value: int | None


class Copied(CountedMemory):
    """Recorded pages of this process, with changes."""

    def __init__(self, pages: dict[int, bytes], changes: list[Change], *, keeps_pages: bool = True) -> None:
        super().__init__(keeps_pages=keeps_pages)
        self._copied, self._changes = pages, changes

    def bytes_at(self, address: int, size: int) -> bytes:
        start = address - address % PAGE
        data = b"".join(self._changed(page) for page in range(start, address + size, PAGE))
        return data[address - start : address - start + size]

    def _changed(self, address: int) -> bytes:
        if address not in self._copied:
            raise UnreadableMemory("not mapped")
        data = bytearray(self._copied[address])
        for change in self._changes:
            if self.reads > change.after and address <= change.address < address + PAGE:
                if change.value is None:
                    raise UnreadableMemory("no longer mapped")
                struct.pack_into("<Q", data, change.address - address, change.value)
        return bytes(data)


class Recorder(ProcessMemory):
    """The memory of this process; records the pages and the words that are read."""

    def __init__(self) -> None:
        super().__init__(os.getpid(), keeps_pages=True)
        self.touched: set[int] = set()

    def read(self, address: int, size: int) -> bytes:
        self.touch([address], size)
        return super().read(address, size)

    def pointer(self, address: int) -> int:
        self.touch([address], 8)
        return super().pointer(address)

    def pointers(self, address: int, count: int) -> tuple[int, ...]:
        self.touch([address], 8 * count)
        return super().pointers(address, count)

    def unpack(self, layout: str, address: int) -> tuple[Any, ...]:
        self.touch([address], struct.calcsize(layout))
        return super().unpack(layout, address)

    @contextlib.contextmanager
    def temporary(self) -> Iterator[None]:
        """Keeps all pages, so that a copy has each page that was read."""
        yield

    def touch(self, addresses: Iterable[int], size: int) -> None:
        """Records that this many bytes at each address were read."""
        for address in addresses:
            self.touched.update(range(address - address % 8, address + min(size, 256), 8))


def ends_well(memory: CountedMemory, read: Callable[[], object]) -> None:
    """Checks that a reader returns a value or raises :class:`UnreadableMemory`, within the limits."""
    memory.begin()
    try:
        read()
    except UnreadableMemory:
        return
