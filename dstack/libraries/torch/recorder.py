"""The last collectives in the flight recorder of a process, read from its memory.

The recorder has the entries of all groups in a ring. Their layout is found in the entries themselves: texts and small
vectors of C++ refer to their own inside, and the fields between them follow in a known order. What is found is checked:
every entry has its number, its time is one of the process, and it has as many types as sizes. Otherwise it is unknown.

Seen on torch 2.13 to 2.15 with gloo, and its order of fields in the sources of torch 2.5 to 2.15.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dstack.observed.ledgers import MAX_RECORDED
from dstack.probes.node.cpython.code_objects import StructFields
from dstack.probes.node.cpython.memory import ProcessMemory, UnreadableMemory

WORD = 8
RECORDER_BYTES, MAX_ENTRY_BYTES = 256, 2048
MAX_ENTRIES = 1 << 20
OPERATION = re.compile(r"(\w+):(\w+)")
"""``gloo:all_reduce``: the backend and the operation."""
SHORT, TEXT_BYTES, MAX_TEXT = 16, 32, 200
"""The bytes that a ``std::string`` of libstdc++ has inside, behind its address and size, and its own."""
GROUP_NAME, NUMBER, TRACEBACK, CREATED, IS_BETWEEN_TWO = -56, -24, 32, 64, 80
"""The offsets of fields from that of the operation: the name of the group, the number of the collective in it, its
traceback, its time, and whether it is a send or receive."""
DIMS, SIZES_CAPACITY, INSIDE = 4, 8, 16
"""The capacities of the vectors of dimensions and of sizes, and the offset of what they have inside."""
TYPES, TO_OUTPUTS, TO_SIZES = INSIDE + DIMS * WORD, 72, 144
"""The offsets from the vector of inputs: of their types, of the vector of outputs, and of the sizes of both."""
THREAD_NAME, ENDED = TO_SIZES + 88, TO_SIZES + 120
"""The offsets from there of the name of the thread, and of whether the collective has ended."""
PAIR, CODE_AND_INSTRUCTION = "<2Q", "<Qi4x"
FRAMES_AT, MAX_FRAMES, FRAME = 8, 64, 16
"""A traceback has a virtual table and a vector of frames; each is a code object and an instruction. Of one that is
deeper there are no frames."""
MAX_VALUES = 64
SCALAR_TYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
)
"""``c10::ScalarType`` by its numbers, from 0 on."""


class Record(NamedTuple):
    """One entry; ``frames`` are leaf first: addresses of code objects with their instructions, or what a file has."""

    group: str
    number: int
    what: What
    frames: tuple[tuple[Any, ...], ...]
    created: float
    has_ended: bool


class What(NamedTuple):
    """What a collective is, which many entries share: its backend, its operation, and its inputs."""

    backend: str
    operation: str
    sizes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]


@dataclass(frozen=True)
class _Ring:
    """The ring: its entries' address and size, how many there are, and the number of the next one."""

    start: int
    entry_bytes: int
    count: int
    following: int


@dataclass(frozen=True)
class _Layout:
    """The offsets in an entry of the operation and of the vector of the inputs' dimensions.

    ``movable`` are those of the texts and vectors, which may have their content inside or elsewhere.
    """

    operation: int
    inputs: int
    movable: tuple[int, ...]

    @classmethod
    def of(cls, operation: int, inputs: int) -> _Layout:
        """The layout with these offsets."""
        return cls(operation, inputs, (operation + GROUP_NAME, operation, inputs, inputs + TO_SIZES))

    @property
    def fields(self) -> StructFields:
        """The number, time and traceback of an entry, the vector of types, and where texts and vectors have theirs."""
        at, inputs = self.operation, self.inputs
        own = (at + NUMBER, at + CREATED, at + TRACEBACK, inputs + TYPES, inputs + TYPES + WORD)
        return StructFields(*((one, "Q") for one in (*own, *self.movable)))

    def content(self, entry: bytes) -> bytes:
        """The lengths and inside content of these."""
        group, operation, inputs, sizes = self.movable
        texts = entry[group + WORD : group + TEXT_BYTES] + entry[operation + WORD : operation + TEXT_BYTES]
        return texts + entry[inputs + WORD : inputs + TYPES] + entry[sizes + WORD : sizes + INSIDE + 8 * WORD]


