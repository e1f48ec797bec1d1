"""What a suspended coroutine waits for: read from the future that its await chain ends in.

For Ray and executors, the callbacks of the future lead to its source; ``gather`` and ``shield`` refer to their futures.
For a future that only wakes its waiter, the innermost function of asyncio shows the wait. Seen on CPython 3.10 to 3.14
and Ray 2.46 to 2.60.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dstack.call_sites import (
    ANYIO_GROUP,
    AS_COMPLETED,
    ASYNC_FUTURE,
    ASYNC_LOCK,
    ASYNC_SEMAPHORE,
    AWAIT,
    GATHER,
    OF_ASYNCIO,
    OTHER_LOOP,
    SHIELD,
    SITES,
    TASK_GROUP,
    WAIT,
    WAIT_FOR,
)
from dstack.libraries.serve import MESSAGES, MESSAGES_FILE
from dstack.observed.call_site import Site
from dstack.observed.calls import Awaitables, Call, Executions, Inference, ProcessObject, Timer
from dstack.probes.node.asyncio.await_chains import GENERATORS, AwaitChain, AwaitChains
from dstack.probes.node.asyncio.event_loops import FUTURE, TASK, EventLoops
from dstack.probes.node.asyncio.library_futures import ANYIO_FILE, LibraryFutures
from dstack.probes.node.asyncio.timers import Timers
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.python_process import PythonProcess
from dstack.probes.node.ray_ids import object_refs, owners
from dstack.probes.node.thread_stacks import ASYNCIO, is_in
from dstack.probes.node.waits.executors import Executors

LOCKS_FILE, TASKS_FILE, GROUPS_FILE = "/asyncio/locks.py", "/asyncio/tasks.py", "/asyncio/taskgroups.py"
CHAINED, SHIELDED = "_call_check_cancel", "_outer_done_callback"
"""Callbacks of a future that follows a ``concurrent.futures`` one, and of the future that ``shield`` returns."""
RUNS_TASKS = "async_func"
"""The coroutine in which Ray runs a task; seen on Ray 2.46 and 2.60."""
GENERATOR_FILE = "ray/_private/object_ref_generator.py"
WRAPPERS = (("_wrap_awaitable", TASKS_FILE), ("_suppress_exceptions", GENERATOR_FILE))
"""Functions of tasks that only await something else. The second, for a generator's next item, was seen on Ray 2.53. It
is Cython's, without a frame, on 2.46, and in no task of its own on 2.60."""
PACKAGES = "/site-packages/"
MAX_DEPTH = 20
MAX_NEEDS = 1 << 15
"""The most needs of one coroutine. A need on two paths counts twice, so nested ``gather`` calls may double them."""


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
        """Add further needs. Raises :class:`Unreadable` where they are too many."""
        if len(self) + len(more) > MAX_NEEDS:
            raise Unreadable(f"it waits for more than {MAX_NEEDS} futures")
        self.refs += more.refs
        self.coroutines += more.coroutines
        self.futures += more.futures
        self.others += more.others
        self.inferred = self.inferred or more.inferred


