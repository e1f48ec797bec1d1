"""With any memory content, coroutines are read, skipped or rejected in a bounded number of reads."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dstack.observed.calls import Unreadable
from dstack.probes.node.asyncio import future_sources
from dstack.probes.node.asyncio.suspended_coroutines import Coroutines
from dstack.probes.node.cpython.memory import ProcessMemory
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.waits.executors import Executors
from tests.fuzzing.effort import examples
from tests.unit.support.hostile_memory import HOSTILE, Change, Copied, Recorder, TooMuch, ends_well
from tests.unit.support.own_process import forget_ended_tasks, own_layout, own_process

VARIABLES = [contextvars.ContextVar[int](f"variable {number}") for number in range(40)]
AWAITED = asyncio.Event()
NAMES = ["waits for ", "has ", "asks ", "awaits "]


async def waits(waitable: Any) -> None:
    await waitable


async def holds(lock: asyncio.Lock, waitable: Any) -> None:
    async with lock:
        await waitable


async def generates() -> Any:
    yield await asyncio.get_running_loop().create_future()


async def iterates(generator: Any) -> None:
    async for _ in generator:
        pass


async def completes(*tasks: Any) -> None:
    for task in asyncio.as_completed(tasks):
        await task


async def waits_in_many_ways(stopped: threading.Event) -> list[asyncio.Task[None]]:
    """Tasks that wait for futures, each other, chains, locks, functions of asyncio and an executor."""
    for number, variable in enumerate(VARIABLES):
        variable.set(number)
    loop, lock, event, queue = asyncio.get_running_loop(), asyncio.Lock(), asyncio.Event(), asyncio.Queue[int]()
    first = loop.create_task(waits(loop.create_future()), name="first")
    second = loop.create_task(waits(first))
    ways = [
        holds(lock, loop.create_future()),
        holds(lock, loop.create_future()),
        waits(asyncio.gather(first, second, asyncio.gather(second, loop.create_future()))),
        waits(asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)),
        waits(asyncio.wait_for(waits(second), 900)),
        waits(asyncio.shield(second)),
        waits(queue.get()),
        waits(event.wait()),
        waits(asyncio.sleep(900)),
        iterates(generates()),
        completes(first, second),
        waits(loop.run_in_executor(None, stopped.wait)),
        waits(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(waits(second), loop))),
    ]
    tasks = [first, second, *map(loop.create_task, ways)]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


async def fails(event: asyncio.Event) -> None:
    raise ValueError(event, "held")


async def failed(event: asyncio.Event) -> asyncio.Task[None]:
    """A task that ended with an exception."""
    task = asyncio.create_task(fails(event))
    await asyncio.wait([task])
    return task


@contextmanager
def suspended() -> Iterator[list[asyncio.Task[None]]]:
    """All these tasks, on a blocked event loop."""
    loop, stopped = asyncio.new_event_loop(), threading.Event()
    ended = loop.run_until_complete(failed(AWAITED))
    tasks = loop.run_until_complete(waits_in_many_ways(stopped))
    try:
        yield tasks
    finally:
        assert isinstance(ended.exception(), ValueError)
        stopped.set()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@dataclass(frozen=True)
class Copy:
    """The recorded pages of this process, their words, and the number of tasks."""

    pages: dict[int, bytes]
    touched: list[int]
    tasks: dict[int, str]


@pytest.fixture(scope="module")
def copy() -> Iterator[Copy]:
    forget_ended_tasks()
    with suspended() as tasks:
        recorder = Recorder()
        for read in reads_of(recorder).values():
            read()
        recorder.close()
        yield Copy(recorder.pages, sorted(recorder.touched), {id(task): task.get_name() for task in tasks})


def reads_of(memory: ProcessMemory, kind: type[Objects] = Objects) -> dict[str, Callable[[], object]]:
    process = own_process(memory, kind(memory, own_layout()))
    coroutines = Coroutines(process, Executors([], process), [threading.get_ident()])
    return {
        "suspended": lambda: list(coroutines.suspended()),
        "holders": lambda: coroutines.chains.holders,
        "tasks on loops": lambda: coroutines.tasks_on_loops,
        "ended": lambda: coroutines.ended({id(AWAITED)}),
    }


def test_an_unchanged_copy_shows_all_tasks(copy: Copy) -> None:
    found: Any = reads_of(Copied(copy.pages, []))["suspended"]()

    assert copy.tasks.items() <= {one.address: one.name for one in found}.items()
    assert not any(one.call and isinstance(one.call.need, Unreadable) for one in found)
    assert [one.frames[0].position.function for one in found if one.name == "first"] == ["waits"]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="asyncio lists no task that has ended")
def test_an_unchanged_copy_shows_what_a_failed_task_held(copy: Copy) -> None:
    ended: Any = reads_of(Copied(copy.pages, []))["ended"]()

    assert [(one.function, one.error, *one.held) for one in ended] == [("fails", "ValueError", id(AWAITED))]


class WithoutAttributes(Objects):
    """Objects whose names are being changed."""

    def attributes(self, address: int) -> dict[str, int]:
        return {}


def test_missing_attributes_are_no_error(copy: Copy) -> None:
    memory = Copied(copy.pages, [])
    for read in reads_of(memory, WithoutAttributes).values():
        ends_well(memory, read)


class Counted(ProcessMemory):
    """This process's memory with a limited number of reads."""

    left = 500_000

    def read(self, address: int, size: int) -> bytes:
        self._count()
        return super().read(address, size)

    def pointer(self, address: int) -> int:
        self._count()
        return super().pointer(address)

    def _count(self) -> None:
        self.left -= 1
        if not self.left:
            raise TooMuch


def test_nested_gathers_of_the_same_future_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(future_sources, "MAX_NEEDS", 1 << 10)
    loop = asyncio.new_event_loop()
    end = loop.create_future()
    task = loop.run_until_complete(waits_for_one_thing_in_many_ways(end, doublings=14))
    memory = Counted(os.getpid(), keeps_pages=True)

    found: Any = reads_of(memory)["suspended"]()
    (call,) = [one.call for one in found if one.address == id(task)]

    memory.close()
    end.set_result(None)
    loop.run_until_complete(task)
    loop.close()
    assert call.need.reason.startswith("it waits for more than")


async def waits_for_one_thing_in_many_ways(end: Any, doublings: int) -> asyncio.Task[None]:
    loop = asyncio.get_running_loop()
    pair = [end, end]
    for _ in range(doublings):
        pair = [asyncio.gather(*pair), asyncio.gather(*pair)]
    task = loop.create_task(waits(asyncio.gather(*pair)))
    await asyncio.sleep(0)
    return task


@examples(150, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_changed_copy_is_read_or_rejected(copy: Copy, data: st.DataObject) -> None:
    touched = st.sampled_from(copy.touched)
    value = st.one_of(st.none(), st.sampled_from(HOSTILE), touched, st.sampled_from(sorted(copy.tasks)))
    after = st.one_of(st.just(0), st.integers(0, 3000))
    changes = data.draw(st.lists(st.builds(Change, touched, after, value), min_size=1, max_size=8))

    for read in reads_of(memory := Copied(copy.pages, changes)).values():
        ends_well(memory, read)
