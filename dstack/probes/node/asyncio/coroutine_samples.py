"""The coroutines of one process, read until it is known which of them did not change meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dstack.call_sites import EVENT_LOOP, WAIT_FOR
from dstack.observed.calls import Awaitables, Call, ProcessObject, Timer
from dstack.observed.processes import Coroutine, EndedTask
from dstack.probes.node.asyncio.coroutines import Coroutines, Suspended
from dstack.probes.node.asyncio.ended_tasks import TaskEnd
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.redaction import masked_local
from dstack.probes.node.stacks.table import StackTable
from dstack.probes.node.waits.reachable_objects import COROUTINE, Reached, WaitsOn

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
        except Unreadable as error:
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
