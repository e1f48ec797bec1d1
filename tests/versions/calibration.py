"""The layout of the interpreter that runs this, derived from its own objects: ``python -m tests.versions.calibration``.

It prints the interpreter's column of :class:`dstack.probes.node.cpython.layouts.CPythonLayout`, a line for each field.
With ``--add`` it also writes the column behind those of the table. The memory of objects with known content, and of a
thread that waits in a known frame, is searched for that content. Memory is read through the kernel only: following a
word that is no pointer must not crash the reader. The interpreter needs no installed packages.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import ctypes
import importlib.util
import os
import platform
import struct
import sys
import threading
import time
import types
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

if not importlib.util.find_spec("msgspec"):  # only to import what travels with the probe
    sys.modules["msgspec"] = types.ModuleType("msgspec")
    sys.modules["msgspec"].Meta = lambda **_: None  # type: ignore[attr-defined]
if not importlib.util.find_spec("psutil"):
    sys.modules["psutil"] = types.ModuleType("psutil")

from dstack.probes.node.cpython import layouts
from dstack.probes.node.cpython.layouts import BEHIND_MUTEXES, LAYOUTS, OWN_VERSION, CPythonLayout, TaskLists
from dstack.probes.node.cpython.memory import ProcessMemory, UnreadableMemory, open_memory
from dstack.probes.node.cpython.memory_frames import BLOCK_STACK_BYTES, FRAME_OF_OBJECT, STATE_3_10
from dstack.probes.node.cpython.objects import Objects, reference
from dstack.probes.node.cpython.python_process import runtime_address
from dstack.probes.node.cpython.self_check import KnownObjects

HEAD = 16
"""An object's reference count and type: no field that is searched for is there."""
RUNTIME_BYTES, INTERPRETER_BYTES, THREAD_BYTES = 1 << 16, 1 << 18, 1 << 11
FRAME_BYTES, BETWEEN_BYTES, GENERATOR_BYTES = 80, 32, 160
TYPE_BYTES, HEAP_TYPE_BYTES = 400, 1024
"""A type that a program makes has further fields after those of every type."""
MAX_AFTER_AWAITED = 3
"""The words that may follow what a suspended frame awaits."""
MAX_STATE = 8
"""The state of a generator is a small number."""
NEXT, PREVIOUS = 0, 8
"""The words of a node of a list of tasks."""
START_S = 60.0
TABLE = Path(layouts.__file__)


def main() -> None:
    layout = calibrate()
    print(f"Python {platform.python_version()}")
    for field in fields(layout):
        print(f"{field.name}: {getattr(layout, field.name)!r}")
    if "--add" in sys.argv:
        TABLE.write_text(with_column(TABLE.read_text(), layout))


def with_column(source: str, layout: CPythonLayout) -> str:
    """The text of the table's module with one more value at the end of each row."""
    lines = source.splitlines(keepends=True)
    for row in [one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.AnnAssign)]:
        if isinstance(row.value, ast.Call) and ast.unparse(row.value.func) == "row":
            last = row.value.args[-1]
            line, at = (last.end_lineno or 0) - 1, last.end_col_offset or 0
            lines[line] = f"{lines[line][:at]}, {getattr(layout, ast.unparse(row.target))!r}{lines[line][at:]}"
    return "".join(lines)


def calibrate() -> CPythonLayout:
    """The layout of this interpreter. Fails where something is not found, as with ``LookupError`` or ``ValueError``."""
    with open_memory(os.getpid()) as memory, KnownObjects() as known, WaitingThread() as thread:
        return Calibration(memory, known, thread).layout()


def api(name: str, *arguments: int) -> int:
    """What a C function of CPython returns that takes pointers and returns one; called with the GIL."""
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, *[ctypes.c_void_p for _ in arguments])
    return int(prototype((name, ctypes.pythonapi))(*arguments) or 0)


