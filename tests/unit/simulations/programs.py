"""Random programs of tasks and actors that run to their end in virtual time, and the history that Ray would have kept.

All is known of them, so they say how long a changed program takes, and which way through it is critical. Times are
whole microseconds. The simulation repeats "who can do something now?" until no one can, then goes to the next time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dstack.analysis.history.task_index import HistoryIndex
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.snapshot import Actor, Job, Node, Sample, Snapshot, TaskAttempt, TaskHistory
from tests.unit.support.histories import DRIVER, JOB, NOW, task_id

US = 1e-6
NODE = "aa" * 28
Action = tuple[Literal["work", "submit", "get", "any"], int | tuple[int, ...]]
"""Work for microseconds, submit a call by its number, wait for calls, or until so many of one function have ended."""


@dataclass(frozen=True)
class Planned:
    """A call: of an actor, or a task that needs so many CPUs; what it does, and the calls whose results it takes."""

    function: str
    actions: tuple[Action, ...]
    actor: int | None = None
    cpus: int = 1
    takes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Program:
    """Calls by number, and what the driver does; actors of one class are numbered from 0."""

    calls: tuple[Planned, ...]
    driver: tuple[Action, ...]
    cpus: int
    counted: str = ""
    """The function whose ends are counted."""
    noticed_late: int = 0
    """Callers notice ends up to so many microseconds late."""

    def changed(self, speed: Mapping[str, float], cpus: int | None = None) -> Program:
        """With functions that are so many times as fast, and other CPUs."""
        calls = tuple(
            Planned(one.function, _faster(one.actions, speed.get(one.function, 1.0)), one.actor, one.cpus, one.takes)
            for one in self.calls
        )
        return replace(self, calls=calls, cpus=cpus or self.cpus)


def _faster(actions: Sequence[Action], times: float) -> tuple[Action, ...]:
    return tuple((kind, round(what / times) if kind == "work" else what) for kind, what in actions)  # type: ignore[operator]


@dataclass
class Doing:
    """A caller or call that runs: its next action, and until when it works."""

    actions: Sequence[Action]
    at: int = 0
    until: int = -1
    waits: bool = False


@dataclass
class Run:
    """A run to its end: when each call was submitted, was ready, began and ended; -1 before."""

    program: Program
    is_pooled: int = 0
    """If not 0, so many actors share the calls of all actors."""
    submitted: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    began: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    callers: list[int] = field(default_factory=list)
    now: int = 0

    def __post_init__(self) -> None:
        count = len(self.program.calls)
        self.submitted, self.ready, self.began, self.ended = ([-1] * count for _ in range(4))
        self.callers = [-1] * count
        self._order: list[int] = []
        self._noticed: list[int] = []
        self._busy: dict[int, int] = {}
        self._free_cpus = self.program.cpus
        self._doing = {-1: Doing(self.program.driver)}

    def to_end(self) -> Run:
        """Run; the driver's last action ends it."""
        while -1 in self._doing:
            while any([self._act(), self._send(), self._begin()]):
                pass
            self._noticed = [time for time in self._noticed if time > self.now]
            later = [*self._noticed, *(one.until for one in self._doing.values() if one.until > self.now)]
            if -1 in self._doing:
                self.now = min(later)
        return self

    def _act(self) -> bool:
        """Each that runs does what it can."""
        has_acted = False
        for number in list(self._doing):
            has_acted |= self._step(number, self._doing[number])
        return has_acted

    def _step(self, number: int, doing: Doing) -> bool:
        if doing.until > self.now:
            return False
        if doing.at == len(doing.actions):
            self._end(number)
            return True
        kind, what = doing.actions[doing.at]
        if kind == "work":
            assert isinstance(what, int)
            doing.until = self.now + what
        elif kind == "submit":
            assert isinstance(what, int)
            self.submitted[what], self.callers[what] = self.now, number
            self._order.append(what)
        elif not self._has_ended(what):
            if not doing.waits:
                doing.waits = True
                self._free_cpus += self._cpus(number)
            return False
        elif doing.waits:
            doing.waits = False
            self._free_cpus -= self._cpus(number)
        doing.at += 1
        return True

    def _has_ended(self, what: int | tuple[int, ...]) -> bool:
        if isinstance(what, tuple):
            return all(map(self._is_noticed, what))
        return sum(self._is_noticed(one) for one in self._order if self._counts(one)) >= what

    def _counts(self, number: int) -> bool:
        return self.program.calls[number].function == self.program.counted

    def _is_noticed(self, number: int) -> bool:
        return 0 <= self.ended[number] <= self.now

    def _cpus(self, number: int) -> int:
        return self.program.calls[number].cpus if number >= 0 and self.program.calls[number].actor is None else 0

    def _end(self, number: int) -> None:
        del self._doing[number]
        if number >= 0:
            late = random.Random(number).randint(0, self.program.noticed_late)
            self.ended[number] = self.now + late
            self._noticed.append(self.now + late)
            self._free_cpus += self._cpus(number)
            actor = self.program.calls[number].actor
            if actor is not None:
                self._busy[self._lane(actor)] -= 1

    def _lane(self, actor: int) -> int:
        return 0 if self.is_pooled else actor

    def _send(self) -> bool:
        is_sent = False
        for number in self._order:
            if self.ready[number] < 0 and all(map(self._is_noticed, self.program.calls[number].takes)):
                self.ready[number] = self.now
                is_sent = True
        return is_sent

    def _begin(self) -> bool:
        """The oldest ready call that can begin does so."""
        waiting = [one for one in self._order if self.ready[one] >= 0 and self.began[one] < 0]
        for number in sorted(waiting, key=lambda one: self.ready[one]):
            planned = self.program.calls[number]
            if planned.actor is None and planned.cpus > self._free_cpus:
                continue
            if planned.actor is not None and not self._is_free(planned.actor, number):
                continue
            self._start(number, planned)
            return True
        return False

    def _is_free(self, actor: int, number: int) -> bool:
        if self._busy.get(self._lane(actor), 0) >= max(1, self.is_pooled):
            return False
        earlier = self._order[: self._order.index(number)]
        same = (one for one in earlier if self.program.calls[one].actor == actor and self.began[one] < 0)
        return bool(self.is_pooled) or all(self.callers[one] != self.callers[number] for one in same)

    def _start(self, number: int, planned: Planned) -> None:
        self.began[number] = self.now
        if planned.actor is None:
            self._free_cpus -= planned.cpus
        else:
            lane = self._lane(planned.actor)
            self._busy[lane] = self._busy.get(lane, 0) + 1
        self._doing[number] = Doing(planned.actions)


