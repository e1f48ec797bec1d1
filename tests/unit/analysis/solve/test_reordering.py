"""Deadlocks that another order reaches, against all orders of small random worlds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dstack.analysis.solve.reordering import possible_deadlocks
from dstack.analysis.solve.world import (
    QUEUED,
    Acquire,
    Id,
    Possible,
    Release,
    Run,
    Server,
    Step,
    Submit,
    WaitFor,
    World,
)

State = tuple[int, ...]
"""The position of each run: -2 not submitted, -1 queued, else the number of its steps done."""


class Orders:
    """All orders of the steps of a world, by brute force: an implementation of its rules of its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.keys = list(world.runs)
        self.submitted = {step.run for run in world.runs.values() for step in run.steps if isinstance(step, Submit)}
        self.callers = {
            step.run: key for key, run in world.runs.items() for step in run.steps if isinstance(step, Submit)
        }

    def begin(self) -> State:
        return tuple(-2 if key in self.submitted else -1 for key in self.keys)

    def at(self, state: State, key: object) -> int:
        return state[self.keys.index(key)]

    def done(self, state: State, key: object) -> bool:
        return self.at(state, key) == len(self.world.runs[key].steps)

    def following(self, state: State) -> Iterator[State]:
        for number, key in enumerate(self.keys):
            if self.may_move(state, key):
                moved = list(state)
                run = self.world.runs[key]
                step = run.steps[state[number]] if state[number] >= 0 else None
                moved[number] += 1
                if isinstance(step, Submit):
                    moved[self.keys.index(step.run)] = -1
                yield tuple(moved)

    def left(self, state: State, token: object) -> int:
        """How many of a token are left."""
        done = [step for key in self.keys for step in self.world.runs[key].steps[: max(0, self.at(state, key))]]
        taken = sum(isinstance(step, Acquire) and step.token == token for step in done)
        given = sum(isinstance(step, Release) and step.token == token for step in done)
        return self.world.tokens.get(token, 1) + given - taken

    def waits(self, state: State, key: object) -> bool:
        """Whether a run is at a step that cannot be done now, apart from its event loop."""
        position = self.at(state, key)
        steps = self.world.runs[key].steps
        if not 0 <= position < len(steps):
            return False
        step = steps[position]
        if isinstance(step, WaitFor):
            return not all(self.done(state, one) for one in step.runs)
        return isinstance(step, Acquire) and self.left(state, step.token) < 1

    def may_move(self, state: State, key: object) -> bool:
        position, run = self.at(state, key), self.world.runs[key]
        if position == -2 or position == len(run.steps):
            return False
        running = [
            one for one in self.keys if one != key and 0 <= self.at(state, one) < len(self.world.runs[one].steps)
        ]
        beside = [one for one in running if run.server is not None and self.world.runs[one].server == run.server]
        server = self.world.servers.get(run.server)
        if server and server.has_loop:
            for one in beside:
                step = self.world.runs[one].steps[self.at(state, one)]
                if not (isinstance(step, WaitFor | Acquire) and step.yields):
                    return False
        if position >= 0:
            return not self.waits(state, key)
        if server and len(beside) >= server.slots:
            return False
        return self.may_begin(state, key, running)

    def may_begin(self, state: State, key: object, running: list[object]) -> bool:
        """Whether the arguments, the calls before it, and the resources of a run let it begin."""
        run = self.world.runs[key]
        if not all(self.done(state, one) for one in run.after):
            return False
        caller = self.callers.get(key)
        for step in self.world.runs[caller].steps if caller is not None else ():
            if isinstance(step, Submit):
                if step.run == key:
                    break
                is_same_server = run.server is not None and self.world.runs[step.run].server == run.server
                if is_same_server and self.at(state, step.run) < 0:
                    return False
        for resource, amount in run.needs.items():
            used = sum(self.world.runs[one].needs.get(resource, 0) for one in running)
            if used + amount > self.world.capacity[resource]:
                return False
        return True

    def reachable(self, begin: State) -> set[State]:
        seen, pending = {begin}, [begin]
        while pending:
            for state in self.following(pending.pop()):
                if state not in seen:
                    seen.add(state)
                    pending.append(state)
        return seen

    def ends(self) -> tuple[bool, bool]:
        """Whether some order ends all runs, and whether some order leaves runs that cannot move."""
        states = self.reachable(self.begin())
        last = [state for state in states if not any(True for _ in self.following(state))]
        full = [all(self.done(state, key) for key in self.keys) for state in last]
        return any(full), not all(full)

    def replay(self, possible: Possible) -> State:
        """The state after the schedule, if ``before`` have ended; fails if a step is not possible."""
        before = possible.before
        submitted = {key for key in self.keys if key not in self.callers or self.callers[key] in before}
        state = tuple(
            len(self.world.runs[key].steps) if key in before else -1 if key in submitted else -2 for key in self.keys
        )
        for event in possible.schedule:
            number = self.keys.index(event.run)
            assert state[number] == event.position - 1
            assert self.may_move(state, event.run), (event, state)
            step = self.world.runs[event.run].steps[state[number]] if state[number] >= 0 else None
            moved = list(state)
            moved[number] += 1
            if isinstance(step, Submit) and step.run not in possible.before:
                moved[self.keys.index(step.run)] = -1
            state = tuple(moved)
        return state


