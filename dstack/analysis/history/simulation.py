"""A recorded run, simulated with changes: when each call would have ended, and each caller have submitted.

Calls wait for their arguments, for a slot of their actor, and for resources; callers wait for the calls that they have
waited for. All other delays stay as they were, and so do run times, unless a change is of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush

from dstack.analysis.history.calls import Caller, CallerStep, Needed, RunCall
from dstack.analysis.history.resources import Amounts, FreeResources, cpus_of
from dstack.analysis.history.run_model import RunModel, slots_of
from dstack.words import grouped


@dataclass(frozen=True, slots=True)
class Faster:
    """A function runs so many times as fast."""

    function: str
    times: float


@dataclass(frozen=True, slots=True)
class ActorCount:
    """So many actors of a class share its calls, each of which goes to any that is free."""

    class_name: str
    count: int


@dataclass(frozen=True, slots=True)
class ResourceTotal:
    """The nodes have so much of a resource, together."""

    resource: str
    total: float


@dataclass(frozen=True, slots=True)
class Without:
    """A function does not ask for a resource."""

    function: str
    resource: str


Change = Faster | ActorCount | ResourceTotal | Without
Act = Callable[[], None]


class Simulation:
    """The run with changes, to its end; its times begin as recorded."""

    def __init__(self, model: RunModel, changes: Sequence[Change]) -> None:
        self.step_at: dict[tuple[str, int], float] = {}
        self.ends = _Ends()
        self._clock = _Clock()
        self._known = {call.number for call in model.calls}
        self._retries = {call.retried.number: call for call in model.calls if call.retried}
        self._speed = {one.function: one.times for one in changes if isinstance(one, Faster)}
        self._actors = _Actors(model, {one.class_name: one.count for one in changes if isinstance(one, ActorCount)})
        actors = (call.attempt.task.actor_id for call in model.calls)
        self._left = Counter(actor_id for actor_id in actors if actor_id and model.has_ended(actor_id))
        self._tasks = _Tasks(_resources(model, changes), [one for one in changes if isinstance(one, Without)])
        for caller in model.callers.values():
            if caller.call is None and caller.steps:
                self._clock.at(caller.began_at, partial(self._begin_step, caller, 0))
        self._clock.run()

    # Callers

    def _begin_step(self, caller: Caller, number: int) -> None:
        """The caller waits, then works, then submits. A task gives its CPU back while it waits."""
        if number < len(caller.steps):
            step = caller.steps[number]
            if caller.call is not None and step.last is not None:
                self._tasks.pause(caller.call)
                self._begin_granted()
            needs = [one for one in step.needs if one.number in self._known]
            work = partial(self._work, caller, number)
            self.ends.when(needs, partial(self.ends.when_counted, caller, step.counted, work))

    def _work(self, caller: Caller, number: int) -> None:
        step = caller.steps[number]
        if caller.call is not None and step.last is not None:
            self._tasks.resume(caller.call)
        before = caller.steps[number - 1].at if number else caller.began_at
        seconds = (step.at - max(step.since, before)) / self._speed.get(caller.name, 1.0)
        self._clock.after(seconds, partial(self._end_step, caller, step, number))

    def _end_step(self, caller: Caller, step: CallerStep, number: int) -> None:
        self.step_at[caller.task_id, number] = self._clock.now
        if step.submits is not None:
            self._submit(step.submits)
            self._begin_step(caller, number + 1)
        elif caller.call is not None:
            self._end(caller.call)

    # Calls

    def _submit(self, call: RunCall) -> None:
        makers = [one for one in call.makers if one.number in self._known]
        delay = call.ready_at - max([call.submitted_at, *(one.ended_at for one in makers)])
        created = call.created_by
        needs = [created] if created is not None and created.number in self._known else []
        send = partial(self.ends.when, needs, partial(self._send, call))
        self.ends.when(makers, partial(self._clock.after, delay, send))

    def _send(self, call: RunCall) -> None:
        if call.actor_id:
            self._begin(self._actors.sent(call))
        else:
            self._tasks.ask(call)
            self._begin_granted()

    def _begin_granted(self) -> None:
        self._begin(self._tasks.granted())

    def _begin(self, calls: Iterable[RunCall]) -> None:
        """They run after the delay that was no wait for another call."""
        for call in calls:
            self._clock.after(call.started_at - _could_start_at(call), partial(self._run, call))

    def _run(self, call: RunCall) -> None:
        if call.runs is not None and call.runs.steps:
            self._begin_step(call.runs, 0)
        else:
            seconds = (call.free_at - call.started_at) / self._speed.get(call.name, 1.0)
            self._clock.after(seconds, partial(self._end, call))

    def _end(self, call: RunCall) -> None:
        """Its slot is free; what waits for its end notices that a little later."""
        if call.actor_id:
            self._begin(self._actors.freed(call))
        self._clock.after(call.ended_at - call.free_at, partial(self._notice, call))

    def _notice(self, call: RunCall) -> None:
        if not call.is_creation:
            self._tasks.end(call)
        self._end_actor(call)
        self._begin_granted()
        if call.number in self._retries:
            self._submit(self._retries[call.number])
        self.ends.add(call, self._clock.now)

    def _end_actor(self, call: RunCall) -> None:
        """An actor that has ended in the recorded run frees its resources after the last of its calls."""
        actor_id = call.attempt.task.actor_id or ""
        creation = call if call.is_creation else call.created_by
        if actor_id in self._left:
            self._left[actor_id] -= 1
            if not self._left[actor_id] and creation is not None:
                self._tasks.end(creation)


def _could_start_at(call: RunCall) -> float:
    """When nothing of what the simulation knows kept a call from starting, in the recorded run."""
    times = [call.ready_at]
    if call.behind is not None:
        times.append(call.behind.free_at)
    if call.created_by is not None:
        times.append(call.created_by.ended_at)
    return min(call.started_at, max(times))


def _resources(model: RunModel, changes: Iterable[Change]) -> FreeResources:
    totals = {one.resource: one.total for one in changes if isinstance(one, ResourceTotal)}
    return FreeResources(model.history.index.snapshot.nodes, totals)


class _Clock:
    """What happens when."""

    def __init__(self) -> None:
        self.now = float("-inf")
        self._events: list[tuple[float, int, Act]] = []
        self._number = 0

    def at(self, time: float, act: Act) -> None:
        """Act at a time, now if it is past."""
        self._number += 1
        heappush(self._events, (max(time, self.now), self._number, act))

    def after(self, seconds: float, act: Act) -> None:
        """Act after a duration, none if it is negative."""
        self.at(self.now + max(0.0, seconds), act)

    def run(self) -> None:
        """Let all of it happen."""
        while self._events:
            self.now, _, act = heappop(self._events)
            act()


class _Ends:
    """When calls have ended, and what waits for that."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}
        self._after: dict[int, list[Act]] = defaultdict(list)
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._counting: dict[str, tuple[Needed, Act]] = {}

    def when(self, calls: Iterable[RunCall], act: Act) -> None:
        """Act once all of these have ended."""
        pending = {call.number for call in calls if call.number not in self.at}
        if not pending:
            act()
            return

        def ended(number: int) -> None:
            pending.remove(number)
            if not pending:
                act()

        for number in list(pending):
            self._after[number].append(partial(ended, number))

    def when_counted(self, caller: Caller, needed: Needed | None, act: Act) -> None:
        """Act once so many calls of a function of this caller have ended."""
        if needed is None or self._counts[caller.task_id][needed[0]] >= needed[1]:
            act()
        else:
            self._counting[caller.task_id] = needed, act

    def add(self, call: RunCall, now: float) -> None:
        """A call has ended."""
        self.at[call.number] = now
        caller = call.caller.task_id
        self._counts[caller][call.name] += 1
        for act in self._after.pop(call.number, ()):
            act()
        if caller in self._counting:
            needed, act = self._counting[caller]
            if self._counts[caller][needed[0]] >= needed[1]:
                del self._counting[caller]
                act()


