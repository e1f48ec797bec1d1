"""Which Ray task each thread of a worker runs, read from the core worker's thread-local storage.

The layout of ``_raylet.so`` comes from the caller (:mod:`dstack.probes.raylet_symbols`). Right for tasks on the main
thread and for threaded actors; threads of event loops hold ids that mean nothing. Seen on Ray 2.46 and 2.60 with
glibc 2.31 to 2.36 on x86-64.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

from dstack.probes.node.asyncio.event_loops import is_event_loop
from dstack.probes.node.cpython.memory import PTHREAD_TID, ProcessMemory, Unreadable
from dstack.probes.node.procfs.proc import Mapping, mappings
from dstack.probes.node.pyspy.parser import RawThread

DTV = 8
"""Where pthread_self points to the thread's table of thread-local blocks: 16 bytes each, by module number."""
UNALLOCATED = 2**64 - 1
TASK_ID = slice(8, 32)
IDLE = b"\xff" * 20
"""A task's id before its job where there is none, or a driver's; the creation of an actor begins so, and names it."""
MAX_MODULES = 4096
IDLE_WORKER = "ray::IDLE"
"""What a worker is called by itself before it is an actor's, and between tasks; seen on Ray 2.46 and 2.60."""
NOBODY = "f" * 16
"""How the actor's part begins in the id of a normal task, and the whole id of an actor's creation."""


class ThreadTasks:
    """Reads one process. Raises :class:`Unreadable` where its library is not the one that the layout describes."""

    def __init__(self, pid: int, memory: ProcessMemory, layout: dict[str, Any]) -> None:
        library = library_of(pid)
        if library is None:
            raise Unreadable("it has no _raylet.so")
        base = library.start
        note = bytes.fromhex(layout["note"])
        if memory.read(base + layout["note_at"], len(note)) != note:
            raise Unreadable("its _raylet.so is another build")
        self._memory = memory
        self._module = memory.pointer(base + layout["module_at"])
        self._offset: int = layout["offset"]
        if not 0 < self._module < MAX_MODULES:
            raise Unreadable(f"{self._module} is not the number of a module")

    def task_of(self, pthread: int) -> str | None:
        """The id of the task that a thread runs, or None where it runs none."""
        blocks = self._memory.pointer(pthread + DTV)
        if self._memory.pointer(blocks - 16) < self._module:
            return None
        block = self._memory.pointer(blocks + 16 * self._module)
        context = self._memory.pointer(block + self._offset) if block not in (0, UNALLOCATED) else 0
        if not context:
            return None
        task_id = self._memory.read(context, TASK_ID.stop)[TASK_ID]
        return None if task_id.startswith(IDLE) else task_id.hex()


def library_of(pid: int) -> Mapping | None:
    """The beginning of the core worker library in a process."""
    found = (one for one in mappings(pid) if one.path.endswith("/ray/_raylet.so") and one.offset == 0)
    return next(found, None)


def name_threads(threads: list[RawThread], memory: ProcessMemory, known: Collection[int]) -> None:
    """Gives threads their OS ids where py-spy has none: without a pause it does not know them before CPython 3.11."""
    for thread in threads:
        if thread["os_thread_id"] is None:
            with contextlib.suppress(Unreadable):
                os_thread_id = memory.int32(thread["thread_id"] + PTHREAD_TID)
                thread["os_thread_id"] = os_thread_id if os_thread_id in known else None


def read_tasks(
    threads: list[RawThread], memory: ProcessMemory, layout: dict[str, Any] | None, title: str
) -> dict[int, str | None] | None:
    """The task each thread runs, by OS thread id; None where that cannot be read, or means nothing.

    The threads of async actors hold ids of tasks that they are done with. ``title`` is the process's.
    """
    try:
        if layout is None or any(is_event_loop(thread) for thread in threads):
            return None
        tasks = ThreadTasks(memory.pid, memory, layout)
        return {thread["os_thread_id"]: _if_real(tasks.task_of(thread["thread_id"]), title) for thread in threads}
    except Unreadable:
        return None


def _if_real(task_id: str | None, title: str) -> str | None:
    """The task, unless it is one that a fresh worker has before its first: that seems to be some actor's."""
    is_of_actor = task_id is not None and NOBODY not in (task_id[:16], task_id[16:32])
    return None if is_of_actor and title == IDLE_WORKER else task_id