class WaitingThread:
    """A thread that waits for a lock in a frame with known content."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.markers = (object(), object())
        self.state = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> WaitingThread:
        self.gate.acquire()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.release()
        self._thread.join()

    def _run(self) -> None:
        self.state = api("PyThreadState_Get")
        first, second = self.markers
        self._wait(first, second)  # a plain call: on 3.12 and 3.13 any other kind has a frame of C in between

    def _wait(self, first: object, second: object) -> None:
        self.gate.acquire()

    @property
    def ident(self) -> int:
        """The thread's id as Python has it, which is its pthread."""
        assert self._thread.ident is not None
        return self._thread.ident

    def frame(self) -> types.FrameType:
        """The frame of ``_wait``, once it waits there."""
        end, before = time.monotonic() + START_S, -1
        while time.monotonic() < end:
            frame = sys._current_frames().get(self.ident)
            if frame is not None and frame.f_code is WaitingThread._wait.__code__:
                if frame.f_lasti == before:
                    return frame
                before = frame.f_lasti
            time.sleep(0.001)
        raise LookupError("the thread does not wait")


class Calibration:
    """The search for the layout."""

    def __init__(self, memory: ProcessMemory, known: KnownObjects, thread: WaitingThread) -> None:
        self._memory = memory
        self._known = known
        self._thread = thread
        self._frame = thread.frame()
        self._code = self._frame.f_code
        self._leaf = self._address_of(self._frame)
        self._interpreter = api("PyInterpreterState_Head")
        newest = LAYOUTS.get(OWN_VERSION) or next(reversed(LAYOUTS.values()))
        one = object()
        self._assumed = replace(
            newest,  # what a search needs for other objects
            version=OWN_VERSION,
            tuple_items=self._in((one,), one, sys.getsizeof((one,))),
            text_headers=(sys.getsizeof("a") - 2, sys.getsizeof("\u0101") - 4),
        )
        self._objects = Objects(memory, self._assumed)

    def layout(self) -> CPythonLayout:
        """The whole layout."""
        found: dict[str, Any] = {name: self._in(whole, part) for name, whole, part in self._known.references()}
        found |= (
            self._threads() | self._frames() | self._codes() | self._generators() | self._asyncio() | self._others()
        )
        return replace(self._assumed, **found)

    # Searches

    def _find(self, address: int, size: int, value: int) -> int:
        """The offset of the word among these bytes that has this value."""
        return 8 * self._memory.mapped_words(address, size).index(value)

    def _in(self, whole: object, part: object, size: int = 0) -> int:
        """The offset in an object of its pointer to another one, which is not its type."""
        return HEAD + self._find(id(whole) + HEAD, (size or type(whole).__basicsize__) - HEAD, id(part))

    def _references(self, address: int, size: int) -> tuple[int, ...]:
        """The words of a frame, those that are references without their flags."""
        return tuple(map(reference, self._memory.mapped_words(address, size)))

    def _number_in(self, copies: Mapping[int, object]) -> int:
        """The offset of a 32-bit number in objects of one type that differ in it; the keys are its values."""
        count = min(type(one).__basicsize__ for one in copies.values()) // 4
        rows = [struct.unpack(f"<{count}i", self._memory.read(id(one), 4 * count)) for one in copies.values()]
        return 4 * list(zip(*rows, strict=True)).index(tuple(copies), HEAD // 4)

    # The interpreter, threads, frames and code

    def _threads(self) -> dict[str, Any]:
        first, state = api("PyInterpreterState_ThreadHead", self._interpreter), self._thread.state
        return {
            "runtime_interpreter": self._find(runtime_address(), RUNTIME_BYTES, self._interpreter),
            "interpreter_threads": self._find(self._interpreter, INTERPRETER_BYTES, first),
            "interpreter_modules": self._find(self._interpreter, INTERPRETER_BYTES, id(sys.modules)),
            "thread_next": self._find(state, THREAD_BYTES, api("PyThreadState_Next", state)),
            "thread_id": self._find(state, THREAD_BYTES, self._thread.ident),
            "thread_frame": self._path(state),
        }

    def _path(self, state: int) -> tuple[int, ...]:
        """The offsets from a thread state to its leaf frame: one, or two through a struct (3.11 and 3.12).

        The search may go beyond the end of the thread state, where anything can be, also the address of this frame.
        The right place comes before that.
        """
        words = self._memory.mapped_words(state, THREAD_BYTES)
        if OWN_VERSION not in ((3, 11), (3, 12)):
            return (8 * words.index(self._leaf),)
        for index, pointer in enumerate(words):
            between = self._memory.mapped_words(pointer, BETWEEN_BYTES)
            if self._leaf in between:
                return 8 * index, 8 * between.index(self._leaf)
        raise LookupError("a thread does not lead to its frame")

    def _address_of(self, frame: types.FrameType | None) -> int:
        """The address of a frame: of the frame object on 3.10, later of what the frame object points to."""
        return id(frame) if OWN_VERSION == (3, 10) else self._memory.pointer(id(frame) + FRAME_OF_OBJECT)

    def _frames(self) -> dict[str, Any]:
        words = self._references(self._leaf, FRAME_BYTES + 8 * 64)
        wanted = (id(self._thread), *map(id, self._thread.markers))
        return {
            "frame_previous": self._find(self._leaf, FRAME_BYTES, self._address_of(self._frame.f_back)),
            "frame_code": 8 * words.index(id(self._code)),
            "frame_globals": 8 * words.index(id(self._frame.f_globals)),
            "frame_instruction": self._instruction(),
            "frame_locals": 8 * next(i for i in range(len(words)) if words[i : i + 3] == wanted),
        }

    def _instruction(self) -> int:
        """The offset of the current instruction: on 3.10 a number, later an address."""
        if OWN_VERSION >= (3, 11):
            start = id(self._code) + type(self._code).__basicsize__
            return self._find(self._leaf, FRAME_BYTES, start + self._frame.f_lasti)
        numbers = struct.unpack("<40i", self._memory.read(self._leaf, 160))
        return 4 * numbers.index(self._frame.f_lasti // 2, 4)

    def _codes(self) -> dict[str, Any]:
        code = self._code
        by_size = {value: code.replace(co_stacksize=value) for value in (12345, 23456)}
        by_line = {value: code.replace(co_firstlineno=value) for value in (1234567, 7654321)}
        is_3_10 = OWN_VERSION == (3, 10)
        return {
            "code_names": self._names(),
            "code_first_line": self._number_in(by_line),
            "code_stack_size": self._number_in(by_size),
            "code_start": self._in(code, code.co_code) if is_3_10 else type(code).__basicsize__,
        }

    def _names(self) -> tuple[int, ...]:
        """The tuples of names whose lengths together are the number of a frame's locals."""
        code = with_all_kinds_of_names("argument").__code__
        if OWN_VERSION == (3, 10):
            return tuple(self._in(code, names) for names in (code.co_varnames, code.co_cellvars, code.co_freevars))
        wanted = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        for index, pointer in enumerate(self._memory.mapped_words(id(code), type(code).__basicsize__)):
            if self._objects.is_a(pointer, "tuple") and pointer != id(code.co_consts):
                items = self._objects.items(pointer)
                are_texts = all(self._objects.is_a(item, "str") for item in items)
                if are_texts and set(map(self._objects.text, items)) == wanted:
                    return (8 * index,)
        raise LookupError("the names of locals")

    # Generators

    def _generators(self) -> dict[str, Any]:
        suspended = self._known.suspended
        if OWN_VERSION == (3, 10):
            frame = {"generator_frame": self._in(suspended, suspended.cr_frame)}
            return {**frame, "awaited_from_top": 1, **self._of_frame_3_10()}
        code = self._frames()["frame_code"]
        words = self._references(id(suspended), GENERATOR_BYTES)
        frame = 8 * (len(words) - 1 - words[::-1].index(id(suspended.cr_code))) - code
        return {
            "generator_frame": frame,
            **self._generator_states(frame),
            **self._stack_top(id(suspended) + frame),
        }

    def _generator_states(self, frame: int) -> dict[str, Any]:
        """The last byte before the frame that changes when one is suspended, and its values."""

        def read(generator: Any) -> tuple[int, ...]:
            return struct.unpack(f"<{frame}b", self._memory.read(id(generator), frame))

        yielding = iter_once()
        fresh = read(yielding)
        next(yielding)
        suspended = read(yielding)
        at = next(at for at in reversed(range(frame)) if fresh[at] != suspended[at] and abs(fresh[at]) < MAX_STATE)
        return {
            "generator_state": at,
            "created_state": fresh[at],
            "suspended_states": tuple(dict.fromkeys((suspended[at], read(self._known.suspended)[at]))),
        }

    def _stack_top(self, frame: int) -> dict[str, int]:
        """The number of words in use, of locals and stack, from 3.14 on a pointer behind them; and what is awaited."""
        words = self._references(frame, GENERATOR_BYTES)
        first, end = self._in_use(words)
        if OWN_VERSION >= (3, 14):
            ends = {frame + 8 * (end + after): 1 + after for after in range(MAX_AFTER_AWAITED)}
            at, top = next((at, word) for at, word in enumerate(self._memory.pointers(frame, first)) if word in ends)
            return {"frame_stack_top": 8 * at, "awaited_from_top": ends[top]}
        numbers = struct.unpack(f"<{2 * first}i", self._memory.read(frame, 8 * first))
        top = max(at for at in range(2 * first) if numbers[at] == end - first)
        return {"frame_stack_top": 4 * top, "awaited_from_top": 1}

    def _in_use(self, words: tuple[int, ...]) -> tuple[int, int]:
        """The index of the first local, and that behind what the coroutine awaits, the last word of its stack."""
        wanted = tuple(map(id, self._known.markers))
        first = next(at for at in range(len(words)) if words[at : at + 2] == wanted)
        return first, words.index(id(self._known.suspended.cr_await), first) + 1

    def _of_frame_3_10(self) -> dict[str, Any]:
        """Of the stack alone; it comes after the pointers to where the stack begins, and to what traces the frame."""
        frame = self._known.suspended.cr_frame
        words = self._references(id(frame), sys.getsizeof(frame))
        first, end = self._in_use(words)
        depth = words.index(id(frame) + 8 * (first + 2), 0, first) + 2
        number = self._memory.int32(id(frame) + 8 * depth)
        state = self._memory.read(id(frame) + 8 * first - BLOCK_STACK_BYTES - STATE_3_10, 1)
        if (number, state) != (end - first - 2, b"\xff"):
            raise LookupError("the depth of a frame's stack")
        return {"frame_stack_top": 8 * depth}

    # asyncio

    def _asyncio(self) -> dict[str, Any]:
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(self._tasks(loop))
        finally:
            loop.close()

    async def _tasks(self, loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
        future: asyncio.Future[None] = loop.create_future()
        states = {0: future, 1: loop.create_future(), 2: loop.create_future()}
        states[1].cancel()
        states[2].set_result(None)
        async with waiting_task(future) as task:
            found: dict[str, Any] = {
                "future_callbacks": self._further_callbacks(),
                "future_state": self._number_in(states),
                "task_waiter": self._in(task, future),
                **self._context(),
            }
            if OWN_VERSION >= (3, 11):
                found["task_cancels"] = await self._cancels(loop)
            if OWN_VERSION >= (3, 14):
                found["task_lists"] = await self._task_lists(loop)
            return found

    def _further_callbacks(self) -> int:
        """The offset of the list of callbacks after the first."""
        words = self._memory.mapped_words(id(self._known.future), type(self._known.future).__basicsize__)
        return 8 * next(at for at in range(2, len(words)) if self._objects.is_a(words[at], "list"))

    async def _cancels(self, loop: asyncio.AbstractEventLoop) -> int:
        tasks = {count: loop.create_task(asyncio.sleep(0)) for count in (0, 37, 41)}
        for count, task in tasks.items():
            for _ in range(count):
                task.cancel()
        found = self._number_in(tasks)
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        return found

    def _context(self) -> dict[str, int]:
        """The offsets of a task's context, and of a context's variables: of a context with a single, known variable."""
        context = type(self._known.context)
        words = self._memory.mapped_words(id(self._known.task), type(self._known.task).__basicsize__)
        at = next(at for at in range(2, len(words)) if self._is_of(words[at], context))
        for inner, variables in enumerate(self._memory.mapped_words(words[at], context.__basicsize__)):
            roots = self._memory.mapped_words(variables, 24)[2:] if inner > 1 else ()
            if any(id(self._known.markers[0]) in self._memory.mapped_words(root, 64) for root in roots):
                return {"task_context": 8 * at, "context_variables": 8 * inner}
        raise LookupError("the variables of a context")

    def _is_of(self, address: int, kind: type) -> bool:
        return bool(address) and self._memory.mapped_words(address, 16)[1:2] == (id(kind),)

    async def _task_lists(self, loop: asyncio.AbstractEventLoop) -> TaskLists:
        thread = api("PyThreadState_Get")
        first, second = (loop.create_task(asyncio.sleep(0)) for _ in range(2))
        node = self._node(first, second)
        found = TaskLists(
            task_node=node,
            thread_tasks=self._head(thread, THREAD_BYTES, id(second) + node),
            thread_loop=self._find(thread, THREAD_BYTES, id(loop)),
            thread_task=self._find(thread, THREAD_BYTES, id(asyncio.current_task())),
            interpreter_tasks=await self._list_of_ended_thread(loop, node) - BEHIND_MUTEXES[platform.machine()],
        )
        await asyncio.gather(first, second)
        return found

    def _node(self, first: asyncio.Task[None], second: asyncio.Task[None]) -> int:
        """The offset of the node in a task: it points to that of the task made next, and that one points back."""
        for offset in range(HEAD, type(first).__basicsize__ - PREVIOUS, 8):
            after = self._memory.pointer(id(first) + offset + NEXT)
            before = self._memory.pointer(id(second) + offset + PREVIOUS)
            if (after, before) == (id(second) + offset, id(first) + offset):
                return offset
        raise LookupError("a task is in no list")

    def _head(self, address: int, size: int, last: int) -> int:
        """The offset of a list's head among these bytes, given its last node."""
        following = self._memory.pointer(last + NEXT)
        if address <= following < address + size and self._memory.pointer(following + PREVIOUS) == last:
            return following - address
        raise LookupError("a list of tasks does not end at its head")

    async def _list_of_ended_thread(self, loop: asyncio.AbstractEventLoop, node: int) -> int:
        """The offset of the interpreter's list, to which tasks move when the thread that made them ends."""
        tasks: list[asyncio.Task[None]] = []
        thread = threading.Thread(target=lambda: tasks.append(asyncio.Task(asyncio.sleep(0), loop=loop)))
        thread.start()
        thread.join()
        try:
            return self._head(self._interpreter, INTERPRETER_BYTES, id(tasks[0]) + node)
        finally:
            await asyncio.gather(*tasks)

    # Other objects

    def _others(self) -> dict[str, Any]:
        rlock = self._known.rlock
        return {
            "cached_keys": self._cached_keys() if OWN_VERSION >= (3, 11) else None,
            "rlock_owner": self._find(id(rlock), type(rlock).__basicsize__, threading.get_ident()),
            "queue_items": self._queue_items(),
        }

    def _cached_keys(self) -> int:
        """The offset in a type by which the attributes of an instance are found, with their names."""
        expected = {name: id(value) for name, value in vars(Attributed()).items()}
        return next(at for at in range(TYPE_BYTES, HEAP_TYPE_BYTES, 8) if self._attributes(at) == expected)

    def _attributes(self, cached_keys: int) -> dict[str, int]:
        one = Attributed()
        with contextlib.suppress(UnreadableMemory):
            return Objects(self._memory, replace(self._assumed, cached_keys=cached_keys)).attributes(id(one))
        return {}

    def _queue_items(self) -> int:
        """A SimpleQueue's list, or from 3.13 on its array, which the capacity follows."""
        words = self._memory.mapped_words(id(self._known.queue), type(self._known.queue).__basicsize__)
        item = (id(self._known.markers[0]),)
        for index, pointer in enumerate(words[2:], 2):
            is_list = self._objects.is_a(pointer, "list")
            if (self._objects.items(pointer) if is_list else self._memory.mapped_words(pointer, 8)) == item:
                return 8 * index
        raise LookupError("the items of a SimpleQueue")


class Attributed:
    """An object whose attribute has a name that no other object uses."""

    def __init__(self) -> None:
        self.first_of_its_names = True


def with_all_kinds_of_names(argument: object) -> Callable[[], object]:
    cell = argument

    def inner(local: object = None) -> object:
        kept = cell
        return lambda: (kept, local)

    return inner


def iter_once() -> Iterator[None]:
    yield


@contextlib.asynccontextmanager
async def waiting_task(future: asyncio.Future[None]) -> AsyncIterator[asyncio.Task[None]]:
    """A task that awaits the future, which has a result at the end."""

    async def wait() -> None:
        await future

    task = asyncio.get_running_loop().create_task(wait())
    await asyncio.sleep(0)
    yield task
    future.set_result(None)
    await task


if __name__ == "__main__":
    main()
