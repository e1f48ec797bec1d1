"""The reader of another process's memory: right on real objects, and bounded on any bytes whatever."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack.probes.node.cpython import memory
from dstack.probes.node.cpython.code_objects import exception_table
from dstack.probes.node.cpython.frames import Frames
from dstack.probes.node.cpython.layout import Layout, calibrate, runtime_address
from dstack.probes.node.cpython.memory import PAGE, ProcessMemory, Unreadable, open_memory
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.saved_layouts import TABLES
from dstack.probes.node.procfs.proc import FUTEX, SystemCall
from dstack.probes.node.ray.object_refs import object_refs, owners, refs_of
from dstack.probes.node.waits.executors import Executors
from dstack.probes.node.waits.locks import Locks
from tests.effort import examples

BASE = 0x10000
LONGEST_S = 2.0


class Bytes(ProcessMemory):
    """Memory that is these bytes, again and again, from ``BASE`` on for as far as there are addresses."""

    def __init__(self, data: bytes) -> None:
        self.pid = os.getpid()
        self._pages = None
        self._data = data
        self.reads = 0

    def _read(self, address: int, size: int) -> bytes:
        self.reads += 1
        if address < BASE or address + size > 2**47:
            raise Unreadable("not mapped")
        start = (address - BASE) % len(self._data)
        repeated = self._data[start:] + self._data * (size // len(self._data) + 1)
        return repeated[:size]


@pytest.fixture(scope="module")
def layout() -> Layout:
    return calibrate()


@pytest.fixture
def own(layout: Layout) -> Iterator[Objects]:
    """The objects of this very process."""
    with open_memory(os.getpid()) as memory:
        yield Objects(memory, lambda: layout.cached_keys)


# Real objects


class Plain:
    def __init__(self) -> None:
        self.first = 1
        self.second = "two"


class Slotted:
    __slots__ = ("first",)


def with_a_dict() -> Plain:
    value = Plain()
    value.__dict__["third"] = 3.0
    return value


def with_less() -> Plain:
    value = Plain()
    del value.first
    return value


@pytest.mark.parametrize("make", [Plain, with_a_dict, with_less])
def test_attributes_are_found_however_they_are_kept(own: Objects, make: Callable[[], Plain]) -> None:
    values = [Plain(), make(), Plain()]

    for value in values:
        assert own.attributes(id(value)) == {name: id(kept) for name, kept in vars(value).items()}


def test_attributes_are_found_before_their_dict_is_asked_for(own: Objects) -> None:
    value = Plain()

    found = own.attributes(id(value))

    assert {name: own.text(at) if own.is_a(at, "str") else own.number(at) for name, at in found.items()} == {
        "first": 1,
        "second": "two",
    }


def test_what_has_no_attributes_is_refused(own: Objects) -> None:
    with pytest.raises(Unreadable):
        own.attributes(id(Slotted()))


@pytest.mark.parametrize("text", ["", "a", "plain ascii", "é", "Ωmega", "\U0001f980 and more"])
def test_strings_of_every_width(own: Objects, text: str) -> None:
    assert own.text(id(text)) == text


@pytest.mark.parametrize("number", [0, 1, -1, 2**30, -(2**61) + 1, 2**90 + 7, 0.0, -1.5, 1e300, None])
def test_numbers(own: Objects, number: float | None) -> None:
    assert own.number(id(number)) == number


def test_lists_tuples_and_sets(own: Objects) -> None:
    items = [object(), "x", 1.5]
    grown = {str(number) for number in range(100)}
    shrunk = set(grown)
    for number in range(90):
        shrunk.discard(str(number))

    assert own.items(id(items)) == own.items(id(tuple(items))) == tuple(map(id, items))
    assert own.items(id([])) == own.items(id(())) == own.set_items(id(set())) == ()
    assert own.set_items(id(grown)) == tuple(sorted(map(id, grown)))
    assert own.set_items(id(shrunk)) == tuple(sorted(map(id, shrunk)))


def test_one_type_is_not_taken_for_another(own: Objects) -> None:
    for read in (own.text, own.items, own.set_items, own.data, own.number):
        with pytest.raises(Unreadable):
            read(id(own))


def test_what_a_simple_queue_holds_is_found_however_much_was_taken_out(own: Objects, layout: Layout) -> None:
    kept: queue.SimpleQueue[object] = queue.SimpleQueue()
    items = [object() for _ in range(40)]
    for item in items:
        kept.put(item)
    for _ in range(25):
        kept.get()

    found = Executors([], own, layout)._items(id(kept))

    assert [item for item in found if item in set(map(id, items))] == list(map(id, items[25:]))


def test_the_frames_of_a_thread_are_those_that_it_has(own: Objects, layout: Layout) -> None:
    gate = threading.Event()

    def inner(cell: object) -> object:
        return (lambda: (gate.wait(), cell))()

    thread = threading.Thread(target=lambda: inner(gate))
    thread.start()
    time.sleep(0.05)
    frames = [frame.function for frame in Frames(own, layout, runtime_address()).of(thread.ident or 0)]
    gate.set()
    thread.join()

    assert frames[:4] == ["wait", "wait", "<lambda>", "inner"]
    assert frames[-1] == "_bootstrap"


def test_a_thread_that_is_not_there_is_refused(own: Objects, layout: Layout) -> None:
    with pytest.raises(Unreadable):
        next(Frames(own, layout, runtime_address()).of(12345))


def test_kept_pages_are_read_once_and_reads_may_cross_them() -> None:
    value = b"x" * (3 * PAGE)
    with open_memory(os.getpid()) as plain, open_memory(os.getpid(), keeps_pages=True) as kept:
        for size in (1, 8, PAGE - 1, PAGE, 2 * PAGE):
            assert kept.read(id(value) + 64, size) == plain.read(id(value) + 64, size)


def test_what_was_kept_is_read_again_at_one_go_and_nothing_else_from_then_on() -> None:
    value = bytearray(b"a" * (4 * PAGE))
    start = ctypes.addressof((ctypes.c_char * len(value)).from_buffer(value))
    with open_memory(os.getpid(), keeps_pages=True) as kept:
        kept.read(start, PAGE + 1)
        value[:] = b"b" * len(value)
        assert kept.read(start, PAGE + 1) == b"a" * (PAGE + 1)

        kept.read_again()

        assert kept.read(start, PAGE + 1) == b"b" * (PAGE + 1)
        with pytest.raises(Unreadable):
            kept.read(start + 3 * PAGE, 8)


def test_a_very_large_wait_stays_as_it_was_read_and_can_be_read_again() -> None:
    value = bytearray(b"a" * (10_000 * PAGE))  # as many pages as 150,000 refs and their list take
    start = ctypes.addressof((ctypes.c_char * len(value)).from_buffer(value))
    with open_memory(os.getpid(), keeps_pages=True) as kept:
        for offset in range(0, len(value), PAGE):
            kept.read(start + offset, 1)
        value[:] = b"b" * len(value)
        assert kept.read(start, 1) == b"a"

        kept.read_again()

        assert kept.read(start, 1) == b"b"


def test_pages_beyond_the_bound_are_unreadable_and_those_before_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_PAGES", 3)
    value = bytearray(b"a" * (5 * PAGE))
    start = ctypes.addressof((ctypes.c_char * len(value)).from_buffer(value))
    with open_memory(os.getpid(), keeps_pages=True) as kept:
        for page in range(3):
            kept.read(start + page * PAGE, 1)
        with pytest.raises(Unreadable, match="read already"):
            kept.read(start + 3 * PAGE, 1)
        value[:] = b"b" * len(value)

        assert kept.read(start, 1) == b"a"


def test_another_machine_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")

    with pytest.raises(OSError, match="on Linux x86_64 only, and this is aarch64"), open_memory(os.getpid()):
        pass


def test_the_frames_of_a_thread_are_told_from_those_it_has_later(own: Objects, layout: Layout) -> None:
    gate, passed, other = threading.Event(), threading.Event(), threading.Event()

    def run() -> None:
        gate.wait()
        passed.set()
        other.wait()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        seen = shown(own, layout, thread)
        assert Frames(own, layout, runtime_address()).are(thread.ident or 0, seen)
        moved = [{**frame, "locals": [{"name": "self", "addr": 1}]} for frame in seen]
        assert not Frames(own, layout, runtime_address()).are(thread.ident or 0, moved)
        assert not Frames(own, layout, runtime_address()).are(thread.ident or 0, seen[1:])
        gate.set()
        passed.wait()
        assert not Frames(own, layout, runtime_address()).are(thread.ident or 0, seen)
    finally:
        gate.set()
        other.set()
        thread.join()


def shown(own: Objects, layout: Layout, thread: threading.Thread) -> list[dict[str, Any]]:
    """A thread's frames as py-spy shows them, once it has come to rest."""

    def frames() -> list[dict[str, Any]]:
        found = list(Frames(own, layout, runtime_address()).of(thread.ident or 0))
        return [{"name": one.function, "filename": one.file, "line": one.line, "locals": None} for one in found]

    seen = frames()
    while seen != (seen := frames()) or "wait" not in [frame["name"] for frame in seen]:
        pass
    return seen


