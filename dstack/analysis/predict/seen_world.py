"""The calls of a run that was seen, as a world whose order can change.

Ray's task events say which task submitted which others, when each of them ran, and where; the source says where their
callers wait for them (:mod:`dstack.observed.outlines`), as samples do of the waits that they show. A wait counts as
certain only if the source or a sample shows it, without a timeout, and the times of the events agree. What may be a
wait by its times alone keeps the order that was seen, so that it is no ground for a warning.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from typing import TypeAlias

from dstack.analysis.history.call_nodes import DRIVER
from dstack.analysis.history.task_index import Attempt, HistoryIndex
from dstack.analysis.index.sample_index import has_one_slot
from dstack.analysis.solve.reordering import Acquire, Id, Release, Run, Server, Step, Submit, WaitFor, World
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import Actor, TaskAttempt
from dstack.model.vertex_keys import Key
from dstack.observed.calls import REF_CALLS
from dstack.observed.outlines import ClassOutline, FunctionOutline
from dstack.observed.outlines import Step as SourceStep
from dstack.words import grouped

MOMENT_S = 0.002
"""Times of one process that differ by less count as equal."""
REPLY_S = 0.05
"""The end of a call is when its caller knows it: up to so long after the next call has begun."""
MOST_AT_ONCE = 200
"""How many of the last calls of an async actor may be the caller of another one."""
OF_OBJECT = "self."
CREATION = "ACTOR_CREATION_TASK"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run waits or takes a lock: its line, or that a sample showed it."""

    file: str | None = None
    line: int | None = None
    source: str = ""
    is_sampled: bool = False


_FoundWait: TypeAlias = "tuple[Attempt, int | None, bool]"
"""A call, the step of the source that waits for it, and whether that is certain."""


@dataclass
class _Caller:
    """A run, or what is known of an unknown caller, with its calls in the order of their submission."""

    key: Id
    attempt: Attempt | None
    outline: FunctionOutline | None
    calls: list[Attempt] = field(default_factory=list)