class FlightRecorder:
    """One recorder, to which there is a pointer at ``address``. Raises :class:`UnreadableMemory`."""

    def __init__(self, memory: ProcessMemory, address: int) -> None:
        self._memory = memory
        self._address = address

    def last(self) -> list[Record]:
        """The last collectives, in their order; none if it records none. Entries that change meanwhile are left out."""
        recorder = self._memory.pointer(self._address)
        ring = self._ring(recorder) if recorder else None
        if ring is None:
            return []
        entries = self._entries(ring)
        layout = _layout_of(self._memory, entries)
        return list(self._records(entries, layout)) if layout else []

    def _ring(self, recorder: int) -> _Ring | None:
        """The vector of entries, which is followed by its maximum, the next place and the next number."""
        words = struct.unpack(f"<{RECORDER_BYTES // WORD}Q", self._memory.now([(recorder, RECORDER_BYTES)])[0])
        for at in range(len(words) - 5):
            start, end, capacity, most, place, following = words[at : at + 6]
            if not (0 < start < end <= capacity and 0 < most <= MAX_ENTRIES and place <= most and following):
                continue
            count = min(most, following)
            size = (end - start) // count
            if size * count == end - start and size <= MAX_ENTRY_BYTES and size % WORD == 0 and size > ENDED:
                return _Ring(start, size, count, following)
        return None

    def _entries(self, ring: _Ring) -> list[tuple[int, bytes]]:
        """The last entries with their addresses; those that do not have their number are left out."""
        wanted = range(max(0, ring.following - min(MAX_RECORDED, ring.count)), ring.following)
        addresses = [ring.start + number % ring.count * ring.entry_bytes for number in wanted]
        data = self._memory.now([(address, ring.entry_bytes) for address in addresses])
        found = zip(wanted, addresses, data, strict=True)
        return [(address, entry) for number, address, entry in found if _word(entry, 0) == number]

    def _records(self, entries: Sequence[tuple[int, bytes]], layout: _Layout) -> Iterator[Record]:
        """The entries of collectives whose content is sound; equal content is decoded once."""
        fields = layout.fields
        values = [fields.unpack(entry) for _, entry in entries]
        frames = self._frames([traceback for _, _, traceback, *_ in values])
        types = self._types([(start, end) for _, _, _, start, end, *_ in values])
        known: dict[object, tuple[str, What] | None] = {}
        between_two, ended = layout.operation + IS_BETWEEN_TWO, layout.inputs + ENDED
        inside = [offset + INSIDE for offset in layout.movable]
        for (address, entry), (number, created, _, _, _, *starts), stack, of_inputs in zip(
            entries, values, frames, types, strict=True
        ):
            if entry[between_two]:
                continue
            is_inside = starts == [address + offset for offset in inside]
            key = (layout.content(entry), of_inputs) if is_inside else address
            if key not in known:
                known[key] = self._what(address, entry, layout, of_inputs)
            if found := known[key]:
                yield Record(found[0], number, found[1], stack, created / 1e9, bool(entry[ended]))

    def _what(self, address: int, entry: bytes, layout: _Layout, types: bytes) -> tuple[str, What] | None:
        """The group and the content of an entry; None where its types are not as many as its sizes."""
        group = text_in(self._memory, address, entry, layout.operation + GROUP_NAME)
        name = OPERATION.fullmatch(text_in(self._memory, address, entry, layout.operation) or "")
        sizes = self._sizes(address, entry, layout.inputs)
        if group is None or name is None or sizes is None or len(sizes) != len(types):
            return None
        return group, What(name[1], name[2], sizes, tuple(map(_type_name, types)))

    def _frames(self, tracebacks: Sequence[int]) -> list[tuple[tuple[int, int], ...]]:
        """The frames of each traceback; none where there is no traceback."""
        vectors = self._memory.now([(one + FRAMES_AT, 2 * WORD) for one in tracebacks if one])
        spans = []
        for data in vectors:
            start, end = struct.unpack(PAIR, data)
            size = end - start if start < end <= start + MAX_FRAMES * FRAME else 0
            spans.append((start, size if size % FRAME == 0 else 0))
        found = iter(self._memory.now(spans))
        return [tuple(struct.iter_unpack(CODE_AND_INSTRUCTION, next(found))) if one else () for one in tracebacks]

    def _types(self, vectors: Sequence[tuple[int, int]]) -> list[bytes]:
        """The numbers of the types in each vector of them."""
        spans = [(start, end - start if start and start < end <= start + MAX_VALUES else 0) for start, end in vectors]
        return self._memory.now(spans)

    def _sizes(self, address: int, entry: bytes, inputs: int) -> tuple[tuple[int, ...], ...] | None:
        """The sizes of each input: their dimensions, of as many of the sizes of all inputs and outputs."""
        dimensions = self._vector(address, entry, inputs)
        sizes = iter(self._vector(address, entry, inputs + TO_SIZES))
        found = tuple(tuple(next(sizes, -1) for _ in range(count)) for count in dimensions if 0 <= count <= MAX_VALUES)
        is_sound = len(found) == len(dimensions) and all(size >= 0 for one in found for size in one)
        return found if is_sound else None

    def _vector(self, address: int, entry: bytes, at: int) -> tuple[int, ...]:
        """A ``c10::SmallVector`` of 64-bit numbers; at most :data:`MAX_VALUES` of them."""
        start, size, _ = struct.unpack_from("<QII", entry, at)
        size = min(size, MAX_VALUES)
        if start == address + at + INSIDE and at + INSIDE + size * WORD <= len(entry):
            return struct.unpack_from(f"<{size}q", entry, at + INSIDE)
        return struct.unpack(f"<{size}q", self._memory.now([(start, size * WORD)])[0])


