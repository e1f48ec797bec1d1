"""Start child processes in the ways that applications do, wait for one of them, and print their pids as JSON.

The argument names the call in which the main thread waits.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import multiprocessing.pool
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil


def sleeps(is_there: Any = None) -> None:
    """The function of all children."""
    if is_there is not None:
        is_there.set()
    time.sleep(100_000)


def gives(pipe: Any) -> None:
    """A child that never sends the awaited message."""
    pipe.send("there")
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def joins_fork() -> None:
    joins(multiprocessing.get_context("fork"))


def joins_spawn() -> None:
    joins(multiprocessing.get_context("spawn"))


def joins_forkserver() -> None:
    joins(multiprocessing.get_context("forkserver"))


def joins(context: Any) -> None:
    is_there = context.Event()
    child = context.Process(target=sleeps, args=(is_there,))
    child.start()
    is_there.wait()
    ready(child.pid)
    child.join()


def awaits_in_fork() -> None:
    """A coroutine forks a child that has an event loop of its own; both loops have a coroutine that waits."""

    async def waits(is_there: Any) -> None:
        is_there.set()
        await asyncio.Event().wait()

    async def starts() -> None:
        context = multiprocessing.get_context("fork")
        is_there = context.Event()
        own = asyncio.create_task(asyncio.Event().wait(), name="of parent")
        await asyncio.sleep(0)
        child = context.Process(target=lambda: asyncio.run(waits(is_there)))
        child.start()
        is_there.wait()
        ready(child.pid)
        await own

    asyncio.run(starts())


def receives() -> None:
    """Receive from a pipe with a known writer, the child."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=gives, args=(there,))
    child.start()
    there.close()
    here.recv()
    ready(child.pid)
    here.recv()


def receives_from_socket() -> None:
    """Receive from a pair of sockets with an unknown writer."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=gives, args=(there,))
    child.start()
    here.recv()
    ready(child.pid)
    here.recv()


def gets_from_pool() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        result = pool.apply_async(time.sleep, (100_000,))
        ready(*sorted(child.pid or 0 for child in multiprocessing.active_children()))
        result.get()


def gets_from_pool_of_threads() -> None:
    """Wait for a result of a thread, beside an unrelated child."""
    child = multiprocessing.get_context("fork").Process(target=sleeps)
    child.start()
    with multiprocessing.pool.ThreadPool(2) as pool:
        result = pool.apply_async(time.sleep, (100_000,))
        ready(child.pid or 0)
        result.get()


def runs_command() -> None:
    """Wait for a shell, which waits for a Python."""
    with subprocess.Popen(["sh", "-c", f"'{sys.executable}' -c 'import time; time.sleep(100000)'; true"]) as child:
        while not (below := psutil.Process(child.pid).children()):
            time.sleep(0.01)
        ready(below[0].pid)
        os.waitpid(child.pid, 0)


def has_many() -> None:
    """Start more children than are read."""
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=sleeps, daemon=True) for _ in range(20)]
    for child in children:
        child.start()
    ready(*(child.pid for child in children))
    children[0].join()


def ready(*pids: int | None) -> None:
    print("expected", json.dumps(pids), flush=True)
    print("ready", flush=True)


WAYS: tuple[Callable[[], None], ...] = (
    awaits_in_fork,
    joins_fork,
    joins_spawn,
    joins_forkserver,
    receives,
    receives_from_socket,
    gets_from_pool,
    gets_from_pool_of_threads,
    runs_command,
    has_many,
)

if __name__ == "__main__":
    next(way for way in WAYS if way.__name__ == sys.argv[1])()
