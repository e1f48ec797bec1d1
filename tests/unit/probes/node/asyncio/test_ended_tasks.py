"""Asyncio tasks that ended with an exception, and what their code held, in this process's memory."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sys
import threading
from collections.abc import Iterator

import pytest

from dstack.observed.processes import EndedTask
from dstack.probes.node.asyncio.ended_tasks import MAX_TASKS, TaskEnd
from dstack.probes.node.asyncio.suspended_coroutines import Coroutines, LoopState
from dstack.probes.node.cpython.memory import ProcessMemory, open_memory
from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.stacks.source_files import SourceFiles
from dstack.probes.node.stacks.table import StackTable
from dstack.probes.node.waits.executors import Executors
from tests.unit.support.own_process import forget_ended_tasks, own_process

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 14), reason="asyncio lists no task that has ended")
Result = asyncio.Future[int]


@pytest.fixture
def memory() -> Iterator[ProcessMemory]:
    forget_ended_tasks()
    with open_memory(os.getpid()) as memory:
        yield memory


class Request:
    """One of the items of a queue, with the future of its result."""

    def __init__(self, future: Result) -> None:
        self.future = future


class Engine:
    """Serves requests, until one is invalid; refers to the task that does so."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Request] = asyncio.Queue()
        self.loop = asyncio.create_task(self.serve(), name="engine")

    def forward(self, number: int) -> float:
        return 1 / number

    async def serve(self) -> None:
        while True:
            request = await self.queue.get()
            request.future.set_result(int(self.forward(0)))


def coroutines_of(memory: ProcessMemory) -> Coroutines:
    process = own_process(memory)
    return Coroutines(process, Executors(process.threads, process), [threading.get_ident()])


def ended_in(memory: ProcessMemory, *awaited: object) -> list[TaskEnd]:
    return coroutines_of(memory).ended({id(one) for one in awaited})


async def settled(task: asyncio.Task[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task


def test_a_failed_task_has_its_error_line_and_what_it_held(memory: ProcessMemory) -> None:
    async def fails() -> tuple[TaskEnd, list[int]]:
        loop = asyncio.get_running_loop()
        taken, queued, other = (loop.create_future() for _ in range(3))
        engine = Engine()
        for future in (taken, queued):
            engine.queue.put_nowait(Request(future))
        await settled(engine.loop)
        (found,) = ended_in(memory, taken, queued, engine.queue, other)
        return found, [id(taken), id(queued), id(engine.queue)]

    found, held = asyncio.run(fails())

    assert (found.name, found.function) == ("engine", "Engine.serve")
    assert (found.error, found.message, found.is_cancelled) == ("ZeroDivisionError", "division by zero", False)
    assert [frame.function for frame in found.frames] == ["forward", "serve"]
    lines, first = inspect.getsourcelines(Engine.forward)
    assert (found.frames[0].line, found.frames[0].file) == (first + len(lines) - 1, __file__)
    assert sorted(found.held) == sorted(held)


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_cancelled_task_is_marked_as_such(memory: ProcessMemory, has_begun: bool) -> None:
    async def cancels() -> list[TaskEnd]:
        event = asyncio.Event()
        task = asyncio.create_task(waits(event))
        if has_begun:
            await asyncio.sleep(0)
        task.cancel()
        await settled(task)
        return ended_in(memory, event)

    async def waits(event: asyncio.Event) -> None:
        await event.wait()

    (found,) = asyncio.run(cancels())

    assert (found.error, found.is_cancelled) == ("CancelledError", True)


def test_a_task_that_returned_is_left_out(memory: ProcessMemory) -> None:
    async def returns() -> list[TaskEnd]:
        async def gives() -> Exception:
            return ValueError("this is a result")

        task = asyncio.create_task(gives())
        await task
        return ended_in(memory, task)

    assert asyncio.run(returns()) == []


def test_the_first_tasks_are_read_and_failed_ones_before_cancelled_ones(memory: ProcessMemory) -> None:
    async def fails() -> None:
        raise KeyError(7)

    async def ends() -> list[TaskEnd]:
        cancelled = [asyncio.create_task(fails()) for _ in range(2 * MAX_TASKS)]
        failed = [asyncio.create_task(fails()) for _ in range(3)]
        for task in cancelled:
            task.cancel()
        for task in (*cancelled, *failed):
            await settled(task)
        return ended_in(memory)

    found = asyncio.run(ends())

    assert len(found) == MAX_TASKS
    assert [one.message for one in found if not one.is_cancelled] == ["7", "7", "7"]
    assert [one.is_cancelled for one in found[:4]] == [False, False, False, True]


def test_a_message_travels_as_its_first_line_without_secrets() -> None:
    ended = TaskEnd(
        address=16,
        name="",
        function="",
        error="E",
        message="api_key=12345\nmore",
        is_cancelled=False,
        frames=(),
        held=(),
    )
    state = LoopState(ended=[ended], awaited={})

    assert state.observed_ended(StackTable(Origins(), SourceFiles()), "/") == (
        EndedTask(coroutine_id="0x10", name="", function="", stack=0, error="E", message="api_key=***"),
    )