def text_in(memory: ProcessMemory, address: int, entry: bytes, at: int) -> str | None:
    """The ``std::string`` at an offset of an entry; None where there is none."""
    start, size = struct.unpack_from("<2Q", entry, at)
    if start == address + at + SHORT and size < SHORT:
        return entry[at + SHORT : at + SHORT + size].decode("ascii", "replace")
    if not SHORT <= size <= MAX_TEXT or not start:
        return None
    try:
        data = memory.now([(start, size + 1)])[0]
    except UnreadableMemory:
        return None
    return data[:-1].decode("ascii", "replace") if data[-1] == 0 else None


def _layout_of(memory: ProcessMemory, entries: Sequence[tuple[int, bytes]]) -> _Layout | None:
    """The layout that an entry shows whose vectors are all inside it."""
    now = time.time()
    for address, entry in entries:
        for operation in range(-GROUP_NAME, len(entry) - CREATED - ENDED, WORD):
            text = text_in(memory, address, entry, operation)
            if text is None or not OPERATION.fullmatch(text):
                continue
            created = _word(entry, operation + CREATED) / 1e9
            inputs = _inputs(address, entry, operation)
            has_group = text_in(memory, address, entry, operation + GROUP_NAME) is not None
            if inputs is not None and has_group and 0 < created <= now:
                return _Layout.of(operation, inputs)
    return None


def _inputs(address: int, entry: bytes, operation: int) -> int | None:
    """The offset of the vector of the inputs' dimensions: it has two others behind it, and the name of a thread."""
    for at in range(operation + CREATED, len(entry) - ENDED, WORD):
        vectors = ((at, DIMS), (at + TO_OUTPUTS, DIMS), (at + TO_SIZES, SIZES_CAPACITY))
        thread_name = struct.unpack_from("<2Q", entry, at + THREAD_NAME)
        has_name = thread_name[0] == address + at + THREAD_NAME + SHORT and thread_name[1] < SHORT
        if has_name and all(_is_vector(address, entry, *vector) for vector in vectors):
            return at
    return None


def _is_vector(address: int, entry: bytes, at: int, capacity: int) -> bool:
    start, size, room = struct.unpack_from("<QII", entry, at)
    return bool(start == address + at + INSIDE and size <= room == capacity)


def _word(entry: bytes, at: int) -> int:
    return int.from_bytes(entry[at : at + WORD], "little")


def _type_name(number: int) -> str:
    return SCALAR_TYPES[number] if number < len(SCALAR_TYPES) else f"type {number}"