def random_world(rng: random.Random) -> World:
    servers: dict[object, Server] = {}
    for name in "AB":
        has_loop = rng.random() < 0.3
        servers[name] = Server(slots=rng.choice((1, 1, 2)) if not has_loop else rng.choice((1, 3)), has_loop=has_loop)
    names = [f"t{number}" for number in range(rng.randint(3, 6))]
    children: dict[str, list[str]] = {name: [] for name in ("driver", *names)}
    for number, name in enumerate(names):
        children[rng.choice(["driver", "driver", *names[:number]])].append(name)
    placed = {name: rng.choice(["A", "B", "B", "A", None]) for name in names}
    runs: dict[object, Run] = {}
    for name in ("driver", *names):
        server = servers.get(placed.get(name))
        steps: list[Step] = []
        open_: list[str] = []
        lock = rng.choice("LM") if name != "driver" and rng.random() < 0.35 else None
        inner = {"L": "M", "M": "L"}.get(lock or "") if rng.random() < 0.6 else None

        def yields(server: Server | None = server) -> bool:
            return bool(server and server.has_loop and rng.random() < 0.6)

        if lock:
            steps.append(Acquire(lock, yields=yields()))
            if inner:
                steps.append(Acquire(inner, yields=yields()))
        for child in children[name]:
            steps.append(Submit(child))
            open_.append(child)
            if rng.random() < 0.4:
                steps.append(WaitFor((open_.pop(rng.randrange(len(open_))),), yields=yields()))
        if open_ and rng.random() < 0.8:
            steps.append(WaitFor(tuple(open_), yields=yields()))
        if lock:
            steps += [Release(inner), Release(lock)] if inner else [Release(lock)]
        siblings = [one for parent in children.values() if name in parent for one in parent[: parent.index(name)]]
        after = (rng.choice(siblings),) if siblings and rng.random() < 0.2 else ()
        needs: dict[Id, float] = {"GPU": 1.0} if placed.get(name, "A") is None and rng.random() < 0.6 else {}
        runs[name] = Run(tuple(steps), placed.get(name), needs, after)
    return World(runs, servers, {"GPU": float(rng.choice((1, 2)))}, {"L": rng.choice((1, 1, 2))})


def with_queue(world: World, rng: random.Random) -> World:
    """The world with a queue, or an event, that some of its runs use before or after their other steps."""
    runs = dict(world.runs)
    give: tuple[Step, ...] = (Acquire("room"), Release("item"))
    take: tuple[Step, ...] = (Acquire("item"), Release("room"))
    kind = rng.choice(("bounded", "unbounded", "event"))
    if kind != "bounded":
        give, take = (Release("item"),), (Acquire("item"), Release("item")) if kind == "event" else (Acquire("item"),)
    for key, run in world.runs.items():
        if run.server is not None and rng.random() < 0.8:
            yields = bool(world.servers[run.server].has_loop and rng.random() < 0.6)
            used = [
                replace(one, yields=yields) if isinstance(one, Acquire) else one for one in rng.choice((give, take))
            ]
            runs[key] = replace(run, steps=rng.choice(((*used, *run.steps), (*run.steps, *used))))
    return replace(world, runs=runs, tokens={**world.tokens, "item": 0, "room": rng.choice((1, 2))})


