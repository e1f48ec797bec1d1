"""The frames of threads are read correctly, for any depth and any code."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from dstack.probes.node.cpython.memory import UnreadableMemory, open_memory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.python_process import MemoryThread, PythonProcess
from dstack.probes.node.procfs import proc
from dstack.probes.node.thread_stacks import PythonThread
from tests.processes import wait_until
from tests.unit.support.own_process import own_frames, own_interpreter, own_process


@contextmanager
def sleeping(run: Callable[[Callable[[], object]], object]) -> Iterator[threading.Thread]:
    """A thread that runs this function, which calls its argument to sleep."""
    over = threading.Event()
    thread = threading.Thread(target=lambda: run(over.wait), name="sleeping")
    thread.start()
    try:
        wait_until(lambda: is_asleep(thread), deadline_s=60, what=lambda: "the thread to sleep")
        yield thread
    finally:
        over.set()
        thread.join()


def is_asleep(thread: threading.Thread) -> bool:
    """Whether the thread sleeps on the lock of its Event; a wait for the GIL is short."""
    marks = [proc.scheduler_mark(os.getpid(), thread.native_id or 0) for _ in range(2)]
    call = proc.system_call(os.getpid(), thread.native_id or 0)
    leaf = sys._current_frames().get(thread.ident or 0)
    return marks[0] == marks[1] and call is not None and leaf is not None and leaf.f_code.co_name == "wait"


def frames_of(thread: threading.Thread) -> list[MemoryFrame]:
    with open_memory(os.getpid(), keeps_pages=True) as memory:
        (found,) = [one for one in own_process(memory).threads if one.thread_id == thread.ident]
        assert (found.os_thread_id, found.name) == (thread.native_id, thread.name)
        for frame in found.frames:
            assert frame.locals is not None
        return list(found.frames)


def live_frames(thread: threading.Thread) -> list[FrameType]:
    frames = []
    leaf = sys._current_frames().get(thread.ident or 0)
    while leaf is not None:
        frames.append(leaf)
        leaf = leaf.f_back
    return frames


def shown(frames: list[MemoryFrame]) -> list[tuple[str, str, int]]:
    return [(frame.file, frame.function, frame.line) for frame in frames]


def as_python_gives(thread: threading.Thread) -> list[tuple[str, str, int]]:
    return [(one.f_code.co_filename, one.f_code.co_name, one.f_lineno or 0) for one in live_frames(thread)]


def recursion(sleep: Callable[[], object], depth: int = 300) -> object:
    return recursion(sleep, depth - 1) if depth else sleep()


def through_c(sleep: Callable[[], object], depth: int = 40) -> object:
    """Python called by C, with a frame of C in between on CPython 3.12 and later."""
    return list(map(lambda _: through_c(sleep, depth - 1) if depth else sleep(), [0]))[0]  # noqa: C417, RUF015


def generators(sleep: Callable[[], object], depth: int = 40) -> Any:
    def inner() -> Iterator[object]:
        yield generators(sleep, depth - 1) if depth else sleep()

    def outer() -> Iterator[object]:
        yield from inner()

    return [one for one in outer()]  # noqa: C416


class Größe:
    def __init__(self, sleep: Callable[[], object]) -> None:
        self.__enter__ = sleep
        sleep()

    @property
    def äußere(self) -> object:
        return None


def with_names_of_its_own(sleep: Callable[[], object]) -> object:
    return Größe(sleep)


def compiled(sleep: Callable[[], object]) -> None:
    lines = "\n" * 70_000 + "f = lambda: (\n\n  sleep()\n)\nf()"
    exec(compile(lines, "made up \U0001f980.py", "exec"), {"sleep": sleep})


def with_many_locals(sleep: Callable[[], object]) -> None:
    names = [f"name_{number}" for number in range(3_000)]
    body = "\n ".join([f"{name} = sleep" for name in names])
    made: dict[str, Any] = {}
    exec(f"def many(sleep):\n {body}\n return sleep()", made)
    made["many"](sleep)


SHAPES = [recursion, through_c, generators, with_names_of_its_own, compiled, with_many_locals]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_the_frames_of_a_thread_are_those_that_it_has(shape: Callable[[Callable[[], object]], object]) -> None:
    with sleeping(shape) as thread:
        found = frames_of(thread)

        assert shown(found) == as_python_gives(thread)
        for frame, live in zip(found, live_frames(thread), strict=True):
            assert frame.position.qualified == getattr(live.f_code, "co_qualname", live.f_code.co_name)
            assert frame.code.address == id(live.f_code)


def test_the_locals_of_a_frame_are_the_objects_that_it_has() -> None:
    marker = object()

    def inner(sleep: Callable[[], object], /, first: object, *others: object, **more: object) -> object:
        second = [first]
        if more:
            later = sleep()
        return (second, marker, later)

    with sleeping(lambda sleep: inner(sleep, marker, 1, 2, third=3)) as thread:
        (frame,) = [one for one in frames_of(thread) if one.function == "inner"]
        (live,) = [one for one in live_frames(thread) if one.f_code.co_name == "inner"]
        values = live.f_locals

        assert frame.local("first") == id(marker)
        assert [frame.local(name) for name in ("others", "more", "second")] == [
            id(values[name]) for name in ("others", "more", "second")
        ]
        assert frame.has("second")
        assert not frame.has("later")
        assert not frame.has("of another function")


def test_threads_are_listed_from_their_start_to_their_end() -> None:
    with (
        sleeping(recursion) as first,
        sleeping(recursion) as second,
        open_memory(os.getpid(), keeps_pages=True) as memory,
    ):
        ids = own_frames(memory).threads

    assert {first.ident, second.ident, threading.get_ident()} <= ids.keys()
    with open_memory(os.getpid(), keeps_pages=True) as memory:
        assert not {first.ident, second.ident} & own_frames(memory).threads.keys()


def thread_again(thread: MemoryThread, states: dict[int, int]) -> tuple[MemoryThread, Any]:
    with open_memory(os.getpid(), keeps_pages=True) as memory:
        process = PythonProcess(memory, own_interpreter(), None, [thread.os_thread_id], states)
        return process.thread_again(thread)


def test_an_absent_thread_is_unreadable() -> None:
    with pytest.raises(UnreadableMemory, match="does not know the thread"):
        thread_again(PythonThread(12345, 1, "", []), {})
    with pytest.raises(UnreadableMemory, match="does not know the thread"):
        thread_again(PythonThread(12345, 1, "", []), {12345: id(12345)})


def test_the_frames_of_a_thread_differ_from_those_it_has_later() -> None:
    gate, passed = threading.Event(), threading.Event()

    def run(sleep: Callable[[], object]) -> None:
        gate.wait()
        passed.set()
        sleep()

    thread = threading.Thread(target=lambda: run(over.wait))
    over = threading.Event()
    thread.start()
    try:
        wait_until(lambda: is_asleep(thread), deadline_s=60, what=lambda: "it to sleep")
        with open_memory(os.getpid(), keeps_pages=True) as memory:
            process = own_process(memory)
            (read,) = [one for one in process.threads if one.thread_id == thread.ident]
            steps, states = process.steps(read), process.frames.threads

        for known in (states, {}, {read.thread_id: states[threading.get_ident()]}):  # the last one is of another thread
            assert thread_again(read, known)[1] == steps

        gate.set()
        passed.wait()
        wait_until(lambda: is_asleep(thread), deadline_s=60, what=lambda: "it to sleep again")
        again, steps_again = thread_again(read, states)
        assert steps_again != steps
        assert shown(list(again.frames)) == as_python_gives(thread)
    finally:
        gate.set()
        over.set()
        thread.join()


def test_many_threads_are_read_together_in_few_system_calls() -> None:
    """The number of calls does not grow with the threads or frames."""
    over = threading.Event()
    threads = [threading.Thread(target=lambda: recursion(over.wait, 30)) for _ in range(100)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            wait_until(lambda thread=thread: is_asleep(thread), deadline_s=60, what=lambda: "a thread")  # type: ignore[misc]
        with open_memory(os.getpid(), keeps_pages=True) as memory:
            calls: list[int] = []
            read_spans = memory._read_spans
            memory._read_spans = lambda spans: calls.append(len(spans)) or read_spans(spans)  # type: ignore[method-assign,func-returns-value]
            frames = own_frames(memory)
            states = frames.threads
            listed = len(calls)
            stacks = frames.stacks(frames.chains(states))

        for thread in threads:
            assert shown(stacks[thread.ident or 0]) == as_python_gives(thread)
        assert len(calls) - listed < 100  # for 3,000 frames; on CPython 3.10 one call for each level
    finally:
        over.set()
        for thread in threads:
            thread.join()
