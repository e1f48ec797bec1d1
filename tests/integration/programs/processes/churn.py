"""A few asyncio tasks that are stuck for good, beside some twenty others a millisecond that come and go; no Ray.

Prints as JSON, by the name of each stuck task, its ``id`` in hex, ``line`` and ``function`` of its innermost frame, and
the names of the ``coroutines`` that it waits for. All other tasks are called ``passing``.
"""

import asyncio
import json
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

EACH_MS = 20
MOST_ALIVE = 200
told: dict[str, dict[str, Any]] = {}
KEPT: list[Any] = []


def start(name: str, coroutine: Coroutine[Any, Any, object], *coroutines: str) -> "asyncio.Task[Any]":
    """A task that will be stuck, and for whom."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    told[name] = {"id": hex(id(task)), "coroutines": list(coroutines)}
    KEPT.append(task)
    return task


def here(waitable: T) -> T:
    """Notes that the line that calls this is the one where the current task waits, for what it hands over."""
    task, frame = asyncio.current_task(), sys._getframe(1)
    assert task is not None
    told[task.get_name()].update(line=frame.f_lineno, function=frame.f_code.co_name)
    return waitable


async def waits(waitable: Any) -> None:
    await here(waitable)


async def holds(lock: asyncio.Lock) -> None:
    async with lock:
        await here(asyncio.get_running_loop().create_future())


async def enters(lock: asyncio.Lock) -> None:
    async with here(lock):
        pass


async def passing(depth: int) -> None:
    """Lives for a moment, with a child that does, too."""
    await asyncio.sleep(0)
    if depth:
        await asyncio.gather(asyncio.get_running_loop().create_task(passing(depth - 1), name="passing"))
    else:
        await asyncio.sleep(0.0005)


async def churn() -> None:
    """As many new tasks each millisecond, of which every other is another's child.

    Fewer where this machine cannot keep up with so many: they must not pile up.
    """
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
    while not all("line" in one for one in told.values()):
        await asyncio.sleep(0.001)
    print("expected", json.dumps(told))
    print("ready", flush=True)
    await churn()


if __name__ == "__main__":
    asyncio.run(main())
