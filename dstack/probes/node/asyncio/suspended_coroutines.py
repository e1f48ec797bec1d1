"""All suspended coroutines of a process: the stack of each, its Ray task, and what it waits for."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dstack.call_sites import AWAIT, EVENT_LOOP, WAIT_FOR, kind_of
from dstack.libraries.compiled_graphs import reading as compiled_graphs
from dstack.libraries.serve.reading import ServeRequests
from dstack.libraries.train import VALIDATION
from dstack.libraries.train import reading as train
from dstack.observed.calls import Awaitables, Call, End, Executions, ProcessObject, ServeRequest, Timer, Unreadable
from dstack.observed.processes import Coroutine, EndedTask, Span
from dstack.probes.node.asyncio.await_chains import AwaitChain, AwaitChains
from dstack.probes.node.asyncio.await_targets import AwaitTargets
from dstack.probes.node.asyncio.ended_tasks import TaskEnd, TaskEnds
from dstack.probes.node.asyncio.event_loops import TASK, EventLoops
from dstack.probes.node.asyncio.future_sources import RUNS_TASKS, FutureSources
from dstack.probes.node.asyncio.timers import Timers
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.python_process import PythonProcess
from dstack.probes.node.ray_memory import Contexts, actor_of_task
from dstack.probes.node.redaction import masked_local
from dstack.probes.node.spans import Spans
from dstack.probes.node.stacks.table import StackTable
from dstack.probes.node.thread_stacks import IN_COROUTINE, CodePosition, TextFrame, is_in, site_in
from dstack.probes.node.waits.executors import Executors
from dstack.probes.node.waits.reachable_objects import COROUTINE, NOTHING, THREAD, Reached, Root, WaitsOn, of_coroutine

OF_COROUTINES: Sequence[Callable[[Objects, Sequence[MemoryFrame], str], Call | None]] = (
    train.awaited,
    train.awaited_validation,
    compiled_graphs.awaited,
)
"""The hooks of libraries, which know the call of a coroutine by its frames and the id of its actor; None for any other.

