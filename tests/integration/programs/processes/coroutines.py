"""Asyncio tasks that are suspended in every known way without Ray, on several event loops.

Prints as JSON, by the name of each asyncio task:

    id              the address of the task, in hex
    line, function  of its innermost frame in this file
    thread          the name of the thread that runs its loop
    what            the name of the wait, None for waits of other libraries
    coroutines      the names of the awaited tasks, or of those that hold the awaited lock
    threads         the names of the awaited threads
    num_returns     the number of dependencies that suffice, None for all
    others          the number of dependencies with an unknown producer
    timeout_s       the timeout of the wait
    object_id       the address of the lock, queue or other object, in hex

and ``calls``, the waits of threads, and ``threads``, the OS id of each thread by name.
"""

import asyncio
import concurrent.futures as cf
import contextlib
import json
import socket
import sys
import threading
import time
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")
Plain = dict[str, Any]

entries: dict[str, Plain] = {}
calls: dict[str, Plain] = {}
runners: dict[str, str] = {}
KEPT: list[Any] = []
"""References to all tasks, because event loops do not keep them alive."""


def start(name: str, coroutine: Coroutine[Any, Any, object], **expects: Any) -> asyncio.Task[Any]:
    """Start a task of this name on the running loop, and record its expected wait."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    begun(task, **expects)
    return task


def begun(task: asyncio.Task[Any], **expects: Any) -> None:
    KEPT.append(task)
    entries[task.get_name()] = {"id": hex(id(task)), "thread": threading.current_thread().name, **expects}


def waiting(waitable: T) -> T:
    """Record that the current task waits for ``waitable`` on the calling line."""
    task, frame = asyncio.current_task(), sys._getframe(1)
    assert task is not None
    if task.get_name() not in entries:
        begun(task)
    entries[task.get_name()].update(line=frame.f_lineno, function=frame.f_code.co_name)
    return waitable


async def waits(waitable: Any) -> None:
    await waiting(waitable)


async def enters(lock: Any) -> None:
    async with waiting(lock):
        pass


async def holds(*locks: Any) -> None:
    async with locks[0]:
        if locks[1:]:
            await holds(*locks[1:])
        await waiting(future())


def future() -> asyncio.Future[Any]:
    """A future that never gets a result."""
    made = asyncio.get_running_loop().create_future()
    KEPT.append(made)
    return made


def child(name: str) -> asyncio.Task[Any]:
    """A task that waits for ever."""
    return start(name, waits(future()), others=1)


def names(*tasks: asyncio.Task[Any]) -> list[str]:
    return [task.get_name() for task in tasks]


async def of_tasks() -> None:
    a, b, c = (child(f"child-{letter}") for letter in "abc")
    start("future", waits(future()), others=1)
    start("task", waits(a), coroutines=names(a))
    start("gather", waits(asyncio.gather(a, b, future())), coroutines=names(a, b), others=1, what="asyncio.gather")
    nested = asyncio.gather(asyncio.gather(a, b), c)
    start("gather-nested", waits(nested), coroutines=names(a, b, c), what="asyncio.gather")
    start("shield", waits(asyncio.shield(a)), coroutines=names(a), what="asyncio.shield")
    of_both: Plain = {"coroutines": names(a, b), "what": "asyncio.wait"}
    start("wait-first", waits(asyncio.wait([a, b], return_when="FIRST_COMPLETED")), **of_both, num_returns=1)
    start("wait-exception", waits(asyncio.wait([a, b], return_when="FIRST_EXCEPTION")), **of_both, num_returns=1)
    start("wait-all", waits(asyncio.wait([a, b])), **of_both)
    start("wait-timeout", waits(asyncio.wait([a, b], timeout=5000.5)), **of_both, timeout_s=5000.5)
    start("wait-for", waits(asyncio.wait_for(a, 4000)), coroutines=names(a), what="asyncio.wait_for", timeout_s=4000.0)
    start("wait-for-ever", waits(asyncio.wait_for(a, None)), coroutines=names(a), what="asyncio.wait_for")
    start("wait-for-coroutine", waits(asyncio.wait_for(coroutine_in_wait_for(), 3000)), timeout_s=3000.0)
    start("as-completed", completed(a, b), coroutines=names(a, b), what="asyncio.as_completed", num_returns=1)
    start("as-completed-last", completed(done(), a), coroutines=names(a), what="asyncio.as_completed", num_returns=1)
    if sys.version_info >= (3, 13):
        each = {"coroutines": names(a, b), "what": "asyncio.as_completed", "num_returns": 1}
        start("as-completed-async", completed_asynchronously(a, b), **each)
    if sys.version_info >= (3, 11):
        start("group", group("member-a", "member-b"), coroutines=["member-a", "member-b"], what="asyncio.TaskGroup")
        start("timeout", within(2000, a), coroutines=names(a), timeout_s=2000.0)
        start("timeout-none", within(None, a), coroutines=names(a))
    if sys.version_info >= (3, 12):
        eager = asyncio.Task(waits(a), loop=asyncio.get_running_loop(), name="eager", eager_start=True)
        entries["eager"]["coroutines"] = names(a)
        KEPT.append(eager)
    ring = start("ring-a", waits_for_the_other(), coroutines=["ring-b"])
    ring_b.set_result(start("ring-b", waits(ring), coroutines=["ring-a"]))


ring_b: cf.Future[asyncio.Task[Any]] = cf.Future()


async def waits_for_the_other() -> None:
    await waiting(ring_b.result())


def done() -> asyncio.Future[Any]:
    made = asyncio.get_running_loop().create_future()
    made.set_result(None)
    return made


async def coroutine_in_wait_for() -> None:
    """Before Python 3.12 it is a separate task."""
    task, parent = asyncio.current_task(), entries["wait-for-coroutine"]
    assert task is not None
    if task.get_name() == "wait-for-coroutine":
        parent.update(others=1)
    else:
        task.set_name("in-wait-for")
        begun(task, others=1)
        parent.update(coroutines=["in-wait-for"], what="asyncio.wait_for")
    await waiting(future())


async def completed(*several: Any) -> None:
    for one in asyncio.as_completed(several):
        await waiting(one)


async def completed_asynchronously(*several: Any) -> None:
    if sys.version_info >= (3, 13):
        async for _ in waiting(asyncio.as_completed(several)):
            pass


async def group(*members: str) -> None:
    if sys.version_info >= (3, 11):
        async with waiting(asyncio.TaskGroup()) as tasks:
            for name in members:
                begun(tasks.create_task(waits(future()), name=name), others=1)


async def within(seconds: float | None, waitable: Any) -> None:
    if sys.version_info >= (3, 11):
        async with asyncio.timeout(seconds):
            await waiting(waitable)


async def of_chains() -> None:
    start("three-deep", outer(), others=1)
    start("types-coroutine", waits_in_generator(), others=1)
    start("own-awaitable", Awaitable().wait(), others=1)
    start("async-generator", consumes(generates()), others=1)
    start("async-generator-nested", consumes(passes_on(generates())), others=1)
    start("asend", sends(generates()), others=1)
    start("context-manager", enters_context(), others=1)
    start("exit-stack", enters_stack(), others=1)


async def outer() -> None:
    await middle()


async def middle() -> None:
    await waits(future())


@types.coroutine
def through(waitable: asyncio.Future[Any]) -> Generator[Any, Any, None]:
    yield from waiting(waitable)


async def waits_in_generator() -> None:
    await through(future())


class Awaitable:
    """A hand-written awaitable."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from waiting(future()).__await__()

    async def wait(self) -> None:
        await self