class SeenWorld:
    """The world of a snapshot with a history; ``places`` are by run and position, ``attempts`` by run.

    ``unsure_from`` has, by run, the position from which on it may have waited for anything before, as for a ref that it
    was given.
    """

    def __init__(self, history: HistoryIndex, vertices: Mapping[Key, Vertex]) -> None:
        self._index = history.index
        self._snapshot = history.index.snapshot
        self.places: dict[tuple[Id, int], Place] = {}
        self.unsure_from: dict[Id, int] = {}
        self.attempts: Mapping[str, Attempt] = history.latest
        self._functions = {
            (one.job_id, function.name): function for one in self._snapshot.outlines for function in one.functions
        }
        self._classes = {(one.job_id, found.name): found for one in self._snapshot.outlines for found in one.classes}
        self._sampled = _sampled_waits(vertices)
        self._servers = self._known_servers()
        self._arguments: dict[Id, tuple[Id, ...]] = {}
        self._setters: dict[str, Mapping[str, Attempt]] = {}
        self._callers = self._by_caller()
        self.world = World(
            {key: self._run(key, self._steps(caller)) for key, caller in self._callers.items()},
            self._servers,
            self._capacity(),
        )

    def outline_of(self, attempt: Attempt) -> FunctionOutline | None:
        """The outline of the function of an attempt, if its source was read."""
        return self._functions.get((attempt.task.job_id, name_of(attempt.task)))

    def actor(self, actor_id: str) -> Actor | None:
        """An actor of the snapshot."""
        return self._index.actors.get(actor_id)

    def present(self, resource: str) -> float:
        """How much of a resource the nodes have that are alive."""
        return sum(node.resources.get(resource, 0.0) for node in self._snapshot.nodes if node.alive)

    def class_of(self, actor_id: str) -> str:
        """The class of an actor, as its calls name it."""
        actor = self._index.actors.get(actor_id)
        return actor.class_name.rpartition(".")[2] if actor else ""

    # Runs

    def _by_caller(self) -> Mapping[Id, _Caller]:
        """All runs, and the unknown callers of others, each with its calls."""
        found: dict[Id, _Caller] = {
            key: _Caller(key, attempt, self.outline_of(attempt)) for key, attempt in self.attempts.items()
        }
        for attempt in sorted(self.attempts.values(), key=lambda one: one.submitted_at or one.began_at):
            if attempt.task.kind != "DRIVER_TASK":
                parent, job_id = self._caller_of(attempt, found), attempt.task.job_id
                own = self._functions.get((job_id, "")) if parent == f"{DRIVER}{job_id}" else None
                found.setdefault(parent, _Caller(parent, None, own)).calls.append(attempt)
        return found

    def _caller_of(self, attempt: Attempt, callers: Mapping[Id, _Caller]) -> Id:
        """The run that submitted an attempt.

        Those of an async actor name its creation as their caller, and those of other threads a task that does not exist
        (Ray 2.60). The latter count as the driver's: so they keep their order, unless they have overlapped.
        """
        parent = attempt.task.parent_task_id or ""
        caller = callers.get(parent)
        if caller is None:
            return f"{DRIVER}{attempt.task.job_id}"
        if caller.attempt is None or caller.attempt.task.kind != CREATION:
            return parent
        submitted, creation = attempt.submitted_at, caller.attempt
        if submitted is None or creation.ended_at is None or submitted <= creation.ended_at:
            return parent
        begun = self._begun_on(creation.task.actor_id or "", submitted + MOMENT_S)
        own = [
            one
            for one in begun
            if (one.ended_at is None or submitted <= one.ended_at)
            and (outline := self.outline_of(one)) is not None
            and any(step.kind == "call" and step.name == _called(attempt) for step in outline.steps)
        ]
        if len({one.task.name for one in own}) != 1:
            return "async", parent
        return min(own, key=lambda one: len(callers[one.task.task_id].calls)).task.task_id

    @property
    def without_source(self) -> Sequence[str]:
        """The functions with calls whose source was not read."""
        callers = (one for one in self._callers.values() if one.calls and one.outline is None and one.attempt)
        return sorted({name for one in callers if one.attempt and (name := name_of(one.attempt.task))})

    def _begun_on(self, actor_id: str, time: float) -> Sequence[Attempt]:
        """The last calls on an actor that had begun at a time."""
        calls = self._in_order.get(actor_id, ())
        at = bisect_right(calls, time, key=lambda one: one.started_at or 0.0)
        return calls[max(0, at - MOST_AT_ONCE) : at]

    @cached_property
    def _in_order(self) -> Mapping[str, Sequence[Attempt]]:
        """The calls on each actor that have begun, in that order."""
        return {
            actor_id: sorted(
                (one for one in calls if one.started_at is not None), key=lambda one: one.started_at or 0.0
            )
            for actor_id, calls in self._on_actor.items()
        }

    @cached_property
    def _on_actor(self) -> Mapping[str, Sequence[Attempt]]:
        calls = (one for one in self.attempts.values() if one.task.kind == "ACTOR_TASK")
        return grouped((one.task.actor_id or "", one) for one in calls)

    def _run(self, key: Id, steps: tuple[Step, ...]) -> Run:
        caller = self._callers[key]
        attempt = caller.attempt
        if attempt is None:
            return Run(steps)
        task = attempt.task
        of_actor = task.actor_id is not None
        needs = {} if of_actor or task.placement_group_id else task.required_resources
        parent = self.attempts.get(task.parent_task_id or "")
        shape = (task.name, tuple(one.task.name for one in caller.calls[:8]), parent.task.name if parent else None)
        after = self._arguments.get(key, ())
        creation = self._creation_of.get(task.actor_id or "")
        if creation is not None and creation != key:
            after = (*after, creation)
        server = (task.actor_id, self._group_of(attempt)) if of_actor else None
        server = server if server in self._servers else None
        held: dict[Id, float] = {name: amount for name, amount in needs.items() if name != "CPU" and amount > 0}
        return Run(steps, server, held, after, shape, attempt.submitted_at, attempt.ended_at)

    @cached_property
    def _creation_of(self) -> Mapping[str, Id]:
        creations = ((key, one.task) for key, one in self.attempts.items() if one.task.kind == CREATION)
        return {task.actor_id: key for key, task in creations if task.actor_id}

    def _steps(self, caller: _Caller) -> tuple[Step, ...]:
        actor_id = caller.attempt.task.actor_id if caller.attempt else None
        found = _Steps(caller, _Order(caller, self._sampled), self._setters_on(actor_id) if actor_id else {})
        self.places.update(((caller.key, position), place) for position, place in found.places.items())
        self._arguments.update(found.arguments)
        if found.unsure_from is not None:
            self.unsure_from[caller.key] = found.unsure_from
        return tuple(found.steps)

    def _setters_on(self, actor_id: str) -> Mapping[str, Attempt]:
        """By event of an actor: the call that sets it, if there is one."""
        if actor_id not in self._setters:
            sets = (
                (step.name, one)
                for one in self._on_actor.get(actor_id, ())
                if (outline := self.outline_of(one)) is not None
                for step in outline.steps
                if step.kind == "set" and not step.is_optional
            )
            self._setters[actor_id] = {name: calls[0] for name, calls in grouped(sets).items() if len(calls) == 1}
        return self._setters[actor_id]

    # What runs share

    def _known_servers(self) -> dict[Id, Server]:
        """The actors, by their concurrency groups, whose number of slots is known; others hold nothing up."""
        found: dict[Id, Server] = {}
        for actor_id, attempts in self._on_actor.items():
            calls = grouped((self._group_of(one), one) for one in attempts)
            for group, server in self._servers_of(actor_id).items():
                if server.has_loop or most_at_once(calls.get(group, ())) <= server.slots:
                    found[actor_id, group] = server
        return found

    def _group_of(self, attempt: Attempt) -> str | None:
        """The concurrency group that a call runs in, empty for the default one; None if its method is unknown."""
        outline = self.outline_of(attempt)
        return outline.group if outline else None if self._groups_of(attempt.task.actor_id or "") else ""

    def _groups_of(self, actor_id: str) -> Mapping[str, int]:
        outline = self._class_outline(actor_id)
        return dict(outline.groups) if outline else {}

    def _class_outline(self, actor_id: str) -> ClassOutline | None:
        actor = self._index.actors.get(actor_id)
        return self._classes.get((actor.job_id, self.class_of(actor_id))) if actor else None

    def _servers_of(self, actor_id: str) -> Mapping[str, Server]:
        """The slots of an actor by concurrency group; nothing if they are not known."""
        actor, outline = self._index.actors.get(actor_id), self._class_outline(actor_id)
        if outline is None:
            is_single = actor is not None and actor.worker_id and has_one_slot(self._index, actor.worker_id)
            return {"": Server(1)} if is_single else {}
        if outline.has_groups or outline.slots is None:
            return {}
        slots = {"": outline.slots, **dict(outline.groups)}
        return {group: Server(number, has_loop=outline.is_async) for group, number in slots.items()}

    def _capacity(self) -> Mapping[Id, float]:
        """How much of each resource there is, if one node has all of it; of others no shortage is predicted."""
        found: dict[Id, float] = {}
        shared: set[str] = set()
        for node in self._snapshot.nodes:
            for name, amount in node.resources.items() if node.alive else ():
                shared.update([name] if name in found else [])
                found[name] = found.get(name, 0.0) + amount
        return {name: float("inf") if name in shared else amount for name, amount in found.items()}