@pytest.mark.skipif(sys.version_info < (3, 11), reason="3.10 keeps blocks in the frame instead")
def test_exception_tables_are_read_as_python_reads_them() -> None:
    import dis

    parse: Any = dis._parse_exception_table  # type: ignore[attr-defined]
    codes = [value.__code__ for value in vars(threading.Condition).values() if hasattr(value, "__code__")]

    for code in (*codes, threading.Thread._bootstrap_inner.__code__):  # type: ignore[attr-defined]
        expected = [(entry.start, entry.end, entry.depth) for entry in parse(code)]
        assert exception_table(code.co_exceptiontable) == expected


def test_the_saved_layout_of_this_version_is_the_one_it_calibrates_to(layout: Layout) -> None:
    assert layout == TABLES[layout.version]


def test_a_layout_is_saved_for_every_version_that_dstack_reads() -> None:
    assert list(TABLES) == [(3, 10), (3, 11), (3, 12), (3, 13), (3, 14)]


# Any bytes

WORDS = st.lists(
    st.one_of(
        st.integers(0, 2**64 - 1),
        st.integers(0, 64).map(lambda word: BASE + 8 * word),  # points into itself, so also round in a circle
        st.sampled_from([0, 1, 2**31, 2**62, 2**63, 2**64 - 1]),
        st.sampled_from([b"list\0", b"tuple\0", b"dict\0", b"set\0", b"str\0", b"int\0", b"code\0", b"Future\0"]).map(
            lambda name: int.from_bytes(name.ljust(8, b"\0"), "little")
        ),
    ),
    min_size=1,
    max_size=96,
)
PYTHON_TYPES = (
    "list",
    "tuple",
    "dict",
    "set",
    "str",
    "bytes",
    "int",
    "float",
    "code",
    "method",
    "Condition",
    "_WorkItem",
)
OTHER_TYPES = ("_thread.lock", "_thread.RLock", "_queue.SimpleQueue", "ray._raylet.ObjectRef", "ObjectRefGenerator")
STDLIB_TYPES = ("Condition", "_WorkItem")
TYPE_NAMES = st.sampled_from((*PYTHON_TYPES, *OTHER_TYPES, *STDLIB_TYPES))


