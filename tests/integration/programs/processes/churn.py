"""A few asyncio tasks that wait for ever, beside about twenty new short-lived tasks a millisecond; no Ray.

Prints as JSON, by the name of each stuck task, its ``id`` in hex, ``line`` and ``function`` of its innermost frame, and
the names of the ``coroutines`` that it waits for. All other tasks have the name ``passing``.
"""

import asyncio
import json
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

EACH_MS = 20
MOST_ALIVE = 200
entries: dict[str, dict[str, Any]] = {}
KEPT: list[Any] = []


def start(name: str, coroutine: Coroutine[Any, Any, object], *coroutines: str) -> "asyncio.Task[Any]":
    """Start a task that will be stuck, and record the tasks that it waits for."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    entries[name] = {"id": hex(id(task)), "coroutines": list(coroutines)}
    KEPT.append(task)
    return task


def waiting(waitable: T) -> T:
    """Record that the current task waits for ``waitable`` on the calling line."""
    task, frame = asyncio.current_task(), sys._getframe(1)
    assert task is not None
    entries[task.get_name()].update(line=frame.f_lineno, function=frame.f_code.co_name)
    return waitable


async def waits(waitable: Any) -> None:
    await waiting(waitable)


async def holds(lock: asyncio.Lock) -> None:
    async with lock:
        await waiting(asyncio.get_running_loop().create_future())


async def enters(lock: asyncio.Lock) -> None:
    async with waiting(lock):
        pass


async def passing(depth: int) -> None:
    """End soon, with a child that ends soon."""
    await asyncio.sleep(0)
    if depth:
        await asyncio.gather(asyncio.get_running_loop().create_task(passing(depth - 1), name="passing"))
    else:
        await asyncio.sleep(0.0005)


async def churn() -> None:
    """Start ``EACH_MS`` new tasks each millisecond, half of them children; fewer if the machine is too slow."""
    loop = asyncio.get_running_loop()
    alive: set[asyncio.Task[None]] = set()
    began, made = loop.time(), 0
    while True:
        while made < (loop.time() - began) * 1000 * EACH_MS and len(alive) < MOST_ALIVE:
            task = loop.create_task(passing(1), name="passing")
            alive.add(task)
            task.add_done_callback(alive.discard)
            made += 2
        began, made = (loop.time(), 0) if len(alive) >= MOST_ALIVE else (began, made)
        await asyncio.sleep(0.001)


async def main() -> None:
    lock, event, bare = asyncio.Lock(), asyncio.Event(), asyncio.get_running_loop().create_future()
    start("bare", waits(bare))
    start("event", waits(event.wait()))
    start("holder", holds(lock))
    await asyncio.sleep(0)
    start("lock", enters(lock), "holder")
    members = [start(f"member-{number}", waits(asyncio.Event().wait())) for number in range(3)]
    start("gather", waits(asyncio.gather(*members)), *(task.get_name() for task in members))
    while not all("line" in one for one in entries.values()):
        await asyncio.sleep(0.001)
    print("expected", json.dumps(entries))
    print("ready", flush=True)
    await churn()


if __name__ == "__main__":
    asyncio.run(main())