def history_of(run: Run) -> HistoryIndex:
    """The history of a run, as the GCS keeps it."""
    attempts = [TaskAttempt(task_id=DRIVER, name="", kind="DRIVER_TASK", job_id=JOB, states={"RUNNING": NOW})]
    attempts += [_attempt(run, number) for number, ended in enumerate(run.ended) if ended >= 0]
    actors = {planned.actor for planned in run.program.calls if planned.actor is not None}
    snapshot = Snapshot(
        dstack_version="0",
        taken_at=NOW + run.now * US,
        address="10.0.0.1:1",
        ray_version="2.60.0",
        nodes=(Node(node_id=NODE, ip="10.0.0.1", resources={"CPU": float(run.program.cpus)}),),
        actors=tuple(Actor(actor_id=_actor_id(one), job_id=JOB, class_name="Pool", state="ALIVE") for one in actors),
        jobs=(Job(job_id=JOB, driver_ip="10.0.0.1", entrypoint="python train.py"),),
    )
    history = TaskHistory(asked_at=NOW + run.now * US, attempts=tuple(attempts))
    return HistoryIndex(SampleIndex(snapshot, Sample(began_s=0.0, ended_s=0.0)), history)


def _actor_id(number: int) -> str:
    return f"{number + 1:024x}{JOB}"


def _attempt(run: Run, number: int) -> TaskAttempt:
    planned = run.program.calls[number]
    is_task = planned.actor is None
    times = {
        "PENDING_ARGS_AVAIL": run.submitted[number],
        "PENDING_NODE_ASSIGNMENT": run.ready[number],
        "SUBMITTED_TO_WORKER": run.began[number] if is_task else run.ready[number],
        "RUNNING": run.began[number],
        "FINISHED": run.ended[number],
    }
    return TaskAttempt(
        task_id=task_id(number + 1),
        name=planned.function,
        kind="NORMAL_TASK" if is_task else "ACTOR_TASK",
        job_id=JOB,
        actor_id=None if planned.actor is None else _actor_id(planned.actor),
        parent_task_id=DRIVER if run.callers[number] < 0 else task_id(run.callers[number] + 1),
        worker_id=f"{number:056x}",
        node_id=NODE,
        states={state: NOW + at * US for state, at in times.items()},
        required_resources={"CPU": float(planned.cpus)} if is_task else {},
    )


