"""What futures of asyncio need to get their results, as far as they refer to it.

For Ray and executors, the callbacks of a future lead to its source; ``gather`` and ``shield`` refer to their futures.
A future that code of a library sets names no source: the code that will set it has it among its locals, by which it is
found. Such are what runs in a thread of anyio, and a batch of Ray Serve. Seen with anyio 4, which runs the sync methods
of Serve deployments and the sync endpoints of Starlette and FastAPI, on CPython 3.10 to 3.15 and Ray 2.46 to 2.60.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from dstack.call_sites import GATHER, OTHER_LOOP, SHIELD
from dstack.libraries.serve import BATCHES_FILE
from dstack.observed.call_site import Site
from dstack.observed.calls import Inference
from dstack.probes.node.asyncio.await_chains import AwaitChain, AwaitChains
from dstack.probes.node.asyncio.event_loops import FUTURE, TASK, EventLoops
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.python_process import PythonProcess
from dstack.probes.node.thread_stacks import is_in
from dstack.probes.node.waits.executors import Executors

TASKS_FILE, ANYIO_FILE = "/asyncio/tasks.py", "/anyio/_backends/_asyncio.py"
CHAINED, SHIELDED = "_call_check_cancel", "_outer_done_callback"
"""Callbacks of a future that follows a ``concurrent.futures`` one, and of the future that ``shield`` returns."""
RUNS_TASKS = "async_func"
"""The coroutine in which Ray runs a task; seen on Ray 2.46 and 2.60."""
GENERATOR_FILE = "ray/_private/object_ref_generator.py"
WRAPPERS = (("_wrap_awaitable", TASKS_FILE), ("_suppress_exceptions", GENERATOR_FILE))
"""Functions of tasks that only await something else. The second, for a generator's next item, was seen on Ray 2.53. It
is Cython's, without a frame, on 2.46, and in no task of its own on 2.60."""
MAX_DEPTH = 20
MAX_NEEDS = 1 << 15
"""The most needs of one coroutine. A need on two paths counts twice, so nested ``gather`` calls may double them."""
MAX_BATCH = 10_000


@dataclass
class Needs:
    """What a coroutine needs: ObjectRefs and coroutines by address, futures by the threads that may give them."""

    refs: list[int] = field(default_factory=list)
    coroutines: list[int] = field(default_factory=list)
    futures: list[tuple[int, ...]] = field(default_factory=list)
    others: int = 0
    inferred: Inference | None = None
    site: Site | None = None
    fails_fast: bool = False

    def __len__(self) -> int:
        return len(self.refs) + len(self.coroutines) + len(self.futures) + self.others

    def add(self, more: Needs) -> None:
        """Add further needs. Raises :class:`UnreadableMemory` where they are too many."""
        if len(self) + len(more) > MAX_NEEDS:
            raise UnreadableMemory(f"it waits for more than {MAX_NEEDS} futures")
        self.refs += more.refs
        self.coroutines += more.coroutines
        self.futures += more.futures
        self.others += more.others
        self.inferred = self.inferred or more.inferred


