"""The linked lists of asyncio's tasks in CPython 3.14: each thread has a list of the tasks that it created.

Tasks of a dead thread are in a list of the interpreter. A list is circular: its head, and a node in each task, point to
the next and to the previous node. Their offsets are calibrated, see
:mod:`dstack.probes.node.cpython.layout`.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from dataclasses import dataclass

from dstack.probes.node.cpython.memory import ProcessMemory

INTERPRETER_BYTES = 1 << 18
THREAD_BYTES = 1024
PREVIOUS = 8
"""The offset of a node's pointer to the previous one; its first word points to the next."""


@dataclass(frozen=True)
class TaskLists:
    """Offsets in bytes: of the node in a task, and of the heads of lists in a thread state and an interpreter.

    At ``thread_loop`` and ``thread_task`` are the event loop that a thread runs and its current task, or 0.
    """

    task_node: int
    thread_tasks: int
    thread_loop: int
    thread_task: int
    interpreter_tasks: int


def calibrate_task_lists(memory: ProcessMemory, interpreter: int) -> TaskLists:
    """The offsets of this interpreter; to be called on a thread without a running loop.

    Raises ``LookupError`` or ``ValueError`` where they are not as expected.
    """
    loop = asyncio.SelectorEventLoop()
    loop.set_debug(False)  # else no other thread may make a task
    try:
        return loop.run_until_complete(_calibrate(memory, interpreter))
    finally:
        loop.close()


async def _calibrate(memory: ProcessMemory, interpreter: int) -> TaskLists:
    loop, current = asyncio.get_running_loop(), asyncio.current_task()
    tasks = [loop.create_task(asyncio.sleep(0)) for _ in range(2)]
    try:
        thread = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))()
        words = memory.mapped_words(thread, THREAD_BYTES)
        node = _node(memory, *tasks)
        return TaskLists(
            task_node=node,
            thread_tasks=_head(memory, thread, THREAD_BYTES, id(tasks[-1]) + node),
            thread_loop=8 * words.index(id(loop)),
            thread_task=8 * words.index(id(current)),
            interpreter_tasks=await _of_ended_thread(memory, interpreter, node),
        )
    finally:
        await asyncio.gather(*tasks)


def _node(memory: ProcessMemory, first: asyncio.Task[None], second: asyncio.Task[None]) -> int:
    """The offset of the node in a task: it points to that of the task made next, and that one points back."""
    one, other = id(first), id(second)
    for offset in range(16, type(first).__basicsize__ - PREVIOUS, 8):
        after, before = memory.pointer(one + offset), memory.pointer(other + offset + PREVIOUS)
        if (after, before) == (other + offset, one + offset):
            return offset
    raise LookupError("a task is in no list")


def _head(memory: ProcessMemory, address: int, size: int, last: int) -> int:
    """The offset of a list's head among these bytes, given its last node."""
    words = memory.mapped_words(address, size)
    following = memory.pointer(last)
    if address <= following < address + 8 * len(words) and memory.pointer(following + PREVIOUS) == last:
        return following - address
    raise LookupError("a list of tasks does not end at its head")


async def _of_ended_thread(memory: ProcessMemory, interpreter: int, node: int) -> int:
    """The offset of the interpreter's list, to which tasks move when the thread that made them ends."""
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []

    def make() -> None:
        tasks.append(asyncio.Task(asyncio.sleep(0), loop=loop))

    thread = threading.Thread(target=make, name="dstack-specimen")
    thread.start()
    thread.join()
    try:
        return _head(memory, interpreter, INTERPRETER_BYTES, id(tasks[0]) + node)
    finally:
        await asyncio.gather(*tasks)