def _sampled_waits(vertices: Mapping[Key, Vertex]) -> set[tuple[Id, str]]:
    """The pairs of tasks of which a sample shows the first in a wait without timeout for the second."""
    found: set[tuple[Id, str]] = set()
    for vertex in vertices.values():
        wait = vertex.wait
        if wait is None or wait.is_timed or wait.is_suspected or vertex.task_id is None:
            continue
        if wait.kind in (*REF_CALLS, "await") and wait.evidence == "exact":
            targets = (vertices.get(target.vertex) for target in wait.targets)
            found.update((vertex.task_id, one.task_id) for one in targets if one and one.task_id)
    return found


class _Order:
    """Where a caller waits for which of its calls, by its source, by samples, and by the times of its calls."""

    def __init__(self, caller: _Caller, sampled: set[tuple[Id, str]]) -> None:
        self._caller = caller
        self._sampled = sampled
        self.steps: Sequence[SourceStep] = caller.outline.steps if caller.outline else ()
        self.has_locks = any(step.kind == "acquire" or (step.kind == "wait" and step.name) for step in self.steps)
        self.site_of = dict(self._sites())
        self._waits: dict[int, tuple[int | None, bool | None]] = {}
        unsure = (number for number, one in enumerate(self.steps) if one.kind == "wait" and not one.of and not one.name)
        self.first_unsure = next(unsure, None)

    def _sites(self) -> Iterator[tuple[str, int]]:
        """The step of each call, where its name, and the order of several, leaves no doubt."""
        steps: dict[str, list[int]] = defaultdict(list)
        for number, step in enumerate(self.steps):
            if step.kind == "call":
                steps[step.name].append(number)
        calls: dict[str, list[Attempt]] = defaultdict(list)
        for call in self._caller.calls:
            calls[_called(call)].append(call)
        for name, found in calls.items():
            sites = steps.get(name, [])
            if len(sites) == 1:
                yield from ((call.task.task_id, sites[0]) for call in found)
            elif len(sites) == len(found) and not any(self.steps[site].loops for site in sites):
                yield from ((call.task.task_id, site) for call, site in zip(found, sites, strict=True))

    def wait_of(self, call: Attempt) -> tuple[int | None, bool | None]:
        """The step that waits for a call, and whether that is certain; None if it is unknown whether there is one."""
        is_sampled = (self._caller.key, call.task.task_id) in self._sampled
        site = self.site_of.get(call.task.task_id)
        if site is None:
            return None, True if is_sampled else None
        if site not in self._waits:
            self._waits[site] = self._wait_for(site)
        wait, is_certain = self._waits[site]
        return wait, True if is_sampled else is_certain

    def _wait_for(self, site: int) -> tuple[int | None, bool | None]:
        step = self.steps[site]
        if step.is_timed:  # it may be cancelled
            return None, None
        later = [number for number, one in enumerate(self.steps) if one.kind == "wait" and site in one.of]
        wait = next((number for number in later if not self.steps[number].is_timed), None)
        if wait is None:
            return None, None if later or step.escapes else False
        return wait, True if step.is_optional or not self.steps[wait].is_optional else None

    def is_between(self, wait: int, site: int, then: int) -> bool | None:
        """Whether a wait for the call of a step comes before the next call of another one; None if that is unknown."""
        loops = self.steps[wait].loops
        is_again = then <= site and bool(loops)
        if wait < then or (is_again and loops == self.steps[site].loops):
            return True
        return None if is_again else False

    @property
    def ended(self) -> float | None:
        """When the caller ended."""
        return self._caller.attempt.ended_at if self._caller.attempt else None

    def is_sampled(self, keys: Iterable[str]) -> bool:
        """Whether a sample shows the caller in a wait for one of these."""
        return any((self._caller.key, key) in self._sampled for key in keys)

    def end_of_loop(self, *numbers: int) -> int:
        """The step after the innermost loop around these steps; the end without one."""
        inside = self._inside(numbers)
        return inside[-1] + 1 if inside else len(self.steps)

    def begin_of_loop(self, *numbers: int) -> int:
        """The first step of the innermost loop around these steps."""
        inside = self._inside(numbers)
        return inside[0] if inside else numbers[-1]

    def _inside(self, numbers: Iterable[int]) -> Sequence[int]:
        common = [loop for loop in self.steps[min(numbers)].loops if all(loop in self.steps[n].loops for n in numbers)]
        return [n for n, step in enumerate(self.steps) if common and common[-1] in step.loops]


