"""All suspended coroutines of a process: where each is, for whose task it works, and what it waits for."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from dstack.probes.node.asyncio.await_chains import Awaits, Chain
from dstack.probes.node.asyncio.await_targets import RUNS_TASKS, Awaited, Call, is_wrapper
from dstack.probes.node.asyncio.context_vars import Contexts
from dstack.probes.node.asyncio.event_loops import TASK, EventLoops
from dstack.probes.node.cpython.cached_property import on_demand
from dstack.probes.node.cpython.frames import Frames, MemoryFrame
from dstack.probes.node.cpython.layout import Layout
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.modules import Modules
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.waits.executors import Executors
from dstack.probes.node.waits.known_waits import AWAITS, RawFrame, place_of
from dstack.probes.node.waits.locks import lock_of

MAX_TASKS = 20_000
TRACING = "/ray/util/tracing/tracing_helper.py"
"""Wrappers around methods of actors, which are nobody's code."""


@dataclass(frozen=True)
class Suspended:
    """One suspended asyncio task; ``mark`` is the same as long as it waits for the same in the same place."""

    address: int
    name: str
    frames: list[RawFrame]
    thread_id: int | None
    task_id: str | None
    is_task: bool
    call: Call | None
    mark: object


class Coroutines:
    """The coroutines of one process; ``thread_ids`` are its threads, by their Python ids.

    What cannot be read of one coroutine, because it moves, makes no difference to the others. Every method raises
    :class:`Unreadable` where nothing can be read.
    """

    def __init__(
        self,
        objects: Objects,
        frames: Frames,
        modules: Modules,
        layout: Layout,
        executors: Executors,
        thread_ids: Collection[int],
    ) -> None:
        self._objects = objects
        self._memory = objects.memory
        self._frames = frames
        self._layout = layout.coroutines
        self._awaits = Awaits(objects, frames, layout)
        self._contexts = Contexts(objects, layout)
        self._thread_ids = thread_ids
        self._threads: dict[int, int | None] = {}
        self.loops = EventLoops(objects, frames, modules, layout)
        self._awaited = Awaited(
            objects, frames, layout, self.loops, executors, lambda: self.chains, lambda: self.holders
        )

    @on_demand
    def chains(self) -> dict[int, Chain]:
        """The await chains of all tasks that are suspended, by the tasks' addresses."""
        chains: dict[int, Chain] = {}
        for task in self.loops.tasks():
            if len(chains) >= MAX_TASKS:
                raise Unreadable(f"it has more than {MAX_TASKS} coroutines")
            with contextlib.suppress(Unreadable):
                chains[task] = self._awaits.chain(self._memory.pointer(task + self._layout.task_coroutine))
        return chains

    @on_demand
    def holders(self) -> dict[int, list[int]]:
        """The tasks that are in a ``with`` or ``async with`` block of an object, by its address.

        Not those that are still on their way into it, and not those that let it go to wait for their condition.
        """
        holders: dict[int, list[int]] = {}
        for task, chain in self.chains.items():
            with contextlib.suppress(Unreadable):
                for one in self._held(chain):
                    holders.setdefault(one, []).append(task)
        return holders

    def _held(self, chain: Chain) -> set[int]:
        held: set[int] = set()
        let_go: set[int | None] = set()
        for frame in chain.frames:  # innermost first
            if frame.function in ("__aenter__", "acquire", "wait"):
                owner = frame.local("self")
                let_go |= {owner, lock_of(self._objects, owner)}
            for one in self._frames.held(frame):
                held |= {one, lock_of(self._objects, one) or one} - let_go
        return held

    def suspended(self) -> Iterator[Suspended]:
        """All of them that have code of their own, with what they wait for."""
        for task, chain in self.chains.items():
            with contextlib.suppress(Unreadable):
                future = self._memory.pointer(task + self._layout.task_waiter)
                if (chain.frames or future) and not is_wrapper(chain):
                    yield self._suspended(task, chain, future)

    def _suspended(self, task: int, chain: Chain, future: int) -> Suspended:
        if future and chain.future and chain.future != future:
            raise Unreadable("it moved")
        task_id = self._contexts.ray_task(task)
        frames = [frame for frame in chain.frames if not frame.file.endswith(TRACING)]
        call = self._call(future, chain)
        return Suspended(
            address=task,
            name=self._name(task),
            frames=list(map(raw_frame, frames)),
            thread_id=self._thread_of(self.loops.loop_of(task)),
            task_id=task_id,
            is_task=task_id is not None and chain.root.endswith(RUNS_TASKS),
            call=call,
            mark=(task, chain.mark, future, repr({**(call or {}), "timeout_s": None})),
        )

    def _call(self, future: int, chain: Chain) -> Call | None:
        """What it waits for; that this could not be read is told where it is known to wait at all."""
        if not future:
            return None
        try:
            call = self._awaited.call(future, chain)
            if call and call["kind"] == "other":
                places = (place_of(raw_frame(frame), AWAITS) for frame in chain.frames)
                return {**call, **next(({"what": place.name} for place in places if place), {})}
            return call
        except Unreadable as error:
            return {"kind": "await", "frame": 0, "unread": str(error), "timeout_s": None}

    def _name(self, task: int) -> str:
        """The task's name, which is but a number until somebody asks for it (from CPython 3.12 on)."""
        name = self._memory.pointer(task + self._layout.task_name)
        if self._objects.is_a(name, "int"):
            return f"Task-{self._objects.number(name):.0f}"
        return self._objects.text(name)

    def _thread_of(self, loop: int) -> int | None:
        if loop not in self._threads:
            self._threads[loop] = self.loops.thread_of(loop, self._thread_ids)
        return self._threads[loop]

    def is_task(self, address: int) -> bool:
        """Whether an object is an asyncio task that has not ended."""
        return self._objects.is_kind_of(address, TASK) and self.loops.is_pending(address)

    def giver(self, future: int) -> int | None:
        """The asyncio task that gives a ``concurrent.futures`` future its result, if one does."""
        return self._awaited.givers.get(future)

    def beginner(self, future: int) -> int | None:
        """The thread, by its Python id, that can begin the coroutine for such a future, where that has not begun."""
        loop = self._awaited.beginners.get(future)
        return self._thread_of(loop) if loop else None

    @on_demand
    def tasks_on_loops(self) -> dict[int, str | None]:
        """The Ray task of the coroutine that an event loop is in the middle of, by the Python id of its thread."""
        found = {}
        for loop, task in self.loops.current.items():
            with contextlib.suppress(Unreadable):
                thread_id = self._thread_of(loop)
                if thread_id is not None:
                    found[thread_id] = self._contexts.ray_task(task)
        return found


def raw_frame(frame: MemoryFrame) -> RawFrame:
    """The frame as py-spy would show it."""
    return {
        "name": frame.qualified,
        "filename": frame.file,
        "module": None,
        "line": frame.line,
        "locals": None,
    }
