"""Offsets of this interpreter for asyncio: in coroutines, futures, tasks, functions and contexts.

Calibrated as in :mod:`dstack.probes.node.cpython.layout`: the bytes of objects with known content are searched for it.
A task that awaits a future needs an event loop. That gets a thread of its own, since the reader's thread may already
run one.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import struct
import sys
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dstack.probes.node.cpython.calibration import Search
from dstack.probes.node.cpython.memory import ProcessMemory
from dstack.probes.node.cpython.objects import OWN_VERSION
from dstack.probes.node.cpython.task_lists import TaskLists, calibrate_task_lists

INTERPRETER_BYTES = 1 << 17
GENERATOR_BYTES = 160
SUSPENDED_STATES = {(3, 10): (-1,), (3, 11): (-1,), (3, 12): (-1,), (3, 13): (-2, -1), (3, 14): (-2, -1)}
"""States of a generator's frame that has begun and is suspended; the last one if it awaits or yields from."""
CREATED = {(3, 10): -2, (3, 11): -2, (3, 12): -2, (3, 13): -3, (3, 14): -3}


@dataclass(frozen=True)
class CoroutineLayout:
    """Offsets in bytes. A generator here is any of generator, coroutine and asynchronous generator.

    At ``generator_frame`` is a pointer to its frame on 3.10, the frame itself later. ``generator_state`` is None on
    3.10, where the frame has the state, and so is ``code_qualname``, which 3.10 lacks. At ``frame_stack_top`` is the
    number of words in use, or from 3.14 on a pointer behind them. ``task_lists`` are None before 3.14. From 3.11 on,
    at ``task_cancels`` is how often a task was asked to be cancelled.
    """

    interpreter_modules: int
    generator_frame: int
    generator_state: int | None
    generator_qualname: int
    frame_stack_top: int
    code_first_line: int
    code_lines: int
    code_qualname: int | None
    function_code: int
    function_closure: int
    function_qualname: int
    send_generator: int
    wrapper_coroutine: int
    iterator_future: int
    future_loop: int
    future_callback: int
    future_callbacks: int
    future_state: int
    task_waiter: int
    task_coroutine: int
    task_name: int
    task_context: int
    context_variables: int
    variable_name: int
    task_lists: TaskLists | None = None
    task_cancels: int | None = None


def calibrate_coroutines(memory: ProcessMemory, interpreter: int, frame_code: int) -> CoroutineLayout:
    """The layout of this interpreter. Raises ``LookupError`` or ``ValueError`` where it is not as expected."""
    with ThreadPoolExecutor(1, thread_name_prefix="dstack-specimen") as pool:
        return pool.submit(_calibrate, memory, interpreter, frame_code).result()


def _calibrate(memory: ProcessMemory, interpreter: int, frame_code: int) -> CoroutineLayout:
    with _specimen() as specimen:
        return Calibration(memory, specimen, frame_code).layout(interpreter)


class Marked:
    """An object without any other reference."""