class _Steps:
    """The steps of a caller: its calls in their order, with its waits and locks between them.

    ``setters`` are the calls that set the events of its actor. ``places`` are those of the steps in which it can be
    stuck, by position; ``arguments`` are the calls whose values its calls take. ``unsure_from`` is the position from
    which on it may have waited for anything before.
    """

    def __init__(self, caller: _Caller, order: _Order, setters: Mapping[str, Attempt]) -> None:
        self.steps: list[Step] = []
        self.places: dict[int, Place] = {}
        self.arguments: dict[Id, tuple[Id, ...]] = {}
        self.unsure_from: int | None = None
        self._caller = caller
        self._order = order
        self._setters = setters
        self._open = _OpenCalls(order)
        self._held: dict[str, SourceStep] = {}
        self._last: dict[int, Id] = {}
        """The last call of each step of the source."""
        self._done = -1
        """The last step of the source that has been passed, for its locks."""
        for call in caller.calls:
            self._add_call(call)
        self._add_waits(self._open.at_end(), len(order.steps))
        self.steps += [Release(self._lock(step)) for step in self._held.values()]

    def _add_call(self, call: Attempt) -> None:
        order, key = self._order, call.task.task_id
        site = order.site_of.get(key)
        found = self._open.before(call)
        if order.has_locks and site is not None and site <= self._done:
            self._add_locks(order.end_of_loop(self._done, site))
            self._done = order.begin_of_loop(self._done, site) - 1
        self._add_waits(found, site)
        takes = order.steps[site].takes if site is not None else ()
        self.arguments[key] = tuple(self._last[one] for one in takes if one in self._last)
        self._note_unsure(site)
        self.steps.append(Submit(key))
        self._open.add(call)
        if site is not None:
            self._last[site] = key

    def _add_waits(self, found: Sequence[_FoundWait], then: int | None) -> None:
        """Add waits, each after the locks before its line, and then the locks up to a step of the source."""
        for wait, is_certain, calls in _grouped(found):
            if wait is not None:
                self._add_locks(wait)
            step = self._order.steps[wait] if wait is not None else None
            keys = tuple(one.task.task_id for one in calls)
            if is_certain:
                is_sampled = self._order.is_sampled(keys)
                self.places[len(self.steps)] = (
                    Place(step.file, step.line, step.source, is_sampled) if step else Place(is_sampled=is_sampled)
                )
            self._note_unsure(wait)
            self.steps.append(WaitFor(keys, bool(step and step.awaits), is_certain))
        if then is not None:
            self._add_locks(then)

    def _note_unsure(self, site: int | None) -> None:
        """Note whether the source has a wait for something unknown before a step of it, or in a loop around it."""
        unsure = self._order.first_unsure
        if self.unsure_from is None and unsure is not None:
            is_before = site is None or unsure < site or bool(self._order.steps[site].loops)
            self.unsure_from = len(self.steps) if is_before else None

    def _add_locks(self, end: int) -> None:
        """Add what is locked and released up to a step of the source, and where locks are held in an ``await``."""
        for step in self._order.steps[self._done + 1 : end] if self._order.has_locks else ():
            if step.kind == "acquire" and not step.is_optional and step.name not in self._held:
                self._held[step.name] = step
                self.places[len(self.steps)] = Place(step.file, step.line, step.source)
                self.steps.append(Acquire(self._lock(step), step.awaits))
            elif step.kind == "wait" and step.name and not step.is_timed and not step.is_optional:
                self._add_event(step)
            elif step.kind == "wait" and step.awaits and not step.of and self._held:
                self.places[len(self.steps)] = Place(step.file, step.line, step.source)
                self.steps.append(WaitFor((), yields=True))  # others may run meanwhile
            elif step.kind == "release" and step.name in self._held:
                self.steps.append(Release(self._lock(self._held.pop(step.name))))
        self._done = max(self._done, end - 1)

    def _add_event(self, step: SourceStep) -> None:
        """Add a wait for the one call that sets an event, unless the times show that it was not waited for."""
        own, setter = self._caller.attempt, self._setters.get(step.name)
        if own is None or setter is None or setter.started_at is None or setter.task.task_id == own.task.task_id:
            return
        if own.ended_at is None or own.ended_at >= setter.started_at:
            self.places[len(self.steps)] = Place(step.file, step.line, step.source)
            self.steps.append(WaitFor((setter.task.task_id,), step.awaits))

    def _lock(self, step: SourceStep) -> Id:
        """The identity of a lock: of the object of an actor, or of its process and the file that names it.

        Of other callers it is a lock of their own: a process runs one task at a time.
        """
        task = self._caller.attempt.task if self._caller.attempt else None
        if task is None or task.actor_id is None:
            return "lock", self._caller.key, step.file, step.name
        if step.name.startswith(OF_OBJECT):
            return "lock", task.actor_id, step.name
        return "lock", task.worker_id or task.actor_id, step.file, step.name


