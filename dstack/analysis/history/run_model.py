"""A recorded run as a model: its calls, what each waited for, and its iterations.

What cannot be explained by other calls is a delay that stays as it was.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import pairwise

from dstack.analysis.history.caller_waits import find_waits, skip_polls
from dstack.analysis.history.calls import Caller, CallerStep, RunCall
from dstack.analysis.history.chains import find_links, usual_maximum
from dstack.analysis.history.resources import FreeResources, HeldResources, find_releases
from dstack.analysis.history.slices import NOTICED_LATE_S, Slice
from dstack.analysis.history.task_index import Attempt, HistoryIndex
from dstack.analysis.history.task_time import NO_CALLER, TaskNames
from dstack.words import grouped

MOST_CALLS = 10_000
"""Only so many of the newest calls are part of the model."""
LOOKED_BACK = 200
"""The makers of arguments are searched among so many calls of the same caller."""
MOST_REQUESTS = 20
"""Only so many different requests for resources are known, the most frequent ones; others delay calls as they did."""
REPEATED = 3
"""The fewest iterations."""


@dataclass(frozen=True, slots=True)
class RunIterations:
    """Equal iterations of a caller: the steps with which each begins, and at the end the one after the last."""

    caller: Caller
    starts: tuple[int, ...]

    @property
    def times(self) -> list[float]:
        """When each began, and the last ended."""
        return [self.caller.steps[number].at for number in self.starts]

    @property
    def durations_s(self) -> list[float]:
        """How long each took."""
        return [after - before for before, after in pairwise(self.times)]


class RunModel:
    """The ended calls of a history, and their callers.

    The run is that of a ``job``; by default of the one whose call ended last.
    """

    def __init__(self, history: HistoryIndex, job: str | None = None) -> None:
        self.history = history
        self.job = job
        self._names = TaskNames(history)
        self.callers: dict[str, Caller] = {}
        self.calls: list[RunCall] = []
        self._make_calls()
        _set_resources(self.calls)
        self._relate()
        find_waits(self.callers.values())
        skip_polls(self.callers.values(), self.calls)
        self._number_steps()
        _find_freed(self)
        if job is None and self.calls:
            self.job = max(self.calls, key=_ended_at).attempt.task.job_id

    # Calls and callers

    def _make_calls(self) -> None:
        ended = [one for one in self.history.attempts if one.ended_at is not None and one.task.kind != "DRIVER_TASK"]
        for attempt in ended[-MOST_CALLS:]:
            call = self._call(attempt)
            call.caller.calls.append(call)
            self.calls.append(call)
        for caller in self.callers.values():
            caller.calls.sort(key=lambda call: call.submitted_at)

    def _call(self, attempt: Attempt) -> RunCall:
        submitted = _latest(attempt.began_at, attempt.submitted_at)
        ready = _latest(submitted, attempt.ready_at)
        never = attempt.ended_at if attempt.state == "failed" else None
        begins = (attempt.started_at, never, attempt.arrived_at, attempt.sent_at)
        started = _latest(ready, next((time for time in begins if time is not None), None))
        ended = _latest(started, attempt.ended_at)
        name = self._names.step(attempt.task).function
        caller = self._caller(attempt.task.parent_task_id or "")
        return RunCall(len(self.calls), attempt, name, submitted, ready, started, ended, ended, caller)

    def _caller(self, task_id: str) -> Caller:
        if task_id not in self.callers:
            known = self.history.latest.get(task_id)
            name = self._names.step(known.task).function if known else NO_CALLER.name
            self.callers[task_id] = Caller(task_id, name, known, known.started_at if known else None)
        return self.callers[task_id]

    def _relate(self) -> None:
        """Which call is which caller; arguments, creations and retries."""
        by_attempt = {id(call.attempt): call for call in self.calls}
        by_number = {(call.attempt.task.task_id, call.attempt.task.attempt): call for call in self.calls}
        created = {call.attempt.task.actor_id: call for call in self.calls if call.is_creation}
        for call in self.calls:
            task = call.attempt.task
            caller = self.callers.get(task.task_id)
            if caller is not None and self.history.latest.get(task.task_id) is call.attempt:
                caller.call, call.runs = call, caller
            call.created_by = created.get(task.actor_id) if call.actor_id else None
            call.retried = by_number.get((task.task_id, task.attempt - 1)) if task.attempt else None
        for link in find_links(self.history, [call.attempt for call in self.calls]).arguments:
            user, maker = by_attempt[id(link.user)], by_attempt.get(id(link.maker))
            if maker is not None:
                user.makers = _gathered(user, maker)

    def _number_steps(self) -> None:
        for caller in self.callers.values():
            for number, step in enumerate(caller.steps):
                if step.submits is not None:
                    step.submits.step = number
        self.calls = [call for call in self.calls if call.step >= 0 or call.retried]

    @cached_property
    def own_calls(self) -> Sequence[RunCall]:
        """The calls of the job."""
        return [call for call in self.calls if call.attempt.task.job_id == self.job]

    @cached_property
    def began_at(self) -> float:
        """When the job's driver, or another caller of it that is no call of the model, began."""
        own = (caller for caller in self.callers.values() if caller.call is None and self._is_of_job(caller))
        return min((caller.began_at for caller in own), default=0.0)

    @property
    def ended_at(self) -> float:
        """The last end of a call of the job."""
        return max((call.ended_at for call in self.own_calls), default=0.0)

    @property
    def title(self) -> str:
        """The name of the driver; that of the job if the GCS does not keep it."""
        return next((driver.name for driver in self.drivers), f"job {self.job}")

    # Actors and resources

    @cached_property
    def resources(self) -> FreeResources:
        """Those of the nodes, all free."""
        return FreeResources(self.history.index.snapshot.nodes)

    def class_of(self, call: RunCall) -> str:
        """The class of the actor that runs a call; empty for a task."""
        task = call.attempt.task
        actor = self.history.index.actors.get(task.actor_id or "")
        return actor.class_name if actor else task.name.rpartition(".")[0] if task.actor_id else ""

    def has_ended(self, actor_id: str | None) -> bool:
        """Whether an actor is dead, or unknown as the GCS no longer keeps it."""
        actor = self.history.index.actors.get(actor_id or "")
        return actor is None or actor.state == "DEAD"

    def actors_of(self, class_name: str) -> int:
        """How many actors of a class have run calls of the job."""
        return len({call.actor_id for call in self.own_calls if call.actor_id and self.class_of(call) == class_name})

    # Iterations

    @property
    def drivers(self) -> Sequence[Caller]:
        """The drivers of the job."""
        return [one for one in self.callers.values() if one.is_driver and self._is_of_job(one)]

    def _is_of_job(self, caller: Caller) -> bool:
        return any(call.attempt.task.job_id == self.job for call in caller.calls[:1])

    @cached_property
    def iterations(self) -> RunIterations | None:
        """Those of a driver, else of what a driver has called last, else of what has most; None without any."""
        found = [one for caller in self.callers.values() if self._is_of_job(caller) and (one := iterations_of(caller))]
        last = {known.task.name for known in map(self._last_submitted, self.drivers) if known}

        def rank(one: RunIterations) -> tuple[bool, bool, float]:
            attempt = one.caller.attempt
            return one.caller.is_driver, attempt is not None and attempt.task.name in last, one.times[-1] - one.times[0]

        return max(found, key=rank, default=None)

    def _last_submitted(self, driver: Caller) -> Attempt | None:
        """Its last call, which need not have ended."""
        own = (one for one in reversed(self.history.attempts) if one.task.parent_task_id == driver.task_id)
        return next(own, None)


