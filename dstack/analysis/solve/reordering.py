"""Deadlocks that another order of the same calls could reach, found from one run that did not hang.

A stuck set has runs at waits, and runs that cannot begin, each of which only the others of the set could release. It is
reported if an order exists that leads there. Waits that are not certain keep their order, but no run is stuck in them.
So what is reported can happen if the world is true; a set of more than :data:`LARGEST` runs is missed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

from dstack.analysis.solve.reduction import Digraph, strong_components
from dstack.analysis.solve.starvation import starving
from dstack.analysis.solve.world import (
    EPSILON,
    LARGEST,
    QUEUED,
    UNSUBMITTED,
    Acquire,
    Event,
    Id,
    Possible,
    Stuck,
    Submit,
    WaitFor,
    World,
    step_yields,
)

MAX_WORK, MAX_STATES, MAX_CHOICES, MAX_QUEUED = 1_000_000, 3_000, 64, 16
"""Bound the search for sets, for an order that leads to one, the ways in which slots can be taken, and queues."""
FEW_ALIKE = 3
"""The most runs of one shape on one server that are tried."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The smallest stuck sets, one of each shape, the smallest first. ``is_cut``: the search ended before its end."""

    possible: tuple[Possible, ...]
    is_cut: bool


def possible_deadlocks(world: World) -> Outcome:
    """The stuck sets that another order of the calls reaches, each with such an order."""
    search = _Search(world.without_passing())
    found = [one for start in search.starts() for one in search.from_start(start)]
    found += starving(world)
    chosen: list[Possible] = []
    shapes: set[Id] = set()
    for possible in sorted(found, key=lambda one: len(one.stuck)):
        shape = frozenset((world.shape(key), position) for key, position in possible.stuck.items())
        if shape not in shapes and not any(known.stuck.keys() <= possible.stuck.keys() for known in chosen):
            shapes.add(shape)
            chosen.append(possible)
    return Outcome(tuple(chosen), search.is_cut)