class _Tasks:
    """The tasks that wait for resources or hold them; those that need the same get them in their order."""

    def __init__(self, resources: FreeResources, without: Iterable[Without]) -> None:
        self._resources = resources
        self._without = {(one.function, one.resource) for one in without}
        self._waiting: dict[tuple[tuple[str, float], ...], deque[RunCall]] = {}
        self._held: dict[int, tuple[str | None, Amounts]] = {}

    def ask(self, call: RunCall) -> None:
        """A task waits for its resources; what no node has is not needed."""
        need = {name: amount for name, amount in call.resources.items() if (call.name, name) not in self._without}
        shape = tuple(sorted(need.items())) if self._resources.can_ever_fit(need) else ()
        self._waiting.setdefault(shape, deque()).append(call)

    def granted(self) -> list[RunCall]:
        """The tasks that get their resources now."""
        found: list[RunCall] = []
        for shape, waiting in self._waiting.items():
            need = dict(shape)
            while waiting and self._resources.can_take(need, waiting[0].attempt.task.node_id):
                call = waiting.popleft()
                node_id = self._resources.place(need, call.attempt.task.node_id)
                self._resources.take(node_id, need)
                self._held[call.number] = node_id, need
                found.append(call)
        return found

    def pause(self, call: RunCall) -> None:
        """A task waits for others."""
        node_id, need = self._held.get(call.number, (None, {}))
        self._resources.give(node_id, cpus_of(need))

    def resume(self, call: RunCall) -> None:
        """It continues."""
        node_id, need = self._held.get(call.number, (None, {}))
        self._resources.take(node_id, cpus_of(need))

    def end(self, call: RunCall) -> None:
        """A task, or the actor that a call has created, frees what it holds."""
        if call.number in self._held:
            self._resources.give(*self._held.pop(call.number))