class AwaitTargets:
    """What the coroutines of one process wait for. Every method raises :class:`Unreadable`."""

    def __init__(
        self, process: PythonProcess, loops: EventLoops, executors: Executors, chains: AwaitChains, timers: Timers
    ) -> None:
        self._timers = timers
        self._objects = process.objects
        self._memory = process.memory
        self._frames = process.frames
        self._layout = process.layout
        self._loops = loops
        self._executors = executors
        self._library = LibraryFutures(process.objects, executors.threads)
        self._chains = chains

    def call(self, future: int, chain: AwaitChain) -> tuple[Call | None, bool]:
        """The wait for a task's future, and whether its timeout also cancels what it needs.

        None where the task only sleeps or is about to continue.
        """
        known = self._known(future, 0) if self._loops.is_pending(future) else Needs()
        inside = list(itertools.takewhile(lambda frame: ASYNCIO in frame.file, chain.frames))
        call: Call | None
        if known is None:
            call = self._by_frame(future, chain, inside)
        elif known.site or not inside:
            call = self._for_needs(known, known.site or AWAIT)
        else:
            call = self._for_needs(known, *_known_by(f"asyncio.{inside[0].function}", AWAIT))
        if call is None:
            return None, False
        timer, is_cancelling = self._timer(chain.frames, inside)
        known_s = timer.left_s if timer else None
        timeout_s = min((one for one in (known_s, call.timeout_s) if one is not None), default=None)
        cancels = is_cancelling and (known is None or known.site is not SHIELD)
        return replace(call, timeout_s=timeout_s, timer=timer if timer and timer.file else None), cancels

    def is_passed_on(self, chain: AwaitChain, future: int) -> bool:
        """Whether a task only wraps an awaitable whose source is known: then its waiters wait for that source."""
        if not is_wrapper(chain):
            return False
        return not future or self._known(future, 0) is not None

    # Futures that refer to their source

    def _known(self, future: int, depth: int) -> Needs | None:
        """What a future needs to get its result; None where the future does not show it."""
        if depth > MAX_DEPTH:
            raise Unreadable("the chain of futures is too long")
        if self._objects.is_kind_of(future, TASK):
            chain = self._chains.by_task.get(future)
            is_waiting = chain is not None and is_wrapper(chain)
            wrapped = self._memory.pointer(future + self._layout.task_waiter) if is_waiting else 0
            needs = self._known(wrapped, depth + 1) if wrapped else None
            return needs or Needs(coroutines=[future])
        if not self._objects.is_kind_of(future, FUTURE):
            raise Unreadable(f"a {self._objects.type_name(future)} where a future was expected")
        if self._objects.is_a(future, "_GatheringFuture"):
            children = self._objects.items(self._objects.attributes(future).get("_children", 0))
            fails_fast = not self._returns_exceptions(children)
            return replace(self._all_of(children, depth + 1), site=GATHER, fails_fast=fails_fast)
        for function in self._callbacks(future):
            name = self._objects.text(self._memory.pointer(function + self._layout.function_qualname))
            if name.endswith(CHAINED):
                return self._of_source(self._enclosed(function).get("source", 0))
            if name.endswith(SHIELDED):
                inner = self._all_of([self._enclosed(function).get("inner", 0)], depth + 1)
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
        if thread := self._library.threads.get(future):
            return Needs(futures=[(thread,)])
        task = self._batches.get(future)
        return Needs(coroutines=[task]) if task else None

    @cached_property
    def _batches(self) -> dict[int, int]:
        return self._library.batches(self._chains.by_task)

    def _all_of(self, futures: Iterable[int], depth: int) -> Needs:
        needs = Needs()
        pending = [future for future in futures if self._loops.is_pending(future)]
        for future in pending:
            one = self._known(future, depth) or Needs(others=1)
            needs.add(one)
            needs.fails_fast = len(pending) == 1 and one.fails_fast
        return needs

    def _any_of(self, futures: Iterable[int], depth: int) -> Needs:
        """A future with several needs of its own counts as one unknown need."""
        needs = Needs()
        for future in futures:
            if not self._loops.is_pending(future):
                continue
            one = self._known(future, depth) or Needs(others=1)
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
            with contextlib.suppress(Unreadable):
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
                with contextlib.suppress(Unreadable):
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
        code = self._frames.codes.code(self._memory.pointer(function + self._layout.function_code))
        names = self._frames.codes.names(code)
        values = [self._objects.content(cell) for cell in cells if self._objects.is_a(cell, "cell")]
        return dict(zip(names[len(names) - len(values) :], values, strict=False))

    # Futures that only wake their waiter

    def _by_frame(self, future: int, chain: AwaitChain, inside: Sequence[MemoryFrame]) -> Call | None:
        """By the innermost functions of asyncio that the chain is in."""
        for at, frame in enumerate(inside):
            match frame.function:
                case "sleep" if frame.file.endswith(TASKS_FILE):
                    return None
                case "wait_for" if frame.file.endswith(TASKS_FILE) and not at:
                    awaited = frame.local("fut")
                    return self._for_needs(self._all_of([awaited] if awaited else [], 0), WAIT_FOR)
                case "_wait" if frame.file.endswith(TASKS_FILE):
                    return self._wait(self._sets_messages(chain) or frame)
                case "_wait_for_one" if frame.file.endswith(TASKS_FILE):
                    return self._as_completed(frame, chain)
                case "__aexit__" | "_aexit" if frame.file.endswith(GROUPS_FILE):
                    return self._for_group(frame, TASK_GROUP)
                case "acquire" if frame.file.endswith(LOCKS_FILE):
                    return self._lock(frame)
        if chain.frames and is_in(chain.frames[0], ANYIO_FILE, "__aexit__"):
            return self._for_group(chain.frames[0], ANYIO_GROUP)
        name = _library_future(chain.frames)
        plain = Call(site=ASYNC_FUTURE.id, name=name, frame=0, need=ProcessObject(object_id=hex(future)))
        return self._named(inside) or plain

    def _for_group(self, frame: MemoryFrame, site: Site) -> Call | None:
        """The exit of a task group: all of its tasks must end, and one that fails cancels the others."""
        tasks = self._objects.attributes(frame.local("self")).get("_tasks", 0)
        return self._for_needs(replace(self._all_of(self._objects.set_items(tasks), 0), fails_fast=True), site)

    def _sets_messages(self, chain: AwaitChain) -> MemoryFrame | None:
        """The frame in which a replica of Serve waits for messages of the user's method, or for its end.

        Only the method sends messages, so the wait is for its end in either case.
        """
        frames = (frame for frame in chain.frames if frame.file.endswith(MESSAGES_FILE))
        return next((frame for frame in frames if frame.function.endswith(MESSAGES) and frame.local("call_fut")), None)

    def _wait(self, frame: MemoryFrame) -> Call | None:
        """``asyncio.wait``; with FIRST_EXCEPTION any one may fail, which is enough."""
        if call := frame.local("call_fut"):
            return self._for_needs(self._all_of([call], 0), AWAIT)
        futures = frame.local("fs")
        items = self._objects.items if self._objects.is_a(futures, "list", "tuple") else self._objects.set_items
        return_when = self._objects.text(frame.local("return_when"))
        if return_when == "ALL_COMPLETED":
            return self._for_needs(self._all_of(items(futures), 0), WAIT)
        if return_when == "FIRST_COMPLETED" and not all(map(self._loops.is_pending, items(futures))):
            return None
        return self._for_needs(self._any_of(items(futures), 0), WAIT, count=1)

    def _as_completed(self, frame: MemoryFrame, chain: AwaitChain) -> Call | None:
        """``asyncio.as_completed``: an iterator that is a local from 3.13 on, else a generator.

        The generator is one of the words of the frame that iterates over it.
        """
        iterator = frame.local("self")
        if iterator:
            attributes = self._objects.attributes(iterator)
            todo, is_timed = attributes.get("_todo", 0), self._is_something(attributes.get("_timeout_handle", 0))
        else:
            generator = self._iterated(chain)
            todo, is_timed = generator.local("todo"), self._is_something(generator.local("timeout"))
        call = self._for_needs(self._any_of(self._objects.set_items(todo), 0), AS_COMPLETED, count=1)
        return replace(call, timeout_s=0.0) if call and is_timed else call

    def _iterated(self, chain: AwaitChain) -> MemoryFrame:
        for frame in chain.frames:
            for word in (*frame.stack, *frame.locals):
                if self._objects.is_a(word, *GENERATORS):
                    found = self._frames.suspended(word)
                    if found and found.function == "as_completed" and found.file.endswith(TASKS_FILE):
                        return found
        raise Unreadable("the futures of asyncio.as_completed were not found")

    def _is_something(self, address: int) -> bool:
        return bool(address) and not self._objects.is_a(address, "NoneType")

    def _lock(self, frame: MemoryFrame) -> Call:
        """A Lock or Semaphore, with the coroutines that are in an ``async with`` block of it."""
        lock = frame.local("self")
        kind = self._objects.type_name(lock)
        site = ASYNC_SEMAPHORE if kind.endswith("Semaphore") else ASYNC_LOCK
        holders = tuple(map(hex, self._chains.holders.get(lock, ())))
        held = Executions(coroutines=holders, object_id=hex(lock), inferred="async with block")
        name = f"asyncio.{kind}.acquire"
        return Call(
            site=site.id,
            name=None if name == site.name else name,
            frame=0,
            need=held if holders else ProcessObject(object_id=hex(lock)),
        )

    def _named(self, inside: Sequence[MemoryFrame]) -> Call | None:
        """A wait for the object whose method the outermost function of asyncio is, by that function."""
        frames = [frame for frame in inside if frame.function != "wait_for" and not _only_wraps(frame)]
        if not frames:
            return None
        owner, function = frames[-1].local("self"), frames[-1].position
        if not owner:
            site, name = _known_by(f"asyncio.{function.function}", OF_ASYNCIO)
            return Call(site=site.id, name=name, frame=0, need=ProcessObject())
        kind = self._objects.type_name(owner).rpartition(".")[2]
        name = f"asyncio.{'loop' if 'Loop' in kind else kind}.{function.function}"
        site, other = _known_by(name, OF_ASYNCIO)
        if other:  # a subclass: CPython 3.10 has no qualified names
            site, _ = _known_by(f"asyncio.{function.qualified}", OF_ASYNCIO)
        return Call(site=site.id, name=other, frame=0, need=ProcessObject(object_id=hex(owner)))

    # Parts of calls

    def _for_needs(self, needs: Needs, site: Site, name: str | None = None, *, count: int | None = None) -> Call | None:
        """A call for all needs, or for ``count`` of them; None where there are none."""
        if not len(needs):
            return None
        awaited = Awaitables(
            refs=tuple(object_refs(self._objects, needs.refs)),
            owners=tuple(owners(self._objects, needs.refs)),
            coroutines=tuple(map(hex, needs.coroutines)),
            futures=tuple(needs.futures),
            others=needs.others,
            count=count,
            inferred=needs.inferred,
            fails_fast=needs.fails_fast,
        )
        return Call(site=site.id, name=name, frame=0, need=awaited)

    def _timer(self, frames: Sequence[MemoryFrame], inside: Iterable[MemoryFrame]) -> tuple[Timer | None, bool]:
        """The first timeout or deadline of a wait, if any, and whether one of them cancels what it waits for."""
        given = [frame for frame in inside if frame.function in ("wait_for", "wait", "_wait")]
        found: list[Timer] = []
        for frame in given:
            if (seconds := self._seconds(frame.local("timeout"))) is not None:
                found.append(Timer(name=frame.function, left_s=seconds))
        cancels = any(timer.name == "wait_for" for timer in found)
        if scope := self._timers.deadline([frame for frame in frames if frame not in given]):
            found.append(scope)
        return min(found, key=lambda timer: timer.left_s or 0.0, default=None), cancels or scope is not None

    def _seconds(self, address: int) -> float | None:
        return self._objects.number(address) if self._objects.is_a(address, "int", "float") else None


def is_wrapper(chain: AwaitChain) -> bool:
    """Whether the task only wraps an awaitable: asyncio and Ray make such tasks, as of an ObjectRef."""
    return not chain.root.endswith(RUNS_TASKS) and all(map(_only_wraps, chain.frames))


def _only_wraps(frame: MemoryFrame) -> bool:
    return any(frame.function == function and frame.file.endswith(file) for function, file in WRAPPERS)


def _library_future(frames: Sequence[MemoryFrame]) -> str | None:
    """``asyncio future of ray/serve/batching.py``: by the file of the library that awaits it, if one does."""
    file = next((frame.file for frame in frames if not _only_wraps(frame)), "")
    _, is_of_library, path = file.rpartition(PACKAGES)
    return f"{ASYNC_FUTURE.name} of {path}" if is_of_library else None


def _known_by(name: str, other: Site) -> tuple[Site, str | None]:
    """The site with this id and the kind of the other one, else that one with the name."""
    site = SITES.get(name)
    return (site, None) if site and site.kind == other.kind else (other, name)
