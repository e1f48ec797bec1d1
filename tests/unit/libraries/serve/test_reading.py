"""Requests to Serve deployments are read from frames of functions with Serve's names."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dstack.call_sites import OTHER_LOOP
from dstack.libraries.serve import FREE_REPLICA
from dstack.observed.calls import Awaitables, QueuedRequest, ServeRequest, Unreadable
from dstack.probes.node.asyncio.suspended_coroutines import Coroutines, Suspended
from dstack.probes.node.cpython.memory import open_memory
from dstack.probes.node.waits.executors import Executors
from tests.unit.support.own_process import own_process

SITE = "/usr/lib/python3/site-packages"
ROUTER = """
class Router:
    async def _choose_replica_for_request(self, pending_request, *, is_retry=False):
        return await pending_request.future
"""
ASSIGNS = """
class AsyncioRouter:
    async def assign_request(self, router, pending_request):
        return await router._choose_replica_for_request(pending_request)
"""
REPLICA = """
class Replica:
    async def handle_request(self, request_metadata, future):
        await future

    async def call_http(self, user_method_info, future):
        await future
"""
STARTS = """
from contextlib import asynccontextmanager


class Replica:
    @asynccontextmanager
    async def _start_request(self, request_metadata):
        await self._semaphore.acquire()
        yield

    async def handle_request(self, request_metadata):
        async with self._start_request(request_metadata):
            pass
"""
SEMAPHORE = """
class Semaphore:
    def __init__(self, future):
        self.future = future

    async def acquire(self):
        await self.future
"""
BATCHING = """
class BatchQueue:
    async def _process_batch_inner(self, func, futures):
        await func

    async def _consume(self, initial_futures, func):
        await func
"""
MESSAGES = """
import asyncio


class MessageQueue:
    async def fetch_messages_from_queue(self, call_fut):
        while True:
            message = asyncio.ensure_future(asyncio.Event().wait())
            await asyncio.wait([call_fut, message], return_when=asyncio.FIRST_COMPLETED)
            yield message
"""
ANYIO = """
class WorkerThread:
    def run(self, future, begun, ended):
        begun.set()
        ended.wait()
