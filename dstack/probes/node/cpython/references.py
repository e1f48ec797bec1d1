"""The objects that an object refers to, as far as a program reaches them through it in ordinary use.

Items of containers, attributes, slots, variables of closures and of suspended generators, and what a method or a
``functools.partial`` is bound to. Modules, classes, exceptions, frames, weak references and asyncio's tasks lead
nowhere: too much refers to them. Coroutines neither: they are followed for themselves. The offsets are the same in
CPython 3.10 to 3.15.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dstack.probes.node.cpython.memory import IN_PAGE, PAGE, PAGE_START, UnreadableMemory
from dstack.probes.node.cpython.objects import (
    BASIC_SIZE,
    BOUND_TO,
    DICT,
    DICT_KEYS,
    DICT_OFFSET,
    LIST_ITEMS,
    SET_MASK,
    SIZE,
    TYPE,
    TYPE_FLAGS,
    VALUES_3_11,
)
from dstack.probes.node.cpython.python_process import PythonProcess

IS_TRACKED, IS_LIST, IS_TUPLE, IS_DICT, IS_EXCEPTION, IS_TYPE = (1 << bit for bit in (14, 25, 26, 29, 30, 31))
"""Flags of types. Objects that the garbage collector does not track refer to no other that matters."""
MAX_ITEMS = 4096
"""Of a container the first so many items are read."""
MAX_TABLE = 1 << 14
"""The most places of a set."""
MAX_SLOTS = 64
MAX_GENERATOR_LOCALS = 256
PARTIAL, PARTIAL_WORDS = 16, 3
"""Where a ``functools.partial`` has its function, its arguments and its keywords."""
HEADER = 16
STARTED_WITH = ("_target", "_args", "_kwargs")
"""What a ``threading.Thread`` runs: only its own thread uses these, and has them in its frames."""
LEADS_NOWHERE = ("Logger", "_asyncio.Future", "module", "frame", "traceback", "weakref", "weakproxy", "Context")
"""Types by name, with those that inherit from them."""

WEAK_OFFSET = 208
"""The offset in a type of where its instances have their weak references."""
BODY_BYTES = 512

Reader = Callable[[int], Iterable[int]]


@dataclass(frozen=True, slots=True)
class _Shape:
    """What reads the objects of a type; at ``body`` an object has the address of its content."""

    readers: tuple[Reader, ...] = ()
    body: int | None = None


LEAF = _Shape()


class References:
    """The references of the objects of one process. Nothing is raised: what cannot be read refers to nothing."""

    def __init__(self, process: PythonProcess) -> None:
        self._objects = process.objects
        self._memory = process.memory
        self._frames = process.frames
        self._layout = process.layout
        self._shapes: dict[int, _Shape] = {}
        self._by_name: dict[str, Reader] = {
            "collections.deque": self._deque,
            "frozendict": self._dict,
            "set": self._set,
            "frozenset": self._set,
            "cell": self._cell,
            "method": self._bound,
            "builtin_function_or_method": self._bound,
            "function": self._function,
            "functools.partial": self._partial,
            "types.SimpleNamespace": self._objects.attribute_values,
            "generator": self._generator,
            "async_generator": self._generator,
            "_queue.SimpleQueue": self._simple_queue,
        }

    def of_all(self, addresses: Iterable[int]) -> dict[int, Sequence[int]]:
        """The objects that each of these refers to, the first ones of many; only for those that refer to some.

        The pages of all of them are read together, then those of their types, then those of their contents.
        """
        shapes = self._shapes_of(self._kinds(addresses))
        bodies = []
        for address, shape in shapes:
            if shape.body is not None:
                with contextlib.suppress(UnreadableMemory):
                    bodies.append(self._memory.pointer(address + shape.body))
        self._memory.prefetch(bodies, BODY_BYTES)
        found = ((address, self._read(address, shape)) for address, shape in shapes)
        return {address: references for address, references in found if references}

    def _kinds(self, addresses: Iterable[int]) -> list[tuple[int, int]]:
        """The addresses of objects and of their types."""
        aligned = [address for address in addresses if address and not address % 8]
        self._memory.prefetch(aligned)
        pages, unpack = self._memory.pages, struct.Struct("<Q").unpack_from
        found: list[tuple[int, int]] = []
        for address in aligned:
            page, offset = pages.get(address & PAGE_START), (address & IN_PAGE) + TYPE
            if page is not None and offset <= PAGE - 8:
                found.append((address, unpack(page, offset)[0]))
                continue
            with contextlib.suppress(UnreadableMemory):
                found.append((address, self._memory.pointer(address + TYPE)))
        return found

    def _shapes_of(self, kinds: Sequence[tuple[int, int]]) -> list[tuple[int, _Shape]]:
        """The objects that may refer to others, with what reads them."""
        known = self._shapes
        new = {kind for _, kind in kinds} - known.keys()
        self._memory.prefetch(new, TYPE_FLAGS + 8)
        for kind in new:
            try:
                known[kind] = self._shape(kind)
            except UnreadableMemory:
                known[kind] = LEAF
        return [(address, known[kind]) for address, kind in kinds if known[kind].readers]

    def _read(self, address: int, shape: _Shape) -> Sequence[int]:
        found: list[int] = []
        for read in shape.readers:
            try:
                found.extend(read(address))
            except UnreadableMemory:
                continue
        return found

    def _shape(self, kind: int) -> _Shape:
        """What reads objects of a type; nothing for types whose objects lead nowhere."""
        flags = self._memory.pointer(kind + TYPE_FLAGS)
        if not flags & IS_TRACKED or flags & (IS_EXCEPTION | IS_TYPE):
            return LEAF
        names = self._objects.base_names(kind)
        if any(name in LEADS_NOWHERE for name in names):
            return LEAF
        container = self._container(flags, names)
        is_of_python = "." not in names[0] and names[0] not in self._by_name and len(names) > 1
        if not is_of_python:
            return container or LEAF
        readers = (*(container.readers if container else ()), *self._instance(kind, names))
        return _Shape(readers, container.body if container else self._body())

    def _container(self, flags: int, names: Sequence[str]) -> _Shape | None:
        if flags & IS_LIST:
            return _Shape((self._list,), LIST_ITEMS)
        if flags & IS_TUPLE:
            return _Shape((self._tuple,))
        if flags & IS_DICT:
            return _Shape((self._dict,), DICT_KEYS)
        reader = next((self._by_name[name] for name in names if name in self._by_name), None)
        return _Shape((reader,)) if reader else None

    def _body(self) -> int | None:
        """Where an instance most often has the address of its attributes; from CPython 3.13 on they are inside it."""
        return {(3, 11): VALUES_3_11, (3, 12): DICT}.get(self._layout.version)

    def _instance(self, kind: int, names: Sequence[str]) -> tuple[Reader, ...]:
        """What reads the attributes and slots of an instance of a class in Python."""
        if "Thread" in names:
            return (self._thread,)
        size, weak = self._memory.int64(kind + BASIC_SIZE), self._memory.int64(kind + WEAK_OFFSET)
        ends = min(size, HEADER + 8 * MAX_SLOTS)
        slots = [at for at in range(HEADER, ends, 8) if at not in (weak, self._memory.int64(kind + DICT_OFFSET))]
        attributes = self._objects.attribute_values
        return (attributes, functools.partial(self._slots, slots)) if slots else (attributes,)

    # Containers

    def _list(self, address: int) -> Iterable[int]:
        return self._memory.pointers(self._memory.pointer(address + LIST_ITEMS), self._count(address))

    def _tuple(self, address: int) -> Iterable[int]:
        return self._memory.pointers(address + self._layout.tuple_items, self._count(address))

    def _count(self, address: int) -> int:
        return min(max(0, self._memory.int64(address + SIZE)), MAX_ITEMS)

    def _dict(self, address: int) -> Iterable[int]:
        return self._objects.first_entries(address, MAX_ITEMS)

    def _deque(self, address: int) -> Iterable[int]:
        return itertools.islice(self._objects.deque_items(address), MAX_ITEMS)

    def _set(self, address: int) -> Iterable[int]:
        mask, table = self._memory.pointers(address + SET_MASK, 2)
        return self._memory.pointers(table, 2 * (min(mask, MAX_TABLE) + 1))[::2]

    def _simple_queue(self, address: int) -> Iterable[int]:
        """Up to CPython 3.12 a list, then an array with its size."""
        items, count = self._memory.pointers(address + self._layout.queue_items, 2)
        if self._objects.is_a(items, "list"):
            return self._list(items)
        return self._memory.pointers(items, min(count, MAX_ITEMS))

    # Functions and generators

    def _cell(self, address: int) -> Iterable[int]:
        return (self._objects.content(address),)

    def _bound(self, address: int) -> Iterable[int]:
        return (self._memory.pointer(address + BOUND_TO),)

    def _partial(self, address: int) -> Iterable[int]:
        return self._memory.pointers(address + PARTIAL, PARTIAL_WORDS)

    def _function(self, address: int) -> Iterable[int]:
        closure = self._memory.pointer(address + self._layout.function_closure)
        cells = self._tuple(closure) if self._objects.is_a(closure, "tuple") else ()
        return [self._objects.content(cell) for cell in cells if self._objects.is_a(cell, "cell")]

    def _generator(self, address: int) -> Iterable[int]:
        frame = self._frames.suspended(address)
        return frame.variables[:MAX_GENERATOR_LOCALS] if frame else ()

    # Instances of classes in Python

    def _thread(self, address: int) -> Iterable[int]:
        found = self._objects.attributes(address)
        return [value for name, value in found.items() if name not in STARTED_WITH]

    def _slots(self, offsets: Sequence[int], address: int) -> Iterable[int]:
        words = self._memory.pointers(address, offsets[-1] // 8 + 1)
        return [words[at // 8] for at in offsets]
