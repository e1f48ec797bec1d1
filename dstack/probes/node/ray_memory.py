"""What Ray keeps in the memory of its workers: ObjectRefs, ids, and the task of each thread and asyncio task.

The task of a thread is in the core worker's thread-local storage: ``_raylet.so`` has a symbol table in all wheels from
Ray 2.46 to 2.60, and in it ``WorkerContext::thread_context_``, a thread-local pointer to the current task. Right for
tasks on the main thread and for threaded actors; threads of event loops hold ids that mean nothing. Seen on Ray 2.46
and 2.60 with glibc 2.31 to 2.36 on x86-64, on Ray 2.60 with glibc 2.36 on aarch64. The task of an asyncio task is in
its context variables.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dstack.probes.node.cpython.memory import ProcessMemory, UnreadableMemory
from dstack.probes.node.cpython.objects import SIZE, TYPE, Objects
from dstack.probes.node.cpython.python_process import PythonProcess, size_of_pthread
from dstack.probes.node.elf import Elf
from dstack.probes.node.procfs import proc
from dstack.probes.node.thread_stacks import AnyThread, is_event_loop

OBJECT_REF_TYPES = ("ray._raylet.ObjectRef", "ray.ObjectRef")
TYPE_AND_ID = "<8xQ16x28s"
"""The beginning of an ObjectRef: its type, and the bytes of its id; seen on Ray 2.46, 2.55 and 2.60."""

OBJECT_REF_OWNER = 64
"""The offset in an ObjectRef of its owner's address, a std::string of the ABI before C++11: a pointer to the text, with
its length 24 bytes before. The text is a serialized rpc.Address, of which the worker id is the last field. Empty where
the process itself owns it by ``ray.put`` on Ray 2.46. Seen on Ray 2.46 and 2.60."""

WORKER_ID_FIELD = b"\x22\x1c"
"""The bytes before the 28 of a worker id in a serialized rpc.Address: field 4, a string of that length."""
FIELD = "<2s28s"
WORD = "<Q"
STRING_LENGTH = 24
MAX_ADDRESS = 1024
ID_SIZE = 28

GENERATOR = "ObjectRefGenerator"
"""A class in Python; its instances keep the ref of the generator's task. Seen on Ray 2.46 and 2.60."""


def object_refs(objects: Objects, addresses: Sequence[int]) -> list[str]:
    """The ids, in hex, of the ObjectRefs at these addresses.

    This must be fast: Ray wakes a waiting thread every second, and a longer reading of 100,000 refs is not proven.
    """
    kinds: set[int] = set()
    ids = []
    for address in addresses:
        kind, identity = objects.memory.unpack(TYPE_AND_ID, address)
        if kind not in kinds:
            objects.expect(address, *OBJECT_REF_TYPES)
            kinds.add(kind)
        ids.append(plausible_id(identity))
    return ids


def owners(objects: Objects, refs: Iterable[int]) -> list[str]:
    """The worker ids of the owners of these ObjectRefs, in order; empty where one cannot be read."""
    try:
        return [_owner(objects.memory, ref) for ref in refs]
    except UnreadableMemory:
        return []


def _owner(memory: ProcessMemory, ref: int) -> str:
    """The id of the worker that owns the ObjectRef at ``ref``; empty where the ref has none."""
    (text,) = memory.unpack(WORD, ref + OBJECT_REF_OWNER)
    (size,) = memory.unpack(WORD, text - STRING_LENGTH)
    if not ID_SIZE < size <= MAX_ADDRESS:
        return ""
    field, worker_id = memory.unpack(FIELD, text + size - struct.calcsize(FIELD))
    return worker_id.hex() if field == WORKER_ID_FIELD else ""


def _ref_of_generator(objects: Objects, waitable: int) -> int:
    """The address of the ref of a generator's task, or of the given ObjectRef itself."""
    if not objects.is_a(waitable, GENERATOR):
        return waitable
    return objects.find_attribute(waitable, "_generator_ref")


