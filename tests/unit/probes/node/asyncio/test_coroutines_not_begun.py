"""Coroutines that have not begun, and waits that only they can end, in this process's memory."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any

import pytest

from dstack.probes.node.asyncio.suspended_coroutines import TRACING, Coroutines, Suspended
from dstack.probes.node.cpython.memory import ProcessMemory, open_memory
from dstack.probes.node.waits.executors import Executors
from tests.unit.support.own_process import own_process

WRAPPER = """
def traced(method):
    async def _resume_span(self, *args, **kwargs):
        return await method(self, *args, **kwargs)
    return _resume_span
"""
"""Wrap a method as Ray wraps async methods of actors (2.46 to 2.60)."""


@pytest.fixture
def memory() -> Iterator[ProcessMemory]:
    with open_memory(os.getpid()) as memory:
        yield memory


def coroutines_of(memory: ProcessMemory) -> Coroutines:
    process = own_process(memory)
    return Coroutines(process, Executors(process.threads, process), [threading.get_ident()])


def traced(method: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    names: dict[str, Any] = {}
    exec(compile(WRAPPER, f"/site-packages{TRACING}", "exec"), names)
    wrapped: Callable[..., Any] = functools.wraps(method)(names["traced"](method))
    return wrapped


async def count(self: object, items: list[int]) -> int:
    await asyncio.sleep(0)
    return len(items)


def begun_by(memory: ProcessMemory, function: Callable[..., Any]) -> Suspended:
    """The reading of a task of this function that has not begun."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(function(object(), [1]), name="counts")
    try:
        return next(one for one in coroutines_of(memory).suspended() if one.address == id(task))
    finally:
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()


def test_a_task_that_has_not_begun_is_at_its_function(memory: ProcessMemory) -> None:
    one = begun_by(memory, count)

    (frame,) = one.frames
    assert (one.name, one.call) == ("counts", None)
    assert (frame.position.function, frame.position.file) == ("count", __file__)
    assert frame.position.line == inspect.getsourcelines(count)[1]


def test_a_method_that_has_not_begun_replaces_its_wrapper(memory: ProcessMemory) -> None:
    (frame,) = begun_by(memory, traced(count)).frames

    assert (frame.position.function, frame.position.file) == ("count", __file__)


def test_a_search_for_objects_begins_at_the_arguments(memory: ProcessMemory) -> None:
    items = [1, 2]
    loop = asyncio.new_event_loop()
    task = loop.create_task(count(object(), items))
    try:
        (frame,) = coroutines_of(memory).chains.by_task[id(task)].frames
        assert id(items) in frame.variables
    finally:
        loop.run_until_complete(task)
        loop.close()


def test_the_thread_of_a_loop_that_must_begin_a_coroutine_is_found(memory: ProcessMemory) -> None:
    found: list[int | None] = []

    async def asks() -> None:
        asked = asyncio.run_coroutine_threadsafe(count(object(), []), asyncio.get_running_loop())
        found.extend(
            (coroutines_of(memory).sources.beginner(id(asked)), coroutines_of(memory).sources.runner(id(asked)))
        )
        await asyncio.sleep(0)
        found.extend(
            (coroutines_of(memory).sources.beginner(id(asked)), coroutines_of(memory).sources.runner(id(asked)))
        )
        await asyncio.wrap_future(asked)

    asyncio.run(asks())

    own = threading.get_native_id()
    assert found == [own, own, None, own]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tasks do not count how often they were cancelled")
def test_a_task_that_catches_its_cancellation_is_cancelled(memory: ProcessMemory) -> None:
    async def catches() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(100)
        await asyncio.sleep(100)

    async def cancels() -> list[Suspended]:
        tasks = [asyncio.create_task(catches(), name=name) for name in ("left", "cancelled")]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = [one for one in coroutines_of(memory).suspended() if one.name in ("left", "cancelled")]
        tasks[0].cancel()
        await asyncio.sleep(0)
        return found

    assert {one.name: one.cancel_requests for one in asyncio.run(cancels())} == {"left": 0, "cancelled": 1}


class Waiting:
    """Something awaitable that is no coroutine: asyncio wraps it in a task of its own."""

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, Any]:
        return self._future.__await__()


@pytest.mark.parametrize("is_known", [False, True])
def test_a_wrapper_is_listed_where_what_it_wraps_is_unknown(memory: ProcessMemory, is_known: bool) -> None:
    """A task that awaits the wrapper would else depend on a coroutine that is not listed, so is not known to wait."""

    async def waits() -> tuple[int, dict[int, Suspended]]:
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(None, gate.wait) if is_known else loop.create_future()
        wrapper = asyncio.ensure_future(Waiting(future))
        waiter = asyncio.create_task(asyncio.wait([wrapper]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = {one.address: one for one in coroutines_of(memory).suspended()}
        gate.set()
        future.cancel()
        await asyncio.gather(wrapper, waiter, return_exceptions=True)
        return id(wrapper), found

    gate = threading.Event()
    wrapper, found = asyncio.run(waits())

    assert (wrapper in found) is not is_known
    calls = {key: one.call for key, one in found.items() if one.call}
    if not is_known:
        assert calls[wrapper].site == "asyncio.future"
        assert [call.coroutines for call in calls.values() if call.site == "asyncio.wait"] == [(hex(wrapper),)]
