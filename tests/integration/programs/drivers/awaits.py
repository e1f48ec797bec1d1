"""An async actor that awaits in every known way, and a driver with its own event loops.

Prints as JSON the waits of their asyncio tasks. An entry of the actor has the name of its method, or the name of the
asyncio task if that is no Ray task:

    id, task_id     the address of the asyncio task, in hex, and its Ray task, None for a driver
    line, function  of its innermost frame in this file
    thread          the OS id of the thread that runs its loop
    what            the name of the wait, if it has one
    refs            the ids of all awaited refs, including those that asyncio wrapped in a task
    coroutines      the names of the awaited asyncio tasks, or of those that hold the awaited lock
    threads         the OS ids of the awaited threads
    num_returns     the number of dependencies that suffice, None for all
    others          the number of dependencies with an unknown producer
    timeout_s       the timeout of the wait

``running`` are the ids of the Ray tasks whose coroutine blocks the thread of its loop, and ``behind`` those that have
arrived but cannot begin because of them.
"""

import asyncio
import json
import os
import socket
import sys
import threading
import time
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any, TypeVar

import ray

T = TypeVar("T")
Plain = dict[str, Any]
GROUPS = {"io": 4, "blocked": 4, "locked": 4}


class Giver:
    """Never returns, or yields some items and then blocks."""

    async def never(self) -> None:
        await asyncio.Event().wait()

    async def stream(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number
        await asyncio.Event().wait()


class WaitLog:
    """The entries of asyncio tasks about their waits, by their names."""

    def __init__(self) -> None:
        self.entries: dict[str, Plain] = {}

    def awaiting(self, waitable: T, **expects: Any) -> T:
        """Record that the current task waits for ``waitable`` on the calling line."""
        task, frame = asyncio.current_task(), sys._getframe(1)
        assert task is not None
        self.entries[task.get_name()] = {
            "id": hex(id(task)),
            "task_id": ray.get_runtime_context().get_task_id(),
            "line": frame.f_lineno,
            "function": frame.f_code.co_name,
            "thread": threading.get_native_id(),
            **expects,
            "refs": [ref if isinstance(ref, str) else ref.hex() for ref in expects.get("refs", ())],
        }
        return waitable


class Waiter:
    """Each method awaits the given refs in one way."""

    def __init__(self) -> None:
        self.log = WaitLog()
        self.awaiting = self.log.awaiting
        self.kept: list[Any] = []
        self.lock, self.semaphore, self.condition = asyncio.Lock(), asyncio.Semaphore(1), asyncio.Condition()
        self.thread_lock = threading.Lock()
        self.running: dict[str, int] = {}

    async def entries(self) -> dict[str, Plain]:
        return dict(self.log.entries)

    async def blocking(self) -> dict[str, int]:
        return dict(self.running)

    def sub_task(self, name: str, ref: Any) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(self.awaits(ref), name=name)
        self.kept.append(task)
        return task

    async def awaits(self, ref: Any) -> None:
        await self.awaiting(ref, refs=[ref])

    # Refs

    async def ref(self, refs: list[Any]) -> None:
        await self.awaiting(refs[0], refs=refs[:1])

    async def gathered(self, refs: list[Any]) -> None:
        await self.awaiting(asyncio.gather(*refs), refs=refs, what="asyncio.gather")

    async def gathered_with_task(self, refs: list[Any]) -> None:
        both = asyncio.gather(refs[0], self.sub_task("of-gathered", refs[1]))
        await self.awaiting(both, refs=refs[:1], coroutines=["of-gathered"], what="asyncio.gather")

    async def first_of_tasks(self, refs: list[Any]) -> None:
        waiting = asyncio.wait([asyncio.ensure_future(ref) for ref in refs], return_when=asyncio.FIRST_COMPLETED)
        await self.awaiting(waiting, refs=refs, num_returns=1, what="asyncio.wait")

    async def first_of_futures(self, refs: list[Any]) -> None:
        futures = [asyncio.wrap_future(ref.future()) for ref in refs]
        waiting = asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        await self.awaiting(waiting, refs=refs, num_returns=1, what="asyncio.wait")

    async def all_of_futures(self, refs: list[Any]) -> None:
        waiting = asyncio.wait([asyncio.wrap_future(ref.future()) for ref in refs])
        await self.awaiting(waiting, refs=refs, what="asyncio.wait")

    async def all_with_timeout(self, refs: list[Any]) -> None:
        waiting = asyncio.wait([asyncio.ensure_future(ref) for ref in refs], timeout=5000.5)
        await self.awaiting(waiting, refs=refs, timeout_s=5000.5, what="asyncio.wait")

    async def wait_for(self, refs: list[Any]) -> None:
        await self.awaiting(asyncio.wait_for(refs[0], 4000), refs=refs[:1], timeout_s=4000.0, what="asyncio.wait_for")

    async def wait_for_ever(self, refs: list[Any]) -> None:
        await self.awaiting(asyncio.wait_for(refs[0], None), refs=refs[:1], what="asyncio.wait_for")

    async def completed(self, refs: list[Any]) -> None:
        for one in asyncio.as_completed(refs):
            await self.awaiting(one, refs=refs, num_returns=1, what="asyncio.as_completed")

    async def shielded(self, refs: list[Any]) -> None:
        await self.awaiting(asyncio.shield(refs[0]), refs=refs[:1], what="asyncio.shield")

    async def grouped(self, refs: list[Any]) -> None:
        if sys.version_info >= (3, 11):
            members = ["member-a", "member-b"]
            async with self.awaiting(asyncio.TaskGroup(), coroutines=members, what="asyncio.TaskGroup") as group:
                for name, ref in zip(members, refs, strict=True):
                    group.create_task(self.awaits(ref), name=name)

    async def within(self, refs: list[Any]) -> None:
        if sys.version_info >= (3, 11):
            async with asyncio.timeout(3000):
                await self.awaiting(refs[0], refs=refs[:1], timeout_s=3000.0)

    async def wrapped(self, refs: list[Any]) -> None:
        await self.awaiting(asyncio.wrap_future(refs[0].future()), refs=refs[:1])

    async def of_task(self, refs: list[Any]) -> None:
        await self.awaiting(self.sub_task("of-task", refs[0]), coroutines=["of-task"])

    async def stream(self, _: list[Any], giver: Any) -> None:
        items = giver.stream.options(num_returns="streaming").remote(1)
        first = (await items.__anext__()).hex()
        async for _item in self.awaiting(items, refs=[next_of(first)]):
            pass

    # Chains

    async def deep(self, refs: list[Any]) -> None:
        await self.middle(refs)

    async def middle(self, refs: list[Any]) -> None:
        await self.awaits(refs[0])

    async def types_coroutine(self, refs: list[Any]) -> None:
        await self.through(refs[0])

    @types.coroutine
    def through(self, ref: Any) -> Generator[Any, Any, None]:
        yield from self.awaiting(ref, refs=[ref]).__await__()

    async def generated(self, refs: list[Any]) -> None:
        async for _ in self.generates(refs[0]):
            pass

    async def generates(self, ref: Any) -> AsyncIterator[Any]:
        yield await self.awaiting(ref, refs=[ref])

    # Threads

    async def to_thread(self, refs: list[Any]) -> None:
        thread: list[int] = []
        await self.awaiting(asyncio.to_thread(get, refs[0], thread), threads=thread, what="asyncio.to_thread")

    async def executor(self, refs: list[Any]) -> None:
        thread: list[int] = []
        await self.awaiting(asyncio.get_running_loop().run_in_executor(None, get, refs[0], thread), threads=thread)

    # Locks and the like

    async def holds(self, refs: list[Any]) -> None:
        async with self.lock, self.semaphore, self.condition:
            await self.awaiting(refs[0], refs=refs[:1])

    async def wants_lock(self, _: list[Any]) -> None:
        async with self.awaiting(self.lock, coroutines=["holds"], what="asyncio.Lock.acquire"):
            pass

    async def wants_semaphore(self, _: list[Any]) -> None:
        async with self.awaiting(self.semaphore, coroutines=["holds"], what="asyncio.Semaphore.acquire"):
            pass

    async def wants_condition(self, _: list[Any]) -> None:
        async with self.awaiting(self.condition, coroutines=["holds"], what="asyncio.Lock.acquire"):
            pass

    async def event(self, _: list[Any]) -> None:
        await self.awaiting(asyncio.Event().wait(), others=1, what="asyncio.Event.wait")

    async def condition_wait(self, _: list[Any]) -> None:
        condition = asyncio.Condition()
        async with condition:
            await self.awaiting(condition.wait(), others=1, what="asyncio.Condition.wait")

    async def queue_get(self, _: list[Any]) -> None:
        await self.awaiting(asyncio.Queue[int]().get(), others=1, what="asyncio.Queue.get")

    async def queue_put(self, _: list[Any]) -> None:
        full = asyncio.Queue[int](1)
        full.put_nowait(1)
        await self.awaiting(full.put(2), others=1, what="asyncio.Queue.put")

    async def barrier(self, _: list[Any]) -> None:
        if sys.version_info >= (3, 11):
            await self.awaiting(asyncio.Barrier(2).wait(), others=1, what="asyncio.Barrier.wait")

    # Time, the operating system, unknown wakers

    async def sleeps(self, _: list[Any]) -> None:
        await self.awaiting(asyncio.sleep(10_000), what="asyncio.sleep")

    async def of_socket(self, _: list[Any]) -> None:
        loop = asyncio.get_running_loop()
        expects = {} if type(loop).__module__.startswith("uvloop") else {"what": "asyncio.loop.sock_recv"}
        await self.awaiting(loop.sock_recv(self.pair()[0], 1), others=1, **expects)

    async def reader(self, _: list[Any]) -> None:
        reader, writer = await asyncio.open_connection(sock=self.pair()[0])
        self.kept.append(writer)
        await self.awaiting(reader.read(1), others=1, what="asyncio.StreamReader.read")

    def pair(self) -> tuple[socket.socket, socket.socket]:
        left, right = socket.socketpair()
        left.setblocking(False)
        self.kept.extend([left, right])
        return left, right

    async def subprocess(self, _: list[Any]) -> None:
        process = await asyncio.create_subprocess_exec("sleep", "10000")
        await self.awaiting(process.wait(), others=1, what="asyncio.Process.wait")

    async def future(self, _: list[Any]) -> None:
        future = asyncio.get_running_loop().create_future()
        self.kept.append(future)
        await self.awaiting(future, others=1)

    # Other event loops of the same process

    @ray.method(concurrency_group="io")
    async def in_group(self, refs: list[Any]) -> None:
        await self.awaiting(refs[0], refs=refs[:1])

    @ray.method(concurrency_group="blocked")
    async def in_blocked_group(self, refs: list[Any]) -> None:
        await self.awaiting(refs[0], refs=refs[:1])

    @ray.method(concurrency_group="blocked")
    async def sleeps_as_thread(self) -> None:
        self.blocks()
        time.sleep(10_000)

    @ray.method(concurrency_group="blocked")
    async def behind_sleep(self) -> None:
        raise AssertionError("its loop is blocked")

    @ray.method(concurrency_group="locked")
    async def has_thread_lock(self, refs: list[Any]) -> None:
        with self.thread_lock:
            await self.awaiting(refs[0], refs=refs[:1])

    @ray.method(concurrency_group="locked")
    async def wants_thread_lock(self) -> None:
        self.blocks()
        with self.thread_lock:
            pass

    @ray.method(concurrency_group="locked")
    async def behind_thread_lock(self) -> None:
        raise AssertionError("its loop is blocked")

    def blocks(self) -> None:
        self.running[ray.get_runtime_context().get_task_id()] = threading.get_native_id()


FIRST = ("holds", "in_blocked_group", "has_thread_lock")
"""Methods that must wait before others begin."""
OTHERS = (
    ("ref", "gathered", "gathered_with_task", "first_of_tasks", "first_of_futures", "all_of_futures")
    + ("all_with_timeout", "wait_for", "wait_for_ever", "completed", "shielded", "wrapped", "of_task", "stream")
    + ("deep", "types_coroutine", "generated", "to_thread", "executor")
    + ("wants_lock", "wants_semaphore", "wants_condition", "event", "condition_wait", "queue_get", "queue_put")
    + ("sleeps", "of_socket", "reader", "subprocess", "future", "in_group")
    + (("grouped", "within", "barrier") if sys.version_info >= (3, 11) else ())
)
SUB_TASKS = ("of-gathered", "of-task", "member-a", "member-b")


def next_of(item: str) -> str:
    """The id of a stream's next item: the same task with the next number."""
    return f"{item[:48]}{(int.from_bytes(bytes.fromhex(item[48:]), 'little') + 1).to_bytes(4, 'little').hex()}"


def get(ref: Any, thread: list[int]) -> None:
    thread.append(threading.get_native_id())
    ray.get(ref)


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.01)