@dataclass(slots=True)
class _Queue:
    """The calls of an actor, or of several that share them; ``unsent`` has, by caller, the order of calls."""

    free: int
    waiting: deque[RunCall] = field(default_factory=deque)
    unsent: dict[str, deque[RunCall]] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)

    def add(self, call: RunCall) -> None:
        """A call is ready; one of a caller whose earlier calls are not waits for these."""
        unsent = self.unsent.get(call.caller.task_id)
        if not unsent or call.step < 0:
            self.waiting.append(call)
            return
        self.ready.add(call.number)
        while unsent and unsent[0].number in self.ready:
            self.waiting.append(unsent.popleft())

    def begin(self) -> list[RunCall]:
        """The calls that get a slot now."""
        found: list[RunCall] = []
        while self.free and self.waiting:
            self.free -= 1
            found.append(self.waiting.popleft())
        return found


class _Actors:
    """The queues of all actors; those of the job of a class with another number of actors have one queue."""

    def __init__(self, model: RunModel, counts: Mapping[str, int]) -> None:
        self._queues: dict[str, _Queue] = {}
        shared: dict[str, _Queue] = {}
        for actor_id, calls in grouped((call.actor_id, call) for call in model.calls if call.actor_id).items():
            name, slots = model.class_of(calls[0]), slots_of(calls)
            if name in counts and calls[0].attempt.task.job_id == model.job:
                self._queues[actor_id] = shared.setdefault(name, _Queue(slots * counts[name]))
            else:
                self._queues[actor_id] = _Queue(slots, unsent=_orders(calls) if slots == 1 else {})

    def sent(self, call: RunCall) -> list[RunCall]:
        """The calls that begin as this one is ready."""
        queue = self._queues[call.actor_id]
        queue.add(call)
        return queue.begin()

    def freed(self, call: RunCall) -> list[RunCall]:
        """The calls that begin as this one has ended."""
        queue = self._queues[call.actor_id]
        queue.free += 1
        return queue.begin()


def _orders(calls: Iterable[RunCall]) -> dict[str, deque[RunCall]]:
    """An actor that runs one call at a time takes those of a caller in the order of their submission."""
    ordered = sorted((call for call in calls if call.step >= 0), key=lambda call: call.submitted_at)
    return {caller: deque(own) for caller, own in grouped((call.caller.task_id, call) for call in ordered).items()}
