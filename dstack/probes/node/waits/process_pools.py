"""The worker processes of a ``multiprocessing.Pool``, any of which may provide an awaited result."""

from __future__ import annotations

import contextlib

from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.objects import Objects

POOL_FILE = "/multiprocessing/pool.py"
MAX_PROCESSES = 256


def pool_processes(objects: Objects, result: int) -> list[int]:
    """The pids of the pool that computes an ``AsyncResult``, as its process knows them; empty if unknown.

    A pool of threads has none. Seen on Python 3.11.
    """
    with contextlib.suppress(Unreadable):
        processes = objects.items(objects.attribute(objects.attribute(result, "_pool"), "_pool"))
        if len(processes) <= MAX_PROCESSES:
            return [_pid(objects, process) for process in processes]
    return []


def _pid(objects: Objects, process: int) -> int:
    pid = objects.number(objects.attribute(objects.attribute(process, "_popen"), "pid"))
    if not pid or pid < 0:
        raise Unreadable("a process of a pool without a pid")
    return int(pid)
