"""The lock that a thread sleeps on, and the thread that holds it.

The kernel shows the address of the semaphore that a thread sleeps on. The lock with this semaphore, among the words of
the innermost frame, is the one it waits for; a word left over from an earlier call cannot match. An RLock refers to its
owner, a Lock does not: its holder is inferred from the ``with`` blocks that threads are in.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import BOUND_TO, LOCK_SEMAPHORE, Objects
from dstack.probes.node.cpython.python_process import MemoryThread, PythonProcess
from dstack.probes.node.procfs.proc import SystemCall

LOCK, RLOCK = "_thread.lock", "_thread.RLock"
SIMPLE_QUEUE, PROCESS_LOCK = "_queue.SimpleQueue", "_multiprocessing.SemLock"
SLEPT_ON = (LOCK, RLOCK, SIMPLE_QUEUE, PROCESS_LOCK)
"""Objects with a pointer to their semaphore, or a byte, at the same offset; CPython 3.10 to 3.15."""
PARKED_AT = -8
"""Newer objects park their waiters: each sleeps on its own semaphore (``struct wait_entry``), at this offset beside the
address that it waits at. Of a queue from CPython 3.13.0 on, of a lock from a release between 3.13.0 and 3.13.15, and of
an RLock from 3.14 on."""
BOUND_METHODS = ("builtin_function_or_method", "builtin_method")
"""The types of bound methods in C; the second where the method takes its class, as that of a queue (3.9 on)."""
MAX_ARGUMENTS = 3
WITHOUT_LOCK = ("__aenter__", "acquire", "wait")
"""Methods of locks and conditions, of threads and of asyncio, that run while their lock is not held."""


@dataclass(frozen=True)
class SleptOn:
    """The object whose semaphore a thread sleeps on, with its type, and the timeout of the wait."""

    address: int
    type_name: str
    timeout_s: float | None = None


class Locks:
    """The locks of one process. Every method raises :class:`UnreadableMemory`."""

    def __init__(self, process: PythonProcess) -> None:
        self._process = process
        self._objects = process.objects
        self._layout = process.layout
        self._locks_held: dict[int, set[int]] = {}

    def slept_on(self, leaf: MemoryFrame, call: SystemCall) -> SleptOn | None:
        """The lock or queue that the innermost frame of a thread waits for, if any."""
        if call.futex is None:
            return None
        for word in (*leaf.stack, *leaf.locals):
            for address in self._and_what_it_is_bound_to(word):
                if self._objects.is_a(address, *SLEPT_ON) and self._is_slept_on(address, call.futex):
                    timeout_s = self._timeout_s(leaf, word, call.futex_deadline) if call.futex_deadline else None
                    return SleptOn(address, self._objects.type_name(address), timeout_s)
        return None

    def owner(self, rlock: int) -> int:
        """The Python id of the thread that holds an RLock."""
        self._objects.expect(rlock, RLOCK)
        return self._objects.memory.pointer(rlock + self._layout.rlock_owner)

    def holders(self, lock: int, threads: Iterable[MemoryThread]) -> list[MemoryThread]:
        """The threads, of these, that are in a ``with`` block of the lock.

        A thread whose frames cannot be read is left out.
        """
        self._objects.expect(lock, LOCK)
        holders = []
        for thread in threads:
            with contextlib.suppress(UnreadableMemory):
                if lock in self._held(thread):
                    holders.append(thread)
        return holders

    def _is_slept_on(self, address: int, futex: int) -> bool:
        """Whether a thread that sleeps on this semaphore waits for this object."""
        memory = self._objects.memory
        if memory.pointer(address + LOCK_SEMAPHORE) == futex:
            return True
        try:
            return memory.pointer(futex + PARKED_AT) == address + LOCK_SEMAPHORE
        except UnreadableMemory:  # a semaphore at the beginning of its page, as that of a lock of multiprocessing
            return False

    def _and_what_it_is_bound_to(self, word: int) -> Iterator[int]:
        yield word
        if self._objects.is_a(word, *BOUND_METHODS):
            yield self._objects.memory.pointer(word + BOUND_TO)

    def _timeout_s(self, leaf: MemoryFrame, word: int, deadline: int) -> float:
        """The timeout among the following arguments, else the remaining time."""
        at = leaf.stack.index(word) if word in leaf.stack else len(leaf.stack)
        for argument in leaf.stack[at + 1 : at + 1 + MAX_ARGUMENTS]:
            if self._objects.is_a(argument, "int", "float"):
                return self._objects.number(argument) or 0.0
        seconds, nanoseconds = self._objects.memory.int64(deadline), self._objects.memory.int64(deadline + 8)
        return round(max(0.0, seconds + nanoseconds / 1e9 - time.monotonic()), 1)

    def _held(self, thread: MemoryThread) -> set[int]:
        if thread.thread_id not in self._locks_held:
            self._locks_held[thread.thread_id] = held_in(self._process, thread.frames)
        return self._locks_held[thread.thread_id]


def held_in(process: PythonProcess, frames: Iterable[MemoryFrame]) -> set[int]:
    """The objects whose ``with`` or ``async with`` blocks these frames are in, and the locks of conditions among them.

    ``frames`` are those of a thread or coroutine, the innermost first. The result excludes objects that a frame has not
    entered yet, and locks that it released to wait for their condition. Raises :class:`UnreadableMemory`.
    """
    held: set[int] = set()
    released: set[int | None] = set()
    for frame in frames:
        if frame.function in WITHOUT_LOCK:
            owner = frame.local("self")
            released |= {owner, lock_of(process.objects, owner)}
        for one in process.frames.held(frame):
            held |= {one, lock_of(process.objects, one) or one} - released
    return held


def lock_of(objects: Objects, condition: int) -> int | None:
    """The lock of a Condition, which is acquired and released with it; None for anything else."""
    if not objects.is_a(condition, "Condition"):
        return None
    return objects.attributes(condition).get("_lock")