They raise ``UnreadableMemory``.
"""
WARNING = (VALIDATION.id,)
"""Sites whose library only warns when a timer fires, and then waits on; their calls have the timeouts of users."""
TRACING = "/ray/util/tracing/tracing_helper.py"
"""Wrappers around methods of actors; they are Ray's, not the application's."""
FORKS = "/multiprocessing/popen_fork.py"
"""The file of the frames from which multiprocessing forks a process, whose own frames are above them."""
RUNS_LOOP, RUNNERS = "/asyncio/base_events.py", "/asyncio/runners.py"
RELEASES = "_release_waiter"
"""What the timer of ``asyncio.wait`` calls, and of ``wait_for`` up to CPython 3.11."""
SAME_S = 0.2
"""Two readings of the time that a timer has left differ by less."""
WRAPPED, NOT_BEGUN = "method", -1
"""The variable of such a wrapper that has the method, and the instruction of a function that has not begun."""


@dataclass(frozen=True)
class Suspended:
    """One suspended asyncio task; ``mark`` stays the same while it waits for the same in the same place.

    ``cancels``: the timeout of its call also cancels what it waits for. ``waits_on`` are the objects that its call
    waits on, which others in the process may reach. ``request`` is the one to a Serve deployment that it executes.
    ``cancel_requests`` counts how often it was asked to be cancelled. ``spans`` are its open spans.
    """

    address: int
    name: str
    frames: Sequence[TextFrame]
    thread_id: int | None
    task_id: str | None
    is_task: bool
    call: Call | None
    cancels: bool
    mark: object
    waits_on: WaitsOn = NOTHING
    cancel_requests: int = 0
    request: ServeRequest | None = None
    spans: tuple[Span, ...] = ()


class Coroutines:
    """The coroutines of one process; ``thread_ids`` are its threads, by their Python ids.

    ``ends_of`` returns what the event loop of a thread watches, see :class:`~dstack.observed.calls.ProcessObject`. A
    coroutine that cannot be read, because it changes, is left out. Every method raises :class:`UnreadableMemory` where
    nothing can be read.
    """

    def __init__(
        self,
        process: PythonProcess,
        executors: Executors,
        thread_ids: Collection[int],
        ends_of: Callable[[int], tuple[End, ...]] = lambda _: (),
    ) -> None:
        self._process = process
        self._objects = process.objects
        self._memory = process.memory
        self._layout = process.layout
        self._codes = process.frames.codes
        self._contexts = Contexts(process)
        self._thread_ids = thread_ids
        self._os_ids = executors.os_ids
        self._threads: dict[int, int | None] = {}
        self._find_ends = ends_of
        self._ends: dict[int, tuple[End, ...]] = {}
        self.loops = EventLoops(process)
        self.chains = AwaitChains(process, self.loops)
        self._timers = Timers(process, self.loops)
        self.sources = FutureSources(process, self.loops, executors, self.chains)
        self._targets = AwaitTargets(process, self.loops, self.sources, self.chains, self._timers)
        self._requests = ServeRequests(process.objects)
        self._spans = Spans(process)

    def suspended(self) -> Iterator[Suspended]:
        """All tasks but wrappers of something that is known, with what they wait for.

        A task without frames is C's or Cython's, as the server of ``grpc.aio``: it is listed if it awaits a future.
        """
        for task, chain in self.chains.by_task.items():
            with contextlib.suppress(UnreadableMemory):
                future = self._memory.pointer(task + self._layout.task_waiter)
                is_shown = (chain.frames or future) and not self._targets.is_passed_on(chain, future)
                if is_shown and not self._is_of_parent(self.loops.loop_of(task)):
                    yield self._suspended(task, chain, future)

    def _suspended(self, task: int, chain: AwaitChain, future: int) -> Suspended:
        if future and chain.future and chain.future != future:
            raise UnreadableMemory("it changed while it was read")
        task_id = self._contexts.ray_task(task)
        own = [frame for frame in chain.frames if not frame.file.endswith(TRACING)]
        shown = [TextFrame(frame.position) for frame in own]
        call, cancels = self._call(future, chain, task_id)
        loop = self.loops.loop_of(task)
        is_open = call is not None and kind_of(call) != "lock" and self.loops.may_hear_from_outside(loop)
        return Suspended(
            address=task,
            name=self.name_of(task),
            frames=shown or [*self._not_begun(chain), *_of_cython(chain)][:1],
            thread_id=self._thread_of(loop),
            task_id=task_id,
            is_task=task_id is not None and chain.root.endswith(RUNS_TASKS),
            call=self._with_ends(call, self._thread_of(loop)) if call and is_open else call,
            cancels=cancels,
            mark=(task, chain.mark, future, replace(call, timeout_s=None, timer=None) if call else None),
            waits_on=NOTHING if is_open else of_coroutine(call, chain.frames, self._objects),
            cancel_requests=self._cancel_requests(task),
            request=self._requests.executed(chain.frames),
            spans=self._spans.of_coroutine(task, own),
        )

    def with_interruptions(self, one: Suspended, cancelled_by: Iterable[Root]) -> Suspended:
        """The same with what may cut its wait short: timers, members of its task groups, and code that cancels it."""
        chain = self.chains.by_task.get(one.address)
        if one.call is None or chain is None:
            return one
        on = of_coroutine(one.call, chain.frames, self._objects).objects
        held = one.call.need.object_id if isinstance(one.call.need, Executions) else None
        timer, call = self._timers.ending((one.address, chain.future, *on, int(held or "0", 16))), one.call
        if timer is not None and timer.left_s is not None and call.timeout_s is not None:
            is_own = timer.name.endswith(RELEASES) or timer.left_s >= call.timeout_s - SAME_S
            timer = None if is_own else timer  # that of the call, or of a block
        timer = None if call.site in WARNING else timer
        if timer is not None:
            call = replace(call, timer=timer, timeout_s=timer.left_s or 0.0)
        others = tuple(cancelled_by)
        members = self._timers.group_members(chain.frames) | {key for kind, key in others if kind == COROUTINE}
        threads = sorted(key for kind, key in others if kind == THREAD)
        call = replace(
            call,
            cut_short_by=tuple(map(hex, sorted(members - {one.address}))),
            cut_short_by_threads=tuple(threads),
        )
        return replace(one, call=call, cancels=one.cancels or self._timers.ending((one.address,)) is not None)

    def timers_by_thread(self) -> dict[int, set[int]]:
        """What the timers of event loops will call, with the arguments, by the OS ids of the threads of the loops."""
        found: dict[int, set[int]] = {}
        for loop, timers in self.loops.timers.items():
            if thread := self._os_ids.get(self._thread_of(loop) or 0):
                found[thread] = {one for timer in timers for one in (timer.callback, timer.args)}
        return found

    def stopping_timers(self) -> list[Timer]:
        """The first timer of each event loop that ends the process, or stops a task or an actor of Ray."""
        return [timer for loop in self.loops.timers if (timer := self._timers.stopping(loop))]

    def _is_of_parent(self, loop: int) -> bool:
        """Whether a loop is that of the process from which this one was forked: it does not run in the fork."""
        own = self._loops_in_frames.get(self._thread_of(loop))
        return own is not None and own != loop

    @cached_property
    def _loops_in_frames(self) -> dict[int | None, int]:
        """The innermost loop in the frames of each thread that show one; 0 if the thread has run none since a fork."""
        found: dict[int | None, int] = {}
        for thread in self._process.threads:
            for frame in thread.frames:
                if is_in(frame, RUNNERS, "run"):
                    break  # a loop of uvloop, which shows no frames
                if is_in(frame, FORKS, "_launch") or is_in(frame, RUNS_LOOP, "_run_once"):
                    with contextlib.suppress(UnreadableMemory):
                        found[thread.thread_id] = frame.local("self") if is_in(frame, RUNS_LOOP) else 0
                    break
        return found

    def _with_ends(self, call: Call, thread_id: int | None) -> Call:
        """The call with what the event loop of a thread watches, by which it may end."""
        if thread_id is None or not isinstance(call.need, ProcessObject):
            return call
        if thread_id not in self._ends:
            self._ends[thread_id] = self._find_ends(thread_id)
        return replace(call, need=replace(call.need, ends=self._ends[thread_id]))

    def _cancel_requests(self, task: int) -> int:
        """How often a task was asked to be cancelled; 0 where Python does not count that."""
        at = self._layout.task_cancels
        return max(0, self._memory.int32(task + at)) if at is not None else 0

    def _not_begun(self, chain: AwaitChain) -> Iterator[TextFrame]:
        """The method of an actor, which only its wrapper shows before it has begun."""
        for frame in chain.frames[-1:]:
            with contextlib.suppress(UnreadableMemory):
                method = frame.local(WRAPPED)
                self._objects.expect(method, "function")
                code = self._codes.code(self._memory.pointer(method + self._layout.function_code))
                yield TextFrame(self._codes.position(code, NOT_BEGUN))

    def _call(self, future: int, chain: AwaitChain, task_id: str | None) -> tuple[Call | None, bool]:
        """What it waits for, and whether the timeout of the wait also cancels that.

        If what it waits for cannot be read, the call says so.
        """
        if not future:
            return None, False
        with contextlib.suppress(UnreadableMemory):
            actor_id = actor_of_task(task_id)
            calls = (hook(self._objects, chain.frames, actor_id) for hook in OF_COROUTINES)
            if call := next(filter(None, calls), None):
                return call, False
        try:
            call, cancels = self._targets.call(future, chain)
            if call and kind_of(call) == "other":
                sites = (site_in(frame, IN_COROUTINE) for frame in chain.frames)
                if site := next(filter(None, sites), None):
                    call = replace(call, site=site.id, name=None)
                if queued := self._requests.queued(chain.frames):
                    call = replace(call, need=queued)
            return call, cancels
        except UnreadableMemory as error:
            return Call(site=AWAIT.id, frame=0, need=Unreadable(reason=str(error))), False

    def name_of(self, task: int) -> str:
        """The task's name, which is only a number until first used (from CPython 3.12 on)."""
        name = self._memory.pointer(task + self._layout.task_name)
        if self._objects.is_a(name, "int"):
            return f"Task-{self._objects.number(name):.0f}"
        return self._objects.text(name)

    def _thread_of(self, loop: int) -> int | None:
        if loop not in self._threads:
            self._threads[loop] = self.loops.thread_of(loop, self._thread_ids)
        return self._threads[loop]

    def ended(self, awaited: Collection[int]) -> list[TaskEnd]:
        """The tasks that failed or were cancelled, with those of the ``awaited`` objects that their code reached."""
        try:
            return TaskEnds(self._process, self.loops, self.name_of).read(awaited)
        except UnreadableMemory:
            return []

    def is_task(self, address: int) -> bool:
        """Whether an object is an asyncio task that has not ended."""
        return self._objects.is_kind_of(address, TASK) and self.loops.is_pending(address)

    @cached_property
    def tasks_on_loops(self) -> dict[int, str | None]:
        """The Ray task of the coroutine that an event loop runs, by the Python id of its thread."""
        found = {}
        for loop, task in self.loops.current.items():
            with contextlib.suppress(UnreadableMemory):
                thread_id = self._thread_of(loop)
                if thread_id is not None:
                    found[thread_id] = self._contexts.ray_task(task)
        return found

    @cached_property
    def loop_threads(self) -> set[int]:
        """The Python ids of the threads that run an event loop with tasks."""
        found: set[int | None] = set()
        with contextlib.suppress(UnreadableMemory):
            for task in self.loops.tasks():
                found.add(self._thread_of(self.loops.loop_of(task)))
        return {thread for thread in found if thread is not None}


