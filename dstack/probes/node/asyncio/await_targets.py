"""What a suspended coroutine waits for: read from the future that its await chain ends in.

For a future that only wakes its waiter, the innermost function of asyncio shows the wait. Seen on CPython 3.10 to 3.15
and Ray 2.46 to 2.60.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dstack.call_sites import (
    ANYIO_GROUP,
    AS_COMPLETED,
    ASYNC_FUTURE,
    ASYNC_LOCK,
    ASYNC_SEMAPHORE,
    AWAIT,
    OF_ASYNCIO,
    SHIELD,
    SITES,
    TASK_GROUP,
    WAIT,
    WAIT_FOR,
)
from dstack.libraries.serve import MESSAGES, MESSAGES_FILE
from dstack.observed.call_site import Site
from dstack.observed.calls import Awaitables, Call, Executions, ProcessObject, Timer
from dstack.probes.node.asyncio.await_chains import GENERATORS, AwaitChain, AwaitChains
from dstack.probes.node.asyncio.event_loops import EventLoops
from dstack.probes.node.asyncio.future_sources import (
    ANYIO_FILE,
    TASKS_FILE,
    FutureSources,
    Needs,
    is_wrapper,
    only_wraps,
)
from dstack.probes.node.asyncio.timers import Timers
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.python_process import PythonProcess
from dstack.probes.node.ray_memory import object_refs, owners
from dstack.probes.node.thread_stacks import ASYNCIO, is_in

LOCKS_FILE, GROUPS_FILE = "/asyncio/locks.py", "/asyncio/taskgroups.py"
PACKAGES = "/site-packages/"


class AwaitTargets:
    """What the coroutines of one process wait for. Every method raises :class:`UnreadableMemory`."""

    def __init__(
        self, process: PythonProcess, loops: EventLoops, sources: FutureSources, chains: AwaitChains, timers: Timers
    ) -> None:
        self._objects = process.objects
        self._frames = process.frames
        self._loops = loops
        self._sources = sources
        self._chains = chains
        self._timers = timers

    def call(self, future: int, chain: AwaitChain) -> tuple[Call | None, bool]:
        """The wait for a task's future, and whether its timeout also cancels what it needs.

        None where the task only sleeps or is about to continue.
        """
        known = self._sources.needs_of(future) if self._loops.is_pending(future) else Needs()
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
        return not future or self._sources.needs_of(future) is not None

    # Futures that only wake their waiter

    def _by_frame(self, future: int, chain: AwaitChain, inside: Sequence[MemoryFrame]) -> Call | None:
        """By the innermost functions of asyncio that the chain is in."""
        for at, frame in enumerate(inside):
            match frame.function:
                case "sleep" if frame.file.endswith(TASKS_FILE):
                    return None
                case "wait_for" if frame.file.endswith(TASKS_FILE) and not at:
                    awaited = frame.local("fut")
                    return self._for_needs(self._sources.all_of([awaited] if awaited else []), WAIT_FOR)
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
        tasks = self._objects.find_attribute(frame.local("self"), "_tasks")
        return self._for_needs(replace(self._sources.all_of(self._objects.set_items(tasks)), fails_fast=True), site)

    def _sets_messages(self, chain: AwaitChain) -> MemoryFrame | None:
        """The frame in which a replica of Serve waits for messages of the user's method, or for its end.

        Only the method sends messages, so the wait is for its end in either case.
        """
        frames = (frame for frame in chain.frames if frame.file.endswith(MESSAGES_FILE))
        return next((frame for frame in frames if frame.function.endswith(MESSAGES) and frame.local("call_fut")), None)

    def _wait(self, frame: MemoryFrame) -> Call | None:
        """``asyncio.wait``; with FIRST_EXCEPTION any one may fail, which is enough."""
        if call := frame.local("call_fut"):
            return self._for_needs(self._sources.all_of([call]), AWAIT)
        futures = frame.local("fs")
        items = self._objects.items if self._objects.is_a(futures, "list", "tuple") else self._objects.set_items
        return_when = self._objects.text(frame.local("return_when"))
        if return_when == "ALL_COMPLETED":
            return self._for_needs(self._sources.all_of(items(futures)), WAIT)
        if return_when == "FIRST_COMPLETED" and not all(map(self._loops.is_pending, items(futures))):
            return None
        return self._for_needs(self._sources.any_of(items(futures)), WAIT, count=1)

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
        call = self._for_needs(self._sources.any_of(self._objects.set_items(todo)), AS_COMPLETED, count=1)
        return replace(call, timeout_s=0.0) if call and is_timed else call

    def _iterated(self, chain: AwaitChain) -> MemoryFrame:
        for frame in chain.frames:
            for word in (*frame.stack, *frame.locals):
                if self._objects.is_a(word, *GENERATORS):
                    found = self._frames.suspended(word)
                    if found and found.function == "as_completed" and found.file.endswith(TASKS_FILE):
                        return found
        raise UnreadableMemory("the futures of asyncio.as_completed were not found")

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
        frames = [frame for frame in inside if frame.function != "wait_for" and not only_wraps(frame)]
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


def _library_future(frames: Sequence[MemoryFrame]) -> str | None:
    """``asyncio future of ray/serve/batching.py``: by the file of the library that awaits it, if one does."""
    file = next((frame.file for frame in frames if not only_wraps(frame)), "")
    _, is_of_library, path = file.rpartition(PACKAGES)
    return f"{ASYNC_FUTURE.name} of {path}" if is_of_library else None


def _known_by(name: str, other: Site) -> tuple[Site, str | None]:
    """The site with this id and the kind of the other one, else that one with the name."""
    site = SITES.get(name)
    return (site, None) if site and site.kind == other.kind else (other, name)
