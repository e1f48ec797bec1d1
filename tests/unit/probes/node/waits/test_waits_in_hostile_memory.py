"""On any bytes, waits of threads are read or rejected quickly."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from dstack.libraries.collective.reading import RayGroups
from dstack.libraries.torch.groups import TorchGroups
from dstack.libraries.torch.reading import deadline_of, work_of
from dstack.probes.node.cpython.code_objects import Code
from dstack.probes.node.cpython.memory import ProcessMemory, UnreadableMemory
from dstack.probes.node.cpython.memory_frames import Frames, MemoryFrame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.references import References
from dstack.probes.node.cpython.values import shown_locals, text_of
from dstack.probes.node.procfs.proc import SystemCall
from dstack.probes.node.ray_memory import object_refs, owners, refs_of
from dstack.probes.node.thread_stacks import CodePosition, PythonThread
from dstack.probes.node.waits.executors import Executors
from dstack.probes.node.waits.locks import Locks
from dstack.probes.node.waits.reachable_objects import ObjectSearch, Roots, UserModules
from tests.fuzzing.effort import examples
from tests.unit.support.hostile_memory import END, CountedMemory
from tests.unit.support.own_process import own_layout, own_objects, own_process

BASE = 0x10000
LONGEST_S = 5.0


class Bytes(CountedMemory):
    """Memory that repeats these bytes from ``BASE`` to the last address."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = data

    def bytes_at(self, address: int, size: int) -> bytes:
        if address < BASE or address + size > END:
            raise UnreadableMemory("not mapped")
        start = (address - BASE) % len(self._data)
        repeated = self._data[start:] + self._data * (size // len(self._data) + 1)
        return repeated[:size]


WORDS = st.lists(
    st.one_of(
        st.integers(0, 2**64 - 1),
        st.integers(0, 64).map(lambda word: BASE + 8 * word),  # points into itself, so there are cycles
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
STDLIB_TYPES = ("Condition", "_WorkItem", "Thread", "function", "generator", "cell", "collections.deque")
TYPE_NAMES = st.sampled_from((*PYTHON_TYPES, *OTHER_TYPES, *STDLIB_TYPES))


class Deceived(Objects):
    """Accept every object as any type, so that only sizes and pointers are validated."""

    def __init__(self, memory: ProcessMemory, names: Callable[[], str]) -> None:
        super().__init__(memory, own_layout())
        self._draw = names

    def type_name(self, address: int) -> str:
        self.memory.pointer(address)
        return self._draw()

    def is_type(self, kind: int, name: str) -> bool:
        return self._draw() == name

    def expect(self, address: int, *names: str) -> str:
        self.memory.pointer(address)
        return names[0]

    def is_a(self, address: int, *names: str) -> bool:
        return address >= BASE and self.type_name(address) in names


EXECUTOR = "/usr/lib/python3/concurrent/futures/thread.py"


def frame_at(frames: Frames, start: int, function: str, name: str) -> MemoryFrame:
    """A frame of an executor in any memory; the last of its possible locals has this name."""
    code = Code(start, (start,) * 20)
    code.file, code.function = EXECUTOR, function
    code.names = (*(f"local {number}" for number in range(5)), name)
    return MemoryFrame(frames, start, code, 0, CodePosition(EXECUTOR, function, function, 1))


def everything(objects: Objects, start: int) -> list[Callable[[], object]]:
    """All functions that read memory at an address."""
    frames = Frames(objects, start)
    process = own_process(objects.memory, objects, frames)
    locks = Locks(process)
    own_frames = [frame_at(frames, start, "run", "self"), frame_at(frames, start, "_worker", "work_queue")]
    thread = PythonThread(1, 1, "", own_frames)
    executors = Executors([thread], process)
    call = SystemCall("futex", (start, 0, 0, start))
    single = (objects.items, objects.set_items, objects.text, objects.data, objects.number, objects.attributes)
    more = (objects.entries, objects.named, objects.truth, lambda at: list(objects.deque_items(at)))
    return [
        *(lambda read=read: read(start) for read in (*single, *more)),
        lambda: objects.places_of(start, {"name"}),
        lambda: objects.value_at(start, 3, "name"),
        lambda: text_of(objects, start),
        lambda: shown_locals(objects, own_frames[0]),
        lambda: object_refs(objects, [start]),
        lambda: owners(objects, [start]),
        lambda: refs_of(objects, [start]),
        lambda: frames.stacks(frames.chains({1: start})),
        lambda: frames.suspended(start),
        lambda: list(frames.held(own_frames[0])),
        lambda: locks.slept_on(own_frames[0], call),
        lambda: locks.holders(start, [thread]),
        lambda: locks.owner(start),
        lambda: executors.givers(start),
        lambda: executors.pending([start]),
        lambda: objects.attribute_values(start),
        lambda: objects.first_entries(start, 100),
        lambda: objects.first_named(start, 10),
        lambda: own_frames[0].globals,
        lambda: UserModules(process, lambda frame: True).reached_from(start),
        lambda: own_frames[0].variables,
        lambda: [References(process).of_all([start, at]) for at in range(start, start + 64, 8)],
        lambda: objects.counts([start, start + 8]),
        lambda: TorchGroups(process)._ranks(start),
        lambda: TorchGroups(process)._cpp_text(start),
        lambda: RayGroups(process, TorchGroups(process))._group(start),
        lambda: work_of(objects, own_frames[0], start),
        lambda: deadline_of(objects.memory, SystemCall("futex", (start, 0x189, 0, start))),
        lambda: ObjectSearch(process, [start]).holders([Roots({start}, {start + 8})]),
    ]


def ends_soon(memory: CountedMemory, read: Callable[[], object]) -> None:
    memory.begin()
    began = time.process_time()
    with contextlib.suppress(UnreadableMemory):
        read()
    assert time.process_time() - began < LONGEST_S


@examples(60)
@given(words=WORDS, at=st.integers(0, 95), data=st.data())
def test_no_bytes_make_the_reader_fail_or_take_long(words: list[int], at: int, data: st.DataObject) -> None:
    memory = Bytes(struct.pack(f"<{len(words)}Q", *words))
    names = data.draw(st.lists(TYPE_NAMES, min_size=1, max_size=8))
    turn = iter(range(10**9))
    objects = Deceived(memory, lambda: names[next(turn) % len(names)])

    for read in everything(objects, BASE + 8 * (at % len(words))):
        ends_soon(memory, read)


@examples(60)
@given(words=WORDS)
def test_random_bytes_are_no_object(words: list[int]) -> None:
    memory = Bytes(struct.pack(f"<{len(words)}Q", *words))

    for read in everything(own_objects(memory), BASE):
        ends_soon(memory, read)