def _of_cython(chain: AwaitChain) -> Iterator[TextFrame]:
    """The coroutine of Cython's that a chain without frames begins with: it has a name, but neither file nor line."""
    if not chain.frames:
        yield TextFrame(CodePosition("", chain.root, chain.root, 0, origin="library"))


READS = 3


@dataclass
class LoopState:
    """The event loops of a process as they were read.

    ``stable`` has the addresses of the coroutines that did not change. ``on_threads`` has the Ray task that an event
    loop runs, by the Python id of its thread. ``reached`` is what may end waits of the coroutines, ``unread`` says why
    nothing could be read. ``ended`` are tasks that failed or were cancelled, ``awaited`` the ids of the objects that
    calls wait on, by the addresses of these and of what they belong to. ``timers`` are those that end the process, or
    stop tasks or actors.
    """

    coroutines: list[Suspended] = field(default_factory=list)
    stable: set[int] = field(default_factory=set)
    on_threads: dict[int, str | None] = field(default_factory=dict)
    reached: Reached = field(default_factory=Reached)
    ended: Sequence[TaskEnd] = ()
    awaited: Mapping[int, Collection[str]] = field(default_factory=dict)
    timers: Sequence[Timer] = ()
    unread: str | None = None

    @classmethod
    def read(cls, get_coroutines: Callable[[], Coroutines]) -> LoopState:
        """Read once; ``stable`` is empty yet."""
        try:
            coroutines = get_coroutines()
            return cls(list(coroutines.suspended()), on_threads=coroutines.tasks_on_loops)
        except UnreadableMemory as error:
            return cls(unread=str(error))

    def prove_all(self) -> None:
        """Mark all as unchanged: no thread ran Python meanwhile."""
        self.stable = {one.address for one in self.coroutines}

    def prove(self, stable_threads: Collection[int], read_again: Callable[[], LoopState]) -> None:
        """Find those that did not change: their loop's thread did not run, or two readings of them are equal.

        ``stable_threads`` are Python ids. Reads again only where something may have changed. A third reading finds
        coroutines that one reading has missed while others started and ended; an empty reading counts as such.
        """
        known = {one.address: one for one in self.coroutines}
        self.stable = {one.address for one in self.coroutines if one.thread_id in stable_threads}
        for _ in range(READS - 1):
            if known and len(self.stable) == len(known):
                return
            more = read_again()
            again = {one.address: one for one in more.coroutines}
            is_whole = bool(again) and again.keys() == known.keys()
            self.stable |= {key for key in again.keys() & known.keys() if again[key].mark == known[key].mark}
            known.update(again)
            self.coroutines = [one for key, one in known.items() if key in self.stable or key in again]
            self.unread = self.unread and more.unread
            if is_whole:
                return

    def observed(self, table: StackTable, cwd: str, os_ids: dict[int, int]) -> tuple[Coroutine, ...]:
        """The coroutines, their stacks entered into the table; ``os_ids`` are those of threads by Python's ids."""
        timeouts = inherited_timeouts(self.coroutines)
        return tuple(self._coroutine(one, table, cwd, os_ids, timeouts) for one in self.coroutines)

    def observed_ended(self, table: StackTable, cwd: str) -> tuple[EndedTask, ...]:
        """The tasks that ended, the stacks of their exceptions entered into the table."""
        return tuple(self._ended(one, table, cwd) for one in self.ended)

    def _ended(self, one: TaskEnd, table: StackTable, cwd: str) -> EndedTask:
        held = {object_id for address in one.held for object_id in self.awaited.get(address, ())}
        return EndedTask(
            coroutine_id=hex(one.address),
            name=one.name,
            function=one.function,
            stack=table.add(one.frames, cwd),
            error=one.error,
            message=masked_local("", "".join(one.message.splitlines()[:1])),
            is_cancelled=one.is_cancelled,
            held=tuple(sorted(held)),
        )

    def _coroutine(
        self, one: Suspended, table: StackTable, cwd: str, os_ids: Mapping[int, int], timeouts: Mapping[int, float]
    ) -> Coroutine:
        is_still = one.address in self.stable
        return Coroutine(
            coroutine_id=hex(one.address),
            name=one.name,
            stack=table.add(one.frames, cwd),
            os_thread_id=os_ids.get(one.thread_id or 0),
            task_id=one.task_id,
            is_task=one.is_task,
            still=is_still,
            cancel_requests=one.cancel_requests,
            call=self._call(one, timeouts) if is_still else None,
            request=one.request,
            spans=one.spans if is_still else (),
        )

    def _call(self, one: Suspended, timeouts: Mapping[int, float]) -> Call | None:
        if one.call is None:
            return None
        call = self.reached.with_reach((COROUTINE, one.address), one.call, one.waits_on)
        return replace(call, timeout_s=timeouts.get(one.address)) if call.timeout_s is None else call