async def generates() -> AsyncIterator[int]:
    await waiting(future())
    yield 1


async def passes_on(several: AsyncIterator[int]) -> AsyncIterator[int]:
    async for one in several:
        yield one


async def consumes(several: AsyncIterator[int]) -> None:
    async for _ in several:
        pass


async def sends(several: Any) -> None:
    await several.asend(None)


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[None]:
    await waiting(future())
    yield


async def enters_context() -> None:
    async with opened():
        pass


async def enters_stack() -> None:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(opened())


async def of_locks() -> None:
    lock, semaphore, pair = asyncio.Lock(), asyncio.Semaphore(1), asyncio.BoundedSemaphore(2)
    condition, plain = asyncio.Condition(), asyncio.Lock()
    start("holder", holds(lock, semaphore, condition, pair), others=1)
    start("second-holder", holds(pair), others=1)
    await plain.acquire()
    await until(lambda: pair.locked() and condition.locked())
    of_holder: Plain = {"coroutines": ["holder"]}
    start("lock-with", enters(lock), **of_holder, what="asyncio.Lock.acquire", object_id=hex(id(lock)))
    start("lock-acquire", waits(lock.acquire()), **of_holder, what="asyncio.Lock.acquire", object_id=hex(id(lock)))
    start("lock-wait-for", waits(asyncio.wait_for(entered(lock), 1000)), **of_lock_in_wait_for(lock))
    start("lock-without-holder", enters(plain), others=1, what="asyncio.Lock.acquire", object_id=hex(id(plain)))
    one_of_one = {"what": "asyncio.Semaphore.acquire", "object_id": hex(id(semaphore))}
    start("semaphore", enters(semaphore), **of_holder, **one_of_one)
    one_of_two = {"what": "asyncio.BoundedSemaphore.acquire", "object_id": hex(id(pair))}
    start("semaphore-of-two", enters(pair), coroutines=["holder", "second-holder"], **one_of_two)
    of_condition = hex(id(condition._lock))  # type: ignore[attr-defined]  # asyncio's own
    start("condition-enter", enters(condition), **of_holder, what="asyncio.Lock.acquire", object_id=of_condition)
    left, right = asyncio.Lock(), asyncio.Lock()
    start("left-then-right", takes_in_turn(left, right), coroutines=["right-then-left"], what="asyncio.Lock.acquire")
    start("right-then-left", takes_in_turn(right, left), coroutines=["left-then-right"], what="asyncio.Lock.acquire")