def refs_of(objects: Objects, waitables: Sequence[int]) -> list[int]:
    """The addresses of ObjectRefs; generators are replaced by the refs of their tasks."""
    ordinary: set[int] = set()
    refs = []
    for waitable in waitables:
        (kind,) = objects.memory.unpack(WORD, waitable + TYPE)
        ref = waitable if kind in ordinary else _ref_of_generator(objects, waitable)
        if ref == waitable:
            ordinary.add(kind)
        refs.append(ref)
    return refs


def plausible_id(data: bytes) -> str:
    """The ObjectRef id in hex, if these 28 bytes can be one: a task and a job, and an index from 1 on.

    Raises :class:`UnreadableMemory` otherwise.
    """
    unique, job, index = data[:8], data[20:24], int.from_bytes(data[24:], "little")
    if not index or unique == bytes(8) or job in (bytes(4), b"\xff" * 4):
        raise UnreadableMemory(f"{data.hex()} is not the id of an ObjectRef")
    return data.hex()


ACTOR_ID_TYPES = ("ray._raylet.ActorID", "ray.ActorID")
ACTOR_ID_AT, ACTOR_ID_SIZE = 32, 16
"""Where an ActorID has the bytes of its id; Ray 2.46 and 2.60."""


def actor_of_task(task_id: str | None) -> str:
    """The id of the actor in the id of a task; empty without a task."""
    return (task_id or "")[16:48]


def actor_of_handle(objects: Objects, handle: int) -> str:
    """The id of the actor that a handle is for. Raises :class:`UnreadableMemory`."""
    objects.expect(handle, "ActorHandle")
    actor_id = objects.attribute(handle, "_ray_actor_id")
    objects.expect(actor_id, *ACTOR_ID_TYPES)
    return objects.memory.read(actor_id + ACTOR_ID_AT, ACTOR_ID_SIZE).hex()


LIBRARY = "/ray/_raylet.so"
THREAD_CONTEXT = b"_ZN3ray4core13WorkerContext15thread_context_E"
X86_64, AARCH64 = 62, 183
"""The machines of ELF files."""
DTPMOD64, TLSDESC = 16, 1031
"""Relocations: the number of a thread-local module on x86-64, and a descriptor of a variable on aarch64."""
RELOCATION_SIZE = 24
"""A relocation has the address at which it applies, its type, its symbol and an addend."""
DTV = 8
"""The offset from pthread_self, on x86-64, of a pointer to the table of thread-local blocks, 16 bytes for each module.

On aarch64 it follows ``struct pthread``.
"""
UNALLOCATED = 2**64 - 1
MAX_STATIC = 1 << 16
"""The end of what a thread may have at a fixed distance from its pointer; no memory is mapped below this address."""
TASK_ID_IN_CONTEXT = slice(8, 32)
IDLE = b"\xff" * 20
"""The id, up to its job, of no task, or of a driver's task; only the first 8 bytes for an actor's creation task."""
MAX_MODULES = 4096
IDLE_WORKER = "ray::IDLE"
"""The title of a worker before it becomes an actor's, and between tasks; seen on Ray 2.46 and 2.60."""
NO_ACTOR = "f" * 16
"""The beginning of the actor's part in the id of a normal task, and of the id of an actor's creation task."""


class ThreadContext(NamedTuple):
    """Where ``_raylet.so`` keeps a thread's task; addresses relative to where the library is loaded.

    ``note_at`` and ``note``: its build id; ``slot``: where the loader has put the library's thread-local module number,
    or on aarch64 a descriptor of the pointer; ``offset``: of the pointer in that module's block. ``dtv`` is the
    distance from pthread_self of the pointer to the table of such blocks.
    """

    note_at: int
    note: bytes
    slot: int
    offset: int
    dtv: int
    has_descriptor: bool