class Deceived(Objects):
    """Takes every object for one of whatever type is asked for, so that only sizes and pointers can refuse."""

    def __init__(self, memory: ProcessMemory, names: Callable[[], str], cached_keys: int | None) -> None:
        super().__init__(memory, lambda: cached_keys)
        self._draw = names

    def type_name(self, address: int) -> str:
        self.memory.pointer(address)
        return self._draw()

    def expect(self, address: int, *names: str) -> str:
        self.memory.pointer(address)
        return names[0]

    def is_a(self, address: int, *names: str) -> bool:
        return address >= BASE and self.type_name(address) in names


def everything(objects: Objects, layout: Layout, start: int) -> list[Callable[[], object]]:
    """All that can be read of memory, at an address."""
    frames = Frames(objects, layout, start)
    frames.__dict__["threads"] = {1: start}
    locks = Locks(objects, frames, layout)
    thread = {
        "os_thread_id": 1,
        "frames": [worker_frame("run", "self", start), worker_frame("_worker", "work_queue", start)],
    }
    executors = Executors([thread], objects, layout)
    call = SystemCall(FUTEX, (start, 0, 0, start))
    single = (objects.items, objects.set_items, objects.text, objects.data, objects.number, objects.attributes)
    return [
        *(lambda read=read: read(start) for read in single),
        lambda: object_refs(objects, [start]),
        lambda: owners(objects, [start]),
        lambda: refs_of(objects, [start]),
        lambda: list(frames.of(1)),
        lambda: locks.slept_on(1, call),
        lambda: locks.holders(start, [1]),
        lambda: locks.owner(start),
        lambda: executors.givers(start),
        lambda: executors.pending([start]),
    ]


def worker_frame(function: str, local: str, address: int) -> dict[str, Any]:
    file = "/usr/lib/python3/concurrent/futures/thread.py"
    return {"name": function, "filename": file, "locals": [{"name": local, "addr": address}]}


@examples(60)
@given(words=WORDS, at=st.integers(0, 95), data=st.data())
def test_no_bytes_make_the_reader_fail_or_linger(
    layout: Layout, words: list[int], at: int, data: st.DataObject
) -> None:
    memory = Bytes(struct.pack(f"<{len(words)}Q", *words))
    names = data.draw(st.lists(TYPE_NAMES, min_size=1, max_size=8))
    turn = iter(range(10**9))
    objects = Deceived(memory, lambda: names[next(turn) % len(names)], layout.cached_keys)

    for read in everything(objects, layout, BASE + 8 * (at % len(words))):
        began = time.process_time()
        with contextlib.suppress(Unreadable):
            read()
        assert time.process_time() - began < LONGEST_S


@examples(60)
@given(words=WORDS)
def test_no_bytes_are_taken_for_an_object(layout: Layout, words: list[int]) -> None:
    memory = Bytes(struct.pack(f"<{len(words)}Q", *words))
    objects = Objects(memory, lambda: layout.cached_keys)

    for read in everything(objects, layout, BASE):
        with contextlib.suppress(Unreadable):
            read()


@given(table=st.binary(max_size=200))
def test_any_exception_table_is_read(table: bytes) -> None:
    assert all(start <= end and depth >= 0 for start, end, depth in exception_table(table))
