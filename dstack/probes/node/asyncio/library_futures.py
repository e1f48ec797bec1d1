"""Futures of asyncio that code of a library sets: what runs in a thread of anyio, and a batch of Ray Serve.

Such a future names no source. The code that will set it has it among its locals, by which it is found. Seen with
anyio 4, which runs the sync methods of Serve deployments and the sync endpoints of Starlette and FastAPI, and Ray 2.60.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dstack.libraries.serve import BATCHES_FILE
from dstack.probes.node.asyncio.await_chains import AwaitChain
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.python_process import MemoryThread
from dstack.probes.node.thread_stacks import is_in

ANYIO_FILE = "/anyio/_backends/_asyncio.py"
MAX_BATCH = 10_000


class LibraryFutures:
    """The threads and coroutines of one process that will set such futures."""

    def __init__(self, objects: Objects, threads: Sequence[MemoryThread]) -> None:
        self._objects = objects
        self._all_threads = threads

    @cached_property
    def threads(self) -> dict[int, int]:
        """The thread of anyio's pool that runs a function, by the future of its result."""
        return {
            future: thread.os_thread_id
            for thread in self._all_threads
            for frame in thread.frames
            if is_in(frame, ANYIO_FILE, "run") and (future := frame.local("future"))
        }

    def batches(self, chains: Mapping[int, AwaitChain]) -> dict[int, int]:
        """The asyncio task that executes a batch, by the futures of the batch's requests: the innermost one."""
        found: dict[int, int] = {}
        for task, chain in chains.items():
            for frame in chain.frames:
                if not frame.file.endswith(BATCHES_FILE):
                    continue
                is_outer = frame.function == "_process_sub_batches"
                for future in self._of_batches(frame) if is_outer else self._of_batch(frame):
                    if future not in found or not is_outer:
                        found[future] = task
        return found

    def _of_batch(self, frame: MemoryFrame) -> Iterator[int]:
        futures = frame.local("futures") or frame.local("initial_futures")
        with contextlib.suppress(Unreadable):
            if self._objects.is_a(futures, "list"):
                yield from self._objects.items(futures)[:MAX_BATCH]
            elif self._objects.is_a(futures, "collections.deque"):
                yield from self._objects.deque_items(futures)

    def _of_batches(self, frame: MemoryFrame) -> Iterator[int]:
        with contextlib.suppress(Unreadable):
            for batch in self._items(frame.local("sub_batches")):
                for request in self._items(batch):
                    if future := self._objects.attributes(request).get("future"):
                        yield future

    def _items(self, address: int) -> Iterable[int]:
        return self._objects.items(address)[:MAX_BATCH] if self._objects.is_a(address, "list") else ()
