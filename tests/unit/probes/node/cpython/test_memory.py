"""Pages of a process are read once, in few system calls, and unmapped ones are unreadable."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from dstack.probes.node.cpython import memory as module
from dstack.probes.node.cpython.memory import MAX_SPANS, PAGE, ProcessMemory, UnreadableMemory, open_memory
from dstack.probes.node.procfs import proc
from tests.processes import wait_until

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
LIBC.mmap.restype = ctypes.c_void_p
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Region:
    """Pages of this process that begin with their number; each can be unmapped."""

    def __init__(self, pages: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.start: int = LIBC.mmap(None, pages * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        self._mapped = set(range(pages))
        for page in range(pages):
            self.put(page, page)

    def put(self, page: int, number: int) -> None:
        ctypes.memmove(self.page(page), number.to_bytes(8, "little"), 8)

    def page(self, number: int) -> int:
        return self.start + number * PAGE

    def unmap(self, *pages: int) -> None:
        for page in pages:
            assert LIBC.munmap(self.page(page), PAGE) == 0
        self._mapped.difference_update(pages)

    def free(self) -> None:
        self.unmap(*self._mapped)


Map = Callable[[int], Region]


@pytest.fixture
def map_pages() -> Iterator[Map]:
    """Map a number of pages for the duration of a test."""
    regions: list[Region] = []

    def map_pages(count: int) -> Region:
        regions.append(Region(count))
        return regions[-1]

    yield map_pages
    for region in regions:
        region.free()


@pytest.fixture
def kept() -> Iterator[ProcessMemory]:
    with open_memory(os.getpid(), keeps_pages=True) as found:
        yield found


class Calls:
    """The system calls of one memory, each with its number of spans."""

    def __init__(self, kept: ProcessMemory) -> None:
        self.spans: list[int] = []
        self.pages: list[int] = []
        self._read_spans = kept._read_spans
        kept._read_spans = self._noted  # type: ignore[method-assign]

    def _noted(self, spans: Sequence[Sequence[int]]) -> bytes:
        self.spans.append(len(spans))
        self.pages += [page for start, size in spans for page in range(start, start + size, PAGE)]
        return self._read_spans(spans)


def forbid(kept: ProcessMemory) -> None:
    """Deny ``process_vm_readv`` like a container's seccomp filter."""

    def refuse(*_: Any) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    kept._readv = refuse


def absent(kept: ProcessMemory) -> None:
    """Simulate a C library without ``process_vm_readv``."""
    kept._readv = None


WAYS = pytest.mark.parametrize("way", [lambda _: None, forbid, absent], ids=["process_vm_readv", "forbidden", "absent"])
Way = Callable[[ProcessMemory], None]


# Cached pages


@WAYS
def test_cached_pages_equal_direct_reads_and_reads_may_cross_them(kept: ProcessMemory, way: Way) -> None:
    way(kept)
    value = os.urandom(3 * PAGE)
    with open_memory(os.getpid()) as plain:
        for size in (0, 1, 8, PAGE - 1, PAGE, 2 * PAGE):
            for offset in (0, 32, 64, PAGE - 4):
                assert kept.read(id(value) + offset, size) == plain.read(id(value) + offset, size)
        at = id(value) + 32 + PAGE - (id(value) + 32) % PAGE - 4  # a word on two pages
        assert kept.pointer(at) == plain.pointer(at)
        assert kept.unpack("<Q", at) == plain.unpack("<Q", at)
        assert kept.pointers(at, 3) == plain.pointers(at, 3)
        assert kept.int64(at) == plain.int64(at)
        assert kept.int32(at) == plain.int32(at)


def test_no_page_is_read_twice(kept: ProcessMemory, map_pages: Map) -> None:
    region, calls = map_pages(50), Calls(kept)

    for _ in range(2):
        kept.prefetch([region.page(number) for number in (1, 2, 3, 7, 3)])
        kept.prefetch([region.page(2), region.page(8)], size=2 * PAGE)
        for number in range(20):
            assert kept.pointer(region.page(number)) == number
        kept.read(region.page(5), 30 * PAGE)

    assert sorted(calls.pages) == [region.page(number) for number in range(35)]


