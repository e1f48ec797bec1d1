"""Starts processes of its own in the ways that applications do, waits for one of them, and prints their pids as JSON.

The argument names what its main thread waits in.
"""

from __future__ import annotations

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
    """What all the children do."""
    if is_there is not None:
        is_there.set()
    time.sleep(100_000)


def gives(pipe: Any) -> None:
    """A child that should send something, and does not."""
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


def receives() -> None:
    """From a pipe of which only the child has the other end."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=gives, args=(there,))
    child.start()
    there.close()
    here.recv()
    ready(child.pid)
    here.recv()


def receives_from_socket() -> None:
    """From a pair of sockets, whose other end nobody can tell."""
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
    """Its threads give the result, and not the child that it has besides."""
    child = multiprocessing.get_context("fork").Process(target=sleeps)
    child.start()
    with multiprocessing.pool.ThreadPool(2) as pool:
        result = pool.apply_async(time.sleep, (100_000,))
        ready(child.pid or 0)
        result.get()


def runs_command() -> None:
    """Waits for a shell, which waits for a Python."""
    with subprocess.Popen(["sh", "-c", f"'{sys.executable}' -c 'import time; time.sleep(100000)'; true"]) as child:
        while not (below := psutil.Process(child.pid).children()):
            time.sleep(0.01)
        ready(below[0].pid)
        os.waitpid(child.pid, 0)


def has_many() -> None:
    """More than are looked at."""
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
