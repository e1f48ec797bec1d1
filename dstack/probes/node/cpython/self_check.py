"""Checks that a layout is that of this interpreter: the reader's own objects, whose content it knows, are read by it.

A patched build of CPython may have other structs than the releases from which the table was made. The memory of its
processes must not be interpreted.
"""

from __future__ import annotations

import _queue
import _thread
import contextlib
import contextvars
import sys
import threading
import types
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

from dstack.probes.node.cpython.layouts import CPythonLayout
from dstack.probes.node.cpython.memory import ProcessMemory, UnreadableMemory
from dstack.probes.node.cpython.memory_frames import FRAME_OF_OBJECT, Frames
from dstack.probes.node.cpython.objects import Objects

FINISHED = 2
"""The state of a future with a result."""
CANCELS = 3
STACK_SIZE = 1234
ATTEMPTS = 3
"""A thread that ends while the list of threads is read takes its part of the list with it."""
MAX_CALLS = 10
"""More than the calls by which one word is read."""

Comparison = tuple[str, object, object]
"""The name of a field, what was read by it, and what it must be."""


def require_own_layout(memory: ProcessMemory, layout: CPythonLayout, runtime: int) -> None:
    """Raise :class:`UnreadableMemory` unless this layout is that of the reader's own interpreter.

    ``memory`` is the reader's own, without kept pages: the thread that reads it is one of those that are read.
    """
    for _ in range(ATTEMPTS):
        wrong = _what_is_wrong(memory, layout, runtime)
        if not wrong:
            return
    raise UnreadableMemory(f"the memory layout of dstack's Python is not as expected: {wrong}")


def _what_is_wrong(memory: ProcessMemory, layout: CPythonLayout, runtime: int) -> str:
    """The first field that is not as expected, or why it cannot be read; empty if all are as expected."""
    try:
        with KnownObjects() as known:
            comparisons = SelfCheck(memory, layout, runtime).comparisons(known)
            return next((name for name, found, expected in comparisons if found != expected), "")
    except (ImportError, UnreadableMemory) as error:
        return str(error)


class _EventLoop:
    """What a future or task needs of its event loop, which never runs it."""

    def get_debug(self) -> bool:
        return False

    def call_soon(self, *_: object, **__: object) -> None:
        pass


class _Attributed:
    def __init__(self, value: object) -> None:
        self.an_attribute = value


class _Pausing:
    """Has a coroutine whose qualified name differs from its plain one."""

    @staticmethod
    async def pause(first: object, second: object) -> None:
        await _pause()


@types.coroutine
def _pause() -> Generator[None, None, None]:
    yield


async def _asynchronous_generator() -> AsyncIterator[None]:
    yield


def _closure(enclosed: object) -> Callable[[], object]:
    return lambda: enclosed


class KnownObjects:
    """One object of each kind whose fields dstack reads; C types only, whatever the program has replaced."""

    def __init__(self) -> None:
        import _asyncio  # a build without it is unreadable, and no failed import

        self.markers = object(), object()
        self.function: Any = _closure(self.markers[0])
        self.attributed = _Attributed(self.markers[0])
        self.code = _Pausing.pause.__code__.replace(co_stacksize=STACK_SIZE)
        self.suspended: Any = _Pausing.pause(*self.markers)
        self.created: Any = _Pausing.pause(*self.markers)
        self.generator: Any = _asynchronous_generator()
        self.sending: Any = self.generator.__anext__()
        make_future: Any = _asyncio.Future
        make_task: Any = _asyncio.Task
        self.loop = _EventLoop()
        self.future = make_future(loop=self.loop)
        self.finished = make_future(loop=self.loop)
        self.variable: contextvars.ContextVar[object] = contextvars.ContextVar("dstack-known")
        self.context = contextvars.Context()
        self.context.run(self.variable.set, self.markers[0])
        self.task: Any = self.context.run(make_task, self.created, loop=self.loop, name="dstack-known")
        self.rlock = _thread.RLock()
        self.queue: Any = _queue.SimpleQueue()

    def __enter__(self) -> KnownObjects:
        self.suspended.send(None)
        self.future.add_done_callback(self.function)
        self.future.add_done_callback(self.function)
        self.finished.set_result(None)
        self.task._log_destroy_pending = False
        for _ in range(CANCELS):
            self.task.cancel()
        self.rlock.acquire()
        self.queue.put(self.markers[0])
        return self

    def __exit__(self, *_: object) -> None:
        self.rlock.release()
        for coroutine in (self.suspended, self.created, self.sending):
            coroutine.close()
        with contextlib.suppress(StopIteration):  # else the event loop of this thread, if it has one, would close it
            self.generator.aclose().send(None)

    def references(self) -> Iterator[tuple[str, object, object]]:
        """The fields that refer to what Python itself gives: a field, the object that has it, the object there."""
        code = self.suspended.cr_code
        yield "code_file", code, code.co_filename
        yield "code_function", code, code.co_name
        yield "code_lines", code, code.co_linetable
        if sys.version_info >= (3, 11):
            yield "code_qualname", code, code.co_qualname
            yield "code_exceptions", code, code.co_exceptiontable
        yield "function_code", self.function, self.function.__code__
        yield "function_closure", self.function, self.function.__closure__
        yield "function_qualname", self.function, self.function.__qualname__
        yield "generator_qualname", self.suspended, self.suspended.__qualname__
        yield "send_generator", self.sending, self.generator
        yield "wrapper_coroutine", self.created.__await__(), self.created
        yield "iterator_future", self.future.__await__(), self.future
        yield "future_loop", self.future, self.loop
        yield "future_callback", self.future, self.function
        yield "task_coroutine", self.task, self.created
        yield "task_name", self.task, self.task.get_name()
        yield "variable_name", self.variable, self.variable.name


