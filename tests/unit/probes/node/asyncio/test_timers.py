"""What cuts the waits of coroutines short, in this process's memory: timers, scopes, task groups and cancellers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from importlib.util import find_spec

import anyio
import pytest

from dstack.observed.calls import Awaitables, Call, Timer
from dstack.probes.node.asyncio import timers
from dstack.probes.node.asyncio.suspended_coroutines import Coroutines, Suspended
from dstack.probes.node.cpython.memory import ProcessMemory, open_memory
from dstack.probes.node.waits.executors import Executors
from tests.unit.support.own_process import own_process

LEFT_S = 500.0
needs_uvloop = pytest.mark.skipif(not find_spec("uvloop"), reason="needs uvloop: a pair of `make compatibility` has it")
needs_3_11 = pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio has such scopes from Python 3.11 on")
Scenario = Callable[[], Coroutine[None, None, None]]


@pytest.fixture
def memory() -> Iterator[ProcessMemory]:
    gc.collect()
    with open_memory(os.getpid()) as memory:
        yield memory


@pytest.fixture(params=["asyncio", pytest.param("uvloop", marks=needs_uvloop)])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    import importlib

    loop: asyncio.AbstractEventLoop = importlib.import_module(request.param).new_event_loop()
    yield loop
    loop.close()


def calls_of(loop: asyncio.AbstractEventLoop, memory: ProcessMemory, scenario: Scenario) -> dict[str, Call]:
    """The calls of the tasks of a scenario by name, with what cuts them short; the scenario's own is ``waiter``."""
    return {name: one.call for name, one in suspended_in(loop, memory, scenario).items() if one.call}


def suspended_in(loop: asyncio.AbstractEventLoop, memory: ProcessMemory, scenario: Scenario) -> dict[str, Suspended]:
    """The tasks of a scenario by name, with what cuts their waits short."""

    async def read() -> dict[str, Suspended]:
        task = asyncio.ensure_future(scenario())
        task.set_name("waiter")
        for _ in range(5):
            await asyncio.sleep(0)
        process = own_process(memory)
        coroutines = Coroutines(process, Executors(process.threads, process), [threading.get_ident()])
        found = [coroutines.with_interruptions(one, ()) for one in coroutines.suspended()]
        for one in asyncio.all_tasks() - {asyncio.current_task()}:
            one.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
        return {one.name: one for one in found}

    return loop.run_until_complete(read())


async def never() -> None:
    await asyncio.Event().wait()


def named(name: str) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(never(), name=name)


async def cancelled_by_method() -> None:
    task = named("other")
    asyncio.get_running_loop().call_later(LEFT_S, task.cancel)
    await task


async def cancelled_by_lambda() -> None:
    task = named("other")
    asyncio.get_running_loop().call_at(asyncio.get_running_loop().time() + LEFT_S, lambda: task.cancel())
    await task


class Gate:
    """Opens by a timer that reaches its event through the instance."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def open(self) -> None:
        self.event.set()


async def set_through_an_instance() -> None:
    gate = Gate()
    asyncio.get_running_loop().call_later(LEFT_S, gate.open)
    await gate.event.wait()


async def future_is_set() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(LEFT_S, future.set_result, None)
    await future


class Deadline:
    """Called as a function; cancels through a method and a function of this file, as the total timeout of aiohttp."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.tasks = [task]

    def __call__(self) -> None:
        self.pass_on()

    def pass_on(self) -> None:
        for task in self.tasks:
            give_up(task)


def give_up(task: asyncio.Task[None]) -> None:
    task.cancel()


async def cancelled_by_callable() -> None:
    task = named("other")
    asyncio.get_running_loop().call_later(LEFT_S, Deadline(task))
    await task


async def cancelled_through_closure() -> None:
    deadline = Deadline(named("other"))
    asyncio.get_running_loop().call_later(LEFT_S, lambda: deadline.pass_on())
    await deadline.tasks[0]