def of_lock_in_wait_for(lock: asyncio.Lock) -> Plain:
    if sys.version_info >= (3, 12):
        waiting = {"coroutines": ["holder"], "what": "asyncio.Lock.acquire", "object_id": hex(id(lock))}
        return {**waiting, "timeout_s": 1000.0}
    return {"coroutines": ["lock-in-wait-for"], "what": "asyncio.wait_for", "timeout_s": 1000.0}


async def entered(lock: asyncio.Lock) -> None:
    task = asyncio.current_task()
    assert task is not None
    if task.get_name() not in entries:
        task.set_name("lock-in-wait-for")
        begun(task, coroutines=["holder"], what="asyncio.Lock.acquire", object_id=hex(id(lock)))
    async with waiting(lock):
        pass


async def takes_in_turn(first: asyncio.Lock, second: asyncio.Lock) -> None:
    async with first:
        await asyncio.sleep(0)
        async with waiting(second):
            pass


async def of_events() -> None:
    event, condition = asyncio.Event(), asyncio.Condition()
    start("event", waits(event.wait()), others=1, what="asyncio.Event.wait", object_id=hex(id(event)))
    waiting = {"others": 1, "what": "asyncio.Condition.wait", "object_id": hex(id(condition))}
    start("condition", waits_in(condition), **waiting)
    start("condition-for", waits_in_for(condition), **waiting)
    empty: asyncio.Queue[int] = asyncio.Queue()
    full: asyncio.Queue[int] = asyncio.Queue(1)
    full.put_nowait(1)
    start("queue-get", waits(empty.get()), others=1, what="asyncio.Queue.get", object_id=hex(id(empty)))
    start("queue-put", waits(full.put(2)), others=1, what="asyncio.Queue.put", object_id=hex(id(full)))
    start("queue-join", waits(full.join()), others=1, what="asyncio.Queue.join", object_id=hex(id(full)))
    if sys.version_info >= (3, 11):
        barrier = asyncio.Barrier(2)
        start("barrier", waits(barrier.wait()), others=1, what="asyncio.Barrier.wait", object_id=hex(id(barrier)))
    start("sleep", waits(asyncio.sleep(900)), what="asyncio.sleep")
    loop = asyncio.get_running_loop()
    timer = future()
    loop.call_later(900, timer.set_result, None)
    start("timer", waits(timer), others=1, timeout_s=900.0)


async def waits_in(condition: asyncio.Condition) -> None:
    async with condition:
        await waiting(condition.wait())


async def waits_in_for(condition: asyncio.Condition) -> None:
    async with condition:
        await waiting(condition.wait_for(lambda: False))


