"""The armed timers of event loops, and the tasks, futures and objects that each of them will end.

A timer that will cancel a task, set a future or release a lock ends the wait for it. What its callback does is known
from its name and from the names that its code uses, or the functions that it calls; what it reaches is found from its
arguments, what it is bound to and its closure, by a bounded search. Deadlines of ``with`` blocks are read from the
objects of these blocks. Seen on CPython 3.10 to 3.15, uvloop 0.23 and anyio 4.16.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence

from dstack.observed.calls import Timer
from dstack.probes.node.asyncio.event_loops import EventLoops, Handle
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import BOUND_TO
from dstack.probes.node.cpython.python_process import PythonProcess
from dstack.probes.node.cpython.references import HEADER, PARTIAL, References
from dstack.probes.node.stacks.function_names import CANCELS, ENDS_WAIT, EXITS
from dstack.probes.node.thread_stacks import is_in
from dstack.probes.node.waits.locks import BOUND_METHODS

SLEEP = "_set_result_unless_cancelled"
"""What the timer of ``asyncio.sleep`` calls: its coroutine is known to sleep."""
FUNCTION_OF_METHOD, DEFINITION = 16, 16
"""Where a method has its function, and a method in C its definition, which begins with the name."""
MAX_DEPTH, MAX_REACHED = 3, 2_000
"""References from a callback to what it ends: what it is bound to, a collection, the task."""
MAX_CALLED = 50
"""Functions that a callback calls, directly or through others."""
FUNCTION_WORDS = 4
"""The first words of a function, one of which is the dict of its globals."""
MAX_SCOPES = 8
GENERATED = ("_GeneratorContextManager", "_AsyncGeneratorContextManager")
TIMEOUT, SCOPE = "Timeout", "CancelScope"
"""The scopes of asyncio and async_timeout, and of anyio, by the names of their classes."""
GROUP = "TaskGroup"
THREADING, THREAD_TIMER, SCHEDULER = "/threading.py", "Timer", "/sched.py"
ACTION = 3
"""Which field of an event in the queue of a ``sched.scheduler`` has its function (CPython 3.10 to 3.15)."""
OUTERMOST, INNERMOST = 3, 4
"""How many frames may be around ``Timer.run``, with it, and inside of a scheduler's function, which sleeps."""
OF_RAY = ("ActorHandle", "ObjectRef")


class Callbacks:
    """What callbacks do, by their names and the names that their code uses. Nothing is raised."""

    def __init__(self, process: PythonProcess) -> None:
        self._objects = process.objects
        self._memory = process.memory
        self._codes = process.frames.codes
        self._layout = process.layout

    def name_of(self, callback: int) -> str:
        """``Task.cancel``: the qualified name of a callback, or a function behind it; empty if unreadable."""
        with contextlib.suppress(UnreadableMemory):
            function, _ = self._behind(callback)
            if not self._objects.is_a(function, *BOUND_METHODS):
                return self._objects.text(self._memory.pointer(function + self._layout.function_qualname))
            name = self._memory.c_string(self._memory.pointer(self._memory.pointer(function + DEFINITION)))
            return f"{self._objects.type_name(self._memory.pointer(function + BOUND_TO)).rpartition('.')[2]}.{name}"
        return ""

    def does(self, callback: int, what: re.Pattern[str]) -> bool:
        """Whether a callback's own name is one of those, or a name that it uses, or that what it calls uses."""
        if what.search(self.name_of(callback).rpartition(".")[2]):
            return True
        with contextlib.suppress(UnreadableMemory):
            return any(self.uses(code, what) for code in self._codes_of(callback))
        return False

    def uses(self, code: int, what: re.Pattern[str]) -> bool:
        """Whether a code object uses one of those names."""
        with contextlib.suppress(UnreadableMemory):
            return any(map(what.search, self._codes.used_names(code)))
        return False

    def cancels(self, frame: MemoryFrame) -> bool:
        """Whether the code of a frame uses a name that cancels something."""
        return self.uses(frame.code.address, CANCELS)

    def timer(self, callback: int, left_s: float | None) -> Timer | None:
        """The timer that calls this, with what the callback stops; None for that of a sleeping coroutine."""
        if (name := self.name_of(callback)).endswith(SLEEP):
            return None
        stops = self.does(callback, CANCELS)
        return Timer(name=name, left_s=left_s, stops=stops, ends_process=stops and self.does(callback, EXITS))

    def used_globals(self, callback: int) -> Collection[int]:
        """The globals that the code of a callback uses."""
        with contextlib.suppress(UnreadableMemory):
            function, _ = self._behind(callback)
            if self._objects.is_a(function, "function"):
                code = self._memory.pointer(function + self._layout.function_code)
                return self._globals(function, self._codes.used_names(code)).values()
        return ()

    def _behind(self, callback: int) -> tuple[int, list[int]]:
        """The function in Python, or the bound method in C, behind a callback, and the objects that it is bound to.

        It may be behind bound methods, partial functions and an object with ``__call__``.
        """
        owners: list[int] = []
        for _ in range(MAX_DEPTH):
            if self._objects.is_a(callback, "functools.partial"):
                callback, arguments = self._memory.pointers(callback + PARTIAL, 2)
                owners += self._objects.items(arguments)
            elif self._objects.is_a(callback, "method"):
                owners.append(self._memory.pointer(callback + BOUND_TO))
                callback = self._memory.pointer(callback + FUNCTION_OF_METHOD)
            elif called := self._objects.class_attributes(callback).get("__call__"):
                owners.append(callback)
                callback = called
        self._objects.expect(callback, "function", *BOUND_METHODS)
        return callback, owners

    def _codes_of(self, callback: int) -> Iterator[int]:
        """The code of a callback, and of the functions that it calls: methods of what it has, and those of its file."""
        function, owners = self._behind(callback)
        ahead, seen = [function], {function}
        while ahead and len(seen) < MAX_CALLED:
            function = ahead.pop(0)
            if not self._objects.is_a(function, "function"):
                continue
            yield (code := self._memory.pointer(function + self._layout.function_code))
            names = self._codes.used_names(code)
            closure = self._memory.pointer(function + self._layout.function_closure)
            cells = self._objects.items(closure) if self._objects.is_a(closure, "tuple") else ()
            owners += [self._objects.content(cell) for cell in cells]
            scopes = [*map(self._objects.class_attributes, dict.fromkeys(owners)), self._globals(function, names)]
            called = [scope[name] for scope in scopes for name in names & scope.keys()]
            ahead += [one for one in called if one not in seen]
            seen.update(called)

    def _globals(self, function: int, names: Collection[str]) -> dict[str, int]:
        """The globals of these names in the module of a function: its first dict (CPython 3.10 to 3.15)."""
        words = self._memory.pointers(function + HEADER, FUNCTION_WORDS)
        found = next((word for word in words if self._objects.is_a(word, "dict")), 0)
        places = self._objects.places_of(found, names) if found else {}
        return {name: self._objects.value_at(found, place, name) for name, place in places.items()}


