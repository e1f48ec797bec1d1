"""What calls of an actor pass to each other: items of a queue and room in it, semaphores, events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from dstack.analysis.history.task_index import Attempt
from dstack.analysis.predict.caller_steps import MOMENT_S
from dstack.analysis.solve.world import Acquire, Id, Release, Step, WaitFor
from dstack.observed.outlines import FunctionOutline

NOTHING = WaitFor((), is_certain=False)


def names_passed(outlines: Iterable[FunctionOutline]) -> Set[str]:
    """The names of what methods pass on, if each call of them does the same: none is used in a branch or loop."""
    steps = [step for one in outlines for step in one.steps if step.is_passed]
    unsure = {_object_of(one.name) for one in steps if one.is_optional or one.is_timed or one.loops}
    return {one.name for one in steps if _object_of(one.name) not in unsure}


def _object_of(name: str) -> str:
    """The queue, semaphore or event that a name is a part of."""
    return name.partition(" ")[0]


def with_givers(
    steps: Mapping[Id, Sequence[Step]], passed: Mapping[Id, int], attempts: Mapping[str, Attempt]
) -> Mapping[Id, tuple[Step, ...]]:
    """The steps of runs, where each that takes something has the run that gave it: the first to the first.

    ``passed`` are how many there are of each token at the begin. If times contradict that, or a run has not ended,
    nothing is known of the object, and its steps do nothing.
    """
    uses: dict[Id, _Uses] = {token: _Uses(token, count) for token, count in passed.items()}
    for key, own in steps.items() if passed else ():
        for position, step in enumerate(own):
            if isinstance(step, Acquire | Release) and step.token in passed:
                uses[step.token].add(key, position, own)
    givers = {token: one.givers(attempts) for token, one in uses.items()}
    unknown = {_whole(token) for token, found in givers.items() if found is None}

    def known(step: Step, place: tuple[Id, int]) -> Step:
        if not isinstance(step, Acquire | Release) or (found := givers.get(step.token)) is None:
            return NOTHING if isinstance(step, Acquire | Release) and step.token in passed else step
        if _whole(step.token) in unknown:
            return NOTHING
        return replace(step, given_by=found[place]) if isinstance(step, Acquire) else step

    return {key: tuple(known(step, (key, at)) for at, step in enumerate(own)) for key, own in steps.items()}


def _whole(token: Id) -> Id:
    return (*token[:-1], _object_of(str(token[-1]))) if isinstance(token, tuple) else token


@dataclass
class _Uses:
    """The steps that take and give a token, of which ``count`` are there at the begin."""

    token: Id
    count: int
    takes: list[tuple[Id, int]] = field(default_factory=list)
    waits: list[tuple[Id, int]] = field(default_factory=list)
    """Those that take it and give it back at once, as that for an event."""
    gives: list[Id] = field(default_factory=list)

    def add(self, key: Id, position: int, steps: Sequence[Step]) -> None:
        """Add a step of a run."""
        step = steps[position]
        if isinstance(step, Acquire):
            is_passing = steps[position + 1 : position + 2] == (Release(step.token),)
            (self.waits if is_passing else self.takes).append((key, position))
        elif not any(isinstance(one, Acquire) and one.token == self.token for one in steps[position - 1 : position]):
            self.gives.append(key)

    def givers(self, attempts: Mapping[str, Attempt]) -> Mapping[tuple[Id, int], Id | None] | None:
        """By step that takes something, the run that gave it, None if it was there; None if times contradict that."""
        runs = {str(key) for key in (*self.gives, *(key for key, _ in (*self.takes, *self.waits)))}
        began = {key: attempts[key].started_at for key in runs}
        ended = {key: attempts[key].ended_at for key in runs}
        if None in began.values() or None in ended.values():
            return None
        there: list[Id | None] = [None] * self.count
        given = [*there, *sorted(self.gives, key=lambda key: began[str(key)] or 0.0)]
        takes = sorted(self.takes, key=lambda place: ended[str(place[0])] or 0.0)
        if len(takes) > len(given) or (self.waits and not given):
            return None
        found = dict(zip(takes, given, strict=False)) | dict.fromkeys(self.waits, given[0] if given else None)
        times = ((began[str(one)] or 0.0, ended[str(key)] or 0.0) for (key, _), one in found.items() if one is not None)
        return found if all(start <= end + MOMENT_S for start, end in times) else None
