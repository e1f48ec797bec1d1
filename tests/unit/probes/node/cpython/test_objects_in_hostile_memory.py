"""With any memory content, an object is read or unreadable after a bounded number of reads.

Memory consists of random words, or is copied from this process and then changed: sizes, pointers into a cycle and to
unmapped pages, pages that vanish, words that change between two reads. The cost of a read is counted, not timed.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dstack.probes.node.cpython.code_objects import exception_table
from dstack.probes.node.cpython.memory import PAGE, UnreadableMemory, open_memory
from dstack.probes.node.cpython.memory_frames import MAX_FRAMES, Frames
from dstack.probes.node.cpython.objects import TYPE, TYPE_NAME, Objects
from tests.fuzzing.effort import examples
from tests.unit.support.hostile_memory import END, HOSTILE, MIB, Change, Copied, CountedMemory, Recorder, ends_well
from tests.unit.support.own_process import own_frames, own_layout, own_objects
from tests.versions.calibration import WaitingThread

BASE, WORDS = 0x10000, 64
FRAME_BYTES = 88


class Drawn(CountedMemory):
    """The same words repeated from ``BASE`` to ``end``; the words at ``changes`` change after some reads."""

    def __init__(
        self, words: list[int], end: int, changes: dict[int, tuple[int, int]], *, keeps_pages: bool = True
    ) -> None:
        super().__init__(keeps_pages=keeps_pages)
        self._data, self._end, self._changes = struct.pack(f"<{len(words)}Q", *words), end, changes

    def put(self, index: int, word: int) -> None:
        """The changes apply from the first read on."""
        self._changes[index] = (0, word)

    def bytes_at(self, address: int, size: int) -> bytes:
        if address < BASE or address + size > self._end:
            raise UnreadableMemory("not mapped")
        data = self._data_now()
        start = (address - BASE) % len(data)
        return (data[start:] + data * (size // len(data) + 1))[:size]

    def _data_now(self) -> bytes:
        data = bytearray(self._data)
        for index, (after, value) in self._changes.items():
            if self.reads > after:
                struct.pack_into("<Q", data, 8 * index, value)
        return bytes(data)


# Random words

TYPE_NAMES = ("list", "tuple", "dict", "set", "frozenset", "str", "bytes", "int", "float", "NoneType", "code", "Plain")
TYPES_AT = WORDS
"""The addresses of the types, each with its name behind the pointer to it."""
TYPE_WORDS = 64


def type_at(name: str) -> int:
    return BASE + 8 * (TYPES_AT + TYPE_WORDS * TYPE_NAMES.index(name))


WORD = st.one_of(
    st.sampled_from(HOSTILE),
    st.integers(0, WORDS - 1).map(lambda index: BASE + 8 * index),
    st.sampled_from(TYPE_NAMES).map(type_at),
    st.integers(0, 2**64 - 1),
)
CHANGES = st.dictionaries(st.integers(0, WORDS - 1), st.tuples(st.integers(0, 40), WORD), max_size=4)


def types(flags: int, dict_offset: int, size: int) -> list[int]:
    """The words of all types: name, flags, dict offset and instance size; the others are 0."""
    words = []
    for name in TYPE_NAMES:
        kind = [0] * TYPE_WORDS
        kind[TYPE_NAME // 8], kind[4] = type_at(name) + 8 * 40, size
        kind[168 // 8], kind[288 // 8] = flags, dict_offset
        kind[40:42] = struct.unpack("<2Q", name.encode().ljust(16, b"\0"))
        words += kind
    return words


@st.composite
def drawn_memory(draw: st.DrawFn, *, keeps_pages: bool) -> Drawn:
    words = draw(st.lists(WORD, min_size=WORDS, max_size=WORDS))
    flags, offset, size = draw(st.sampled_from([0, 4, 16, 20])), draw(WORD), draw(WORD)
    end = draw(st.sampled_from([BASE + PAGE, BASE + 4 * PAGE, END]))
    return Drawn(words + types(flags, offset, size), end, draw(CHANGES), keeps_pages=keeps_pages)


def reads_of_objects(objects: Objects, at: int) -> dict[str, tuple[str, Callable[[], object]]]:
    """Every function that reads an object, with a type that it accepts."""
    return {
        "type_name": ("Plain", lambda: objects.type_name(at)),
        "is_a": ("list", lambda: objects.is_a(at, "list")),
        "expect": ("list", lambda: objects.expect(at, "list")),
        "list": ("list", lambda: objects.items(at)),
        "tuple": ("tuple", lambda: objects.items(at)),
        "set": ("set", lambda: objects.set_items(at)),
        "text": ("str", lambda: objects.text(at)),
        "data": ("bytes", lambda: objects.data(at)),
        "int": ("int", lambda: objects.number(at)),
        "float": ("float", lambda: objects.number(at)),
        "none": ("NoneType", lambda: objects.number(at)),
        "attributes": ("Plain", lambda: objects.attributes(at)),
        "attribute": ("Plain", lambda: objects.find_attribute(at, "name 7")),
        "value of": ("dict", lambda: objects.value_of(at, "name 7")),
        "attribute values": ("Plain", lambda: objects.attribute_values(at)),
        "first entries": ("dict", lambda: objects.first_entries(at, 1_000)),
        "named": ("dict", lambda: objects.named(at)),
    }


@pytest.mark.parametrize("way", reads_of_objects(own_objects(CountedMemory()), 0))
@examples(60)
@given(memory=st.booleans().flatmap(lambda one: drawn_memory(keeps_pages=one)), index=st.integers(0, WORDS - 1))
def test_an_object_of_random_words_is_read_or_rejected(way: str, memory: Drawn, index: int) -> None:
    objects = own_objects(memory)
    kind, read = reads_of_objects(objects, BASE + 8 * index)[way]
    memory.put((index + TYPE // 8) % WORDS, type_at(kind))

    ends_well(memory, read)


@examples(200)
@given(memory=drawn_memory(keeps_pages=True), index=st.integers(0, WORDS - 1))
def test_threads_and_frames_of_random_words_are_read_or_rejected(memory: Drawn, index: int) -> None:
    frames = Frames(own_objects(memory), BASE + 8 * index)

    ends_well(memory, lambda: frames.threads)
    ends_well(memory, lambda: all_of_frames(frames, {1: BASE + 8 * index}))


def all_of_frames(frames: Frames, states: dict[int, int]) -> dict[int, list[str]]:
    """The functions of these threads; all readable parts of their frames are read."""
    stacks = frames.stacks(frames.chains(states))
    for frame in (frame for stack in stacks.values() for frame in stack[:20]):
        for read in (lambda: frame.locals, lambda: frame.stack, lambda: list(frames.held(frame))):  # noqa: B023
            with contextlib.suppress(UnreadableMemory):
                read()
    return {thread_id: [frame.function for frame in stack] for thread_id, stack in stacks.items()}


def test_threads_in_a_cycle_are_each_read_once() -> None:
    at = BASE
    near = replace(own_layout(), runtime_interpreter=0, interpreter_threads=8, thread_id=16, thread_next=8)
    memory = Drawn([at, at, 77], END, {})
    frames = Frames(Objects(memory, near), at)

    assert frames.threads == {77: at}


def test_frames_in_a_cycle_are_read_once() -> None:
    memory = Drawn([BASE], END, {})
    frames = Frames(own_objects(memory), BASE)

    chains = frames.chains({1: BASE})

    assert len(chains[1].steps) == MAX_FRAMES
    assert frames.stacks(chains) == {1: []}


def test_a_dict_of_long_names_is_not_read_whole() -> None:
    """Names may be long or many, but not both: the reader would need a GiB."""
    text, kind = "a" * 60_000, {f"name{number}": number for number in range(1_000)}
    memory = Names(id(kind), id(text))

    ends_well(memory, lambda: own_objects(memory).named(id(kind)))

    assert memory.bytes < 64 * MIB


class Names(CountedMemory):
    """This process's memory with the same long text for every name of one dict."""

    def __init__(self, dictionary: int, text: int) -> None:
        super().__init__(keeps_pages=False)
        self._text = text
        with open_memory(os.getpid()) as own:
            self._names = {key for key, _ in own_objects(own)._entries(own.pointer(dictionary + 32), 4_000)}

    def bytes_at(self, address: int, size: int) -> bytes:
        with open_memory(os.getpid()) as own:
            data = own.read(address, size)
        if size % 8 or size < 64:
            return data
        words = struct.unpack(f"<{size // 8}Q", data)
        return struct.pack(f"<{size // 8}Q", *(self._text if word in self._names else word for word in words))