class Timers:
    """The timers of the event loops of one process. Nothing is raised."""

    def __init__(self, process: PythonProcess, loops: EventLoops) -> None:
        self._objects = process.objects
        self._memory = process.memory
        self._frames = process.frames
        self._loops = loops
        self._callbacks = Callbacks(process)
        self._references = References(process)

    def ending(self, objects: Iterable[int]) -> Timer | None:
        """The first timer that will end one of these tasks, futures or objects."""
        found = [timer for one in objects if (timer := self._by_object.get(one))]
        return min(found, key=lambda timer: timer.left_s or 0.0, default=None)

    def stopping(self, loop: int) -> Timer | None:
        """The first timer of a loop that ends its process, or cancels or kills what it has a ref or handle of."""
        for handle, timer in self._armed.get(loop, ()):
            if timer.stops:
                reached = (*self._reached_by(handle), *self._callbacks.used_globals(handle.callback))
                if timer.ends_process or any(self._objects.is_kind_of(one, kind) for one in reached for kind in OF_RAY):
                    return timer
        return None

    @cached_property
    def _by_object(self) -> dict[int, Timer]:
        """The first timer that ends each object."""
        found: dict[int, Timer] = {}
        for handle, timer in (one for timers in self._armed.values() for one in timers):
            if self._callbacks.does(handle.callback, ENDS_WAIT):
                for one in self._reached_by(handle):
                    if one not in found or (timer.left_s or 0.0) < (found[one].left_s or 0.0):
                        found[one] = timer
        return found

    @cached_property
    def _armed(self) -> dict[int, list[tuple[Handle, Timer]]]:
        """The timers of each loop, the first one first; without those of coroutines that sleep."""
        return {loop: list(self._by_time(handles)) for loop, handles in self._loops.timers.items()}

    def _by_time(self, handles: Iterable[Handle]) -> Iterator[tuple[Handle, Timer]]:
        for handle in sorted(handles, key=lambda one: one.at_s or 0.0):
            left_s = None if handle.at_s is None else _left_s(handle.at_s)
            if timer := self._callbacks.timer(handle.callback, left_s):
                yield handle, timer

    def _reached_by(self, handle: Handle) -> set[int]:
        """The objects that a timer's callback reaches."""
        with contextlib.suppress(UnreadableMemory):
            if self._objects.is_a(scope := self._memory.pointer(handle.callback + BOUND_TO), SCOPE):
                return self._tasks_in(scope)
        reached: set[int] = set()
        level = {handle.callback, handle.args}
        for _ in range(MAX_DEPTH + 1):
            reached |= level
            found = self._references.of_all(level) if len(reached) < MAX_REACHED else {}
            level = {one for several in found.values() for one in several if one} - reached
        return reached | level

    def _tasks_in(self, scope: int) -> set[int]:
        """The tasks in a scope of anyio and in the scopes inside of it, but for those that are shielded."""
        found: set[int] = set()
        ahead, seen = [scope], {scope}
        while ahead and len(seen) < MAX_REACHED:
            slots = self._objects.slots(ahead.pop())
            found.update(self._objects.set_items(slots.get("_tasks", 0)))
            inner = set(self._objects.set_items(slots.get("_child_scopes", 0))) - seen
            seen |= inner
            ahead += [one for one in inner if not self._is_shielded(one)]
        return found

    # Deadlines of with blocks

    def deadline(self, frames: Sequence[MemoryFrame]) -> Timer | None:
        """The first deadline of the ``with`` blocks that these frames, the innermost first, are in.

        A shielded scope of anyio protects what is in it from the scopes around it.
        """
        found: list[tuple[float, str, MemoryFrame]] = []
        for frame, scope in ((one, scope) for one in frames for scope in self._scopes(one)):
            with contextlib.suppress(UnreadableMemory):
                if deadline := self._deadline_of(scope):
                    found.append((*deadline, frame))
                if self._is_shielded(scope):
                    break
        if not found:
            return None
        at_s, name, frame = min(found, key=lambda one: one[0])
        position = frame.position
        return Timer(name=name, left_s=_left_s(at_s), file=position.module or position.file, line=position.line)

    def _scopes(self, frame: MemoryFrame) -> Iterator[int]:
        """The objects of the ``with`` blocks of a frame, innermost first, also those inside of context managers."""
        ahead = [(one, 0) for one in self._held(frame)]
        while ahead:
            scope, depth = ahead.pop(0)
            yield scope
            with contextlib.suppress(UnreadableMemory):
                if depth < MAX_SCOPES and self._objects.is_a(scope, *GENERATED):
                    inner = self._frames.suspended(self._objects.attribute(scope, "gen"))
                    ahead[:0] = [(one, depth + 1) for one in self._held(inner)] if inner else []
                elif self._objects.is_a(scope, GROUP):
                    group = self._objects.attributes(scope).get("cancel_scope")
                    ahead[:0] = [(group, depth + 1)] if group and depth < MAX_SCOPES else []

    def _held(self, frame: MemoryFrame) -> list[int]:
        with contextlib.suppress(UnreadableMemory):
            return list(self._frames.held(frame))[::-1]
        return []

    def _deadline_of(self, scope: int) -> tuple[float, str] | None:
        """The deadline of a scope by ``time.monotonic()``, with the name of its kind; None without one."""
        address, name = 0, ""
        if self._objects.is_a(scope, SCOPE):
            address, name = self._objects.slots(scope).get("_deadline", 0), "anyio.CancelScope"
        elif self._objects.is_a(scope, TIMEOUT):
            fields = self._objects.slots(scope) or self._objects.attributes(scope)
            address, name = fields.get("_when") or fields.get("_deadline") or 0, "asyncio.timeout"
        at_s = self._objects.number(address) if self._objects.is_a(address, "int", "float") else None
        return (at_s, name) if at_s is not None and math.isfinite(at_s) else None

    def _is_shielded(self, scope: int) -> bool:
        is_scope = self._objects.is_a(scope, SCOPE)
        return is_scope and self._objects.truth(self._objects.slots(scope).get("_shield", 0)) is True

    # Task groups

    def group_members(self, frames: Iterable[MemoryFrame]) -> set[int]:
        """The tasks of the task groups, of asyncio and anyio, whose ``with`` blocks these frames are in."""
        found: set[int] = set()
        for frame in frames:
            for group in self._held(frame):
                if self._objects.is_a(group, GROUP):
                    with contextlib.suppress(UnreadableMemory):
                        found.update(self._objects.set_items(self._objects.attribute(group, "_tasks")))
        return found


