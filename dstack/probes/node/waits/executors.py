"""The threads that may set the result of a ``concurrent.futures.Future``, and the child processes of a process.

A future is set by the thread that runs it, or if it is queued, by any thread of its executor. The result of a
``multiprocessing.Pool`` comes from any of its worker processes. Futures of other process pools and of event loops are
not covered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from dstack.observed.processes import EndedChild
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.python_process import MemoryThread, PythonProcess
from dstack.probes.node.thread_stacks import is_in

Givers = tuple[int, ...]
"""OS ids of threads, one of which must proceed; empty if unknown."""

EXECUTOR_FILE = "/concurrent/futures/thread.py"
QUEUE = "_queue.SimpleQueue"
ENDED = ("CANCELLED", "CANCELLED_AND_NOTIFIED", "FINISHED")
MAX_QUEUED = 2_000
POOL_FILE = "/multiprocessing/pool.py"
MAX_PROCESSES = 256
MAX_FRAMES, MAX_ATTRIBUTES = 12, 64
"""The innermost frames of each thread, and the attributes of their ``self``, that are searched."""


class Executors:
    """The thread pools of one process, as the frames of their threads show them."""

    def __init__(self, threads: Sequence[MemoryThread], process: PythonProcess) -> None:
        self.threads = [thread for thread in threads if thread.os_thread_id]
        self._objects = process.objects
        self._layout = process.layout

    @cached_property
    def os_ids(self) -> dict[int, int]:
        """The OS ids of the threads, by Python's."""
        return {thread.thread_id: thread.os_thread_id for thread in self.threads}

    def pending(self, futures: Sequence[int]) -> list[int]:
        """Those of these futures that have not ended."""
        return [future for future in futures if self._state(future) not in ENDED]

    def givers(self, future: int) -> tuple[Givers, bool]:
        """The threads that may set the future's result, and whether that is certain."""
        if future in self._runners:
            return (self._runners[future],), True
        return self._queued.get(future, ()), False

    def _state(self, future: int) -> str:
        attributes = self._objects.attributes(future)
        if "_state" not in attributes or "_condition" not in attributes:
            raise UnreadableMemory(f"a {self._objects.type_name(future)} where a Future was expected")
        return self._objects.text(attributes["_state"])

    @cached_property
    def _runners(self) -> dict[int, int]:
        """The thread that runs each future: it is in the ``run`` of the future's work item."""
        found = {}
        for thread in self.threads:
            for item in _locals_of(thread, "run", "self"):
                future = self._future_of(item)
                if future:
                    found[future] = thread.os_thread_id
        return found

    @cached_property
    def _queued(self) -> dict[int, Givers]:
        """The threads of the executor that has each future in its queue."""
        workers: dict[int, Givers] = {}
        for thread in self.threads:
            for queue in _locals_of(thread, "_worker", "work_queue"):
                workers[queue] = (*workers.get(queue, ()), thread.os_thread_id)
        return {
            future: threads
            for queue, threads in workers.items()
            for item in self._items(queue)
            if (future := self._future_of(item))
        }

    def _future_of(self, item: int) -> int | None:
        """The future of a work item; None for any other object, and for an incomplete or freed item."""
        with contextlib.suppress(UnreadableMemory):
            if self._objects.is_a(item, "_WorkItem"):
                return self._objects.attributes(item).get("future")
        return None

    def _items(self, queue: int) -> Sequence[int]:
        """The items of a SimpleQueue: in a list, or from CPython 3.13 on in an array with its size."""
        self._objects.expect(queue, QUEUE)
        items, count = self._objects.memory.pointers(queue + self._layout.queue_items, 2)
        if self._objects.is_a(items, "list"):
            return self._objects.items(items)[:MAX_QUEUED]
        return self._objects.memory.pointers(items, min(count, MAX_QUEUED))


def _locals_of(thread: MemoryThread, function: str, name: str) -> list[int]:
    """The addresses of a local of the executor's own frames of this function."""
    return [
        address for frame in thread.frames if is_in(frame, EXECUTOR_FILE, function) if (address := frame.local(name))
    ]


def pool_processes(objects: Objects, result: int) -> list[int]:
    """The pids of the pool that computes an ``AsyncResult``, as its process knows them; empty if unknown.

    A pool of threads has none. Seen on Python 3.11.
    """
    with contextlib.suppress(UnreadableMemory):
        processes = objects.items(objects.attribute(objects.attribute(result, "_pool"), "_pool"))
        if len(processes) <= MAX_PROCESSES:
            return [_pid(objects, process) for process in processes]
    return []


PROCESSES = ("multiprocessing.process", "_dangling")
"""The set of weak references to all Process objects that exist; CPython 3.10 to 3.15."""
MAX_ENDED = 32


def ended_processes(process: PythonProcess, pid: int) -> list[EndedChild]:
    """The child processes that have ended and were waited for, by their Process and Popen objects."""
    found: dict[int, EndedChild] = {}
    for address, name in (*_process_objects(process, pid), *_popen_objects(process)):
        with contextlib.suppress(UnreadableMemory):
            ended = _ended(process.objects, address, name, pid)
            if ended and len(found) < MAX_ENDED:
                found[ended.pid] = ended
    return list(found.values())


def _ended(objects: Objects, popen: int, name: str, pid: int) -> EndedChild | None:
    code, child = (objects.number(objects.attribute(popen, of)) for of in ("returncode", "pid"))
    if code is None or not child or child <= 0:
        return None
    return EndedChild(pid=int(child), parent_pid=pid, name=name, exit_code=int(code))


def _process_objects(process: PythonProcess, pid: int) -> Iterator[tuple[int, str]]:
    """The ``Popen`` of each ``multiprocessing.Process`` that this process has started, with the name of the latter."""
    objects = process.objects
    started: Sequence[int] = ()
    with contextlib.suppress(UnreadableMemory):
        table = process.modules.lookup(*PROCESSES)
        started = list(objects.weak_items(table, MAX_PROCESSES)) if table else ()
    for one in started:
        with contextlib.suppress(UnreadableMemory):
            if objects.is_kind_of(one, "BaseProcess") and objects.number(objects.attribute(one, "_parent_pid")) == pid:
                yield objects.attribute(one, "_popen"), objects.text(objects.attribute(one, "_name"))


def _popen_objects(process: PythonProcess) -> Iterator[tuple[int, str]]:
    """The ``subprocess.Popen`` objects in variables of frames, and in attributes of the first one, as of ``self``."""
    objects = process.objects
    words: set[int] = set()
    owners: set[int] = set()
    with objects.memory.temporary():
        for frame in (frame for thread in process.threads for frame in thread.frames[:MAX_FRAMES]):
            with contextlib.suppress(UnreadableMemory):
                words.update(frame.variables)
                owners.update(frame.variables[:1])
        objects.memory.prefetch(owners)
        for owner in owners:
            with contextlib.suppress(UnreadableMemory):
                words.update(objects.attribute_values(owner)[:MAX_ATTRIBUTES])
        objects.memory.prefetch(words)
        found = [word for word in words if objects.is_a(word, "Popen")]
    for word in found:
        with contextlib.suppress(UnreadableMemory):
            if "args" in objects.attributes(word):
                yield word, ""


def _pid(objects: Objects, process: int) -> int:
    pid = objects.number(objects.attribute(objects.attribute(process, "_popen"), "pid"))
    if not pid or pid < 0:
        raise UnreadableMemory("a process of a pool without a pid")
    return int(pid)
