"""The entries of a flight recorder that is laid out in this process as torch 2.13 to 2.15 lay it out."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from dstack.libraries.torch.recorder import FlightRecorder, Record
from dstack.probes.node.cpython.memory import open_memory

ENTRY = 512
AT = 112
"""The offset of the operation in an entry."""
INPUTS = 240
CREATED = time.time()


class Memory:
    """Bytes at fixed addresses, which live as long as this object."""

    def __init__(self) -> None:
        self._kept: list[ctypes.Array[ctypes.c_char]] = []

    def put(self, data: bytes) -> int:
        self._kept.append(ctypes.create_string_buffer(data, max(1, len(data))))
        return ctypes.addressof(self._kept[-1])


def text(memory: Memory, address: int, value: str) -> bytes:
    """A ``std::string`` at an address."""
    data = value.encode()
    if len(data) < 16:
        return struct.pack("<QQ16s", address + 16, len(data), data)
    return struct.pack("<QQQ8x", memory.put(data + b"\0"), len(data), len(data))


def vector(memory: Memory, address: int, values: list[int], room: int) -> bytes:
    """A ``c10::SmallVector`` at an address."""
    data = struct.pack(f"<{len(values)}q", *values)
    if len(values) <= room:
        return struct.pack(f"<QII{room * 8}s", address + 16, len(values), room, data)
    return struct.pack(f"<QII{room * 8}x", memory.put(data), len(values), len(values))


def entry(memory: Memory, address: int, number: int, sizes: list[list[int]], name: str, *, ended: bool) -> bytes:
    """One entry, whose call is at instruction 8 of a code object at 0x1000."""
    frames = memory.put(struct.pack("<Qi4x", 0x1000, 8))
    traceback = memory.put(struct.pack("<4Q", 0, frames, frames + 16, frames + 16))
    types = memory.put(bytes([6] * len(sizes)))
    data = bytearray(ENTRY)

    def put(at: int, value: bytes) -> None:
        data[at : at + len(value)] = value

    put(0, struct.pack("<Q", number))
    put(AT - 88, text(memory, address + AT - 88, "default_pg"))
    put(AT - 56, text(memory, address + AT - 56, "0"))
    put(AT - 24, struct.pack("<3Q", number + 1, 0, number + 1))
    put(AT, text(memory, address + AT, name))
    put(AT + 32, struct.pack("<2Q", traceback, traceback))
    put(AT + 64, struct.pack("<2Q", int((CREATED - 100 + number) * 1e9), 1_800_000))
    flat = [size for one in sizes for size in one]
    put(INPUTS, vector(memory, address + INPUTS, list(map(len, sizes)), 4))
    put(INPUTS + 48, struct.pack("<3Q", types, types + len(sizes), types + len(sizes)))
    put(INPUTS + 72, vector(memory, address + INPUTS + 72, [], 4))
    put(INPUTS + 144, vector(memory, address + INPUTS + 144, flat, 8))
    put(INPUTS + 232, text(memory, address + INPUTS + 232, "python"))
    put(INPUTS + 264, bytes([ended]))
    return bytes(data)


def recorder(count: int, room: int = 2000, sizes: list[list[int]] | None = None, name: str = "gloo:all_reduce") -> int:
    """The address of a pointer to a recorder that has recorded so many collectives, of which it keeps ``room``.

    The last one has these sizes.
    """
    memory, kept = MEMORY, min(count, room)
    ring = memory.put(bytes(ENTRY * kept))
    for number in range(count - kept, count):
        address = ring + number % kept * ENTRY
        data = entry(
            memory,
            address,
            number,
            sizes if sizes and number == count - 1 else [[2, 3]],
            name,
            ended=number < count - 1,
        )
        ctypes.memmove(address, data, ENTRY)
    end = ring + ENTRY * kept
    words = (0x1_0001, 0, 0, 0, 0, 0, ring, end, end, room, count % room, count, *[0] * 20)
    return memory.put(struct.pack("<Q", memory.put(struct.pack(f"<{len(words)}Q", *words))))


MEMORY = Memory()


@pytest.fixture
def last() -> Iterator[Callable[[int], list[Record]]]:
    with open_memory(os.getpid(), keeps_pages=True) as memory:
        yield lambda address: FlightRecorder(memory, address).last()


def test_an_entry_has_its_call(last: Callable[[int], list[Record]]) -> None:
    first, second = last(recorder(2))

    assert (first.group, first.what.backend, first.what.operation) == ("0", "gloo", "all_reduce")
    assert (first.number, second.number) == (1, 2)
    assert (first.has_ended, second.has_ended) == (True, False)
    assert (first.what.sizes, first.what.types) == (((2, 3),), ("float32",))
    assert first.frames == ((0x1000, 8),)
    assert first.created == pytest.approx(CREATED - 100, abs=1e-3)


def test_values_outside_of_an_entry_are_read(last: Callable[[int], list[Record]]) -> None:
    """A long name and many sizes, where another entry shows the layout."""
    sizes = [[7, 8, 9, 10], [1, 2, 3, 4], [5, 6, 7, 8]]

    _, found = last(recorder(2, sizes=sizes, name="nccl:_all_gather_base_coalesced"))

    assert (found.what.backend, found.what.operation) == ("nccl", "_all_gather_base_coalesced")
    assert found.what.sizes == ((7, 8, 9, 10), (1, 2, 3, 4), (5, 6, 7, 8))


def test_a_full_ring_has_the_last_collectives_in_order(last: Callable[[int], list[Record]]) -> None:
    assert [one.number for one in last(recorder(25, room=10))] == list(range(16, 26))


def test_at_most_so_many_entries_are_read(last: Callable[[int], list[Record]]) -> None:
    assert [one.number for one in last(recorder(300))] == list(range(45, 301))


def test_a_recorder_without_entries_has_none(last: Callable[[int], list[Record]]) -> None:
    nothing = MEMORY.put(struct.pack("<Q", MEMORY.put(bytes(512))))

    assert last(nothing) == []
    assert last(MEMORY.put(bytes(8))) == []


def test_another_layout_is_unknown(last: Callable[[int], list[Record]]) -> None:
    assert last(recorder(3, name="all_reduce")) == []