class _OpenCalls:
    """The calls of a caller that it may still wait for.

    Calls of steps whose wait is known are kept by their step, so that a caller of many calls looks at each call once.
    Of all others, whose waits can come at any time, those that have ended count as awaited.
    """

    def __init__(self, order: _Order) -> None:
        self._order = order
        self._of_site: dict[int, list[Attempt]] = defaultdict(list)
        self._others: list[tuple[float, int, Attempt]] = []
        self._count = 0

    def add(self, call: Attempt) -> None:
        """A call that was submitted; forgotten if the source shows that its caller never waits for it."""
        wait, is_certain = self._order.wait_of(call)
        site = self._order.site_of.get(call.task.task_id)
        if is_certain is False:
            return
        if wait is None or site is None or is_certain is None:
            self._add_other(call)
        else:
            self._of_site[site].append(call)

    def _add_other(self, call: Attempt) -> None:
        self._count += 1
        heappush(self._others, (float("inf") if call.ended_at is None else call.ended_at, self._count, call))

    def before(self, following: Attempt) -> Sequence[_FoundWait]:
        """The waits that come before a call is submitted."""
        then, at = self._order.site_of.get(following.task.task_id), following.submitted_at
        found: list[_FoundWait] = []
        for site, calls in self._of_site.items():
            wait, _ = self._order.wait_of(calls[0]) if calls else (None, None)
            is_between = self._order.is_between(wait, site, then) if wait is not None and then is not None else None
            if not calls or is_between is False:
                continue
            for call in calls:
                if _is_before(call.ended_at, at):
                    found.append((call, wait, is_between is True))
                else:
                    self._add_other(call)  # it is not awaited there, whatever the source says
            self._of_site[site] = []
        while self._others and at is not None and _is_before(self._others[0][0], at):
            call = heappop(self._others)[2]
            found.append((call, self._order.wait_of(call)[0], False))
        return found

    def at_end(self) -> Sequence[_FoundWait]:
        """The waits after the last call."""
        ended = self._order.ended
        others = [call for _, _, call in self._others]
        known = [call for calls in self._of_site.values() for call in calls]
        found: list[_FoundWait] = []
        for call in (*known, *others):
            wait, is_certain = self._order.wait_of(call)
            has_not_waited = ended is not None and not _is_before(call.ended_at, ended)
            if not has_not_waited and (ended is not None or is_certain):
                found.append((call, wait, bool(is_certain)))
        return found


