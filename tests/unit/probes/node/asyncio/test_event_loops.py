"""Tasks are found in the linked lists of CPython 3.14, whatever their content, and in older versions."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dstack.probes.node.asyncio import event_loops
from dstack.probes.node.asyncio.event_loops import EventLoops
from dstack.probes.node.cpython.layouts import BEHIND_MUTEXES, LAYOUTS, CPythonLayout, TaskLists
from dstack.probes.node.cpython.memory import ProcessMemory, UnreadableMemory, open_memory
from dstack.probes.node.cpython.objects import Objects
from tests.unit.support.own_process import own_process

NODE, THREAD_TASKS, THREAD_LOOP, THREAD_TASK, INTERPRETER_TASKS = 16, 8, 24, 32, 40
OF_ENDED_THREADS = INTERPRETER_TASKS + BEHIND_MUTEXES[platform.machine()]
LISTS = TaskLists(NODE, THREAD_TASKS, THREAD_LOOP, THREAD_TASK, INTERPRETER_TASKS)
LAYOUT = replace(LAYOUTS[3, 14], task_lists=LISTS, future_state=NODE + 16)
"""A layout in which threads, the interpreter and tasks have ten words each."""
WORDS = 10


class AllTasks(Objects):
    """Accept every object as a task."""

    def is_kind_of(self, address: int, name: str) -> bool:
        return True


@dataclass
class FakeFrames:
    threads: dict[int, int]
    interpreter: int


@dataclass
class FakeProcess:
    memory: ProcessMemory
    objects: Objects
    frames: FakeFrames
    layout: CPythonLayout = LAYOUT
    modules: None = None


class World:
    """An interpreter with two threads and five tasks in this process's memory, without lists."""

    def __init__(self) -> None:
        self._words = (ctypes.c_uint64 * (WORDS * 8))()
        start = ctypes.addressof(self._words)
        self.interpreter, self.one, self.other, *self.tasks = range(
            start, start + ctypes.sizeof(self._words), 8 * WORDS
        )
        for head in (self.one + THREAD_TASKS, self.other + THREAD_TASKS, self.interpreter + OF_ENDED_THREADS):
            self.link(head)

    def put(self, address: int, value: int) -> None:
        ctypes.c_uint64.from_address(address).value = value

    def link(self, head: int, *tasks: int) -> None:
        """Make it the head of the list of these tasks."""
        nodes = [head, *(task + NODE for task in tasks), head]
        for before, after in itertools.pairwise(nodes):
            self.put(before, after)
            self.put(after + 8, before)

    def loops(self, memory: ProcessMemory) -> EventLoops:
        frames = FakeFrames({1: self.one, 2: self.other}, self.interpreter)
        process: Any = FakeProcess(memory, AllTasks(memory, LAYOUT), frames)
        return EventLoops(process)

    def found(self) -> list[int]:
        with open_memory(os.getpid()) as memory:
            return list(self.loops(memory).tasks())


def test_the_lists_of_all_threads_and_of_those_that_have_ended_are_read() -> None:
    world = World()
    first, second, third, fourth, _ = world.tasks
    world.link(world.one + THREAD_TASKS, first, second)
    world.link(world.other + THREAD_TASKS, third)
    world.link(world.interpreter + OF_ENDED_THREADS, fourth)

    assert world.found() == [first, second, third, fourth]


def test_a_task_that_has_ended_is_left_out() -> None:
    world = World()
    world.link(world.one + THREAD_TASKS, *world.tasks)
    world.put(world.tasks[1] + LAYOUT.future_state, 1)

    assert world.found() == [world.tasks[0], *world.tasks[2:]]


def test_a_list_that_never_returns_to_its_head_ends() -> None:
    world = World()
    first, second, third, *_ = world.tasks
    world.link(world.one + THREAD_TASKS, first, second, third)
    world.put(third + NODE, first + NODE)

    assert world.found() == [first, second, third]


def test_tasks_behind_a_task_that_just_left_its_list_are_found_from_the_end() -> None:
    world = World()
    first, second, third, fourth, _ = world.tasks
    world.link(world.one + THREAD_TASKS, first, second, third, fourth)
    world.put(second + NODE, 0)
    world.put(second + NODE + 8, 0)

    assert world.found() == [first, second, fourth, third]


def test_an_unreadable_list_is_skipped_and_others_are_read() -> None:
    world = World()
    world.put(world.one + THREAD_TASKS, 8)
    world.link(world.other + THREAD_TASKS, world.tasks[0])

    assert world.found() == [world.tasks[0]]


def test_more_tasks_than_dstack_reads_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loops, "MAX_LINKED", 3)
    world = World()
    world.link(world.one + THREAD_TASKS, *world.tasks)

    with pytest.raises(UnreadableMemory, match="more than 3 tasks"):
        world.found()


def test_the_current_task_is_that_of_its_threads_loop() -> None:
    world = World()
    loop, idle = 1000, 2000
    world.put(world.one + THREAD_LOOP, loop)
    world.put(world.one + THREAD_TASK, world.tasks[0])
    world.put(world.other + THREAD_LOOP, idle)

    with open_memory(os.getpid()) as memory:
        assert world.loops(memory).current == {loop: world.tasks[0]}


# This interpreter's own lists, of any version


@contextmanager
def own_loops() -> Iterator[EventLoops]:
    with open_memory(os.getpid()) as memory:
        yield EventLoops(own_process(memory))


async def waits(future: asyncio.Future[None]) -> None:
    await future


def test_tasks_of_this_thread_of_another_and_of_one_that_has_ended_are_found() -> None:
    loop = asyncio.SelectorEventLoop()
    loop.set_debug(False)
    end = loop.create_future()
    tasks: list[asyncio.Task[None]] = []
    made, may_end = threading.Event(), threading.Event()

    def make() -> None:
        tasks.append(asyncio.Task(waits(end), loop=loop))

    def make_and_stay() -> None:
        make()
        made.set()
        may_end.wait()

    ended, alive = threading.Thread(target=make), threading.Thread(target=make_and_stay)
    ended.start()
    ended.join()
    alive.start()
    made.wait()
    make()
    try:
        with own_loops() as loops:
            found = set(loops.tasks())
    finally:
        may_end.set()
        alive.join()

    end.set_result(None)
    loop.run_until_complete(asyncio.gather(*tasks))
    loop.close()
    assert found >= set(map(id, tasks))


def test_the_running_task_is_that_of_its_loop() -> None:
    async def read() -> tuple[dict[int, int], int, int]:
        with own_loops() as loops:
            return loops.current, id(asyncio.get_running_loop()), id(asyncio.current_task())

    current, loop, task = asyncio.run(read())

    assert current == {loop: task}