def _set_resources(calls: Iterable[RunCall]) -> None:
    """A placement group has its resources apart, so nothing is known of those."""
    tasks = (call for call in calls if not call.actor_id and not call.attempt.task.placement_group_id)
    by_request = grouped((tuple(sorted(call.attempt.task.required_resources.items())), call) for call in tasks)
    for request, alike in sorted(by_request.items(), key=lambda one: -len(one[1]))[:MOST_REQUESTS]:
        needs = dict(request)
        for call in alike:
            call.resources = needs


def _ended_at(call: RunCall) -> float:
    return call.ended_at


def _latest(time: float, other: float | None) -> float:
    return time if other is None else max(time, other)


def _gathered(user: RunCall, maker: RunCall) -> tuple[RunCall, ...]:
    """The makers of all arguments: with the last one, its function's calls since the last call of the user's.

    Unless all of these had ended, the user takes only one of them.
    """
    siblings = user.caller.calls
    at = _position(siblings, user)
    found: list[RunCall] = []
    for other in reversed(siblings[max(0, at - LOOKED_BACK) : at]):
        if other.name == user.name:
            break
        if other.name == maker.name:
            found.append(other)
    is_all = maker in found and all(one.ended_at <= user.ready_at for one in found)
    return tuple(found) if is_all else (maker,)