class SelfCheck:
    """Reads the known objects, and this thread, by the layout."""

    def __init__(self, memory: ProcessMemory, layout: CPythonLayout, runtime: int) -> None:
        self._memory = memory
        self._layout = layout
        self._objects = Objects(memory, layout)
        self._frames = Frames(self._objects, runtime)

    def comparisons(self, known: KnownObjects) -> Iterator[Comparison]:
        """What each field is in memory and what it must be, beginning with what the others build on."""
        state = self._frames.threads.get(threading.get_ident(), 0)
        yield "thread_frame", self._runs(state, sys._getframe()), True
        yield "interpreter_modules", self._at(self._frames.interpreter, "interpreter_modules"), id(sys.modules)
        for field, whole, part in known.references():
            yield field, self._at(id(whole), field), id(part)
        yield from self._coroutines(known)
        yield from self._asyncio(known, state)
        yield "cached_keys", self._objects.attribute(id(known.attributed), "an_attribute"), id(known.markers[0])
        yield "rlock_owner", self._at(id(known.rlock), "rlock_owner"), threading.get_ident()
        yield "queue_items", self._first_item(known), id(known.markers[0])

    def _at(self, address: int, field: str) -> int:
        return self._memory.pointer(address + getattr(self._layout, field))

    def _runs(self, state: int, frame: types.FrameType) -> bool:
        """Whether this thread's state leads to this frame of it.

        Every word is read by the same calls, whose own frames are at the same addresses each time.
        """
        expected = id(frame) if self._layout.version == (3, 10) else self._memory.pointer(id(frame) + FRAME_OF_OBJECT)
        address = state
        for offset in self._layout.thread_frame:
            address = self._memory.pointer(address + offset)
        for _ in range(MAX_CALLS):
            if address == expected:
                return True
            address = self._memory.pointer(address + self._layout.frame_previous)
        return False

    def _coroutines(self, known: KnownObjects) -> Iterator[Comparison]:
        code, frame = known.suspended.cr_code, self._frames.suspended(id(known.suspended))
        live = code.co_name, known.suspended.cr_frame.f_lasti, *map(id, (*known.markers, known.suspended.cr_await))
        read = frame and (frame.function, frame.instruction, *frame.locals, frame.awaited)
        yield "generator_frame", read, live
        yield "frame_globals", frame and frame.globals, id(globals())
        yield "generator_state", self._frames.suspended(id(known.created)), None
        created = self._frames.suspended(id(known.created), or_created=True)
        yield "created_state", created and created.line, code.co_firstlineno
        yield "code_stack_size", self._frames.codes.stack_size(self._frames.codes.code(id(known.code))), STACK_SIZE

    def _asyncio(self, known: KnownObjects, state: int) -> Iterator[Comparison]:
        context = self._at(id(known.task), "task_context")
        yield "future_callbacks", self._objects.type_name(self._at(id(known.future), "future_callbacks")), "list"
        yield "future_state", self._memory.int32(id(known.finished) + self._layout.future_state), FINISHED
        yield "task_context", self._objects.type_name(context), self._objects.type_name(id(known.context))
        yield "context_variables", self._objects.type_name(self._at(context, "context_variables")), "hamt"
        if self._layout.task_cancels:
            yield "task_cancels", self._memory.int32(id(known.task) + self._layout.task_cancels), CANCELS
        if lists := self._layout.task_lists:  # the head of its thread's list comes after the last task
            yield "task_lists", self._memory.pointer(id(known.task) + lists.task_node), state + lists.thread_tasks

    def _first_item(self, known: KnownObjects) -> int:
        items = self._at(id(known.queue), "queue_items")
        return self._objects.items(items)[0] if self._objects.is_a(items, "list") else self._memory.pointer(items)