def objects_of(waits: Iterable[tuple[Call | None, WaitsOn]]) -> dict[int, set[str]]:
    """The ids of the objects that calls wait on, by the addresses of the objects and of what they belong to.

    Without event loops that wait for events: their objects are asyncio's own.
    """
    found: dict[int, set[str]] = defaultdict(set)
    for call, waits_on in waits:
        if call and call.site != EVENT_LOOP.id and isinstance(call.need, ProcessObject) and call.need.object_id:
            for address in (int(call.need.object_id, 16), *waits_on.objects):
                found[address].add(call.need.object_id)
    return found


def waits_of(coroutines: Sequence[Suspended]) -> dict[int, WaitsOn]:
    """What coroutines wait on, by address; a coroutine in ``wait_for`` waits on what its inner coroutine does."""
    waits = {one.address: one.waits_on for one in coroutines if one.waits_on.objects}
    for one in coroutines:
        if one.call and one.call.site == WAIT_FOR.id and len(inner := list(_awaited(one))) == 1:
            waits.update({one.address: waits[inner[0]]} if inner[0] in waits else {})
    return waits


def inherited_timeouts(coroutines: Iterable[Suspended]) -> dict[int, float]:
    """The timeouts after which coroutines are cancelled by a waiter, direct or indirect, by address."""
    by_address = {one.address: one for one in coroutines}
    timeouts: dict[int, float] = {}
    ahead = [(one.call.timeout_s or 0.0, one) for one in by_address.values() if one.call and one.cancels]
    while ahead:
        timeout_s, one = ahead.pop()
        for address in _awaited(one):
            if address in by_address and address not in timeouts:
                timeouts[address] = timeout_s
                ahead.append((timeout_s, by_address[address]))
    return timeouts


def _awaited(one: Suspended) -> Iterator[int]:
    """The coroutines that a coroutine awaits, by their addresses."""
    if one.call and isinstance(one.call.need, Awaitables):
        yield from (int(address, 16) for address in one.call.need.coroutines)