"""


def module(source: str, path: str) -> SimpleNamespace:
    """The definitions of a file with this path."""
    names: dict[str, Any] = {}
    exec(compile(source, SITE + path, "exec"), names)
    return SimpleNamespace(**names)


DEPLOYMENT = SimpleNamespace(name="Shop", app_name="default")
ORDER = SimpleNamespace(call_method="order")
IN_WORDS = ServeRequest(app="default", deployment="Shop", method="order")


def replica(limit: object, replica_id: str = "s1") -> SimpleNamespace:
    name = SimpleNamespace(unique_id=replica_id)
    return SimpleNamespace(_replica_info=SimpleNamespace(replica_id=name, max_ongoing_requests=limit))


def router_of(*replicas: SimpleNamespace) -> Any:
    router = module(ROUTER, "/ray/serve/_private/request_router/request_router.py").Router()
    router._deployment_id, router._replicas = DEPLOYMENT, {object(): one for one in replicas}
    return router


def assigns(config: SimpleNamespace) -> Any:
    assigner = module(ASSIGNS, "/ray/serve/_private/router.py").AsyncioRouter()
    assigner._metrics_manager = SimpleNamespace(_deployment_config=config)
    return assigner


@contextmanager
def suspended(*begun: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Iterator[list[Suspended]]:
    """The readings of these coroutines, suspended as asyncio tasks in this order."""
    tasks = [loop.create_task(one) for one in begun]
    for _ in range(5):
        loop.run_until_complete(asyncio.sleep(0))
    try:
        with open_memory(os.getpid(), keeps_pages=True) as memory:
            process = own_process(memory)
            ids = [thread.thread_id for thread in process.threads]
            coroutines = Coroutines(process, Executors(process.threads, process), ids)
            found = {one.address: one for one in coroutines.suspended()}
        yield [found[id(task)] for task in tasks]
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def pending(loop: asyncio.AbstractEventLoop) -> SimpleNamespace:
    return SimpleNamespace(metadata=ORDER, created_at=1.7e9, future=loop.create_future())


@pytest.mark.parametrize(
    ("config", "most"),
    [
        (SimpleNamespace(num_replicas=2, autoscaling_config=None), 2),
        (SimpleNamespace(num_replicas=None, autoscaling_config=SimpleNamespace(max_replicas=7)), 7),
        (SimpleNamespace(num_replicas=2), None),
        (None, None),
    ],
)
def test_a_request_in_a_router_is_read_with_its_replicas(
    loop: asyncio.AbstractEventLoop, config: Any, most: int | None
) -> None:
    router = router_of(replica(1), replica(5, "s2"))

    with suspended(assigns(config).assign_request(router, pending(loop)), loop=loop) as (one,):
        assert one.call is not None
        assert one.call.site == FREE_REPLICA.id
        assert one.call.need == QueuedRequest(
            request=IN_WORDS, made_at=1.7e9, replicas={"s1": 1, "s2": 5}, most_replicas=most
        )


@pytest.mark.parametrize("limit", [-1, None, "five", 1 << 40])
def test_a_limit_of_none_is_no_limit(loop: asyncio.AbstractEventLoop, limit: object) -> None:
    router = router_of(replica(limit))

    with suspended(router._choose_replica_for_request(pending(loop)), loop=loop) as (one,):
        assert one.call is not None
        assert isinstance(one.call.need, Unreadable)


def test_too_many_replicas_are_not_read(loop: asyncio.AbstractEventLoop) -> None:
    router = router_of(*(replica(1, str(number)) for number in range(300)))

    with suspended(router._choose_replica_for_request(pending(loop)), loop=loop) as (one,):
        assert one.call is not None
        assert one.call.need == Unreadable(reason="a deployment of 300 replicas")


@pytest.mark.parametrize(
    ("function", "method"),
    [("handle_request", SimpleNamespace(call_method="order")), ("call_http", SimpleNamespace(name="order"))],
)
def test_the_requests_that_a_replica_executes_are_read(
    loop: asyncio.AbstractEventLoop, function: str, method: SimpleNamespace
) -> None:
    one_replica = module(REPLICA, "/ray/serve/_private/replica.py").Replica()
    one_replica._deployment_id = DEPLOYMENT

    with suspended(getattr(one_replica, function)(method, loop.create_future()), loop=loop) as (one,):
        assert one.request == IN_WORDS


def test_a_request_that_waits_in_a_replica_can_be_served_only_there(loop: asyncio.AbstractEventLoop) -> None:
    one_replica = module(STARTS, "/ray/serve/_private/replica.py").Replica()
    one_replica._deployment_id, one_replica._replica_id = DEPLOYMENT, SimpleNamespace(unique_id="s1")
    one_replica._deployment_config = SimpleNamespace(max_ongoing_requests=3)
    one_replica._semaphore = module(SEMAPHORE, "/ray/serve/_private/utils.py").Semaphore(loop.create_future())

    with suspended(one_replica.handle_request(ORDER), loop=loop) as (one,):
        assert one.call is not None
        assert one.call.need == QueuedRequest(request=IN_WORDS, replicas={"s1": 3}, in_replica=True)


def test_other_coroutines_execute_no_request(loop: asyncio.AbstractEventLoop) -> None:
    async def handle_request(request_metadata: object, future: asyncio.Future[None]) -> None:
        await future

    with suspended(handle_request(ORDER, loop.create_future()), loop=loop) as (one,):
        assert one.request is None


@pytest.mark.parametrize("function", ["_process_batch_inner", "_consume"])
def test_a_request_in_a_batch_waits_for_the_executor_of_the_batch(
    loop: asyncio.AbstractEventLoop, function: str
) -> None:
    async def call(future: asyncio.Future[None]) -> None:
        await future

    batches = module(BATCHING, "/ray/serve/batching.py").BatchQueue()
    result, work = loop.create_future(), loop.create_future()
    arguments = (work, [result]) if function == "_process_batch_inner" else ([result], work)

    with suspended(call(result), getattr(batches, function)(*arguments), loop=loop) as (one, batch):
        assert one.call is not None
        assert one.call.coroutines == (hex(batch.address),)


def test_the_main_loop_of_a_replica_waits_for_the_users_generator(loop: asyncio.AbstractEventLoop) -> None:
    messages = module(MESSAGES, "/ray/serve/_private/http_util.py").MessageQueue()

    async def fetch(call: asyncio.Task[None]) -> None:
        async for _ in messages.fetch_messages_from_queue(call):
            pass

    async def generate(future: asyncio.Future[None]) -> None:
        await future

    user = loop.create_task(generate(loop.create_future()))
    with suspended(fetch(user), loop=loop) as (one,):
        assert one.call is not None
        assert one.call.need == Awaitables(coroutines=(hex(id(user)),))


def test_a_function_in_a_thread_of_anyio_is_awaited_there(loop: asyncio.AbstractEventLoop) -> None:
    async def call(future: asyncio.Future[None]) -> None:
        await future

    result, begun, ended = loop.create_future(), threading.Event(), threading.Event()
    worker = module(ANYIO, "/anyio/_backends/_asyncio.py").WorkerThread()
    thread = threading.Thread(target=worker.run, args=(result, begun, ended))
    thread.start()
    begun.wait()
    try:
        with suspended(call(result), loop=loop) as (one,):
            assert one.call is not None
            assert one.call.need == Awaitables(futures=((thread.native_id or 0,),))
    finally:
        ended.set()
        thread.join()


def test_a_coroutine_queued_on_another_loop_waits_for_the_thread_of_that_loop(
    loop: asyncio.AbstractEventLoop,
) -> None:
    other, begun, ended = asyncio.new_event_loop(), threading.Event(), threading.Event()

    async def work() -> None: ...

    async def blocks() -> None:
        begun.set()
        ended.wait()

    async def waits(coroutine: Coroutine[Any, Any, None]) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, other))

    thread = threading.Thread(target=other.run_forever)
    thread.start()
    first = asyncio.run_coroutine_threadsafe(blocks(), other)
    begun.wait()
    coroutine = work()
    try:
        with suspended(waits(coroutine), loop=loop) as (one,):
            assert one.call is not None
            assert (one.call.threads, one.call.site) == ((thread.native_id,), OTHER_LOOP.id)
            ended.set()
            first.result()
    finally:
        ended.set()
        other.call_soon_threadsafe(other.stop)
        thread.join()
        coroutine.close()
        other.close()