class FutureSources:
    """What the futures of one process need to get their results. Every method raises :class:`UnreadableMemory`."""

    def __init__(self, process: PythonProcess, loops: EventLoops, executors: Executors, chains: AwaitChains) -> None:
        self._objects = process.objects
        self._memory = process.memory
        self._codes = process.frames.codes
        self._layout = process.layout
        self._loops = loops
        self._executors = executors
        self._chains = chains

    def needs_of(self, future: int, depth: int = 0) -> Needs | None:
        """What a future needs to get its result; None where the future does not show it."""
        if depth > MAX_DEPTH:
            raise UnreadableMemory("the chain of futures is too long")
        if self._objects.is_kind_of(future, TASK):
            chain = self._chains.by_task.get(future)
            is_waiting = chain is not None and is_wrapper(chain)
            wrapped = self._memory.pointer(future + self._layout.task_waiter) if is_waiting else 0
            needs = self.needs_of(wrapped, depth + 1) if wrapped else None
            return needs or Needs(coroutines=[future])
        if not self._objects.is_kind_of(future, FUTURE):
            raise UnreadableMemory(f"a {self._objects.type_name(future)} where a future was expected")
        if self._objects.is_a(future, "_GatheringFuture"):
            children = self._objects.items(self._objects.find_attribute(future, "_children"))
            fails_fast = not self._returns_exceptions(children)
            return replace(self.all_of(children, depth + 1), site=GATHER, fails_fast=fails_fast)
        for function in self._callbacks(future):
            name = self._objects.text(self._memory.pointer(function + self._layout.function_qualname))
            if name.endswith(CHAINED):
                return self._of_source(self._enclosed(function).get("source", 0))
            if name.endswith(SHIELDED):
                inner = self.all_of([self._enclosed(function).get("inner", 0)], depth + 1)
                return replace(inner, site=SHIELD)
        return self._set_by_library(future)

    def _returns_exceptions(self, children: Iterable[int]) -> bool:
        """Whether ``gather`` awaits these with ``return_exceptions``, by its callback of the first pending one."""
        for function in (one for child in children for one in self._callbacks(child)):
            if given := self._enclosed(function).get("return_exceptions", 0):
                return self._objects.truth(given) is True
        return False

    def _set_by_library(self, future: int) -> Needs | None:
        """The thread or coroutine of a library that has the future to set."""
        if thread := self._in_anyio.get(future):
            return Needs(futures=[(thread,)])
        task = self._batches.get(future)
        return Needs(coroutines=[task]) if task else None

    def all_of(self, futures: Iterable[int], depth: int = 0) -> Needs:
        """What all of these futures need."""
        needs = Needs()
        pending = [future for future in futures if self._loops.is_pending(future)]
        for future in pending:
            one = self.needs_of(future, depth) or Needs(others=1)
            needs.add(one)
            needs.fails_fast = len(pending) == 1 and one.fails_fast
        return needs

    def any_of(self, futures: Iterable[int], depth: int = 0) -> Needs:
        """What one of these futures needs; one with several needs of its own counts as one unknown need."""
        needs = Needs()
        for future in futures:
            if not self._loops.is_pending(future):
                continue
            one = self.needs_of(future, depth) or Needs(others=1)
            needs.add(one if len(one) == 1 else Needs(others=1, inferred="one of several"))
        return needs

    def _of_source(self, source: int) -> Needs:
        """The source of a ``concurrent.futures`` future: an ObjectRef, a thread of an executor, or a coroutine."""
        ref = self._objects.attributes(source).get("object_ref")
        if ref:
            return Needs(refs=[ref])
        threads, is_certain = self._executors.givers(source)
        if threads:
            return Needs(futures=[threads], inferred=None if is_certain else "queued future")
        if coroutine := self.givers.get(source):
            thread = self._running_on(coroutine)
            return Needs(futures=[(thread,)]) if thread else Needs(coroutines=[coroutine])
        beginner = self.beginner(source)
        return Needs(futures=[(beginner,)], site=OTHER_LOOP) if beginner else Needs(others=1)

    def _running_on(self, coroutine: int) -> int | None:
        """The thread, by its OS id, whose loop runs this coroutine now."""
        loop = next((one for one, task in self._loops.current.items() if task == coroutine), None)
        return self._thread_of(loop)

    @cached_property
    def givers(self) -> dict[int, int]:
        """The asyncio tasks that set the results of ``concurrent.futures`` futures, by the future."""
        found = {}
        for task in self._chains.by_task:
            with contextlib.suppress(UnreadableMemory):
                for function in self._callbacks(task):
                    if future := self._enclosed(function).get("destination"):
                        found[future] = task
        return found

    @cached_property
    def beginners(self) -> dict[int, int]:
        """The loops that have a callback to start the coroutine of such a future, by the future."""
        loops = {*self._loops.current, *map(self._loops.loop_of, self._chains.by_task)}
        found = {}
        for loop in loops:
            for function in self._loops.about_to_call(loop):
                with contextlib.suppress(UnreadableMemory):
                    if future := self._enclosed(function).get("future"):
                        found[future] = loop
        return found

    def beginner(self, future: int) -> int | None:
        """The thread, by its OS id, whose loop must start the coroutine of such a future, if it has not started."""
        return self._thread_of(self.beginners.get(future))

    def runner(self, future: int) -> int | None:
        """The same, also of a coroutine that has started."""
        coroutine = self.givers.get(future)
        return self._thread_of(self._loops.loop_of(coroutine)) if coroutine else self.beginner(future)

    def _thread_of(self, loop: int | None) -> int | None:
        """The thread, by its OS id, that runs a loop."""
        thread_id = self._loops.thread_of(loop, self._executors.os_ids) if loop else None
        return self._executors.os_ids[thread_id] if thread_id else None

    def _callbacks(self, future: int) -> Iterator[int]:
        """The Python functions among a future's callbacks."""
        first, more = (
            self._memory.pointer(future + offset)
            for offset in (self._layout.future_callback, self._layout.future_callbacks)
        )
        pairs = self._objects.items(more) if self._objects.is_a(more, "list") else ()
        for function in (first, *(function for pair in pairs for function in self._objects.items(pair)[:1])):
            if self._objects.is_a(function, "function"):
                yield function

    def _enclosed(self, function: int) -> dict[str, int]:
        """The variables in a function's closure, by name."""
        closure = self._memory.pointer(function + self._layout.function_closure)
        if not closure:
            return {}
        cells = self._objects.items(closure)
        code = self._codes.code(self._memory.pointer(function + self._layout.function_code))
        names = self._codes.names(code)
        values = [self._objects.content(cell) for cell in cells if self._objects.is_a(cell, "cell")]
        return dict(zip(names[len(names) - len(values) :], values, strict=False))

    # Futures that code of a library sets

    @cached_property
    def _in_anyio(self) -> dict[int, int]:
        """The thread of anyio's pool that runs a function, by the future of its result."""
        return {
            future: thread.os_thread_id
            for thread in self._executors.threads
            for frame in thread.frames
            if is_in(frame, ANYIO_FILE, "run") and (future := frame.local("future"))
        }

    @cached_property
    def _batches(self) -> dict[int, int]:
        """The asyncio task that executes a batch, by the futures of the batch's requests: the innermost one."""
        found: dict[int, int] = {}
        for task, chain in self._chains.by_task.items():
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
        with contextlib.suppress(UnreadableMemory):
            if self._objects.is_a(futures, "list"):
                yield from self._objects.items(futures)[:MAX_BATCH]
            elif self._objects.is_a(futures, "collections.deque"):
                yield from self._objects.deque_items(futures)

    def _of_batches(self, frame: MemoryFrame) -> Iterator[int]:
        with contextlib.suppress(UnreadableMemory):
            for batch in self._items(frame.local("sub_batches")):
                for request in self._items(batch):
                    if future := self._objects.find_attribute(request, "future"):
                        yield future

    def _items(self, address: int) -> Iterable[int]:
        return self._objects.items(address)[:MAX_BATCH] if self._objects.is_a(address, "list") else ()


def is_wrapper(chain: AwaitChain) -> bool:
    """Whether the task only wraps an awaitable: asyncio and Ray make such tasks, as of an ObjectRef."""
    return not chain.root.endswith(RUNS_TASKS) and all(map(only_wraps, chain.frames))


def only_wraps(frame: MemoryFrame) -> bool:
    """Whether a frame is in a function that only awaits something else."""
    return any(frame.function == function and frame.file.endswith(file) for function, file in WRAPPERS)