def timer_of_thread(process: PythonProcess, frames: Sequence[MemoryFrame]) -> Timer | None:
    """What a thread will call that only waits for its time: a ``threading.Timer``, or a ``sched.scheduler``.

    The time is the whole one of a timer, as the remaining one is not known, and None for a scheduler.
    """
    with contextlib.suppress(UnreadableMemory):
        for frame in frames[-OUTERMOST:]:
            if is_in(frame, THREADING, "run") and process.objects.is_kind_of(frame.local("self") or 0, THREAD_TIMER):
                fields = process.objects.attributes(frame.local("self") or 0)
                interval = process.objects.number(fields.get("interval", 0))
                return Callbacks(process).timer(fields.get("function", 0), interval)
        for frame in frames[:INNERMOST]:
            if is_in(frame, SCHEDULER, "run"):
                timers = [Callbacks(process).timer(one, None) for one in _scheduled(process, frame)]
                return next((one for one in timers if one and one.stops), timers[0] if timers else None)
    return None


def _scheduled(process: PythonProcess, frame: MemoryFrame) -> list[int]:
    """The functions that a ``sched.scheduler`` will call, the next one first."""
    objects = process.objects
    events = objects.items(objects.attribute(frame.local("self") or 0, "_queue"), MAX_CALLED)
    return [objects.memory.pointer(event + objects.layout.tuple_items + 8 * ACTION) for event in events]


def _left_s(at_s: float) -> float:
    return round(max(0.0, at_s - time.monotonic()), 1)