@dataclass(frozen=True)
class Specimen:
    """A task that awaits a future, with its loop, coroutine, context variable and locals."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]
    task: asyncio.Task[None]
    coroutine: Coroutine[Any, Any, None]
    variable: contextvars.ContextVar[object]
    markers: tuple[Marked, Marked]


@contextlib.contextmanager
def _specimen() -> Iterator[Specimen]:
    loop = asyncio.SelectorEventLoop()
    future: asyncio.Future[None] = loop.create_future()
    variable: contextvars.ContextVar[object] = contextvars.ContextVar("dstack-specimen")
    markers = Marked(), Marked()
    coroutine = _wait(future, variable, markers[0])
    task = contextvars.Context().run(loop.create_task, coroutine)
    try:
        _run_what_is_ready(loop)
        yield Specimen(loop, future, task, coroutine, variable, markers)
    finally:
        task.cancel()
        _run_what_is_ready(loop)
        _run_what_is_ready(loop)
        loop.close()


def _run_what_is_ready(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(loop.stop)
    loop.run_forever()


async def _wait(future: asyncio.Future[None], variable: contextvars.ContextVar[object], value: Marked) -> None:
    variable.set(value)
    with contextlib.suppress(asyncio.CancelledError):
        await future


async def _sleep() -> None:
    await asyncio.sleep(0)


@types.coroutine
def _pause() -> Generator[None, None, None]:
    yield


class Pausing:
    """Has a coroutine whose qualified name differs from its plain one."""

    @staticmethod
    async def pause(first: Marked, second: Marked) -> None:
        """Has two locals and awaits."""
        await _pause()


async def _asynchronous_generator() -> AsyncIterator[None]:
    yield


class Calibration(Search):
    """The search for the layout. Raises ``LookupError`` or ``ValueError`` where something is not found."""

    def __init__(self, memory: ProcessMemory, specimen: Specimen, frame_code: int) -> None:
        super().__init__(memory)
        self._specimen = specimen
        self._frame_code = frame_code
        self._suspended: Any = Pausing.pause(*specimen.markers)
        self._suspended.send(None)

    def layout(self, interpreter: int) -> CoroutineLayout:
        """The whole layout."""
        try:
            return self._layout(interpreter)
        finally:
            self._suspended.close()

    def _layout(self, interpreter: int) -> CoroutineLayout:
        specimen = self._specimen
        code: Any = Pausing.pause.__code__
        closing = _closure()
        frame = self._generator_frame()
        return CoroutineLayout(
            interpreter_modules=self._find(interpreter, INTERPRETER_BYTES, id(sys.modules)),
            generator_frame=frame,
            generator_state=self._generator_state(frame) if OWN_VERSION >= (3, 11) else None,
            generator_qualname=self._in(self._suspended, self._suspended.__qualname__),
            frame_stack_top=self._stack_top(frame),
            code_first_line=self._first_line(),
            code_lines=self._in(code, code.co_linetable),
            code_qualname=self._in(code, code.co_qualname) if OWN_VERSION >= (3, 11) else None,
            function_code=self._in(closing, closing.__code__),
            function_closure=self._in(closing, closing.__closure__),
            function_qualname=self._in(closing, closing.__qualname__),
            send_generator=self._send_generator(),
            wrapper_coroutine=self._wrapper_coroutine(),
            iterator_future=self._iterator_future(),
            future_loop=self._in(specimen.future, specimen.loop),
            **self._callbacks(),
            future_state=self._future_state(),
            task_waiter=self._in(specimen.task, specimen.future),
            task_coroutine=self._in(specimen.task, specimen.coroutine),
            task_name=self._task_name(),
            **self._context(),
            variable_name=self._in(specimen.variable, specimen.variable.name),
            task_lists=calibrate_task_lists(self._memory, interpreter) if OWN_VERSION >= (3, 14) else None,
            task_cancels=self._task_cancels() if OWN_VERSION >= (3, 11) else None,
        )

    def _generator_frame(self) -> int:
        """The offset of the pointer to the frame object on 3.10; later of the frame, derived from that of its code."""
        if OWN_VERSION == (3, 10):
            return self._in(self._suspended, self._suspended.cr_frame)
        words = self._references(id(self._suspended), GENERATOR_BYTES)
        return 8 * (len(words) - 1 - words[::-1].index(id(Pausing.pause.__code__))) - self._frame_code

    def _generator_state(self, frame: int) -> int:
        """The offset of the byte before the frame that differs between a fresh and a suspended coroutine."""
        begun, fresh = self._suspended, Pausing.pause(*self._specimen.markers)
        try:
            seen = [self._memory.read(id(one), frame) for one in (fresh, begun)]
        finally:
            fresh.close()
        expected = CREATED[OWN_VERSION], SUSPENDED_STATES[OWN_VERSION][-1]
        states = [struct.unpack(f"<{frame}b", one) for one in seen]
        return next(at for at in range(frame - 1, 16, -1) if (states[0][at], states[1][at]) == expected)

    def _stack_top(self, frame: int) -> int:
        """The number of words in use: of the stack alone on 3.10, later of locals and stack; a pointer from 3.14 on."""
        awaited = id(self._suspended.cr_await)
        if OWN_VERSION == (3, 10):
            start, size = id(self._suspended.cr_frame), sys.getsizeof(self._suspended.cr_frame)
        else:
            start, size = id(self._suspended) + frame, GENERATOR_BYTES
        words = self._references(start, size)
        first = next(at for at in range(len(words)) if words[at : at + 2] == tuple(map(id, self._specimen.markers)))
        if OWN_VERSION >= (3, 14):
            end = start + 8 * (words.index(awaited, first) + 1)
            return self._find(start, 8 * first, end)
        count = words.index(awaited, first) - first + 1 - (2 if OWN_VERSION == (3, 10) else 0)
        numbers = struct.unpack(f"<{2 * first}i", self._memory.read(start, 8 * first))
        if OWN_VERSION == (3, 10):  # comes after the pointers to where the stack begins, and to what traces the frame
            depth = words.index(start + 8 * (first + 2), 0, first) + 2
            if numbers[2 * depth] != count:
                raise LookupError("the depth of a frame's stack")
            return 8 * depth
        found = [at for at in range(2 * first) if numbers[at] == count]
        return 4 * found[-1]

    def _first_line(self) -> int:
        code = Pausing.pause.__code__
        return self._number_in({value: code.replace(co_firstlineno=value) for value in (1234567, 7654321)})

    def _send_generator(self) -> int:
        generator = _asynchronous_generator()
        sending = generator.__anext__()
        try:
            return self._in(sending, generator)
        finally:
            sending.close()  # type: ignore[attr-defined]  # typed as an Awaitable

    def _wrapper_coroutine(self) -> int:
        coroutine = Pausing.pause(*self._specimen.markers)
        try:
            return self._in(coroutine.__await__(), coroutine)
        finally:
            coroutine.close()

    def _iterator_future(self) -> int:
        iterator = self._specimen.future.__await__()
        return self._in(iterator, self._specimen.future)

    def _callbacks(self) -> dict[str, int]:
        """The offsets of the first callback, and of the list of further ones."""
        future = self._specimen.loop.create_future()
        first, second = (lambda _: None), (lambda _: None)
        future.add_done_callback(first)
        future.add_done_callback(second)
        words = self._memory.mapped_words(id(future), type(future).__basicsize__)
        at = words.index(id(first))
        after = next(i for i in range(at + 1, len(words)) if self._is_list(words[i]))
        return {"future_callback": 8 * at, "future_callbacks": 8 * after}

    def _is_list(self, address: int) -> bool:
        return bool(address) and self._memory.mapped_words(address, 16)[1:2] == (id(list),)

    def _future_state(self) -> int:
        """The offset of the number that is 0 in a pending future, 1 in a cancelled one and 2 in one with a result."""
        futures = [self._specimen.loop.create_future() for _ in range(3)]
        futures[1].cancel()
        futures[2].set_result(None)
        return self._number_in(dict(enumerate(futures)))

    def _task_cancels(self) -> int:
        """The offset of the number of times that a task was asked to be cancelled."""
        tasks = {count: self._specimen.loop.create_task(_sleep()) for count in (0, 37, 41)}
        for count, task in tasks.items():
            for _ in range(count):
                task.cancel()
        try:
            return self._number_in(tasks)
        finally:
            tasks[0].cancel()
            _run_what_is_ready(self._specimen.loop)

    def _task_name(self) -> int:
        self._specimen.task.set_name("the name of a task")
        return self._in(self._specimen.task, self._specimen.task.get_name())

    def _context(self) -> dict[str, int]:
        """The offsets of a task's context and of a context's variables: of a context with a single, known variable."""
        words = self._memory.mapped_words(id(self._specimen.task), type(self._specimen.task).__basicsize__)
        for at, pointer in enumerate(words[2:], 2):
            if self._memory.mapped_words(pointer, 16)[1:2] != (id(contextvars.Context),):
                continue
            for inner, variables in enumerate(self._memory.mapped_words(pointer, contextvars.Context.__basicsize__)):
                if inner > 1 and self._leads_to_value(variables):
                    return {"task_context": 8 * at, "context_variables": 8 * inner}
        raise LookupError("the context of a task")

    def _leads_to_value(self, variables: int) -> bool:
        """Whether it is the map of the known variable: its root refers to the variable's value."""
        roots = self._memory.mapped_words(variables, 24)[2:]
        return any(id(self._specimen.markers[0]) in self._memory.mapped_words(root, 64) for root in roots)


def _closure() -> Callable[[], object]:
    enclosed = Marked()
    return lambda: enclosed