@pytest.mark.parametrize(
    ("scenario", "name"),
    [
        (cancelled_by_callable, "Deadline.__call__"),
        (cancelled_through_closure, "cancelled_through_closure.<locals>.<lambda>"),
        (cancelled_by_method, "Task.cancel"),
        (cancelled_by_lambda, "cancelled_by_lambda.<locals>.<lambda>"),
        (set_through_an_instance, "Gate.open"),
        (future_is_set, "Future.set_result"),
    ],
)
def test_a_timer_of_the_loop_ends_what_its_callback_reaches(
    loop: asyncio.AbstractEventLoop, memory: ProcessMemory, scenario: Scenario, name: str
) -> None:
    call = calls_of(loop, memory, scenario)["waiter"]

    assert call.timer is not None
    assert call.timer.name == name
    assert call.timeout_s == call.timer.left_s == pytest.approx(LEFT_S, abs=10)


async def in_move_on_after() -> None:
    with anyio.move_on_after(LEFT_S):
        await never()


async def in_fail_after() -> None:
    with anyio.fail_after(LEFT_S):
        await never()


async def in_shield() -> None:
    with anyio.move_on_after(LEFT_S), anyio.CancelScope(shield=True):
        await never()


async def in_scope_without_deadline() -> None:
    with anyio.CancelScope():
        await never()


@contextlib.asynccontextmanager
async def limited() -> AsyncIterator[None]:
    async with vars(asyncio)["timeout"](LEFT_S):  # mypy checks for Python 3.10
        yield


async def in_context_manager() -> None:
    async with limited():
        await never()


@pytest.mark.parametrize(
    ("scenario", "name"),
    [
        (in_move_on_after, "anyio.CancelScope"),
        (in_fail_after, "anyio.CancelScope"),
        pytest.param(in_context_manager, "asyncio.timeout", marks=needs_3_11),
    ],
)
def test_a_scope_with_a_deadline_is_named_with_its_line(
    loop: asyncio.AbstractEventLoop, memory: ProcessMemory, scenario: Scenario, name: str
) -> None:
    timer = calls_of(loop, memory, scenario)["waiter"].timer

    assert timer is not None
    assert (timer.name, timer.file) == (name, __file__)
    assert timer.left_s == pytest.approx(LEFT_S, abs=10)
    assert timer.line > 0


@pytest.mark.parametrize("scenario", [in_shield, in_scope_without_deadline])
def test_a_scope_that_ends_nothing_is_no_timer(
    loop: asyncio.AbstractEventLoop, memory: ProcessMemory, scenario: Scenario
) -> None:
    call = calls_of(loop, memory, scenario)["waiter"]

    assert (call.timer, call.timeout_s) == (None, None)


async def reported_by_timer() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(LEFT_S, print, event)
    await event.wait()


class Meter:
    """Counts what is queued, every few seconds."""

    def __init__(self, event: asyncio.Event) -> None:
        self.event = event
        self.counted = 0

    def tick(self) -> None:
        self.count()

    def count(self) -> None:
        self.counted += self.event.is_set()


async def counted_by_timer() -> None:
    meter = Meter(asyncio.Event())
    asyncio.get_running_loop().call_later(LEFT_S, meter.tick)
    await meter.event.wait()


async def cancelled_timer() -> None:
    task = named("other")
    asyncio.get_running_loop().call_later(LEFT_S, task.cancel).cancel()
    await task


@pytest.mark.parametrize("scenario", [reported_by_timer, counted_by_timer, cancelled_timer])
def test_a_timer_that_ends_nothing_does_not_count(
    loop: asyncio.AbstractEventLoop, memory: ProcessMemory, scenario: Scenario
) -> None:
    assert calls_of(loop, memory, scenario)["waiter"].timer is None