@given(table=st.binary(max_size=1 << 12), repeats=st.sampled_from([1, 1 << 8]))
def test_endless_numbers_in_an_exception_table_stay_small(table: bytes, repeats: int) -> None:
    rows = exception_table(table * repeats + b"\x7f" * 10_000 + b"\x01\x01\x01\x01")

    assert all(max(row) < 2**64 for row in rows)


# Changed memory of this process


class Plain:
    def __init__(self) -> None:
        self.first, self.second = 1, "two"


@dataclass(frozen=True)
class Copy:
    """The recorded pages of this process, and the expected results of reads by name."""

    pages: dict[int, bytes]
    touched: list[int]
    reads: dict[str, Callable[[Objects, Frames], object]]
    results: dict[str, object]


def reads_of_specimens(specimens: dict[str, Any], thread: int) -> dict[str, Callable[[Objects, Frames], object]]:
    at = {name: id(value) for name, value in specimens.items()}
    return {
        "list": lambda objects, _: objects.items(at["list"]),
        "tuple": lambda objects, _: objects.items(at["tuple"]),
        "set": lambda objects, _: objects.set_items(at["set"]),
        "text": lambda objects, _: objects.text(at["text"]),
        "wide text": lambda objects, _: objects.text(at["wide"]),
        "data": lambda objects, _: objects.data(at["data"]),
        "int": lambda objects, _: objects.number(at["int"]),
        "float": lambda objects, _: objects.number(at["float"]),
        "named": lambda objects, _: objects.named(at["dict"]),
        "attributes": lambda objects, _: objects.attributes(at["plain"]),
        "value of": lambda objects, _: objects.value_of(at["dict"], "name 7"),
        "attribute": lambda objects, _: objects.find_attribute(at["with dict"], "third"),
        "attribute values": lambda objects, _: objects.attribute_values(at["plain"]),
        "first entries": lambda objects, _: objects.first_entries(at["dict"], 1_000),
        "own dict": lambda objects, _: objects.attributes(at["with dict"]),
        "threads": lambda _, frames: frames.threads,
        "frames": lambda _, frames: all_of_frames(frames, {thread: frames.threads[thread]}),
    }