def timed(world: World, rng: random.Random) -> World:
    """The world with the times of one run that ended; times are numbers of steps."""
    orders = Orders(world)
    while True:
        state, path = orders.begin(), [orders.begin()]
        while following := list(orders.following(state)):
            state = rng.choice(following)
            path.append(state)
        if all(orders.done(state, key) for key in orders.keys):
            break
    runs = {}
    for number, key in enumerate(orders.keys):
        positions = [one[number] for one in path]
        submitted = next(time for time, position in enumerate(positions) if position >= -1)
        ended = positions.index(len(world.runs[key].steps))
        runs[key] = replace(world.runs[key], submitted=float(submitted), ended=float(ended))
    return with_givers(replace(world, runs=runs), path)


def without_times(world: World) -> World:
    """The world without the times of its runs, so that none is left out."""
    return replace(world, runs={key: replace(run, submitted=None, ended=None) for key, run in world.runs.items()})


def with_givers(world: World, path: list[State]) -> World:
    """The world whose passed tokens are given, one after the other, as in one run."""
    steps = {key: [*run.steps] for key, run in world.runs.items()}
    given: dict[Id, list[Id | None]] = {token: [None] * world.count(token) for token in world.passed_on}
    for before, after in itertools.pairwise(path):
        number = next(number for number, pair in enumerate(zip(before, after, strict=True)) if pair[0] + 1 == pair[1])
        key = [*world.runs][number]
        step = steps[key][before[number]] if before[number] >= 0 else None
        if isinstance(step, Release) and step.token in given:
            given[step.token].append(key)
        elif isinstance(step, Acquire) and step.token in given:
            steps[key][before[number]] = replace(step, given_by=given[step.token].pop(0))
    return replace(world, runs={key: replace(run, steps=tuple(steps[key])) for key, run in world.runs.items()})


def is_there(orders: Orders, state: State, possible: Possible) -> bool:
    return all(orders.at(state, key) == place for key, place in possible.stuck.items())


@pytest.mark.parametrize("seed", range(20))
def test_another_order_hangs_exactly_if_one_of_all_orders_does(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        world = random_world(rng)
        orders = Orders(world)
        can_end, can_hang = orders.ends()
        if not can_end:
            continue
        found = possible_deadlocks(world).possible
        assert bool(found) == can_hang, world
        assert bool(possible_deadlocks(timed(world, rng)).possible) == can_hang, world
        for possible in found:
            assert is_there(orders, orders.replay(possible), possible)
            there = [state for state in orders.reachable(orders.begin()) if is_there(orders, state, possible)]
            assert there
            assert all(is_there(orders, last, possible) for state in there[:3] for last in orders.reachable(state))


@pytest.mark.parametrize("seed", range(20))
def test_what_starves_in_another_order_hangs_in_one_of_all_orders(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        world = with_queue(random_world(rng), rng)
        orders = Orders(world)
        can_end, can_hang = orders.ends()
        if not can_end:
            continue
        seen = timed(world, rng)
        assert can_hang or not possible_deadlocks(seen).possible, world
        for possible in possible_deadlocks(without_times(seen)).possible:
            state = orders.replay(possible)
            assert is_there(orders, state, possible)
            assert all(is_there(orders, last, possible) for last in orders.reachable(state))


def test_a_wait_that_is_not_certain_keeps_its_order_and_holds_nobody() -> None:
    def world(is_certain: bool) -> World:
        wait = WaitFor(("f",), is_certain=is_certain)
        runs: dict[Id, Run] = {
            "driver": Run((Submit("a"), Submit("b"), WaitFor(("a", "b")))),
            "a": Run((Submit("f"), wait), "A"),
            "b": Run((Submit("g"), WaitFor(("g",))), "B"),
            "f": Run((), "B"),
            "g": Run((), "A"),
        }
        return World(runs, {"A": Server(), "B": Server()})

    (found,) = possible_deadlocks(world(is_certain=True)).possible
    assert found.stuck == {"a": 1, "b": 1, "f": QUEUED, "g": QUEUED}
    assert not possible_deadlocks(world(is_certain=False)).possible


def test_a_caller_that_waits_in_between_excludes_it() -> None:
    runs: dict[Id, Run] = {
        "driver": Run((Submit("a"), WaitFor(("a",), is_certain=False), Submit("b"), WaitFor(("b",)))),
        "a": Run((Submit("f"), WaitFor(("f",))), "A"),
        "b": Run((Submit("g"), WaitFor(("g",))), "B"),
        "f": Run((), "B"),
        "g": Run((), "A"),
    }
    assert not possible_deadlocks(World(runs, {"A": Server(), "B": Server()})).possible
