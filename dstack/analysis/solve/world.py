"""What was seen of one run, as a world whose order of steps can change.

A world has runs of tasks, each with its steps in their order, and what the runs share: servers (actors) with slots,
event loops, tokens and resources. Any order of steps counts as possible that keeps these rules:

- A run begins after its submission and its arguments, and calls of one caller to one server begin in their order.
- A server has a number of slots. One with an event loop runs one call at a time, until that ends or awaits something.
- A wait ends when all its runs have ended. Resources are held from begin to end of a run.
- There are so many of each token, and a run can take one if one is left. A lock is one token, a semaphore several; who
  takes them gives them back. Others are *passed on*: an item of a queue, or room in it, or an event, which one run
  gives and another one takes. What waits for an event gives its token back at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

Id: TypeAlias = Hashable
"""A run, server, token or resource."""
UNSUBMITTED, QUEUED = -2, -1
"""Positions of a run before its first step; others count the steps that it has done."""
LARGEST = 8
"""The most runs of a stuck set."""
EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Submit:
    """Submits a run."""

    run: Id


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Waits until all these runs have ended. If it ``yields``, the event loop is free meanwhile."""

    runs: tuple[Id, ...]
    yields: bool = False
    is_certain: bool = True


@dataclass(frozen=True, slots=True)
class Acquire:
    """Takes a token; ``given_by`` is the run that gave it in the run that was seen, if it was not there before."""

    token: Id
    yields: bool = False
    is_certain: bool = True
    given_by: Id | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Gives a token."""

    token: Id


Step: TypeAlias = "Submit | WaitFor | Acquire | Release"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a task on a ``server``, if it is a call on an actor. ``after`` are the runs that make its arguments.

    Runs of one ``shape`` are alike: only some of them are tried. ``submitted`` and ``ended`` are when it was in the run
    that was seen, by one clock: what had ended before another was submitted does not depend on that, so it need not be
    looked at. Without these times all runs are.
    """

    steps: tuple[Step, ...] = ()
    server: Id | None = None
    needs: Mapping[Id, float] = field(default_factory=dict)
    after: tuple[Id, ...] = ()
    shape: Id = None
    submitted: float | None = None
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """How many runs an actor has at a time, and whether they share an event loop."""

    slots: int = 1
    has_loop: bool = False


