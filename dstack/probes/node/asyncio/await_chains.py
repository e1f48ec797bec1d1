"""Await chains: from an asyncio task's coroutine through everything that it awaits to a future.

The awaited object is at the top of a suspended coroutine's stack. Seen on CPython 3.10 to 3.15; Ray runs its tasks in a
coroutine of Cython's, seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from dstack.probes.node.asyncio.event_loops import EventLoops
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import BASIC_SIZE, TYPE
from dstack.probes.node.cpython.python_process import PythonProcess
from dstack.probes.node.waits.locks import held_in

GENERATORS = ("coroutine", "generator", "async_generator")
CYTHON = "_cython_"
WRAPPED = 16
"""The offset in ``anext(generator, default)`` of what it awaits; CPython 3.10 to 3.15."""
MAX_TASKS = 20_000
MAX_DEPTH = 1_000
MAX_CYTHON_BYTES = 1024


@dataclass(frozen=True)
class AwaitChain:
    """The frames of an await chain, innermost first, and the future it ends in, or 0.

    ``root`` is the name of the outermost coroutine if that is Cython's. ``mark`` changes whenever the chain does.
    """

    frames: tuple[MemoryFrame, ...]
    future: int
    root: str
    mark: tuple[tuple[int, int], ...]


class AwaitChains:
    """The await chains of one process. Every method raises :class:`UnreadableMemory`."""

    def __init__(self, process: PythonProcess, loops: EventLoops) -> None:
        self._process = process
        self._objects = process.objects
        self._memory = process.memory
        self._frames = process.frames
        self._layout = process.layout
        self._loops = loops

    @cached_property
    def by_task(self) -> dict[int, AwaitChain]:
        """The await chains of all tasks that are suspended, by the tasks' addresses."""
        chains: dict[int, AwaitChain] = {}
        for task in self._loops.tasks():
            if len(chains) >= MAX_TASKS:
                raise UnreadableMemory(f"it has more than {MAX_TASKS} coroutines")
            with contextlib.suppress(UnreadableMemory):
                chains[task] = self.chain(self._memory.pointer(task + self._layout.task_coroutine))
        return chains

    @cached_property
    def holders(self) -> dict[int, list[int]]:
        """The tasks that are in a ``with`` or ``async with`` block of an object, by its address.

        Left out are tasks that still enter the block, and tasks that have released the lock to wait for a condition.
        """
        holders: dict[int, list[int]] = {}
        for task, chain in self.by_task.items():
            with contextlib.suppress(UnreadableMemory):
                for one in held_in(self._process, chain.frames):
                    holders.setdefault(one, []).append(task)
        return holders

    def chain(self, coroutine: int) -> AwaitChain:
        """The chain from a task's coroutine on; a running coroutine adds no frame.

        Neither does one that has not begun, but the task's own, whose frame has its arguments.
        """
        frames: list[MemoryFrame] = []
        mark: list[tuple[int, int]] = []
        root, address = "", coroutine
        for _ in range(MAX_DEPTH):
            kind = self._objects.type_name(address) if address else ""
            if kind in GENERATORS:
                frame = self._frames.suspended(address, or_created=address == coroutine)
                mark.append((address, frame.instruction if frame else -1))
                address = frame.awaited if frame else 0
                frames += [frame] if frame else []
            elif kind.startswith(CYTHON) and kind.endswith("coroutine"):
                mark.append((address, 0))
                name, address = self._cython(address)
                root = root or name if not frames else root
            else:
                inner = self._inside(kind, address)
                if inner is None:
                    break
                address = inner
        else:
            raise UnreadableMemory(f"a chain of more than {MAX_DEPTH} awaits")
        is_future = bool(address) and self._objects.is_kind_of(address, "_asyncio.Future")
        is_task = bool(address) and self._objects.is_kind_of(address, "_asyncio.Task")
        return AwaitChain(tuple(reversed(frames)), address if is_future or is_task else 0, root, tuple(mark))

    def _inside(self, kind: str, address: int) -> int | None:
        """The object behind a wrapper that passes on what another awaits; None for any other object."""
        if kind.startswith("async_generator_a"):
            return self._memory.pointer(address + self._layout.send_generator)
        if kind == "coroutine_wrapper":
            return self._memory.pointer(address + self._layout.wrapper_coroutine)
        if kind == "_asyncio.FutureIter":
            return self._memory.pointer(address + self._layout.iterator_future)
        if kind == "anext_awaitable":
            return self._memory.pointer(address + WRAPPED)
        if kind.startswith(CYTHON) and kind.endswith("coroutine_wrapper"):
            return self._cython(address)[1]
        return None

    def _cython(self, address: int) -> tuple[str, int]:
        """The qualified name of Cython's coroutine, and what it awaits, both found among its fields by type."""
        size = self._memory.int64(self._memory.pointer(address + TYPE) + BASIC_SIZE)
        if not 0 <= size <= MAX_CYTHON_BYTES:
            raise UnreadableMemory(f"a coroutine of {size} bytes")
        names: list[str] = []
        awaited = 0
        for word in self._memory.pointers(address, size // 8)[2:]:
            if self._objects.is_a(word, "str"):
                names.append(self._objects.text(word))
            elif not awaited and self._can_be_awaited(word):
                awaited = word
        return names[1] if len(names) > 1 else "", awaited

    def _can_be_awaited(self, word: int) -> bool:
        if self._objects.is_a(word, *GENERATORS, "coroutine_wrapper", "_asyncio.FutureIter", "anext_awaitable"):
            return True
        try:
            kind = self._objects.type_name(word) if word and not word % 8 else ""
        except UnreadableMemory:
            return False
        return kind.startswith("async_generator_a") or (kind.startswith(CYTHON) and "coroutine" in kind)