class _Search:
    def __init__(self, world: World) -> None:
        self._world = world
        self._work = 0
        self._known: set[frozenset[tuple[Id, int]]] = set()
        self._on_server: dict[Id, list[Id]] = defaultdict(list)
        self._users: dict[Id, list[Id]] = defaultdict(list)
        self._holders: dict[Id, dict[Id, list[int]]] = defaultdict(lambda: defaultdict(list))
        alike: dict[Id, int] = defaultdict(int)
        for key in self._in_cycles():
            run, places = world.runs[key], world.waits[key]
            kind = world.shape(key), run.server
            alike[kind] += 1
            server = world.server(key)
            if alike[kind] > max(FEW_ALIKE, min(server.slots, LARGEST) if server else 0):
                continue
            if run.server is not None:
                self._on_server[run.server].append(key)
            for resource in run.needs:
                self._users[resource].append(key)
            for place in places:
                for token in world.owes(key, place):
                    self._holders[token][key].append(place)

    def _in_cycles(self) -> Sequence[Id]:
        """The runs with waits that hold something which they may, through others, wait for themselves.

        All others are in no smallest stuck set, apart from those between them, so most programs end here.
        """
        world = self._world
        edges: dict[Any, list[Any]] = {}
        for key, run in world.runs.items():
            queued, waits, held = ("queued", key), ("waits", key), [("token", token) for token in world.taken(key)]
            edges.setdefault(queued, []).extend(("waits", one) for one in run.after)
            edges[queued].extend(("queued", one) for one in run.after)
            if key in world.previous:
                edges[queued].append(("queued", world.previous[key]))
            held += [("resource", resource) for resource in run.needs]
            if run.server is not None:
                held.append(("server", run.server))
            edges[queued].extend(held)
            edges.setdefault(waits, [])
            for number in world.waits.get(key, ()):
                step = run.steps[number]
                if isinstance(step, WaitFor):
                    edges[waits].extend((form, one) for one in step.runs for form in ("queued", "waits"))
                elif isinstance(step, Acquire):
                    edges[waits].append(("token", step.token))
                if run.server is not None and step_yields(step):
                    edges[waits].append(("server", run.server))
            if key in world.waits:
                for thing in held:
                    edges.setdefault(thing, []).append(waits)
        graph = Digraph({one: [to for to in targets if to in edges] for one, targets in edges.items()})
        parts = [part for part in strong_components(graph) if len(part) > 1]
        return [key for part in parts for what, key in part if what == "waits" and key in world.waits]

    def starts(self) -> Iterator[tuple[Id, int]]:
        """The waits of runs that hold something."""
        keys = dict.fromkeys(
            (
                *(key for keys in self._on_server.values() for key in keys),
                *(key for keys in self._users.values() for key in keys),
                *(key for holders in self._holders.values() for key in holders),
            )
        )
        return ((key, place) for key in keys for place in self._world.waits[key])

    @property
    def is_cut(self) -> bool:
        """Whether the search has ended before its end."""
        return self._work > MAX_WORK

    def from_start(self, start: tuple[Id, int]) -> Iterator[Possible]:
        """The sets that can be reached in which this run is stuck at this position."""
        yield from self._extended({start[0]: start[1]}, (start[0],))

    def _extended(self, stuck: dict[Id, int], open_: tuple[Id, ...]) -> Iterator[Possible]:
        if self.is_cut:
            return
        required = self._required(stuck)
        self._work += 1
        if required is None:
            return
        if not open_:
            members = frozenset(stuck.items())
            if members not in self._known:
                self._known.add(members)
                completed = self._completed(stuck, required)
                found = self._schedule(stuck, completed) or self._schedule(stuck, required)
                if found is not None:
                    yield found
            return
        key, rest = open_[0], open_[1:]
        for reason in self._reasons(key, stuck):
            if any(stuck.get(other, place) != place for other, place in reason):
                continue
            new = {other: place for other, place in reason if other not in stuck}
            if len(stuck) + len(new) <= LARGEST:
                yield from self._extended({**stuck, **new}, (*rest, *new))

    # Why a run is stuck

    def _reasons(self, key: Id, stuck: Mapping[Id, int]) -> Iterator[Iterable[tuple[Id, int]]]:
        """The others that must be stuck, and where, so that this run is; each is one of several reasons."""
        world, position = self._world, stuck[key]
        run, server, step = world.runs[key], world.server(key), world.step(key, position)
        if isinstance(step, WaitFor):
            for target in step.runs:
                yield from ([one] for one in self._forms(target))
        elif isinstance(step, Acquire):
            yield from self._taken(step.token, key, stuck)
        else:
            for argument in run.after:
                yield from ([one] for one in self._forms(argument))
            yield from ([(other, QUEUED)] for other in self._queued_before(key))
            if server is not None and not server.has_loop:
                yield from self._full(run.server, server.slots, stuck)
            for resource, amount in run.needs.items():
                yield from self._scarce(resource, amount, key, stuck)
        if server is not None and server.has_loop and (position == QUEUED or (step is not None and step_yields(step))):
            blocked = ((other, place) for other in self._on_server[run.server] for place in world.waits[other])
            for other, place in blocked:
                held_by = world.step(other, place)
                if other != key and held_by is not None and not step_yields(held_by):
                    yield [(other, place)]
            if position == QUEUED:
                yield from self._full(run.server, server.slots, stuck)

    def _queued_before(self, key: Id) -> Iterator[Id]:
        """The calls of the same caller to the same server before this one, the last ones."""
        for _ in range(MAX_QUEUED):
            if key not in self._world.previous:
                return
            key = self._world.previous[key]
            yield key

    def _forms(self, key: Id) -> Iterator[tuple[Id, int]]:
        if key in self._world.submission:
            yield key, QUEUED
        for place in self._world.waits.get(key, ()):
            yield key, place

    def _taken(self, token: Id, key: Id, stuck: Mapping[Id, int]) -> Iterator[Iterable[tuple[Id, int]]]:
        """The ways in which others hold all of a token."""
        places = self._holders[token]
        inside = [one for one, place in stuck.items() if one != key and place in places.get(one, ())]
        missing = self._world.count(token) - len(inside)
        yield from self._chosen([one for one in places if one != key and one not in stuck], missing, places)

    def _full(self, server: Id, slots: int, stuck: Mapping[Id, int]) -> Iterator[Iterable[tuple[Id, int]]]:
        """The ways to take all slots of a server."""
        world = self._world
        inside = [one for one, place in stuck.items() if world.runs[one].server == server and place >= 0]
        others = [key for key in self._on_server[server] if key not in inside]
        yield from self._chosen(others, slots - len(inside), world.waits)

    def _chosen(
        self, others: Sequence[Id], missing: int, places: Mapping[Id, Sequence[int]]
    ) -> Iterator[Iterable[tuple[Id, int]]]:
        """The ways to choose so many runs that are missing, each at one of its places."""
        if missing <= 0:
            yield ()
        elif missing <= min(len(others), LARGEST):
            for chosen in islice(combinations(others, missing), MAX_CHOICES):
                yield from self._placed(chosen, places)

    def _scarce(
        self, resource: Id, amount: float, key: Id, stuck: Mapping[Id, int]
    ) -> Iterator[Iterable[tuple[Id, int]]]:
        """The ways to hold so much of a resource that too little is left."""
        world = self._world
        room = world.capacity.get(resource, 0.0) - amount

        def amount_of(keys: Iterable[Id]) -> float:
            return sum(world.runs[one].needs.get(resource, 0.0) for one in keys)

        inside = [one for one, place in stuck.items() if place >= 0 and one != key]
        others = [one for one in self._users[resource] if one not in inside and one != key]
        if amount_of(inside) > room + EPSILON:
            yield ()
            return
        for count in range(1, min(len(others), LARGEST) + 1):
            chosen = [
                some
                for some in islice(combinations(others, count), MAX_CHOICES)
                if room + EPSILON < amount_of((*inside, *some)) <= world.capacity.get(resource, 0.0) + EPSILON
            ]
            for some in chosen:
                yield from self._placed(some, world.waits)
            if chosen:
                return

    def _placed(self, keys: Sequence[Id], places: Mapping[Id, Sequence[int]]) -> Iterator[Iterable[tuple[Id, int]]]:
        """These runs, each at one of its places."""
        placed: list[tuple[tuple[Id, int], ...]] = [()]
        for key in keys:
            placed = [(*some, (key, place)) for some in placed for place in places[key]][:MAX_CHOICES]
        return iter(placed)

    # Whether an order leads there

    def _completed(self, stuck: Mapping[Id, int], required: dict[Id, int]) -> dict[Id, int]:
        """What is required, with the end of each run that has begun and can end without the stuck ones."""
        world = self._world
        for key, position in tuple(required.items()):
            if key not in stuck and 0 <= position < world.end(key):
                required = self._required(stuck, {**required, key: world.end(key)}) or required
        return required

    def _required(self, stuck: Mapping[Id, int], besides: Mapping[Id, int] | None = None) -> dict[Id, int] | None:
        """How far each run must have come at least; None if one must have come further than where it is stuck.

        Runs that had ended before any of the stuck ones was submitted are left out.
        """
        world = self._world
        since = self._since(stuck)
        required: dict[Id, int] = {}
        pending = [*stuck.items(), *(besides or {}).items()]
        while pending:
            key, position = pending.pop()
            before = required.get(key, UNSUBMITTED)
            if before >= position or self._ended_before(key, since):
                continue
            if position > stuck.get(key, position):
                return None
            required[key] = position
            if before < QUEUED and key in world.submission:
                caller, number = world.submission[key]
                pending.append((caller, number + 1))
            if before < 0 <= position:
                pending.extend((argument, world.end(argument)) for argument in world.runs[key].after)
                if key in world.previous:
                    pending.append((world.previous[key], self._left(world.previous[key])))
            begin = max(before, 0, world.first_step_after(key, since))
            for step in world.runs[key].steps[begin : max(position, 0)]:
                if isinstance(step, WaitFor):
                    pending.extend((target, world.end(target)) for target in step.runs)
            self._work += max(1, position - begin)
        return required

    def _since(self, stuck: Iterable[Id]) -> float:
        """When the first of these was submitted."""
        times = (self._world.runs[key].submitted for key in stuck)
        return min((float("-inf") if time is None else time for time in times), default=float("-inf"))

    def _ended_before(self, key: Id, time: float) -> bool:
        ended = self._world.runs[key].ended
        return ended is not None and ended < time

    def _left(self, key: Id) -> int:
        """How far a call must have come before the next one of its caller begins on the same server."""
        server = self._world.server(key)
        return self._world.end(key) if server is not None and server.slots == 1 else 0

    def _schedule(self, stuck: Stuck, required: Mapping[Id, int]) -> Possible | None:
        """An order in which all runs come as far as required, and no further."""
        world = self._world
        before = frozenset(self._independent(stuck, required))
        keys = [key for key in required if key not in before]
        keys.sort(key=lambda key: key in stuck)
        moving = set(keys)
        begin = [
            UNSUBMITTED if key in world.submission and world.submission[key][0] in moving else QUEUED for key in keys
        ]
        events = _State(world, keys, required).order(tuple(begin))
        return None if events is None else Possible(stuck, tuple(events), before)

    def _independent(self, stuck: Stuck, required: Mapping[Id, int]) -> Iterator[Id]:
        """The runs that have ended before any of the stuck ones begins, as they can without these."""
        world = self._world
        after = self._after(stuck, required)
        for key, position in required.items():
            if key not in stuck and position == world.end(key) < after.get(key, position + 1):
                yield key

    def _after(self, stuck: Stuck, required: Mapping[Id, int]) -> Mapping[Id, int]:
        """The first position of each run that it can only reach after one of the stuck ones has begun."""
        world, since = self._world, self._since(stuck)
        found = dict.fromkeys(stuck, 0)

        def reach(key: Id, position: int) -> bool:
            return found.get(key, position + 1) <= position

        def first(key: Id) -> int | None:
            caller = world.submission.get(key)
            others = [(one, world.end(one)) for one in world.runs[key].after]
            if key in world.previous:
                others.append((world.previous[key], self._left(world.previous[key])))
            if (caller is not None and reach(caller[0], caller[1] + 1)) or any(reach(*one) for one in others):
                return 0
            begin = world.first_step_after(key, since)
            for number, step in enumerate(world.runs[key].steps[begin:], begin):
                if isinstance(step, WaitFor) and any(reach(one, world.end(one)) for one in step.runs):
                    return number + 1
            return None

        pending = True
        while pending:
            pending = False
            for key in required:
                position = first(key)
                if position is not None and position < found.get(key, position + 1):
                    found[key], pending = position, True
        return found


