"""What a change would do to a recorded run: the run is simulated as it was, and with the change.

The simulation without a change must take about as long as the recorded run, else nothing is predicted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median

from dstack.analysis.history.critical_path import CriticalPath
from dstack.analysis.history.run_model import RunModel
from dstack.analysis.history.simulation import ActorCount, Change, Faster, ResourceTotal, Simulation, Without
from dstack.errors import UsageError

MOST_ERROR = 0.15
"""Nothing is predicted if the simulation of the recorded run takes so much longer or shorter than the run."""
WORTH = 0.05
"""The least part of the time that a proposed change must save."""
PROPOSALS = 3
EXAMINED = 4
"""So many of the largest shares of the path are examined for a change."""
SPEEDUP = 2.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long an iteration, or the run, takes with some changes; in seconds."""

    changes: tuple[Change, ...]
    seconds: float


class WhatIf:
    """Predictions for a recorded run, and its critical path, which says what is worth a change."""

    def __init__(self, model: RunModel, path: CriticalPath) -> None:
        self.model = model
        self.path = path

    @property
    def recorded_s(self) -> float:
        """How long an iteration took in the median, or else the run up to the last end of a call."""
        if self.model.iterations is not None:
            return median(self.model.iterations.durations_s)
        return self.model.ended_at - self.model.began_at

    @cached_property
    def simulated_s(self) -> float | None:
        """The same in a simulation without a change; None if that does not come to its end."""
        return self._simulate(())

    @property
    def error(self) -> float | None:
        """The part by which the simulation takes longer, or less if negative; None if it does not come to its end."""
        if self.simulated_s is None:
            return None
        return self.simulated_s / self.recorded_s - 1.0 if self.recorded_s else 0.0

    @property
    def is_trusted(self) -> bool:
        """Whether the simulation without a change is like the run."""
        return self.error is not None and abs(self.error) <= MOST_ERROR

    def predict(self, changes: Sequence[Change]) -> Prediction | None:
        """How long it takes with these changes, all of them; None if it cannot be told."""
        if not self.is_trusted:
            return None
        seconds = self._simulate(changes)
        if seconds is None or not self.simulated_s:
            return None
        return Prediction(tuple(changes), self.recorded_s * seconds / self.simulated_s)

    @cached_property
    def proposals(self) -> list[Prediction]:
        """The changes that help the most, the best one first."""
        if not self.is_trusted:
            return []
        made = filter(None, (self.predict((change,)) for change in self._candidates()))
        worthy = [one for one in made if one.seconds <= (1.0 - WORTH) * self.recorded_s]
        return sorted(worthy, key=lambda one: one.seconds)[:PROPOSALS]

    def _simulate(self, changes: Sequence[Change]) -> float | None:
        simulation, iterations = Simulation(self.model, changes), self.model.iterations
        if iterations is None:
            ends = [simulation.ends.at.get(call.number) for call in self.model.own_calls]
            known = [at for at in ends if at is not None]
            return max(known) - self.model.began_at if len(known) == len(ends) else None
        task_id = iterations.caller.task_id
        times = [at for number in iterations.starts if (at := simulation.step_at.get((task_id, number))) is not None]
        is_complete = len(times) == len(iterations.starts)
        return median(after - before for before, after in pairwise(times)) if is_complete else None

    def _candidates(self) -> Iterator[Change]:
        """Changes of what is on the path."""
        shares = [share for share in self.path.shares if share.part >= WORTH][:EXAMINED]
        by_name = {call.name: call for call in self.model.calls}
        called = [(share.kind, by_name[share.function]) for share in shares if share.function in by_name]
        yield from dict.fromkeys(
            Faster(call.name, SPEEDUP) for kind, call in called if kind not in ("starts", "arguments")
        )
        queued = (self.model.class_of(call) for kind, call in called if kind == "queued")
        yield from dict.fromkeys(ActorCount(name, 2 * self.model.actors_of(name)) for name in queued)
        for call in (call for kind, call in called if kind == "resources"):
            for name in call.resources:
                yield ResourceTotal(name, 2 * self.model.resources.total(name))
                if len(call.resources) > 1 and self._is_a_place(name):
                    yield Without(call.name, name)

    def _is_a_place(self, resource: str) -> bool:
        """Whether only some nodes have it, and more than is needed: a call that asks for it is pinned to them."""
        nodes = [node for node in self.model.history.index.snapshot.nodes if node.alive]
        return 0 < sum(resource in node.resources for node in nodes) < len(nodes)


# A change in text


FASTER = re.compile(r"(?P<function>.+)=(?P<times>\d+(\.\d+)?)x")
ACTORS = re.compile(r"(?P<name>.+)=(?P<count>\d+) actors?")
TOTAL = re.compile(r"(?P<resource>.+)=(?P<total>\d+(\.\d+)?)")
WITHOUT = re.compile(r"(?P<function>.+) without (?P<resource>.+)")
UNKNOWN_CHANGE = "The change is not understood."
CHANGE_FORMS = 'Write "Reward.score=2x", "Reward=3 actors", "CPU=16" or "analyse without site_a".'
NOT_IN_RUN = "The change is of something that the run does not have."
EXISTING_NAMES = "The names are those in the output of dstack timeline, or of the resources of a node."


def changes_of(text: str, model: RunModel) -> list[Change]:
    """The changes that a text describes, with commas between them.

    Raises UsageError if it is not understood, or of what is not in the run.
    """
    return [_change_of(part.strip(), model) for part in text.split(",")]


def _change_of(text: str, model: RunModel) -> Change:
    functions = {call.name for call in model.calls} | {caller.name for caller in model.callers.values()}
    if match := FASTER.fullmatch(text):
        return _known(Faster(match["function"], float(match["times"])), match["function"] in functions)
    if match := ACTORS.fullmatch(text):
        return _known(ActorCount(match["name"], int(match["count"])), model.actors_of(match["name"]) > 0)
    if match := TOTAL.fullmatch(text):
        is_known = model.resources.total(match["resource"]) > 0
        return _known(ResourceTotal(match["resource"], float(match["total"])), is_known)
    if match := WITHOUT.fullmatch(text):
        return _known(Without(match["function"], match["resource"]), match["function"] in functions)
    raise UsageError(UNKNOWN_CHANGE, CHANGE_FORMS)


def _known(change: Change, is_known: bool) -> Change:
    if not is_known or (isinstance(change, Faster) and change.times <= 0):
        raise UsageError(NOT_IN_RUN, EXISTING_NAMES)
    return change
