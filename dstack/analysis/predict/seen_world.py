"""The calls of a run that was seen, as a world whose order can change.

Ray's task events say which task submitted which others, when each of them ran, and where; the source says where their
callers wait for them (:mod:`dstack.observed.outlines`), as samples do of the waits that they show. A wait counts as
certain only if the source or a sample shows it, without a timeout, and the times of the events agree. What may be a
wait by its times alone keeps the order that was seen, so that it is no ground for a warning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from dstack.analysis.history.task_index import Attempt, HistoryIndex
from dstack.analysis.index.sample_index import has_one_slot
from dstack.analysis.solve.reordering import Acquire, Id, Release, Run, Server, Step, Submit, WaitFor, World
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import Actor
from dstack.model.vertex_keys import Key
from dstack.observed.calls import REF_CALLS
from dstack.observed.outlines import ClassOutline, FunctionOutline
from dstack.observed.outlines import Step as SourceStep
from dstack.words import grouped

MOMENT_S = 0.002
"""Times of one process that differ by less count as equal."""
REPLY_S = 0.05
"""The end of a call is when its caller knows it: up to so long after the next call has begun."""
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
    """The world of a snapshot with a history; ``places`` are by run and position, ``attempts`` by run."""

    def __init__(self, history: HistoryIndex, vertices: Mapping[Key, Vertex]) -> None:
        self._index = history.index
        self._snapshot = history.index.snapshot
        self.places: dict[tuple[Id, int], Place] = {}
        self.attempts: Mapping[str, Attempt] = history.latest
        self._functions = {
            (one.job_id, function.name): function for one in self._snapshot.outlines for function in one.functions
        }
        self._classes = {(one.job_id, found.name): found for one in self._snapshot.outlines for found in one.classes}
        self._sampled = _sampled_waits(vertices)
        self._servers = self._known_servers()
        self._arguments: dict[Id, tuple[Id, ...]] = {}
        self._callers = self._by_caller()
        self.world = World(
            {key: self._run(key, self._steps(caller)) for key, caller in self._callers.items()},
            self._servers,
            self._capacity(),
        )

    def outline_of(self, attempt: Attempt) -> FunctionOutline | None:
        """The outline of the function of an attempt, if its source was read."""
        name = "" if attempt.task.kind == "DRIVER_TASK" else attempt.task.name
        return self._functions.get((attempt.task.job_id, name))

    def actor(self, actor_id: str) -> Actor | None:
        """An actor of the snapshot."""
        return self._index.actors.get(actor_id)

    def present(self, resource: str) -> float:
        """How much of a resource the nodes have that are alive."""
        return sum(node.resources.get(resource, 0.0) for node in self._snapshot.nodes if node.alive)

    def class_of(self, actor_id: Id) -> str:
        """The class of an actor, as its calls name it."""
        actor = self._index.actors.get(str(actor_id))
        return actor.class_name.rpartition(".")[2] if actor else ""

    # Runs

    def _by_caller(self) -> Mapping[Id, _Caller]:
        """All runs, and the unknown callers of others, each with its calls."""
        found: dict[Id, _Caller] = {
            key: _Caller(key, attempt, self.outline_of(attempt)) for key, attempt in self.attempts.items()
        }
        for attempt in sorted(self.attempts.values(), key=lambda one: one.submitted_at or one.began_at):
            if attempt.task.kind != "DRIVER_TASK":
                parent = self._caller_of(attempt, found)
                found.setdefault(parent, _Caller(parent, None, None)).calls.append(attempt)
        return found

    def _caller_of(self, attempt: Attempt, callers: Mapping[Id, _Caller]) -> Id:
        """The run that submitted an attempt; those of an async actor name its creation as their caller."""
        parent = attempt.task.parent_task_id or ""
        caller = callers.get(parent)
        if caller is None or caller.attempt is None or caller.attempt.task.kind != CREATION:
            return parent
        submitted, creation = attempt.submitted_at, caller.attempt
        if submitted is None or creation.ended_at is None or submitted <= creation.ended_at:
            return parent
        own = [
            one
            for one in self._on_actor[creation.task.actor_id or ""]
            if one.started_at is not None
            and one.started_at <= submitted + MOMENT_S
            and (one.ended_at is None or submitted <= one.ended_at)
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
        return sorted({one.attempt.task.name for one in callers if one.attempt and one.attempt.task.name})

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
        server = task.actor_id if task.actor_id in self._servers else None
        return Run(steps, server, {name: n for name, n in needs.items() if name != "CPU" and n > 0}, after, shape)

    @cached_property
    def _creation_of(self) -> Mapping[str, Id]:
        creations = ((key, one.task) for key, one in self.attempts.items() if one.task.kind == CREATION)
        return {task.actor_id: key for key, task in creations if task.actor_id}

    def _steps(self, caller: _Caller) -> tuple[Step, ...]:
        found = _Steps(caller, _Order(caller, self._sampled))
        self.places.update(((caller.key, position), place) for position, place in found.places.items())
        self._arguments.update(found.arguments)
        return tuple(found.steps)

    # What runs share

    def _known_servers(self) -> dict[Id, Server]:
        """The actors whose number of slots is known; others hold nobody up."""
        found: dict[Id, Server] = {}
        for actor_id, attempts in self._on_actor.items():
            server = self._server(actor_id)
            if server is not None and (server.has_loop or most_at_once(attempts) <= server.slots):
                found[actor_id] = server
        return found

    def _server(self, actor_id: str) -> Server | None:
        actor = self._index.actors.get(actor_id)
        if actor is None:
            return None
        outline: ClassOutline | None = self._classes.get((actor.job_id, self.class_of(actor_id)))
        if outline is None:
            is_single = actor.worker_id is not None and has_one_slot(self._index, actor.worker_id)
            return Server(1) if is_single else None
        if outline.has_groups or outline.slots is None:
            return None
        return Server(outline.slots, has_loop=outline.is_async)

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
        self.has_locks = any(step.kind == "acquire" for step in self.steps)
        self.site_of = dict(self._sites())

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

    def _wait(self, call: Attempt) -> tuple[int | None, bool | None]:
        """The step that waits for a call, and whether that is certain; None if it is unknown whether there is one."""
        is_sampled = (self._caller.key, call.task.task_id) in self._sampled
        site = self.site_of.get(call.task.task_id)
        if site is None:
            return None, True if is_sampled else None
        step = self.steps[site]
        later = [number for number, one in enumerate(self.steps) if one.kind == "wait" and site in one.of]
        wait = next((number for number in later if not self.steps[number].is_timed), None)
        if wait is None:
            return None, True if is_sampled else None if later or step.escapes else False
        is_certain = step.is_optional or not self.steps[wait].is_optional
        return wait, True if is_certain or is_sampled else None

    def waits_before(self, call: Attempt, following: Attempt) -> Iterator[tuple[int | None, bool]]:
        """The wait for a call that comes before the ``following`` one is submitted, if there is one."""
        wait, is_certain = self._wait(call)
        if is_certain is False or not _is_before(call.ended_at, following.submitted_at):
            return
        site, then = self.site_of.get(call.task.task_id), self.site_of.get(following.task.task_id)
        if wait is None or site is None or then is None:
            yield wait, False
            return
        loops = self.steps[wait].loops
        is_again = then <= site and bool(loops)
        if wait < then or (is_again and loops == self.steps[site].loops):
            yield wait, bool(is_certain)
        elif is_again:
            yield wait, False

    def waits_at_end(self, call: Attempt) -> Iterator[tuple[int | None, bool]]:
        """The wait for a call after the last call, if there is one."""
        wait, is_certain = self._wait(call)
        ended = self._caller.attempt.ended_at if self._caller.attempt else None
        has_not_waited = ended is not None and not _is_before(call.ended_at, ended)
        if is_certain is False or has_not_waited or (ended is None and not is_certain):
            return
        yield wait, bool(is_certain)

    def is_sampled(self, keys: Iterable[str]) -> bool:
        """Whether a sample shows the caller in a wait for one of these."""
        return any((self._caller.key, key) in self._sampled for key in keys)

    def arguments(self, call: Attempt, number: int) -> Iterator[Id]:
        """The earlier calls whose values a call takes."""
        site = self.site_of.get(call.task.task_id)
        for taken in self.steps[site].takes if site is not None else ():
            makers = [one for one in self._caller.calls[:number] if self.site_of.get(one.task.task_id) == taken]
            if makers:
                yield makers[-1].task.task_id

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

    ``places`` are those of the steps in which it can be stuck, by position; ``arguments`` are the calls whose values
    its calls take.
    """

    def __init__(self, caller: _Caller, order: _Order) -> None:
        self.steps: list[Step] = []
        self.places: dict[int, Place] = {}
        self.arguments: dict[Id, tuple[Id, ...]] = {}
        self._caller = caller
        self._order = order
        self._awaited: set[str] = set()
        self._held: dict[str, SourceStep] = {}
        self._done = -1
        """The last step of the source that has been passed, for its locks."""
        for number, call in enumerate(caller.calls):
            self._add_call(number, call)
        self._add_waits([(one, *wait) for one in self._open() for wait in order.waits_at_end(one)], len(order.steps))
        self.steps += [Release(self._lock(step)) for step in self._held.values()]

    def _open(self, number: int | None = None) -> Iterator[Attempt]:
        return (one for one in self._caller.calls[:number] if one.task.task_id not in self._awaited)

    def _add_call(self, number: int, call: Attempt) -> None:
        order, site = self._order, self._order.site_of.get(call.task.task_id)
        found = [(one, *wait) for one in self._open(number) for wait in order.waits_before(one, call)]
        if order.has_locks and site is not None and site <= self._done:
            self._add_locks(order.end_of_loop(self._done, site))
            self._done = order.begin_of_loop(self._done, site) - 1
        self._add_waits(found, site)
        self.arguments[call.task.task_id] = tuple(order.arguments(call, number))
        self.steps.append(Submit(call.task.task_id))

    def _add_waits(self, found: Sequence[_FoundWait], then: int | None) -> None:
        """Add waits, each after the locks before its line, and then the locks up to a step of the source."""
        for wait, is_certain, calls in _grouped(found):
            if wait is not None:
                self._add_locks(wait)
            step = self._order.steps[wait] if wait is not None else None
            keys = tuple(one.task.task_id for one in calls)
            self._awaited.update(keys)
            if is_certain:
                is_sampled = self._order.is_sampled(keys)
                self.places[len(self.steps)] = (
                    Place(step.file, step.line, step.source, is_sampled) if step else Place(is_sampled=is_sampled)
                )
            self.steps.append(WaitFor(keys, bool(step and step.awaits), is_certain))
        if then is not None:
            self._add_locks(then)

    def _add_locks(self, end: int) -> None:
        """Add what is locked and released up to a step of the source."""
        for step in self._order.steps[self._done + 1 : end] if self._order.has_locks else ():
            if step.kind == "acquire" and not step.is_optional and step.name not in self._held:
                self._held[step.name] = step
                self.places[len(self.steps)] = Place(step.file, step.line, step.source)
                self.steps.append(Acquire(self._lock(step), step.awaits))
            elif step.kind == "release" and step.name in self._held:
                self.steps.append(Release(self._lock(self._held.pop(step.name))))
        self._done = max(self._done, end - 1)

    def _lock(self, step: SourceStep) -> Id:
        """The identity of a lock: of the actor's object, or of the process and the file that names it."""
        task = self._caller.attempt.task if self._caller.attempt else None
        if step.name.startswith("self."):
            return "lock", task.actor_id if task else None, step.name
        return "lock", task.worker_id if task else None, step.file, step.name


def _called(attempt: Attempt) -> str:
    """The name of a call as its caller's source has it: its method or function, of a constructor its class."""
    first, _, last = attempt.task.name.rpartition(".")
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