class RayLibraries:
    """The core worker libraries that the processes of this node have mapped, each read once."""

    def __init__(self) -> None:
        self._contexts: dict[proc.File | None, ThreadContext] = {}

    def thread_context(self, pid: int, files: Mapping[proc.File, proc.Mapping]) -> ThreadContext | None:
        """That of the library among the files that a process has mapped; None if it has none with the symbol."""
        library = library_of(files.values())
        if library is None:
            return None
        known = self._contexts.get(library.file)
        if known is None and (known := thread_context_layout(f"/proc/{pid}/root{library.path}", files)):
            self._contexts[library.file] = known
        return known


def thread_context_layout(path: str, files: Collection[proc.File]) -> ThreadContext | None:
    """The layout of a library, or None if it has no such symbol; ``files`` are those that its process has mapped."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return _layout(Elf(file), files)
    except (OSError, ValueError, LookupError, struct.error):
        return None


def _layout(library: Elf, files: Collection[proc.File]) -> ThreadContext:
    note_at, note = library.note()
    index, offset = library.symbol(b".dynsym", THREAD_CONTEXT)
    if library.machine == X86_64:
        return ThreadContext(note_at, note, _slot(library, DTPMOD64, 0), offset, DTV, has_descriptor=False)
    if library.machine != AARCH64:
        raise ValueError("a library for another machine")
    return ThreadContext(note_at, note, _slot(library, TLSDESC, index), offset, size_of_pthread(files), True)


def _slot(library: Elf, kind: int, symbol: int) -> int:
    """Where the loader fills in the first relocation of a symbol; symbol 0 is the library itself.

    Found by its bytes: to unpack 75,000 relocations one by one takes 0.02 s.
    """
    wanted, offset_in_entry = struct.pack("<IIq", kind, symbol, 0), 8
    tables = (library.data(library.section(name)) for name in (b".rela.dyn", b".rela.plt"))
    for table in tables:
        at = table.find(wanted)
        while at != -1 and at % RELOCATION_SIZE != offset_in_entry:
            at = table.find(wanted, at + 1)
        if at != -1:
            return int.from_bytes(table[at - offset_in_entry : at], "little")
    raise ValueError("no such relocation")


class ThreadTasks:
    """Reads one process. Raises :class:`UnreadableMemory` where its library is not what the layout describes."""

    def __init__(self, memory: ProcessMemory, library: proc.Mapping, layout: ThreadContext) -> None:
        if memory.read(library.start + layout.note_at, len(layout.note)) != layout.note:
            raise UnreadableMemory("its _raylet.so is another build")
        self._memory = memory
        self._layout = layout
        self._fixed: int | None = None
        self._module = memory.pointer(library.start + layout.slot)
        if layout.has_descriptor:
            self._follow(memory.pointer(library.start + layout.slot + 8))
        if self._fixed is None and not 0 < self._module < MAX_MODULES:
            raise UnreadableMemory(f"{self._module} is not the number of a module")

    def _follow(self, argument: int) -> None:
        """Read the argument of a descriptor: a distance from the thread's pointer, or the address of module and offset.

        Seen with glibc 2.36.
        """
        if argument < MAX_STATIC:
            self._fixed = argument
            return
        self._module, offset = self._memory.pointers(argument, 2)
        if offset != self._layout.offset:
            raise UnreadableMemory("the descriptor of its variable is another one")

    def task_of(self, pthread: int) -> str | None:
        """The id of the task that a thread runs, or None where it runs none."""
        place = self._place(pthread + self._layout.dtv)
        context = self._memory.pointer(place) if place else 0
        if not context:
            return None
        task_id = self._memory.read(context, TASK_ID_IN_CONTEXT.stop)[TASK_ID_IN_CONTEXT]
        return None if task_id.startswith(IDLE) else task_id.hex()

    def _place(self, dtv: int) -> int:
        """The address of a thread's pointer to its task; 0 while it has none."""
        if self._fixed is not None:
            return dtv + self._fixed
        blocks = self._memory.pointer(dtv)
        if self._memory.pointer(blocks - 16) < self._module:
            return 0
        block = self._memory.pointer(blocks + 16 * self._module)
        return 0 if block in (0, UNALLOCATED) else block + self._layout.offset


