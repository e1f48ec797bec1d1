"""Pipelines: functions whose calls form chains, the time in each of these steps, and the step that limits them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dstack.analysis.history.chains import Chain
from dstack.analysis.history.slices import Slice

RARE = 0.05
"""A number of calls at once counts as usual if it is not exceeded in more than this part of the busy time."""
BUSY = 0.5
"""A step limits a pipeline only if it is in use for at least this part of the time."""
CLOSE = 0.8
"""Steps whose use is at least this part of the highest count as equally busy: none of them limits it alone."""


@dataclass(frozen=True, slots=True)
class Step:
    """All attempts of one function of a pipeline; times in seconds.

    ``running_s`` is the sum of all, ``waited_s`` that of the waits from the arrival of the last argument to the start.
    ``at_once`` is the usual maximum of attempts that run at the same time, and ``utilisation`` the part of the
    pipeline's time in which so many run on average: 1 if it could do no more.
    """

    name: str
    attempts: int
    running_s: float
    longest_s: float
    waited_s: float
    longest_wait_s: float
    at_once: int
    utilisation: float

    @property
    def mean_s(self) -> float:
        """The mean time of one attempt."""
        return self.running_s / self.attempts

    @property
    def mean_wait_s(self) -> float:
        """The mean wait of one attempt before it."""
        return self.waited_s / self.attempts


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Chains through the same functions; ``steps`` are in the order of their mean beginning.

    ``limiting`` is the step that limits the throughput, None if no step is in use for most of the time, or if several
    are so equally.
    """

    steps: tuple[Step, ...]
    chains: tuple[Chain, ...]
    began_at: float
    ended_at: float
    limiting: Step | None


def pipelines_of(chains: Sequence[Chain], running: Iterable[Slice]) -> list[Pipeline]:
    """The pipelines, those with the most chains first; ``running`` are all slices in which attempts run."""
    group_of = _groups(chains)
    chains_of: dict[str, list[Chain]] = defaultdict(list)
    for chain in chains:
        chains_of[group_of[chain.attempts[0].task.name]].append(chain)
    slices_of: dict[str, dict[str, list[Slice]]] = defaultdict(lambda: defaultdict(list))
    for one in running:
        if (name := one.attempt.task.name) in group_of:
            slices_of[group_of[name]][name].append(one)
    found = [_pipeline(own, slices_of[group]) for group, own in chains_of.items() if slices_of[group]]
    return sorted(found, key=lambda pipeline: -len(pipeline.chains))


def _groups(chains: Iterable[Chain]) -> Mapping[str, str]:
    """By function: one function of its pipeline, the same for all; functions that chains link are in one pipeline."""
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for chain in chains:
        first, *others = dict.fromkeys(attempt.task.name for attempt in chain.attempts)
        for other in (first, *others):
            parent[find(other)] = find(first)
    return {name: find(name) for name in parent}


def _pipeline(chains: Sequence[Chain], slices: Mapping[str, Sequence[Slice]]) -> Pipeline:
    began = min(one.began_at for many in slices.values() for one in many)
    ended = max(one.ended_at for many in slices.values() for one in many)
    in_order = sorted(slices.items(), key=lambda item: sum(one.began_at for one in item[1]) / len(item[1]))
    steps = tuple(_step(name, many, ended - began) for name, many in in_order)
    return Pipeline(steps, tuple(chains), began, ended, _limiting(steps))


def _step(name: str, slices: Sequence[Slice], span_s: float) -> Step:
    waits = [_wait_s(one) for one in slices]
    running_s = sum(one.duration_s for one in slices)
    at_once = usual_maximum(slices)
    return Step(
        name=name,
        attempts=len(slices),
        running_s=running_s,
        longest_s=max(one.duration_s for one in slices),
        waited_s=sum(waits),
        longest_wait_s=max(waits),
        at_once=at_once,
        utilisation=min(1.0, running_s / (at_once * span_s)) if span_s > 0 else 1.0,
    )


def _wait_s(one: Slice) -> float:
    """How long it waited to start after its last argument was available."""
    ready = one.attempt.ready_at
    return max(0.0, one.began_at - ready) if ready is not None else 0.0


def usual_maximum(slices: Sequence[Slice]) -> int:
    """The number of slices at one time that is exceeded only in a :data:`RARE` part of the time with any."""
    changes = sorted([(one.began_at, 1) for one in slices] + [(one.ended_at, -1) for one in slices])
    lasted: dict[int, float] = defaultdict(float)
    level, since = 0, 0.0
    for time, change in changes:
        lasted[level] += time - since
        level, since = level + change, time
    lasted.pop(0, None)
    allowed = RARE * sum(lasted.values())
    for level in sorted(lasted, reverse=True):
        allowed -= lasted[level]
        if allowed < 0:
            return level
    return 1


def _limiting(steps: Sequence[Step]) -> Step | None:
    busiest = max(steps, key=lambda step: step.utilisation)
    if busiest.utilisation < BUSY or len(steps) == 1:
        return None
    close = [step for step in steps if step.utilisation >= CLOSE * busiest.utilisation]
    return busiest if close == [busiest] else None
