"""The calls of a run that was seen, as a world whose order can change.

Ray's task events say which task submitted which others, when each of them ran, and where; the source says where their
callers wait for them (:mod:`dstack.observed.outlines`), as samples do of the waits that they show. A wait counts as
certain only if the source or a sample shows it, without a timeout, and the times of the events agree. What may be a
wait by its times alone keeps the order that was seen, so that it is no ground for a warning.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cached_property

from dstack.analysis.history.call_nodes import DRIVER
from dstack.analysis.history.task_index import Attempt, HistoryIndex
from dstack.analysis.index.sample_index import has_one_slot
from dstack.analysis.predict.caller_steps import CREATION, MOMENT_S, Caller, CallerSteps, Order, Place, called, name_of
from dstack.analysis.predict.passed_on import names_passed, with_givers
from dstack.analysis.predict.source_walk import SourceWalk
from dstack.analysis.solve.world import Id, Run, Server, Step, World
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import Actor
from dstack.model.vertex_keys import Key
from dstack.observed.calls import REF_CALLS
from dstack.observed.outlines import ClassOutline, FunctionOutline, ProgramOutline
from dstack.words import grouped

REPLY_S = 0.05
"""The end of a call is when its caller knows it: up to so long after the next call has begun."""
INERT = ("__ray_ready__", "__ray_terminate__")
"""Methods of all actors, which do nothing with what an actor has."""
MOST_AT_ONCE = 200
"""How many of the last calls of an async actor may be the caller of another one."""


class SeenWorld:
    """The world of a snapshot with a history; ``places`` are by run and position, ``attempts`` by run.

    ``unsure_from`` has, by run, the position from which on it may have waited for anything before, as for a ref that it
    was given.
    """

    def __init__(
        self, history: HistoryIndex, shown_waits: Set[tuple[Id, str]], outlines: Sequence[ProgramOutline]
    ) -> None:
        self._index = history.index
        self._snapshot = history.index.snapshot
        self.places: dict[tuple[Id, int], Place] = {}
        self.unsure_from: dict[Id, int] = {}
        self.attempts: Mapping[str, Attempt] = history.latest
        known = {one.job_id: one for one in outlines}
        self._functions = {(job, function.name): function for job, one in known.items() for function in one.functions}
        self._classes = {(job, found.name): found for job, one in known.items() for found in one.classes}
        self._sampled = shown_waits
        self._servers = self._known_servers()
        self._arguments: dict[Id, tuple[Id, ...]] = {}
        self._is_whole = not history.history.left_out + history.history.dropped
        self._passed: dict[str, Set[str]] = {}
        self._permits: dict[Id, int] = {}
        self._tokens: dict[Id, int] = {}
        self._callers = self._by_caller()
        self._walks: dict[int, SourceWalk] = {}
        self._orders = {key: Order(one, self._sampled, self._walk(one.outline)) for key, one in self._callers.items()}
        self._sites = {key: site for order in self._orders.values() for key, site in order.site_of.items()}
        own = {key: self._steps(caller) for key, caller in self._callers.items()}
        steps = with_givers(own, self._tokens, self.attempts)
        runs = {key: self._run(key, steps[key]) for key in self._callers}
        self.world = World(runs, self._servers, self._capacity(), {**self._permits, **self._tokens})

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

    def _by_caller(self) -> Mapping[Id, Caller]:
        """All runs, and the unknown callers of others, each with its calls."""
        found: dict[Id, Caller] = {
            key: Caller(key, attempt, self.outline_of(attempt)) for key, attempt in self.attempts.items()
        }
        for attempt in sorted(self.attempts.values(), key=lambda one: one.submitted_at or one.began_at):
            if attempt.task.kind != "DRIVER_TASK":
                parent, job_id = self._caller_of(attempt, found), attempt.task.job_id
                own = self._functions.get((job_id, "")) if parent == f"{DRIVER}{job_id}" else None
                found.setdefault(parent, Caller(parent, None, own)).calls.append(attempt)
        return found

    def _caller_of(self, attempt: Attempt, callers: Mapping[Id, Caller]) -> Id:
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
            and any(step.kind == "call" and step.name == called(attempt) for step in outline.steps)
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
        calls = tuple(one.task.name for one in caller.calls[:8])
        shape = (task.name, calls, parent.task.name if parent else None, self._sites.get(task.task_id))
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

    def _walk(self, outline: FunctionOutline | None) -> SourceWalk:
        """The walk through the source of a function, the same for all of its calls."""
        if id(outline) not in self._walks:
            self._walks[id(outline)] = SourceWalk(outline.steps if outline else (), is_whole=self._is_whole)
        return self._walks[id(outline)]

    def _steps(self, caller: Caller) -> tuple[Step, ...]:
        actor_id = caller.attempt.task.actor_id if caller.attempt else None
        passed = self._passed_on(actor_id) if actor_id else set()
        found = CallerSteps(caller, self._orders[caller.key], passed)
        self.places.update(((caller.key, position), place) for position, place in found.places.items())
        self._arguments.update(found.arguments)
        self._permits.update(found.permits)
        self._tokens.update(found.tokens)
        if found.unsure_from is not None:
            self.unsure_from[caller.key] = found.unsure_from
        return tuple(found.steps)

    def _passed_on(self, actor_id: str) -> Set[str]:
        """What calls of an actor pass to each other, as items of a queue, if all that they did with it is known."""
        if actor_id not in self._passed:
            creation = self.attempts.get(str(self._creation_of.get(actor_id)))
            calls = [*self._on_actor.get(actor_id, ()), *([creation] if creation else [])]
            outlines = [self.outline_of(one) for one in calls if called(one) not in INERT]
            known = [one for one in outlines if one is not None]
            actor = self.actor(actor_id)
            is_first = creation is not None and actor is not None and not actor.num_restarts
            has_failed = any(one.state == "failed" for one in calls)
            is_known = self._is_whole and is_first and len(known) == len(outlines) and not has_failed
            self._passed[actor_id] = names_passed(known) if is_known else set()
        return self._passed[actor_id]

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


def shown_waits(vertices: Mapping[Key, Vertex]) -> set[tuple[str, str]]:
    """The pairs of tasks of which a sample shows the first in a wait without timeout for the second."""
    found: set[tuple[str, str]] = set()
    for vertex in vertices.values():
        wait = vertex.wait
        if wait is None or wait.is_timed or wait.is_suspected or vertex.task_id is None:
            continue
        if wait.kind in (*REF_CALLS, "await") and wait.evidence == "exact":
            targets = (vertices.get(target.vertex) for target in wait.targets)
            found.update((vertex.task_id, one.task_id) for one in targets if one and one.task_id)
    return found


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
