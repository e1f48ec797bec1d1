"""The objects that an object refers to, as far as a program reaches them through it in ordinary use.

Items of containers, attributes, slots, variables of closures and of suspended generators, and what a method or a
``functools.partial`` is bound to. Modules, classes, exceptions, frames, weak references and asyncio's tasks lead
nowhere: too much refers to them. Coroutines neither: they are followed for themselves. The offsets are the same in CPython 3.10 to 3.14.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence

from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.objects import (
    BASIC_SIZE,
    BOUND_TO,
    LIST_ITEMS,
    SET_MASK,
    SIZE,
    TYPE,
    TYPE_FLAGS,
    tuple_items,
)
from dstack.probes.node.cpython.process import PythonProcess
from dstack.probes.node.cpython.values import CELL_VALUE

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

Reader = Callable[[int], Iterable[int]]


class References:
    """The references of the objects of one process. Nothing is raised: what cannot be read refers to nothing."""

    def __init__(self, process: PythonProcess) -> None:
        self._objects = process.objects
        self._memory = process.memory
        self._frames = process.frames
        self._layout = process.layout
        self._readers: dict[int, tuple[Reader, ...]] = {}
        self._by_name: dict[str, Reader] = {
            "collections.deque": self._deque,
            "set": self._set,
            "frozenset": self._set,
            "cell": self._cell,
            "method": self._bound,
            "builtin_function_or_method": self._bound,
            "function": self._function,
            "functools.partial": self._partial,
            "types.SimpleNamespace": self._attributes,
            "generator": self._generator,
            "async_generator": self._generator,
            "_queue.SimpleQueue": self._simple_queue,
        }

    def learn_types(self, addresses: Iterable[int]) -> None:
        """Read the types of these objects, whose own pages were read, in as few system calls as possible."""
        kinds: set[int] = set()
        for address in addresses:
            if address and not address % 8:
                with contextlib.suppress(Unreadable):
                    kinds.add(self._memory.pointer(address + TYPE))
        self._memory.prefetch(kinds - self._readers.keys(), TYPE_FLAGS + 8)

    def of(self, address: int) -> Sequence[int]:
        """The addresses of the objects that this one refers to, the first ones of many."""
        found: list[int] = []
        if not address or address % 8:
            return found
        try:
            kind = self._memory.pointer(address + TYPE)
            readers = self._readers.get(kind)
            if readers is None:
                readers = self._readers[kind] = self._readers_of(kind)
        except Unreadable:
            return found
        for read in readers:
            try:
                found.extend(read(address))
            except Unreadable:
                continue
        return found

    def _readers_of(self, kind: int) -> tuple[Reader, ...]:
        """What reads objects of a type; nothing for types whose objects lead nowhere."""
        flags = self._memory.pointer(kind + TYPE_FLAGS)
        if not flags & IS_TRACKED or flags & (IS_EXCEPTION | IS_TYPE):
            return ()
        names = self._objects.base_names(kind)
        if any(name in LEADS_NOWHERE for name in names):
            return ()
        container = self._container(flags, names)
        is_of_python = "." not in names[0] and names[0] not in self._by_name and len(names) > 1
        if not is_of_python:
            return (container,) if container else ()
        own: tuple[Reader, ...] = (self._thread,) if "Thread" in names else (self._attributes, self._slots)
        return (container, *own) if container else own

    def _container(self, flags: int, names: Sequence[str]) -> Reader | None:
        if flags & IS_LIST:
            return self._list
        if flags & IS_TUPLE:
            return self._tuple
        if flags & IS_DICT:
            return self._dict
        return next((self._by_name[name] for name in names if name in self._by_name), None)

    # Containers

    def _list(self, address: int) -> Iterable[int]:
        return self._memory.pointers(self._memory.pointer(address + LIST_ITEMS), self._count(address))

    def _tuple(self, address: int) -> Iterable[int]:
        return self._memory.pointers(address + tuple_items(self._objects.version), self._count(address))

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
        return (self._memory.pointer(address + CELL_VALUE),)

    def _bound(self, address: int) -> Iterable[int]:
        return (self._memory.pointer(address + BOUND_TO),)

    def _partial(self, address: int) -> Iterable[int]:
        return self._memory.pointers(address + PARTIAL, PARTIAL_WORDS)

    def _function(self, address: int) -> Iterable[int]:
        closure = self._memory.pointer(address + self._layout.coroutines.function_closure)
        cells = self._tuple(closure) if self._objects.is_a(closure, "tuple") else ()
        return [value for cell in cells if self._objects.is_a(cell, "cell") for value in self._cell(cell)]

    def _generator(self, address: int) -> Iterable[int]:
        frame = self._frames.suspended(address)
        return frame.variables[:MAX_GENERATOR_LOCALS] if frame else ()

    # Instances of classes in Python

    def _attributes(self, address: int) -> Iterable[int]:
        return self._objects.attribute_values(address)

    def _thread(self, address: int) -> Iterable[int]:
        found = self._objects.attributes(address)
        return [value for name, value in found.items() if name not in STARTED_WITH]

    def _slots(self, address: int) -> Iterable[int]:
        """The words of an instance: those of its slots, and its dict where that is among them."""
        size = self._memory.int64(self._memory.pointer(address + TYPE) + BASIC_SIZE)
        return self._memory.pointers(address + HEADER, min(max(0, (size - HEADER) // 8), MAX_SLOTS))