def library_of(files: Iterable[proc.Mapping]) -> proc.Mapping | None:
    """The mapping of the beginning of the core worker library, among the files that a process has mapped."""
    return next((one for one in files if one.path.endswith(LIBRARY)), None)


def read_tasks(
    threads: Sequence[AnyThread],
    memory: ProcessMemory,
    files: Iterable[proc.Mapping],
    layout: ThreadContext | None,
    title: str,
) -> dict[int, str | None] | None:
    """The task each thread runs, by OS thread id; None where that cannot be read, or is meaningless.

    The threads of async actors keep ids of earlier tasks. ``title`` is the process's.
    """
    try:
        library = library_of(files)
        if layout is None or library is None or any(map(is_event_loop, threads)):
            return None
        tasks = ThreadTasks(memory, library, layout)
        return {thread.os_thread_id: _if_real(tasks.task_of(thread.thread_id), title) for thread in threads}
    except UnreadableMemory:
        return None


def _if_real(task_id: str | None, title: str) -> str | None:
    """The task, unless it is the id of a fresh worker before its first task, which has the form of an actor's."""
    is_of_actor = task_id is not None and NO_ACTOR not in (task_id[:16], task_id[16:32])
    return None if is_of_actor and title == IDLE_WORKER else task_id


RAY_TASK = "async_task_id"
"""The variable that Ray sets to the id of the task for which it runs a coroutine; seen on Ray 2.46 and 2.60."""
TASK_ID_TYPES = ("ray._raylet.TaskID", "ray.TaskID")
TASK_ID, TASK_ID_SIZE = 32, 24

ROOT, CHILDREN, PAIRS = 16, 16, 32
BRANCHES = 32
MAX_NODES = 10_000


class Contexts:
    """The contexts of one process. Every method raises :class:`UnreadableMemory`."""

    def __init__(self, process: PythonProcess) -> None:
        self._objects = process.objects
        self._memory = process.memory
        self._layout = process.layout
        self._names: dict[int, str] = {}

    def ray_task(self, task: int) -> str | None:
        """The id of the Ray task in whose context an asyncio task runs, None for none."""
        value = self.value(task, RAY_TASK)
        if not self._objects.is_a(value, *TASK_ID_TYPES):
            return None
        return self._memory.read(value + TASK_ID, TASK_ID_SIZE).hex()

    def value(self, task: int, name: str) -> int:
        """The address of the value of a variable in the context of an asyncio task; 0 where it has none."""
        context = self._memory.pointer(task + self._layout.task_context)
        if not self._objects.is_a(context, "Context", "_contextvars.Context"):
            return 0
        return next((value for variable, value in self._variables(context) if self._name(variable) == name), 0)

    def _name(self, variable: int) -> str:
        if variable not in self._names:
            self._names[variable] = self._objects.text(self._memory.pointer(variable + self._layout.variable_name))
        return self._names[variable]

    def _variables(self, context: int) -> Iterator[tuple[int, int]]:
        """Variables and their values."""
        root = self._memory.pointer(self._memory.pointer(context + self._layout.context_variables) + ROOT)
        nodes = [root] if root else []
        for _ in range(MAX_NODES):
            if not nodes:
                return
            node = nodes.pop()
            if "array" in self._objects.type_name(node):
                nodes += [child for child in self._memory.pointers(node + CHILDREN, BRANCHES) if child]
                continue
            words = self._pairs(node)
            for key, value in zip(words[::2], words[1::2], strict=True):
                if key:
                    yield key, value
                elif value:
                    nodes.append(value)
        raise UnreadableMemory(f"a context of more than {MAX_NODES} parts")

    def _pairs(self, node: int) -> tuple[int, ...]:
        """Words in pairs: a variable and its value, or 0 and a further node."""
        count = self._memory.int64(node + SIZE)
        if not 0 <= count <= 2 * BRANCHES or count % 2:
            raise UnreadableMemory(f"a part of a context of {count} words")
        return self._memory.pointers(node + PAIRS, count)