async def spawned_in_scope() -> None:
    with anyio.move_on_after(LEFT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(never, name="child")
            await never()


def test_a_task_that_was_spawned_in_a_scope_ends_with_it(
    loop: asyncio.AbstractEventLoop, memory: ProcessMemory
) -> None:
    call = calls_of(loop, memory, spawned_in_scope)["child"]

    assert call.timer is not None
    assert call.timer.name == "CancelScope._timeout"


async def at_the_exit_of_a_group() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(never)
        group.start_soon(never)


async def in_gather() -> None:
    await asyncio.gather(never(), never())


async def in_gather_of_results() -> None:
    await asyncio.gather(never(), never(), return_exceptions=True)


@pytest.mark.parametrize(
    ("scenario", "fails_fast"),
    [(at_the_exit_of_a_group, True), (in_gather, True), (in_gather_of_results, False)],
)
def test_a_wait_for_several_may_end_when_one_fails(
    loop: asyncio.AbstractEventLoop, memory: ProcessMemory, scenario: Scenario, fails_fast: bool
) -> None:
    need = calls_of(loop, memory, scenario)["waiter"].need

    assert isinstance(need, Awaitables)
    assert (len(need.coroutines), need.fails_fast) == (2, fails_fast)


async def in_the_body_of_a_group() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(never, name="member")
        await never()


def test_a_wait_in_the_body_of_a_task_group_is_cut_short_by_its_members(
    loop: asyncio.AbstractEventLoop, memory: ProcessMemory
) -> None:
    call = calls_of(loop, memory, in_the_body_of_a_group)["waiter"]

    assert len(call.cut_short_by) == 1


async def waits_with_timeout() -> None:
    await asyncio.wait([named("awaited")], timeout=LEFT_S)


async def waits_for() -> None:
    await asyncio.wait_for(named("awaited"), LEFT_S)


@pytest.mark.parametrize(("scenario", "cancels"), [(waits_with_timeout, False), (waits_for, True)])
def test_a_timeout_that_began_long_ago_cancels_what_is_awaited_only_in_wait_for(
    loop: asyncio.AbstractEventLoop,
    memory: ProcessMemory,
    monkeypatch: pytest.MonkeyPatch,
    scenario: Scenario,
    cancels: bool,
) -> None:
    monkeypatch.setattr(timers, "_left_s", lambda at_s: at_s - time.monotonic() - LEFT_S / 2)

    waiter = suspended_in(loop, memory, scenario)["waiter"]

    assert waiter.call is not None
    assert waiter.call.timeout_s is not None
    assert waiter.cancels is cancels


class ActorHandle:
    """Stands in for Ray's class, by its name."""


def stopping_timers(memory: ProcessMemory, *arm: Callable[[asyncio.AbstractEventLoop], object]) -> list[Timer]:
    """The timers that end the process, or stop tasks or actors, of a loop with these timers."""

    async def read() -> list[Timer]:
        for one in arm:
            one(asyncio.get_running_loop())
        process = own_process(memory)
        return Coroutines(process, Executors(process.threads, process), [threading.get_ident()]).stopping_timers()

    return asyncio.run(read())


def kill(_actor: object) -> None:
    """Stands in for ``ray.kill``."""


def test_a_timer_stops_an_actor_if_it_has_a_handle_and_uses_a_name_that_kills(memory: ProcessMemory) -> None:
    actor, other = ActorHandle(), object()

    (found,) = stopping_timers(
        memory,
        lambda loop: loop.call_later(LEFT_S / 3, kill, other),
        lambda loop: loop.call_later(LEFT_S / 2, print, actor),
        lambda loop: loop.call_later(LEFT_S, lambda: kill(actor)),
    )

    assert (found.stops, found.ends_process) == (True, False)
    assert found.left_s == pytest.approx(LEFT_S, abs=10)


def test_a_timer_that_ends_its_process_needs_no_handle(memory: ProcessMemory) -> None:
    (found,) = stopping_timers(memory, lambda loop: loop.call_later(LEFT_S, os._exit, 7))

    assert (found.name, found.ends_process) == ("module._exit", True)
