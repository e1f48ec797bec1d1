"""asyncio's event loops in another process: their tasks, the task that each one runs, and their threads.

Up to CPython 3.13, ``asyncio.tasks`` has all tasks of all loops in a set of weak references and the running ones in a
dict; names differ by version. From 3.14 on, these only have tasks of other classes; asyncio's own are in linked lists,
see :mod:`dstack.probes.node.cpython.layouts`. Only tasks
implemented in C are read, as asyncio makes them, also on uvloop.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.layouts import BEHIND_MUTEXES, TaskLists
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.objects import BASIC_SIZE, TYPE
from dstack.probes.node.cpython.python_process import PythonProcess
from dstack.probes.node.procfs import proc
from dstack.probes.node.thread_stacks import ASYNCIO, is_event_loop

TASK, FUTURE = "_asyncio.Task", "_asyncio.Future"
ALL_TASKS = ("_scheduled_tasks", "_all_tasks")
"""From CPython 3.12 on, and before."""
CURRENT_TASKS = "_current_tasks"
PENDING, CANCELLED = 0, 1
HANDLES = ("Handle", "TimerHandle", "_ThreadSafeHandle", "uvloop.loop.Handle")
"""``call_soon_threadsafe`` makes the third one from CPython 3.14 on."""
MAX_READY = MAX_TIMERS = 2_000
MAX_LINKED = 1 << 16
NEXT, PREVIOUS = 0, 1
"""Which word of a node in a list of tasks points to which other node."""
WATCHED = "_fd_to_key"
"""The attribute of a selector with the files that it watches, by their numbers (CPython 3.10 to 3.15)."""
MAX_FIELD_BYTES = 512
"""uvloop's loop has the id of its thread, the queue of its next calls and the set of its timers within this many bytes;
seen with uvloop 0.23."""
UVLOOP_TIMER = "uvloop.loop.TimerHandle"
UVLOOP_CALLBACK = 24
"""Where a timer of uvloop has its callback and then its arguments (uvloop 0.23)."""


@dataclass(frozen=True, slots=True)
class Handle:
    """An armed timer of a loop: its callback and the tuple of its arguments, or 0, and its time, None if unreadable.

    ``at_s`` is by ``time.monotonic()``.
    """

    callback: int
    args: int
    at_s: float | None


class EventLoops:
    """The event loops of one process. Every method raises :class:`UnreadableMemory`."""

    def __init__(self, process: PythonProcess) -> None:
        self._objects = process.objects
        self._memory = process.memory
        self._frames = process.frames
        self._modules = process.modules
        self._layout = process.layout
        self._hears: dict[int, bool] = {}

    def tasks(self) -> Iterator[int]:
        """All asyncio tasks that have not ended; tasks that start or end meanwhile may be missing."""
        return (task for task, is_pending in self._listed if is_pending)

    @property
    def ended(self) -> list[int]:
        """The asyncio tasks that have ended and are still referenced, as far as asyncio lists them."""
        return [task for task, is_pending in self._listed if not is_pending]

    @cached_property
    def _listed(self) -> list[tuple[int, bool]]:
        """All tasks that asyncio lists, and whether each has not ended yet."""
        lists = self._layout.task_lists
        found: list[tuple[int, bool]] = []
        for task in self._linked(lists) if lists else self._referenced():
            with contextlib.suppress(UnreadableMemory):
                found.append((task, self.is_pending(task)))
        return found

    def _linked(self, lists: TaskLists) -> Iterator[int]:
        """The tasks in the lists of all threads, and of threads that have ended."""
        heads = [thread + lists.thread_tasks for thread in self._frames.threads.values()]
        heads.append(self._frames.interpreter + lists.interpreter_tasks + BEHIND_MUTEXES[proc.machine()])
        seen: set[int] = set()
        for head in heads:
            yield from (node - lists.task_node for node in self._nodes(head, lists.task_node, seen))
        if len(seen) >= MAX_LINKED:
            raise UnreadableMemory(f"it has more than {MAX_LINKED} tasks")

    def _nodes(self, head: int, task_node: int, seen: set[int]) -> Iterator[int]:
        """The nodes of one list that were not seen yet.

        A list that changes while it is read ends where a task has just left it; what is behind is found from its end.
        """
        for direction in (NEXT, PREVIOUS):
            node = 0
            with contextlib.suppress(UnreadableMemory):
                node = self._memory.pointer(head + 8 * direction)
                while node != head and node not in seen and len(seen) < MAX_LINKED:
                    links = self._memory.pointers(node, 2)
                    if not self._objects.is_kind_of(node - task_node, TASK):
                        break
                    seen.add(node)
                    yield node
                    node = links[direction]
            if node == head:
                return

    def _referenced(self) -> Iterator[int]:
        """The tasks in the set of weak references."""
        weak_set = self._named(*ALL_TASKS)
        if not weak_set:
            return
        yield from (task for task in self._objects.weak_items(weak_set) if self._objects.is_kind_of(task, TASK))

    @cached_property
    def current(self) -> dict[int, int]:
        """The task that each loop runs, by loop; empty where that changes while it is read."""
        lists = self._layout.task_lists
        if lists:
            return self._in_hand(lists)
        current = self._named(CURRENT_TASKS)
        with contextlib.suppress(UnreadableMemory):
            return dict(self._objects.entries(current)) if current else {}
        return {}

    def _in_hand(self, lists: TaskLists) -> dict[int, int]:
        """The current task of each thread, by the loop that the thread runs."""
        found = {}
        for thread in self._frames.threads.values():
            with contextlib.suppress(UnreadableMemory):
                loop, task = (self._memory.pointer(thread + at) for at in (lists.thread_loop, lists.thread_task))
                if loop and task:
                    found[loop] = task
        return found

    def _named(self, *names: str) -> int:
        found = (self._modules.lookup("asyncio.tasks", name) for name in names)
        return next((address for address in found if address), 0)

    def is_pending(self, future: int) -> bool:
        """Whether a task or future has not ended."""
        return self._memory.int32(future + self._layout.future_state) == PENDING

    def is_cancelled(self, future: int) -> bool:
        """Whether a task or future has ended because it was cancelled."""
        return self._memory.int32(future + self._layout.future_state) == CANCELLED

    def loop_of(self, future: int) -> int:
        """The loop that a task or future belongs to."""
        return self._memory.pointer(future + self._layout.future_loop)

    def may_hear_from_outside(self, loop: int) -> bool:
        """Whether a loop watches more than its own pipe, as sockets: then these may bring anything.

        Yes where that is unknown, as for uvloop.
        """
        if loop not in self._hears:
            try:
                selector = self._objects.find_attribute(loop, "_selector")
                watched = self._objects.find_attribute(selector, WATCHED)
                self._hears[loop] = len(list(itertools.islice(self._objects.entries(watched), 2))) > 1
            except UnreadableMemory:
                self._hears[loop] = True
        return self._hears[loop]

    def about_to_call(self, loop: int) -> Iterator[int]:
        """The Python functions that a loop will call next."""
        try:
            handles = list(itertools.islice(self._objects.deque_items(self._ready(loop)), MAX_READY))
        except UnreadableMemory:
            return
        for handle in handles:
            with contextlib.suppress(UnreadableMemory):
                self._objects.expect(handle, *HANDLES)
                yield from (word for word in self.fields(handle) if self._objects.is_a(word, "function"))

    @cached_property
    def loops(self) -> list[int]:
        """The loops that have tasks."""
        found: dict[int, None] = {}
        for task in self.tasks():
            with contextlib.suppress(UnreadableMemory):
                found[self.loop_of(task)] = None
        return list(found)

    @cached_property
    def timers(self) -> dict[int, list[Handle]]:
        """The armed timers of each loop that has tasks. Nothing is raised but for the list of tasks."""
        return {loop: list(self._timers_of(loop)) for loop in self.loops}

    def _timers_of(self, loop: int) -> Iterator[Handle]:
        for handle in itertools.islice(self._timer_handles(loop), MAX_TIMERS):
            with contextlib.suppress(UnreadableMemory):
                timer = self._uvloop_timer(handle, loop) if self._is_uvloops(handle) else self._timer(handle)
                if timer is not None:
                    yield timer

    def _timer_handles(self, loop: int) -> Iterator[int]:
        """The handles of a loop's timers: in a list, or in the C field of uvloop that is a set of them."""
        with contextlib.suppress(UnreadableMemory):
            if scheduled := self._objects.find_attribute(loop, "_scheduled"):
                yield from self._objects.items(scheduled)
                return
        with contextlib.suppress(UnreadableMemory):
            for word in self.fields(loop):
                if self._objects.is_a(word, "set"):
                    yield from filter(self._is_uvloops, self._objects.set_items(word))

    def _is_uvloops(self, handle: int) -> bool:
        return self._objects.is_a(handle, UVLOOP_TIMER)

    def _timer(self, handle: int) -> Handle | None:
        slots = self._objects.slots(handle)
        callback, args = slots.get("_callback", 0), slots.get("_args", 0)
        if self._objects.is_a(callback, "NoneType") or not callback:
            return None  # it was cancelled
        return Handle(callback, args, self._objects.number(slots.get("_when", 0)))

    def _uvloop_timer(self, handle: int, loop: int) -> Handle | None:
        words = self.fields(handle)
        if loop not in words:
            raise UnreadableMemory("a timer of uvloop in another form")
        callback, args = self._memory.pointers(handle + UVLOOP_CALLBACK, 2)
        if self._objects.is_a(callback, "NoneType"):
            return None
        at_s = next((self._objects.number(word) for word in words if self._objects.is_a(word, "float")), None)
        return Handle(callback, args, at_s)

    def _ready(self, loop: int) -> int:
        """The queue of a loop's next calls: an attribute, or a C field of uvloop, whose only deque it is."""
        with contextlib.suppress(UnreadableMemory):
            if ready := self._objects.find_attribute(loop, "_ready"):
                return ready
        found = {word for word in self.fields(loop) if self._objects.is_a(word, "collections.deque")}
        return found.pop() if len(found) == 1 else 0

    def fields(self, address: int) -> Sequence[int]:
        """The first words of an object that is implemented in C."""
        size = self._memory.int64(self._memory.pointer(address + TYPE) + BASIC_SIZE)
        return self._memory.pointers(address, max(0, min(size, MAX_FIELD_BYTES)) // 8)

    def thread_of(self, loop: int, thread_ids: Collection[int]) -> int | None:
        """The thread, of these Python ids, that runs the loop; None where none does.

        uvloop has it as a C field: the only thread id among the loop's first words.
        """
        with contextlib.suppress(UnreadableMemory):
            attributes = self._objects.attributes(loop)
            if "_thread_id" in attributes:
                number = self._objects.number(attributes["_thread_id"])
                return int(number) if number and number in thread_ids else None
        found = {word for word in self.fields(loop) if word in thread_ids}
        return found.pop() if len(found) == 1 else None


def may_have_loops(process: PythonProcess) -> bool:
    """Whether a thread shows an event loop, or may run one that it does not show: one of uvloop, or without frames."""
    for thread in process.threads:
        shows_nothing = not thread.frames and thread.os_thread_id == process.memory.pid  # C++'s never show any
        if shows_nothing or is_event_loop(thread):
            return True
        if any(ASYNCIO in frame.position.file for frame in thread.frames):
            return True
    return process.modules.has("uvloop")


def has_tasks(process: PythonProcess) -> bool:
    """Whether there is an asyncio task that has not ended; yes where that cannot be read."""
    try:
        return next(EventLoops(process).tasks(), None) is not None
    except UnreadableMemory:
        return True