def start_loops(ref: Any, log: WaitLog) -> None:
    """Start threads: one in ``asyncio.run``, one with a loop for ever, and one that waits for a task of that loop."""

    async def awaits(name: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.set_name(name)
        await log.awaiting(ref, refs=[ref])

    def start(name: str, call: Callable[[], object]) -> None:
        threading.Thread(target=call, name=name, daemon=True).start()

    start("asyncio-run", lambda: asyncio.run(awaits("asyncio-run")))
    loop = asyncio.new_event_loop()
    start("loop", loop.run_forever)
    asked: Coroutine[Any, Any, None] = awaits("asked")
    start("asks", lambda: asyncio.run_coroutine_threadsafe(asked, loop).result())
    until(lambda: len(log.entries) == 2)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    giver: Any = ray.remote(num_cpus=0, max_concurrency=1000)(Giver).remote()
    waiter: Any = ray.remote(num_cpus=0, max_concurrency=1000, concurrency_groups=GROUPS)(Waiter).remote()
    calls: dict[str, Any] = {}

    def call(name: str) -> None:
        refs = [giver.never.remote(), giver.never.remote()]
        arguments = (refs, giver) if name == "stream" else (refs,)
        calls[name] = getattr(waiter, name).remote(*arguments)

    def entries() -> dict[str, Plain]:
        names = {ref.task_id().hex(): name for name, ref in calls.items()}
        found = ray.get(waiter.entries.remote()).items()
        return {name if name in SUB_TASKS else names[one["task_id"]]: one for name, one in found}

    for name in FIRST:
        call(name)
    until(lambda: set(entries()) == set(FIRST))
    for name in OTHERS:
        call(name)
    running = [waiter.sleeps_as_thread.remote(), waiter.wants_thread_lock.remote()]
    until(lambda: len(ray.get(waiter.blocking.remote())) == len(running))
    behind = [waiter.behind_sleep.remote(), waiter.behind_thread_lock.remote()]
    until(lambda: set(calls) <= set(entries()))
    log = WaitLog()
    start_loops(giver.never.remote(), log)
    expected = {
        "waiter": entries(),
        "driver": log.entries,
        "running": ray.get(waiter.blocking.remote()),
        "behind": [ref.task_id().hex() for ref in behind],
    }
    print("expected", json.dumps(expected), flush=True)
    print("ready", flush=True)
    ray.get(list(calls.values()))


if __name__ == "__main__":
    main()
