"""The frames of threads are those that they have, however deep they are, and whatever their code is."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from dstack.probes.node.cpython.frames import Frame
from dstack.probes.node.cpython.memory import Unreadable, open_memory
from dstack.probes.node.cpython.process import MemoryThread, PythonProcess
from dstack.probes.node.procfs import proc
from dstack.probes.node.threads import PythonThread
from tests.processes import wait_until
from tests.unit.support.own_process import own_frames, own_interpreter, own_process


@contextmanager
def resting(run: Callable[[Callable[[], object]], object]) -> Iterator[threading.Thread]:
    """A thread that runs this function, which calls what it is given to come to rest."""
    over = threading.Event()
    thread = threading.Thread(target=lambda: run(over.wait), name="resting")
    thread.start()
    try:
        wait_until(lambda: is_at_rest(thread), deadline_s=60, what=lambda: "the thread to come to rest")
        yield thread
    finally:
        over.set()
        thread.join()


def is_at_rest(thread: threading.Thread) -> bool:
    """Whether the thread sleeps on the lock of its Event, and not on the GIL, for which it would wake at once."""
    marks = [proc.scheduler_mark(os.getpid(), thread.native_id or 0) for _ in range(2)]
    call = proc.system_call(os.getpid(), thread.native_id or 0)
    leaf = sys._current_frames().get(thread.ident or 0)
    return marks[0] == marks[1] and call is not None and leaf is not None and leaf.f_code.co_name == "wait"


def frames_of(thread: threading.Thread) -> list[Frame]:
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


def shown(frames: list[Frame]) -> list[tuple[str, str, int]]:
    return [(frame.file, frame.function, frame.line) for frame in frames]


def as_python_says(thread: threading.Thread) -> list[tuple[str, str, int]]:
    return [(one.f_code.co_filename, one.f_code.co_name, one.f_lineno or 0) for one in live_frames(thread)]


def recursion(rest: Callable[[], object], depth: int = 300) -> object:
    return recursion(rest, depth - 1) if depth else rest()


def through_c(rest: Callable[[], object], depth: int = 40) -> object:
    """Python that C calls: with a frame of C's in between on CPython 3.12 and later."""
    return list(map(lambda _: through_c(rest, depth - 1) if depth else rest(), [0]))[0]  # noqa: C417, RUF015


def generators(rest: Callable[[], object], depth: int = 40) -> Any:
    def inner() -> Iterator[object]:
        yield generators(rest, depth - 1) if depth else rest()

    def outer() -> Iterator[object]:
        yield from inner()

    return [one for one in outer()]  # noqa: C416


class Größe:
    def __init__(self, rest: Callable[[], object]) -> None:
        self.__enter__ = rest
        rest()

    @property
    def äußere(self) -> object:
        return None


def with_names_of_its_own(rest: Callable[[], object]) -> object:
    return Größe(rest)


def compiled(rest: Callable[[], object]) -> None:
    lines = "\n" * 70_000 + "f = lambda: (\n\n  rest()\n)\nf()"
    exec(compile(lines, "made up \U0001f980.py", "exec"), {"rest": rest})


def with_many_locals(rest: Callable[[], object]) -> None:
    names = [f"name_{number}" for number in range(3_000)]
    body = "\n ".join([f"{name} = rest" for name in names])
    made: dict[str, Any] = {}
    exec(f"def many(rest):\n {body}\n return rest()", made)
    made["many"](rest)


SHAPES = [recursion, through_c, generators, with_names_of_its_own, compiled, with_many_locals]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_the_frames_of_a_thread_are_those_that_it_has(shape: Callable[[Callable[[], object]], object]) -> None:
    with resting(shape) as thread:
        found = frames_of(thread)

        assert shown(found) == as_python_says(thread)
        for frame, live in zip(found, live_frames(thread), strict=True):
            assert frame.position.qualified == getattr(live.f_code, "co_qualname", live.f_code.co_name)
            assert frame.code.address == id(live.f_code)


def test_the_locals_of_a_frame_are_the_objects_that_it_has() -> None:
    marker = object()

    def inner(rest: Callable[[], object], /, first: object, *rests: object, **more: object) -> object:
        second = [first]
        if more:
            later = rest()
        return (second, marker, later)

    with resting(lambda rest: inner(rest, marker, 1, 2, third=3)) as thread:
        (frame,) = [one for one in frames_of(thread) if one.function == "inner"]
        (live,) = [one for one in live_frames(thread) if one.f_code.co_name == "inner"]
        values = live.f_locals

        assert frame.local("first") == id(marker)
        assert [frame.local(name) for name in ("rests", "more", "second")] == [
            id(values[name]) for name in ("rests", "more", "second")
        ]
        assert frame.has("second")
        assert not frame.has("later")
        assert not frame.has("of another function")


def test_threads_are_listed_from_their_start_to_their_end() -> None:
    with (
        resting(recursion) as first,
        resting(recursion) as second,
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
    with pytest.raises(Unreadable, match="does not know the thread"):
        thread_again(PythonThread(12345, 1, "", []), {})
    with pytest.raises(Unreadable, match="does not know the thread"):
        thread_again(PythonThread(12345, 1, "", []), {12345: id(12345)})


def test_the_frames_of_a_thread_differ_from_those_it_has_later() -> None:
    gate, passed = threading.Event(), threading.Event()

    def run(rest: Callable[[], object]) -> None:
        gate.wait()
        passed.set()
        rest()

    thread = threading.Thread(target=lambda: run(over.wait))
    over = threading.Event()
    thread.start()
    try:
        wait_until(lambda: is_at_rest(thread), deadline_s=60, what=lambda: "it to come to rest")
        with open_memory(os.getpid(), keeps_pages=True) as memory:
            process = own_process(memory)
            (seen,) = [one for one in process.threads if one.thread_id == thread.ident]
            steps, states = process.steps(seen), process.frames.threads

        for known in (states, {}, {seen.thread_id: states[threading.get_ident()]}):  # the last is another thread's
            assert thread_again(seen, known)[1] == steps

        gate.set()
        passed.wait()
        wait_until(lambda: is_at_rest(thread), deadline_s=60, what=lambda: "it to come to rest again")
        again, steps_again = thread_again(seen, states)
        assert steps_again != steps
        assert shown(list(again.frames)) == as_python_says(thread)
    finally:
        gate.set()
        over.set()
        thread.join()


def test_many_threads_are_read_together_in_few_system_calls() -> None:
    """Not one call for each of them, nor one for each of their frames."""
    over = threading.Event()
    threads = [threading.Thread(target=lambda: recursion(over.wait, 30)) for _ in range(100)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            wait_until(lambda thread=thread: is_at_rest(thread), deadline_s=60, what=lambda: "a thread")  # type: ignore[misc]
        with open_memory(os.getpid(), keeps_pages=True) as memory:
            calls: list[int] = []
            read_spans = memory._read_spans
            memory._read_spans = lambda spans: calls.append(len(spans)) or read_spans(spans)  # type: ignore[method-assign,func-returns-value]
            frames = own_frames(memory)
            states = frames.threads
            listed = len(calls)
            stacks = frames.stacks(frames.chains(states))

        for thread in threads:
            assert shown(stacks[thread.ident or 0]) == as_python_says(thread)
        assert len(calls) - listed < 100  # of 3,000 frames; on CPython 3.10 one call for each level of them
    finally:
        over.set()
        for thread in threads:
            thread.join()