def _position(calls: Sequence[RunCall], call: RunCall) -> int:
    first = bisect_right(calls, call.submitted_at, key=lambda one: one.submitted_at) - 1
    while calls[first] is not call:
        first -= 1
    return first


def _find_freed(model: RunModel) -> None:
    """Set ``behind`` of all calls, and ``free_at``: what freed the slot or the resources that each waited for."""
    on_actors = grouped((call.actor_id, call) for call in model.calls if call.actor_id)
    for calls in on_actors.values():
        calls.sort(key=lambda call: call.started_at)
        _find_slots(calls)
    by_number = {call.number: call for call in model.calls}
    found = find_releases(model.history.index.snapshot.nodes, list(_holdings(model, on_actors)))
    for number, freed_by in found.items():
        by_number[number].behind = by_number[freed_by]


def _holdings(model: RunModel, on_actors: Mapping[str, Sequence[RunCall]]) -> Iterator[HeldResources]:
    """An actor holds what its creation needed, until it is dead."""
    actors = model.history.index.actors
    for call in model.calls:
        if call.resources:
            task = call.attempt.task
            given_at: float | None = call.ended_at
            actor = actors.get(task.actor_id or "") if call.is_creation else None
            if call.is_creation:
                ends = [one.ended_at for one in on_actors.get(task.actor_id or "", ())]
                given_at = max([call.ended_at, *ends]) if model.has_ended(task.actor_id) else None
            node_id = task.node_id or (actor.node_id if actor else None)
            taken_at = max(call.ready_at, call.attempt.sent_at or call.started_at)
            yield HeldResources(call.number, node_id, call.resources, call.ready_at, taken_at, given_at, _pauses(call))


def _pauses(call: RunCall) -> list[tuple[float, float]]:
    """When it waited for others."""
    steps = call.runs.steps if call.runs else []
    pairs = ((before.at, after.since) for before, after in pairwise(steps) if after.last)
    return [(began, ended) for began, ended in pairs if ended > began]


def _find_slots(calls: Sequence[RunCall]) -> None:
    """Those of one actor, by their start."""
    slots = slots_of(calls)
    if slots == 1:
        for one, following in pairwise(calls):
            one.free_at = max(one.started_at, min(one.ended_at, following.started_at))
    busy: list[tuple[float, int, RunCall]] = []
    for call in calls:
        if len(busy) == slots:
            freed_at, _, other = busy[0]
            if call.ready_at < freed_at <= call.started_at + NOTICED_LATE_S:
                call.behind = other
        heappush(busy, (call.free_at, call.number, call))
        if len(busy) > slots:
            heappop(busy)


def slots_of(calls: Iterable[RunCall]) -> int:
    """The usual maximum of an actor's calls at once; their ends may be noticed after the next ones have begun."""
    return usual_maximum([_surely_running(call) for call in calls])


def _surely_running(call: RunCall) -> Slice:
    noticed_late_s = min(NOTICED_LATE_S, (call.ended_at - call.started_at) / 2)
    return Slice(call.attempt, "running", call.started_at, call.ended_at - noticed_late_s)


def iterations_of(caller: Caller) -> RunIterations | None:
    """Iterations are bursts of submissions that repeat; None unless most of its bursts are parts of at least three."""
    steps = caller.steps
    for begins in (_barriers(steps), _gates(steps)):
        marks = [frozenset(_names(steps[first:after])) for first, after in pairwise(begins)]
        for period in range(1, len(marks) // REPEATED + 1):
            first = len(marks)
            while first > period and marks[first - 1] == marks[first - 1 - period]:
                first -= 1
            first -= period
            if len(marks) - first >= max(REPEATED * period, len(marks) / 2):
                return RunIterations(caller, tuple(begins[first::period]))
    return None


def _names(steps: Iterable[CallerStep]) -> Iterator[str]:
    return (step.submits.name for step in steps if step.submits and not step.submits.is_creation)


def _barriers(steps: Sequence[CallerStep]) -> list[int]:
    return [0, *(number for number, step in enumerate(steps) if number and step.is_barrier)]


def _gates(steps: Sequence[CallerStep]) -> list[int]:
    return [0, *(number for number, step in enumerate(steps) if number and step.last)]
