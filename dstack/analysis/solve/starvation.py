"""Runs that starve: what they wait for is passed on by calls that cannot begin, because these runs are in their way.

A token that is passed on has no holder, so no set of runs can be named from which the search may begin. Instead each
of these tokens is made scarce: one order is followed in which the runs that give it come as late as they can. Where
nothing can go on any more, everything is released that something else may still release; calls that were not submitted
count as submitted, whoever makes them. What remains starves whatever its callers do. So each find is exact, but some
are missed.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set

from dstack.analysis.solve.reduction import Digraph, strong_components
from dstack.analysis.solve.world import (
    EPSILON,
    LARGEST,
    QUEUED,
    UNSUBMITTED,
    Acquire,
    Event,
    Id,
    Possible,
    Release,
    Server,
    Submit,
    WaitFor,
    World,
    step_yields,
)

MAX_MOVES = 200_000
"""Bounds the moves of all orders together."""


def starving(world: World) -> Iterator[Possible]:
    """The sets of runs that starve in an order that delays what gives a token."""
    givers: dict[Id, set[Id]] = defaultdict(set)
    for key in world.runs if world.passed_on else ():
        for token in world.owes(key, QUEUED):
            givers[token].add(key)
    moves = 0
    for late in givers.values():
        order = _Order(world, late)
        is_at_end = order.follow(MAX_MOVES - moves)
        moves += len(order.events)
        if is_at_end:
            yield from _Starved(order).possible()


class _Order:
    """One order of the steps of a world, up to where no run can move; ``late`` ones move if no other one can."""

    def __init__(self, world: World, late: set[Id]) -> None:
        self.world = world
        self.events: list[Event] = []
        self.position = {key: UNSUBMITTED if key in world.submission else QUEUED for key in world.runs}
        self.left: dict[Id, int] = {}
        self.inside: dict[Id, dict[Id, None]] = defaultdict(dict)
        """The runs on each server."""
        self.busy: dict[Id, Id] = {}
        """The run that has the event loop of each server."""
        self._used: dict[Id, float] = defaultdict(float)
        self._late = late
        self._ready: tuple[deque[Id], deque[Id]] = deque(), deque()
        self._waiting: dict[Hashable, deque[Id]] = defaultdict(deque)
        for key, position in self.position.items():
            if position == QUEUED:
                self._make_ready(key)

    def follow(self, most: int) -> bool:
        """Move until no run can; False if that takes more moves."""
        while len(self.events) < most and any(self._ready):
            key = (self._ready[0] or self._ready[1]).popleft()
            if (obstacle := self.obstacle(key)) is None:
                self._move(key)
            else:
                self._waiting[obstacle].append(key)
        return not any(self._ready)

    def has_ended(self, key: Id) -> bool:
        """Whether a run has ended."""
        return self.position[key] >= self.world.end(key)

    def obstacle(self, key: Id) -> Hashable:
        """What a submitted run waits for; None if it can move."""
        world, server = self.world, self.world.server(key)
        if self.position[key] == QUEUED:
            return self._obstacle_to_begin(key, server)
        on = world.runs[key].server
        if self.busy.get(on, key) != key:
            return "loop", on
        step = world.step(key, self.position[key])
        if isinstance(step, WaitFor):
            return next((("end", one) for one in step.runs if not self.has_ended(one)), None)
        return ("token", step.token) if isinstance(step, Acquire) and not self.count(step.token) else None

    def _obstacle_to_begin(self, key: Id, server: Server | None) -> Hashable:
        world, run = self.world, self.world.runs[key]
        arguments = [one for one in run.after if not self.has_ended(one)]
        if arguments:
            return "end", arguments[0]
        if key in world.previous and self.position[world.previous[key]] < 0:
            return "begin", world.previous[key]
        if server is not None and (run.server in self.busy or len(self.inside[run.server]) >= server.slots):
            return "slot", run.server, key in self._late
        scarce = (
            name for name, amount in run.needs.items() if self._used[name] + amount > self._capacity(name) + EPSILON
        )
        return next((("resource", name) for name in scarce), None)

    def _capacity(self, resource: Id) -> float:
        return self.world.capacity.get(resource, 0.0)

    def count(self, token: Id) -> int:
        """How many of a token are left."""
        return self.left.get(token, self.world.count(token))

    def _make_ready(self, key: Id) -> None:
        self._ready[key in self._late].append(key)

    def _wake(self, *obstacle: Hashable, only_one: bool = False) -> None:
        waiting = self._waiting.get(obstacle, ())
        for _ in range(min(1, len(waiting)) if only_one else len(waiting)):
            self._make_ready(self._waiting[obstacle].popleft())

    def _move(self, key: Id) -> None:
        run, step = self.world.runs[key], self.world.step(key, self.position[key])
        self.position[key] += 1
        self.events.append(Event(key, self.position[key]))
        if step is None:
            self._begin(key)
        elif isinstance(step, Submit):
            self.position[step.run] = QUEUED
            self._make_ready(step.run)
        elif isinstance(step, Acquire | Release):
            self.left[step.token] = self.count(step.token) + (1 if isinstance(step, Release) else -1)
            self._wake("token", step.token)
        if self.has_ended(key):
            self._end(key)
        else:
            self._make_ready(key)
        self._pass_loop(key, run.server)

    def _begin(self, key: Id) -> None:
        run = self.world.runs[key]
        self.inside[run.server][key] = None
        for name, amount in run.needs.items():
            self._used[name] += amount
        self._wake("begin", key)

    def _end(self, key: Id) -> None:
        run = self.world.runs[key]
        del self.inside[run.server][key]
        for name, amount in run.needs.items():
            self._used[name] -= amount
            self._wake("resource", name)
        self._wake("end", key)
        self._wake_queued(run.server)

    def _wake_queued(self, server: Id | None) -> None:
        """One that is late, and another: it begins, or waits again, and wakes the next one when it ends."""
        for is_late in (False, True):
            self._wake("slot", server, is_late, only_one=True)

    def _pass_loop(self, key: Id, name: Id | None) -> None:
        """Note whether a run has the event loop of its server after its move."""
        server = self.world.server(key)
        if server is None or not server.has_loop:
            return
        step = self.world.step(key, self.position[key])
        if step is not None and not step_yields(step):
            self.busy[name] = key
        else:
            self.busy.pop(name, None)
            self._wake("loop", name)
            self._wake_queued(name)


class _Starved:
    """What cannot go on at the end of an order, whatever all others do."""

    def __init__(self, order: _Order) -> None:
        self._order = order
        self._world = world = order.world
        self._left = {key for key in world.runs if not order.has_ended(key)}
        """The runs that have not ended, and may not do so."""
        self._givers: dict[Id, list[Id]] = defaultdict(list)
        for key in self._left:
            for token in world.owes(key, order.position[key]):
                self._givers[token].append(key)
        while released := {key for key in self._left if self._reason(key) is None}:
            self._left -= released

    def possible(self) -> Iterator[Possible]:
        """The smallest sets, apart from those without a token that is passed on."""
        order, world = self._order, self._world
        stuck = [key for key in self._left if order.position[key] > UNSUBMITTED]
        others = {key: [*dict.fromkeys(self._others(key))] for key in stuck}
        for part in strong_components(Digraph(others)):
            members = set(part)
            steps = [world.step(key, order.position[key]) for key in part]
            waits = any(isinstance(step, Acquire) and step.token in world.passed_on for step in steps)
            if waits and all(other in members for key in part for other in others[key]):
                shown = self._shown(members)
                if 1 < len(shown) <= LARGEST:
                    yield Possible(shown, tuple(order.events), frozenset())

    def _shown(self, members: Set[Id]) -> Mapping[Id, int]:
        """The members, of those that are queued for the same reason one of each shape."""
        order, world = self._order, self._world
        shown: dict[Hashable, Id] = {}
        for key in (key for key in world.runs if key in members):
            is_queued = order.position[key] == QUEUED
            shown.setdefault((world.shape(key), world.runs[key].server) if is_queued else key, key)
        return {key: order.position[key] for key in shown.values()}

    def _others(self, key: Id) -> Iterator[Id]:
        """The submitted runs that keep a run where it is."""
        for other in self._reason(key) or ():
            if self._order.position[other] > UNSUBMITTED:
                yield other
            else:  # it would be held up by others once it was submitted
                yield from (self._reason(other) or ())

    def _reason(self, key: Id) -> Sequence[Id] | None:
        """The others that keep a run where it is, all of which are needed for that; None if it may go on."""
        order, world = self._order, self._world
        run, position = world.runs[key], order.position[key]
        if (busy := order.busy.get(run.server, key)) != key and busy in self._left:
            return [busy]
        if position < 0:
            return self._reason_to_queue(key, is_submitted=position == QUEUED)
        step = world.step(key, position)
        if isinstance(step, WaitFor) and step.is_certain:
            return next(([one] for one in step.runs if one in self._left), None)
        if isinstance(step, Acquire) and step.is_certain and not order.count(step.token):
            givers = self._givers[step.token]
            return givers if all(one in self._left for one in givers) else None
        return None

    def _reason_to_queue(self, key: Id, *, is_submitted: bool) -> Sequence[Id] | None:
        order, world, server = self._order, self._world, self._world.server(key)
        run = world.runs[key]
        if server is not None:
            inside = [one for one in order.inside[run.server] if one in self._left]
            if len(inside) >= server.slots:
                return inside
        for resource, amount in run.needs.items():
            users = [one for one in self._left if order.position[one] >= 0 and resource in world.runs[one].needs]
            held = sum(world.runs[one].needs[resource] for one in users)
            if held + amount > world.capacity.get(resource, 0.0) + EPSILON:
                return users
        before = (*run.after, world.previous[key]) if key in world.previous else run.after
        held_up = (one for one in before if one in self._left and (one in run.after or order.position[one] < 0))
        return next(([one] for one in held_up), None) if is_submitted else None