@contextmanager
def specimens() -> Iterator[dict[str, Any]]:
    with_dict = Plain()
    with_dict.__dict__["third"] = 3.0
    yield {
        "list": [object(), "x"],
        "tuple": (1.5, "y", object()),
        "set": {f"member {number}" for number in range(20)},
        "text": "plain text, not short",
        "wide": "wide \U0001f980 text",
        "data": os.urandom(100),
        "int": -(2**70),
        "float": 2.5,
        "dict": {f"name {number}": object() for number in range(20)},
        "plain": Plain(),
        "with dict": with_dict,
    }


@pytest.fixture(scope="module")
def copy() -> Iterator[Copy]:
    """All specimens and a thread, read once."""
    with specimens() as values, WaitingThread() as specimen:
        specimen.frame()
        reads = reads_of_specimens(values, specimen.ident)
        recorder = Recorder()
        objects, frames = own_objects(recorder), own_frames(recorder)
        results = {name: read(objects, frames) for name, read in reads.items()}
        for chain in frames.chains(frames.threads).values():
            recorder.touch((address for address, _, _ in chain.steps), FRAME_BYTES)
        recorder.close()
        yield Copy(recorder.pages, sorted(recorder.touched), reads, results)


def read_again(copied: Copy, changes: list[Change], name: str) -> tuple[Copied, Callable[[], object]]:
    memory = Copied(copied.pages, changes)
    objects, frames = own_objects(memory), own_frames(memory)
    return memory, lambda: copied.reads[name](objects, frames)


def test_an_unchanged_copy_reads_like_the_original(copy: Copy) -> None:
    again = {name: read_again(copy, [], name)[1]() for name in copy.reads}

    assert again == copy.results
    ((_, functions),) = again["frames"].items()  # type: ignore[attr-defined]
    assert functions[:2] == ["_wait", "_run"]
    assert threading.get_ident() in again["threads"]  # type: ignore[operator]


@examples(300, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_changed_copy_is_read_or_rejected(copy: Copy, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(copy.reads)))
    touched = st.sampled_from(copy.touched)
    value = st.one_of(st.none(), st.sampled_from(HOSTILE), touched, st.integers(0, 2**64 - 1))
    changes = st.lists(st.builds(Change, touched, st.sampled_from([0, 0, 3, 10, 30]), value), min_size=1, max_size=6)

    memory, read = read_again(copy, data.draw(changes), name)

    ends_well(memory, read)