class _State:
    """Moves runs to their required positions, one step at a time; all others that matter have ended."""

    def __init__(self, world: World, keys: Sequence[Id], required: Mapping[Id, int]) -> None:
        self._world = world
        self._keys = keys
        self._number = {key: number for number, key in enumerate(keys)}
        self._required = tuple(required[key] for key in keys)

    def order(self, begin: tuple[int, ...]) -> list[Event] | None:
        """The events from these positions to the required ones; None if none was found."""
        came_from: dict[tuple[int, ...], tuple[tuple[int, ...], int] | None] = {begin: None}
        pending = [begin]
        while pending and len(came_from) < MAX_STATES:
            state = pending.pop()
            if all(has >= needs for has, needs in zip(state, self._required, strict=True)):
                return self._events(came_from, state)
            for number in reversed(range(len(state))):
                if state[number] < self._required[number] and self._may_move(number, state):
                    following = self._moved(number, state)
                    if following not in came_from:
                        came_from[following] = (state, number)
                        pending.append(following)
        return None

    def _events(
        self, came_from: Mapping[tuple[int, ...], tuple[tuple[int, ...], int] | None], state: tuple[int, ...]
    ) -> list[Event]:
        events: list[Event] = []
        while (last := came_from[state]) is not None:
            events.append(Event(self._keys[last[1]], state[last[1]]))
            state = last[0]
        return events[::-1]

    def _moved(self, number: int, state: tuple[int, ...]) -> tuple[int, ...]:
        moved = list(state)
        step = self._world.step(self._keys[number], state[number])
        moved[number] += 1
        if isinstance(step, Submit) and step.run in self._number:
            moved[self._number[step.run]] = QUEUED
        return tuple(moved)

    def _position(self, key: Id, state: tuple[int, ...]) -> int:
        return state[self._number[key]] if key in self._number else self._world.end(key)

    def _has_ended(self, key: Id, state: tuple[int, ...]) -> bool:
        return self._position(key, state) >= self._world.end(key)

    def _has_begun(self, key: Id, state: tuple[int, ...]) -> bool:
        return self._position(key, state) >= 0

    def _may_move(self, number: int, state: tuple[int, ...]) -> bool:
        world, key, position = self._world, self._keys[number], state[number]
        if position == UNSUBMITTED:
            return False
        run, server, step = world.runs[key], world.server(key), world.step(key, position)
        running = [
            (other, state[index])
            for index, other in enumerate(self._keys)
            if index != number and 0 <= state[index] < world.end(other)
        ]
        beside = [one for one in running if run.server is not None and world.runs[one[0]].server == run.server]
        if server is not None and server.has_loop and not all(map(self._yields, beside)):
            return False
        if position == QUEUED:
            return (
                all(self._has_ended(argument, state) for argument in run.after)
                and (key not in world.previous or self._has_begun(world.previous[key], state))
                and (server is None or len(beside) < server.slots)
                and all(
                    amount + sum(world.runs[other].needs.get(resource, 0.0) for other, _ in running)
                    <= world.capacity.get(resource, 0.0) + EPSILON
                    for resource, amount in run.needs.items()
                )
            )
        if isinstance(step, WaitFor):
            return all(self._has_ended(target, state) for target in step.runs)
        if isinstance(step, Acquire):
            return sum(step.token in world.owes(*one) for one in running) < world.count(step.token)
        return True

    def _yields(self, place: tuple[Id, int]) -> bool:
        """Whether a run that has begun leaves its event loop to others."""
        step = self._world.step(*place)
        return step is None or step_yields(step)