@dataclass(frozen=True)
class World:
    """What was seen: each run once, by its id, submitted by at most one other; and what they share.

    ``tokens`` are how many there are of each at the begin: one, if it is not among them.
    """

    runs: Mapping[Id, Run]
    servers: Mapping[Id, Server] = field(default_factory=dict)
    capacity: Mapping[Id, float] = field(default_factory=dict)
    tokens: Mapping[Id, int] = field(default_factory=dict)

    @cached_property
    def submission(self) -> Mapping[Id, tuple[Id, int]]:
        """The run that submits each run, and at which of its steps."""
        return {
            step.run: (caller, number)
            for caller, run in self.runs.items()
            for number, step in enumerate(run.steps)
            if isinstance(step, Submit)
        }

    @cached_property
    def previous(self) -> Mapping[Id, Id]:
        """The call of the same caller to the same server that was submitted before each call, if there is one."""
        found: dict[Id, Id] = {}
        for run in self.runs.values():
            last: dict[Id, Id] = {}
            for step in run.steps:
                server = self.runs[step.run].server if isinstance(step, Submit) else None
                if isinstance(step, Submit) and server is not None:
                    if server in last:
                        found[step.run] = last[server]
                    last[server] = step.run
        return found

    @cached_property
    def _submissions(self) -> Mapping[Id, tuple[list[float], list[int]]]:
        """By caller: when it submitted its calls, in their order, and at which of its steps."""
        found: dict[Id, tuple[list[float], list[int]]] = {}
        for key, run in self.runs.items():
            times: list[float] = []
            numbers: list[int] = []
            for number, step in enumerate(run.steps):
                submitted = self.runs[step.run].submitted if isinstance(step, Submit) else None
                if submitted is not None and (not times or submitted >= times[-1]):
                    times.append(submitted)
                    numbers.append(number)
            found[key] = times, numbers
        return found

    def first_step_after(self, key: Id, time: float) -> int:
        """A step of a run before which all that it waited for had ended by this time."""
        times, numbers = self._submissions[key]
        at = bisect_right(times, time)
        return numbers[at - 1] if at else 0

    @cached_property
    def waits(self) -> Mapping[Id, Sequence[int]]:
        """The positions at which each run may be stuck."""
        found: dict[Id, Sequence[int]] = {}
        for key, run in self.runs.items():
            places = [
                number
                for number, step in enumerate(run.steps)
                if isinstance(step, WaitFor | Acquire) and step.is_certain
            ]
            if places:
                found[key] = places
        return found

    def shape(self, key: Id) -> Id:
        """What runs that are alike have in common; the run itself if it has no shape."""
        shape = self.runs[key].shape
        return key if shape is None else shape

    def end(self, key: Id) -> int:
        """The position of a run that has ended."""
        return len(self.runs[key].steps)

    def server(self, key: Id) -> Server | None:
        """The server of a run."""
        server = self.runs[key].server
        return self.servers.get(server) if server is not None else None

    def owes(self, key: Id, position: int) -> set[Id]:
        """The tokens that a run gives from a position on before it takes one: the locks that it holds there."""
        owed: dict[Id, bool] = {}
        for step in self.runs[key].steps[max(position, 0) :]:
            if isinstance(step, Acquire | Release):
                owed.setdefault(step.token, isinstance(step, Release))
        return {token for token, is_owed in owed.items() if is_owed}

    def taken(self, key: Id) -> Iterator[Id]:
        """The tokens that a run takes."""
        return (step.token for step in self.runs[key].steps if isinstance(step, Acquire))

    def count(self, token: Id) -> int:
        """How many there are of a token at the begin."""
        return self.tokens.get(token, 1)

    @cached_property
    def passed_on(self) -> frozenset[Id]:
        """The tokens that a run may give without having taken them."""
        owed = {token for key in self.runs for token in self.owes(key, QUEUED)}
        return frozenset(owed | {token for token, count in self.tokens.items() if count == 0})

    def without_passing(self) -> World:
        """The same without tokens that are passed on: what takes one waits for the run that gave it.

        Its orders are some of those of this world.
        """
        if not self.passed_on:
            return self

        def replaced(step: Step) -> Step:
            if not isinstance(step, Acquire | Release) or step.token not in self.passed_on:
                return step
            given_by = step.given_by if isinstance(step, Acquire) else None
            return WaitFor(() if given_by is None else (given_by,), step_yields(step), is_certain=False)

        runs = {key: replace(run, steps=tuple(map(replaced, run.steps))) for key, run in self.runs.items()}
        return replace(self, runs=runs)

    def step(self, key: Id, position: int) -> Step | None:
        """The next step of a run; None before its begin and at its end."""
        steps = self.runs[key].steps
        return steps[position] if 0 <= position < len(steps) else None


def step_yields(step: Step) -> bool:
    """Whether a step leaves the event loop to others while it waits."""
    return isinstance(step, WaitFor | Acquire) and step.yields


Stuck: TypeAlias = Mapping[Id, int]
"""The position of each run of a stuck set: at a wait, or :data:`QUEUED`."""


@dataclass(frozen=True, slots=True)
class Event:
    """A step of a schedule: a run is at a position now."""

    run: Id
    position: int


@dataclass(frozen=True, slots=True)
class Possible:
    """A stuck set, and an order of events that leads to it once ``before`` have ended."""

    stuck: Stuck
    schedule: tuple[Event, ...]
    before: frozenset[Id]