async def of_the_outside() -> None:
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    read_from, written_to = socket.socketpair()
    for one in (left, right, read_from, written_to):
        one.setblocking(False)
    KEPT.extend([left, right, read_from, written_to])
    reader, writer = await asyncio.open_connection(sock=read_from)
    process = await asyncio.create_subprocess_exec("sleep", "10000")
    KEPT.extend([reader, writer, process])
    start("socket", waits(loop.sock_recv(left, 1)), others=1, what="asyncio.loop.sock_recv")
    start("stream", waits(reader.read(1)), others=1, what="asyncio.StreamReader.read")
    start("stream-line", waits_for_line(), others=1, what="asyncio.StreamReader.readline")
    start("subprocess", waits(process.wait()), others=1, what="asyncio.Process.wait")
    pool = cf.ThreadPoolExecutor(2, thread_name_prefix="pool")
    KEPT.append(pool)
    start("executor", waits(loop.run_in_executor(pool, occupy, "executor")))
    start("wrapped-future", waits(asyncio.wrap_future(pool.submit(occupy, "wrapped-future"))))
    start("to-thread", waits(asyncio.to_thread(occupy, "to-thread")), what="asyncio.to_thread")
    await until(lambda: len(runners) == 3)
    for name, thread in runners.items():
        entries[name]["threads"] = [thread]
    start("queued", waits(loop.run_in_executor(pool, time.sleep, 0)), threads=["pool_0", "pool_1"])
    start("nobodys-future", waits(asyncio.wrap_future(cf.Future[int]())), others=1)


async def waits_for_line() -> None:
    left, right = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=left)
    KEPT.extend([right, writer])
    await waiting(reader.readline())


def occupy(name: str) -> None:
    """Record the thread that runs it, for the task of this name."""
    runners[name] = threading.current_thread().name
    threading.Event().wait()


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def of_other_threads() -> None:
    """More event loops: one until complete, one for ever, and one that its own coroutine blocks."""
    run = threading.Thread(
        target=lambda: asyncio.run(begins("asyncio-run", waits_for_ever())), name="runs", daemon=True
    )
    run.start()
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="loop", daemon=True).start()
    asked = asyncio.run_coroutine_threadsafe(begins("asked", waits_for_ever()), loop)
    threading.Thread(target=asked.result, name="asks", daemon=True).start()
    calls["asks"] = {"kind": "future", "what": "Future.result", "coroutines": ["asked"]}
    threading.Thread(target=lambda: asyncio.run(blocks()), name="blocked-loop", daemon=True).start()
    threading.Thread(target=lambda: asyncio.run(asks_itself()), name="asks-itself", daemon=True).start()
    calls["asks-itself"] = {"kind": "future", "what": "Future.result", "coroutines": [], "threads": ["asks-itself"]}


async def asks_itself() -> None:
    asyncio.run_coroutine_threadsafe(waits_for_ever(), asyncio.get_running_loop()).result()


async def begins(name: str, coroutine: Coroutine[Any, Any, None]) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.set_name(name)
    begun(task, others=1)
    await coroutine


async def waits_for_ever() -> None:
    await waiting(future())


async def blocks() -> None:
    """A thread lock that a coroutine holds while it awaits, and for which the next one blocks the whole loop."""
    lock = threading.Lock()
    loop = asyncio.get_running_loop()
    start("has-thread-lock", has(lock), others=1)
    await until(lock.locked)
    calls["blocked-loop"] = {"kind": "lock", "what": "threading.Lock.acquire", "coroutines": ["has-thread-lock"]}
    # Both begin in one turn of the loop, so that it is blocked before it can see that the sleep is over.
    start("behind-blocked-loop", waits(asyncio.sleep(0.01)), what="asyncio.sleep")
    start("blocks", waits_as_thread(lock))
    loop.call_soon(lambda: None)
    await asyncio.sleep(10_000)


async def has(lock: threading.Lock) -> None:
    with lock:
        await waiting(future())


async def waits_as_thread(lock: threading.Lock) -> None:
    del entries["blocks"]  # it runs, so it is on its thread's stack
    with lock:
        pass


async def main() -> None:
    of_other_threads()
    for make in (of_tasks, of_chains, of_locks, of_events, of_the_outside):
        await make()
    await until(lambda: all("line" in one for one in list(entries.values())) and "blocked-loop" in calls)
    start("main", waits_for_ever(), others=1)
    await until(lambda: "line" in entries["main"] and "blocks" not in entries)
    assert not [one for one in KEPT if isinstance(one, asyncio.Future) and one.done()]
    threads = {thread.name: thread.native_id for thread in threading.enumerate()}
    print("expected", json.dumps({"coroutines": entries, "calls": calls, "threads": threads}))
    print("ready", flush=True)
    await asyncio.sleep(10_000)


if __name__ == "__main__":
    asyncio.run(main())