def test_adjacent_pages_are_one_span_and_all_spans_one_call(kept: ProcessMemory, map_pages: Map) -> None:
    region, calls = map_pages(100), Calls(kept)

    kept.prefetch(region.page(number) for number in (*range(10, 30), 50, 52, 53))

    assert calls.spans == [3]
    assert [kept.pointer(region.page(number)) for number in (10, 29, 50, 52, 53)] == [10, 29, 50, 52, 53]
    assert calls.spans == [3]


@WAYS
def test_more_spans_than_fit_one_call_are_read(kept: ProcessMemory, way: Way, map_pages: Map) -> None:
    way(kept)
    count = 2 * MAX_SPANS + 10
    region, calls = map_pages(2 * count), Calls(kept)

    kept.prefetch(region.page(2 * number) for number in range(count))

    assert calls.spans == [MAX_SPANS, MAX_SPANS, 10]
    assert all(kept.pointer(region.page(2 * number)) == 2 * number for number in range(count))
    assert calls.spans == [MAX_SPANS, MAX_SPANS, 10]


@WAYS
def test_unmapped_pages_are_left_out_and_not_requested_again(kept: ProcessMemory, way: Way, map_pages: Map) -> None:
    way(kept)
    region, calls = map_pages(40), Calls(kept)
    holes = [0, 7, 8, 9, 20, 39]
    region.unmap(*holes)

    for _ in range(2):
        kept.prefetch([*map(region.page, range(40)), 0, 1 << 47, -PAGE, 1 << 70])

    there = [number for number in range(40) if number not in holes]
    assert sorted(kept.pages) == [region.page(number) for number in there]
    assert [kept.pointer(region.page(number)) for number in there] == there
    assert len(calls.spans) <= 2 * (len(holes) + 2)
    for number in holes:
        with pytest.raises(UnreadableMemory, match="it is not mapped"):
            kept.read(region.page(number), 8)


@WAYS
def test_a_hole_among_more_spans_than_fit_one_call_is_unreadable(kept: ProcessMemory, way: Way, map_pages: Map) -> None:
    way(kept)
    count = MAX_SPANS + 100
    region = map_pages(2 * count)
    region.unmap(2 * 5, 2 * (MAX_SPANS - 1), 2 * (MAX_SPANS + 3))

    kept.prefetch(region.page(2 * number) for number in range(count))

    assert len(kept.pages) == count - 3
    assert all(
        kept.pages[region.page(2 * n)][:8] == (2 * n).to_bytes(8, "little") for n in (0, 6, MAX_SPANS, count - 1)
    )


def test_a_read_into_a_hole_is_unreadable_as_a_whole(kept: ProcessMemory, map_pages: Map) -> None:
    region = map_pages(4)
    region.unmap(2)

    with pytest.raises(UnreadableMemory):
        kept.read(region.page(1), 2 * PAGE)

    assert kept.pointer(region.page(1)) == 1
    assert kept.mapped_words(region.page(1), 2 * PAGE)[0] == 1


@pytest.mark.parametrize("keeps_pages", [False, True])
@pytest.mark.parametrize("size", [-1, (1 << 24) + 1, 2**63])
def test_a_read_of_an_invalid_size_is_rejected(keeps_pages: bool, size: int) -> None:
    with open_memory(os.getpid(), keeps_pages=keeps_pages) as found, pytest.raises(UnreadableMemory):
        found.read(id(size), size)


@pytest.mark.parametrize("keeps_pages", [False, True])
@pytest.mark.parametrize("address", [0, 8, -8, 2**47, 2**63, 2**64 - 8, 2**80])
def test_unmapped_addresses_are_unreadable(keeps_pages: bool, address: int) -> None:
    with open_memory(os.getpid(), keeps_pages=keeps_pages) as found:
        for read in (found.pointer, found.int32, found.c_string, lambda at: found.read(at, 2 * PAGE)):
            with pytest.raises(UnreadableMemory):
                read(address)


