"""Bytes of another process: no ptrace, no signal, no pause.

Pages are read in batches by ``process_vm_readv``, or from ``/proc/PID/mem`` where a container forbids that system call.
Memory that is not mapped raises :class:`UnreadableMemory`. :mod:`dstack.probes.node.cpython.objects` interprets the
bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any

MAX_BYTES = 1 << 24
MAX_TEXT = 128
PAGE = 4096
"""The bytes that are read and cached together: a page, or a part of one where pages have 16 or 64 KiB."""
PAGE_START, IN_PAGE = ~(PAGE - 1), PAGE - 1
MAX_PAGES = 1 << 16
"""The maximum number of cached pages of one process, 256 MiB; further pages are unreadable."""
MAX_SPANS = 1024
"""The maximum number of spans in one system call: IOV_MAX of Linux."""
USER_END = 1 << 52
"""The end of what a process can map: at most 47 bits unless it asks for more on x86-64, 48 or 52 on aarch64."""
MACHINES = ("x86_64", "aarch64")


class UnreadableMemory(Exception):
    """Memory is not mapped, not permitted, or not the expected object."""


class NotMapped(UnreadableMemory):
    """A page is not mapped; ``page`` is its address."""

    def __init__(self, page: int) -> None:
        super().__init__(f"page at {page:#x}: it is not mapped")
        self.page = page


class ProcessMemory:
    """Reads of one process's memory, each bounded.

    With ``keeps_pages`` each page is read once and cached, without later changes, and at most ``MAX_PAGES`` pages are
    read. Every method raises :class:`UnreadableMemory` when the memory is not mapped. Construction raises
    ``PermissionError``, ``ProcessLookupError``, or another ``OSError`` where the machine is not supported.
    """

    def __init__(self, pid: int, *, keeps_pages: bool = False) -> None:
        if platform.machine() not in MACHINES:
            raise OSError(f"dstack reads memory on Linux {' and '.join(MACHINES)} only, not on {platform.machine()}")
        self.pid = pid
        self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        self._readv: Any = _process_vm_readv()
        self.keeps_pages = keeps_pages
        self.pages: dict[int, bytes] = {}
        self._missing: set[int] = set()
        self._is_sealed = False
        self.was_short = False

    def close(self) -> None:
        """Close the process's memory; kept pages can still be read."""
        self._is_sealed = True
        os.close(self._fd)

    def read_again(self) -> None:
        """Read all kept pages again at once; from then on nothing else can be read.

        ``was_short`` then says whether another page was asked for.
        """
        pages = list(self.pages)
        self.pages.clear()
        self.prefetch(pages)
        if len(self.pages) < len(pages):
            raise UnreadableMemory("some of its memory was unmapped")
        self._is_sealed = True

    def prefetch(self, addresses: Iterable[int], size: int = 1) -> None:
        """Read the pages of ``size`` bytes at each address in as few system calls as possible.

        Pages that are not mapped are left out. Does nothing without ``keeps_pages``.
        """
        if not self.keeps_pages or self._is_sealed:
            return
        if size == 1:
            wanted = {address & PAGE_START for address in addresses}
        else:
            wanted = set()
            for address in addresses:
                wanted.update(range(address & PAGE_START, address + size, PAGE))
        pages = sorted(page for page in wanted - self.pages.keys() - self._missing if 0 <= page < USER_END)
        del pages[max(0, MAX_PAGES - len(self.pages)) :]
        while pages:
            count = self._fetch(pages)
            self._missing.update(pages[count : count + 1])  # the first one that is not mapped ends a system call
            del pages[: count + 1]

    @contextlib.contextmanager
    def temporary(self) -> Iterator[None]:
        """Drop the pages that were read in the ``with`` block at its end: they are needed only there."""
        count = len(self.pages)
        try:
            yield
        finally:
            for page in list(self.pages)[count:]:
                del self.pages[page]

    def copies(self, pages: Sequence[int], count: int) -> list[dict[int, bytes]]:
        """These pages, which are in order, ``count`` times one after another, in one system call.

        Raises :class:`NotMapped` if one of them cannot be read. Pages that are kept are not used. At most
        :data:`MAX_SPANS` in all.
        """
        data = self._read_spans(_spans(pages) * count)
        size = len(pages) * PAGE
        if len(data) < size * count:
            raise NotMapped(pages[len(data) // PAGE % len(pages)])
        return [
            {page: data[at + PAGE * index : at + PAGE * (index + 1)] for index, page in enumerate(pages)}
            for at in range(0, size * count, size)
        ]

    def _fetch(self, pages: Sequence[int]) -> int:
        """Read pages, which are in order; returns their number up to the first that cannot be read."""
        spans = _spans(pages)
        done = 0
        for at in range(0, len(spans), MAX_SPANS):
            batch = spans[at : at + MAX_SPANS]
            data = self._read_spans(batch)
            for offset in range(0, len(data) - PAGE + 1, PAGE):
                self.pages[pages[done]] = data[offset : offset + PAGE]
                done += 1
            if len(data) < sum(size for _, size in batch):
                break
        return done

    def _read_spans(self, spans: Sequence[Sequence[int]]) -> bytes:
        """The bytes of these spans, one after another, up to the first byte that cannot be read."""
        if self._readv is not None:
            total = sum(size for _, size in spans)
            data = bytearray(total)
            local = struct.pack("<QQ", ctypes.addressof(ctypes.c_char.from_buffer(data)), total)
            remote = struct.pack(f"<{2 * len(spans)}Q", *chain.from_iterable(spans))
            count = self._readv(self.pid, local, 1, remote, len(spans), 0)
            if count >= 0 or ctypes.get_errno() == errno.EFAULT:
                return bytes(data if count == total else data[: max(0, count)])
            self._readv = None  # forbidden, as by a container's seccomp filter: the file may still be read
        return self._read_file(spans)

    def _read_file(self, spans: Sequence[Sequence[int]]) -> bytes:
        parts: list[bytes] = []
        for start, size in spans:
            try:
                parts.append(os.pread(self._fd, size, start))
            except (OSError, OverflowError, ValueError):
                break
            if len(parts[-1]) < size:
                break
        return b"".join(parts)

    def now(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of many spans, each an address and a size, as they are now, in few system calls; none is kept."""
        found: list[bytes] = []
        for at in range(0, len(spans), MAX_SPANS):
            batch = spans[at : at + MAX_SPANS]
            ends = list(accumulate([size for _, size in batch]))
            if min(batch, key=itemgetter(1))[1] < 0 or ends[-1] > MAX_BYTES:
                raise UnreadableMemory("the sizes of spans are out of bounds")
            data = self._read_spans(batch)
            if len(data) < ends[-1]:
                raise UnreadableMemory("a span is not mapped")
            found += [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        return found

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes at ``address``."""
        offset = address & IN_PAGE
        if 0 <= size <= PAGE - offset and self.keeps_pages:
            return self._page(address - offset)[offset : offset + size]
        if not 0 <= size <= MAX_BYTES:
            raise UnreadableMemory(f"{size} bytes at {address:#x}: the size is out of bounds")
        if not self.keeps_pages:
            return self._read(address, size)
        self.prefetch((address,), size)
        pages = map(self._page, range(address - offset, address + size, PAGE))
        return b"".join(pages)[offset : offset + size]

    def _page(self, address: int) -> bytes:
        page = self.pages.get(address)
        if page is None:
            self.prefetch((address,))
            page = self.pages.get(address)
        if page is None:
            raise UnreadableMemory(self._why_unreadable(address))
        return page

    def _why_unreadable(self, address: int) -> str:
        if self._is_sealed:
            self.was_short = True
            return f"page at {address:#x}: it was not read before"
        if len(self.pages) >= MAX_PAGES:
            return f"page at {address:#x}: {MAX_PAGES} others were read, which is the limit"
        return f"page at {address:#x}: it is not mapped"

    def _read(self, address: int, size: int) -> bytes:
        try:
            data = os.pread(self._fd, size, address)
        except (OSError, OverflowError, ValueError) as error:
            raise UnreadableMemory(f"{size} bytes at {address:#x}: {error}") from error
        if len(data) != size:
            raise UnreadableMemory(f"{size} bytes at {address:#x}: only {len(data)} are mapped")
        return data

    def pointer(self, address: int) -> int:
        """The pointer stored at ``address``."""
        page = self.pages.get(address & PAGE_START)
        offset = address & IN_PAGE
        if page is not None and offset <= PAGE - 8:
            return int.from_bytes(page[offset : offset + 8], "little")
        return int.from_bytes(self.read(address, 8), "little")

    def unpack(self, layout: str, address: int) -> tuple[Any, ...]:
        """The values at ``address`` in this :mod:`struct` layout: the fastest way for many of the same kind."""
        offset = address & IN_PAGE
        if not self.keeps_pages or offset + struct.calcsize(layout) > PAGE:
            return struct.unpack(layout, self.read(address, struct.calcsize(layout)))
        return struct.unpack_from(layout, self._page(address - offset), offset)

    def pointers(self, address: int, count: int) -> tuple[int, ...]:
        """``count`` pointers from ``address`` on."""
        page, offset = self.pages.get(address & PAGE_START), address & IN_PAGE
        if page is not None and 0 < count <= (PAGE - offset) // 8:
            return struct.unpack_from(f"<{count}Q", page, offset)
        return struct.unpack(f"<{count}Q", self.read(address, 8 * count)) if count else ()

    def mapped_words(self, address: int, size: int) -> tuple[int, ...]:
        """The words at ``address``; fewer than ``size`` bytes of them where not all are mapped."""
        while size >= 8:
            with contextlib.suppress(UnreadableMemory):
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
        """The text up to the next zero byte, or its first ``MAX_TEXT`` bytes."""
        text = b""
        while len(text) < MAX_TEXT and b"\0" not in text:
            start = address + len(text)
            text += self.read(start, min(MAX_TEXT, PAGE - start % PAGE))  # the next page may not be there
        return text.split(b"\0", 1)[0].decode("ascii", "replace")


def _spans(pages: Iterable[int]) -> list[list[int]]:
    """The beginnings and sizes of stretches of pages, which are in order."""
    spans: list[list[int]] = []
    end = -1
    for page in pages:
        if page == end:
            spans[-1][1] += PAGE
        else:
            spans.append([page, PAGE])
        end = page + PAGE
    return spans


@contextlib.contextmanager
def open_memory(pid: int, *, keeps_pages: bool = False) -> Iterator[ProcessMemory]:
    """A process's memory for the length of a ``with`` block."""
    memory = ProcessMemory(pid, keeps_pages=keeps_pages)
    try:
        yield memory
    finally:
        memory.close()


def _process_vm_readv() -> Any:
    """The C library's function; made by a factory that ctypes caches, since a global function could not travel."""
    words = ctypes.c_int, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong
    prototype = ctypes.CFUNCTYPE(ctypes.c_ssize_t, *words, use_errno=True)
    try:
        return prototype(("process_vm_readv", ctypes.pythonapi))
    except AttributeError:  # a C library without it
        return None