@dataclass(frozen=True)
class Slot:
    """A call of each iteration: its function, where it runs, the slots that it takes, and how many it calls itself."""

    function: str
    actor: int | None
    takes: tuple[int, ...] = ()
    children: int = 0


def random_program(seed: int, iterations: int = 6, noticed_late: int = 0) -> Program:
    """A driver that repeats bursts of calls, and waits for all of each burst; durations vary."""
    chance = random.Random(seed)
    bursts = [_burst(chance, letter) for letter in "ab"[: chance.randint(1, 2)]]
    calls: list[Planned] = []
    driver: list[Action] = []
    for _ in range(iterations):
        for burst in bursts:
            numbers: list[int] = []
            for slot in burst:
                takes = tuple(numbers[one] for one in slot.takes)
                numbers.append(_add_call(chance, calls, slot, takes))
                driver.append(("submit", numbers[-1]))
            driver.append(("get", tuple(numbers)))
            driver.append(("work", _duration(chance, 3_000, 60_000)))
    driver.append(("submit", _add_call(chance, calls, Slot("last", None), ())))
    driver.append(("get", (len(calls) - 1,)))
    return Program(tuple(calls), tuple(driver), chance.randint(1, 3), noticed_late=noticed_late)


def window_program(seed: int, items: int = 30) -> Program:
    """A driver that keeps some calls unfinished: it submits the next one as soon as any has ended."""
    chance = random.Random(seed)
    width = chance.randint(2, 4)
    steps = [Slot("first", chance.choice([None, 0])), Slot("second", chance.choice([None, 1]), (0,))]
    steps = steps[: chance.randint(1, 2)]
    calls: list[Planned] = []
    driver: list[Action] = []
    for item in range(items):
        if item >= width:
            driver.append(("any", item - width + 1))
            driver.append(("work", _duration(chance, 3_000, 6_000)))
        for step in steps:
            takes = (len(calls) - 1,) if step.takes else ()
            driver.append(("submit", _add_call(chance, calls, step, takes)))
    driver.append(("get", tuple(range(len(calls)))))
    return Program(tuple(calls), tuple(driver), chance.randint(2, 6), counted=steps[-1].function)


def _burst(chance: random.Random, name: str) -> list[Slot]:
    slots: list[Slot] = []
    for number in range(chance.randint(2, 5)):
        actor = chance.choice([None, None, 0, 0, 1])
        takes = tuple(sorted(chance.sample(range(number), min(number, chance.choice([0, 0, 1, 2])))))
        children = chance.choice([0, 0, 0, 2]) if actor is None else 0
        slots.append(Slot(f"{name}{number}", actor, takes, children))
    return slots


def _add_call(chance: random.Random, calls: list[Planned], slot: Slot, takes: tuple[int, ...]) -> int:
    """Its number; calls that it makes itself come before it."""
    actions: list[Action] = [("work", _duration(chance))]
    children = []
    for _ in range(slot.children):
        child = Slot(f"{slot.function}_child", None)
        children.append(_add_call(chance, calls, child, ()))
        actions.append(("submit", children[-1]))
    if children:
        actions.append(("get", tuple(children)))
        actions.append(("work", _duration(chance)))
    calls.append(Planned(slot.function, tuple(actions), slot.actor, takes=takes))
    return len(calls) - 1


def _duration(chance: random.Random, least: int = 20_000, most: int = 400_000) -> int:
    return chance.randint(least, most)


def critical_work(program: Program) -> dict[str, int]:
    """By function: the work that makes the whole program shorter if it is shorter, in microseconds."""
    whole = Run(program).to_end().now
    found: dict[str, int] = {}
    for number, at, what in _works(program):
        if Run(_shortened(program, number, at)).to_end().now == whole - SHORTER:
            name = program.calls[number].function if number >= 0 else "driver train.py"
            found[name] = found.get(name, 0) + what
    return found


SHORTER = 10


def _works(program: Program) -> Iterator[tuple[int, int, int]]:
    for number, actions in ((-1, program.driver), *enumerate(one.actions for one in program.calls)):
        for at, (kind, what) in enumerate(actions):
            if kind == "work":
                assert isinstance(what, int)
                yield number, at, what


def _shortened(program: Program, number: int, at: int) -> Program:
    old = program.driver if number < 0 else program.calls[number].actions
    actions = tuple(
        ("work", what - SHORTER) if place == at else (kind, what)  # type: ignore[operator]
        for place, (kind, what) in enumerate(old)
    )
    if number < 0:
        return replace(program, driver=actions)
    calls = list(program.calls)
    calls[number] = replace(calls[number], actions=actions)
    return replace(program, calls=tuple(calls))