def name_of(task: TaskAttempt) -> str:
    """The name of a task as its source has it: Ray puts that of a named actor before its constructor (Ray 2.60)."""
    if task.kind == "DRIVER_TASK":
        return ""
    return task.name.rpartition(":")[2] if task.kind == CREATION else task.name


def _called(attempt: Attempt) -> str:
    """The name of a call as its caller's source has it: its method or function, of a constructor its class."""
    first, _, last = name_of(attempt.task).rpartition(".")
    return first.rpartition(".")[2] if attempt.task.kind == CREATION else last


def _is_before(earlier: float | None, later: float | None) -> bool:
    """Whether a time is before another, or the other is not known yet."""
    return earlier is not None and (later is None or earlier <= later + MOMENT_S)


def _grouped(
    found: Iterable[_FoundWait],
) -> Iterator[tuple[int | None, bool, Sequence[Attempt]]]:
    """The calls of each wait, in the order of the waits; unknown waits one by one, and first."""
    groups: dict[tuple[int, bool], list[Attempt]] = defaultdict(list)
    for call, wait, is_certain in found:
        if wait is None:
            yield None, is_certain, [call]
        else:
            groups[wait, is_certain].append(call)
    for (wait, is_certain), calls in sorted(groups.items(), key=lambda one: one[0]):
        yield wait, is_certain, calls


def most_at_once(attempts: Iterable[Attempt]) -> int:
    """How many calls ran at the same time at most."""
    changes: list[tuple[float, int]] = []
    for one in attempts:
        if one.started_at is not None:
            changes.append((one.started_at, 1))
            if one.ended_at is not None:
                changes.append((max(one.started_at, one.ended_at - REPLY_S), -1))
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