def test_cached_pages_do_not_change(kept: ProcessMemory, map_pages: Map) -> None:
    region = map_pages(1)

    assert kept.pointer(region.start) == 0
    region.put(0, 99)

    assert kept.pointer(region.start) == 0


def test_without_cached_pages_every_read_is_new(map_pages: Map) -> None:
    region = map_pages(1)
    with open_memory(os.getpid()) as plain:
        plain.prefetch([region.start])
        assert plain.pointer(region.start) == 0
        region.put(0, 99)

        assert plain.pointer(region.start) == 99
        assert not plain.pages


# Reads after the process


@WAYS
def test_after_the_end_only_cached_pages_are_readable(kept: ProcessMemory, way: Way, map_pages: Map) -> None:
    region = map_pages(3)
    with open_memory(os.getpid(), keeps_pages=True) as closed:
        way(closed)
        closed.prefetch([region.page(1)])
        calls = Calls(closed)

    closed.prefetch([region.page(0), region.page(2)])

    assert closed.pointer(region.page(1)) == 1
    assert closed.pages.keys() == {region.page(1)}
    assert not calls.spans
    with pytest.raises(UnreadableMemory, match="not read before"):
        closed.read(region.page(2), 8)


@WAYS
def test_an_ended_process_is_unreadable(way: Way) -> None:
    with subprocess.Popen(["sleep", "600"]) as process, open_memory(process.pid, keeps_pages=True) as memory:
        way(memory)
        start = wait_until(lambda: proc.mappings(process.pid), deadline_s=60, what=lambda: "its memory")[0].start
        assert len(memory.read(start, 8)) == 8
        process.kill()
        process.wait()

        with pytest.raises(UnreadableMemory):
            memory.read(start + PAGE, 8)
        assert len(memory.read(start, 8)) == 8  # unchanged


def test_an_absent_process_cannot_be_opened() -> None:
    with pytest.raises(OSError), open_memory(2**22 + 1):  # noqa: PT011
        pass


# Read again, and bounds


def test_cached_pages_are_read_again_in_one_call_and_no_others_afterwards() -> None:
    value = bytearray(b"a" * (4 * PAGE))
    start = ctypes.addressof((ctypes.c_char * len(value)).from_buffer(value))
    with open_memory(os.getpid(), keeps_pages=True) as kept:
        kept.read(start, PAGE + 1)
        value[:] = b"b" * len(value)
        assert kept.read(start, PAGE + 1) == b"a" * (PAGE + 1)

        kept.read_again()

        assert kept.read(start, PAGE + 1) == b"b" * (PAGE + 1)
        with pytest.raises(UnreadableMemory):
            kept.read(start + 3 * PAGE, 8)


def test_a_very_large_wait_is_stable_and_can_be_read_again() -> None:
    value = bytearray(b"a" * (10_000 * PAGE))  # the pages of 150,000 refs and their list
    start = ctypes.addressof((ctypes.c_char * len(value)).from_buffer(value))
    with open_memory(os.getpid(), keeps_pages=True) as kept:
        for offset in range(0, len(value), PAGE):
            kept.read(start + offset, 1)
        value[:] = b"b" * len(value)
        assert kept.read(start, 1) == b"a"

        kept.read_again()

        assert kept.read(start, 1) == b"b"


def test_pages_beyond_the_bound_are_unreadable_and_earlier_ones_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PAGES", 3)
    value = bytearray(b"a" * (5 * PAGE))
    start = ctypes.addressof((ctypes.c_char * len(value)).from_buffer(value))
    with open_memory(os.getpid(), keeps_pages=True) as kept:
        for page in range(3):
            kept.read(start + page * PAGE, 1)
        with pytest.raises(UnreadableMemory, match="which is the limit"):
            kept.read(start + 3 * PAGE, 1)
        value[:] = b"b" * len(value)

        assert kept.read(start, 1) == b"a"


def test_another_architecture_is_rejected_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")

    with pytest.raises(OSError, match="on Linux x86_64 and aarch64 only, not on riscv64"), open_memory(os.getpid()):
        pass
