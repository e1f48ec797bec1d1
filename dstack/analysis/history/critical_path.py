"""The critical path of a recorded run: from its end backwards, what each part of it had to wait for last."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from statistics import median
from typing import Literal

from dstack.analysis.history.calls import Caller, RunCall
from dstack.analysis.history.run_model import RunIterations, RunModel
from dstack.analysis.history.slices import NOTICED_LATE_S
from dstack.analysis.history.task_index import Attempt

Kind = Literal["runs", "queued", "resources", "arguments", "starts"]
"""Why time passes on the path: a function runs; it runs while another call waits in the queue of its actor, or for the
resources that it holds; arguments come late, by a way that is not known; or a call is sent and its worker starts."""
KNOWN_S = 0.002
"""A shorter wait for arguments needs no explanation."""
MOST_STEPS_OF_A_CALL = 8


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the path, in Unix seconds; ``attempt`` is None if the GCS does not keep the caller that runs."""

    began_at: float
    ended_at: float
    function: str
    kind: Kind
    attempt: Attempt | None

    @property
    def duration_s(self) -> float:
        """How long it lasts."""
        return self.ended_at - self.began_at


@dataclass(frozen=True, slots=True)
class PathShare:
    """What a function adds to the path for one reason: seconds of an iteration, or of the run if there are none."""

    function: str
    kind: Kind
    seconds: float
    part: float


@dataclass(frozen=True)
class CriticalPath:
    """The segments of the path in the order of time, without gaps, and the iterations that they are of, if any.

    ``whose`` is the name of the caller whose run or iterations these are.
    """

    whose: str
    segments: Sequence[Segment]
    iterations: RunIterations | None

    @property
    def began_at(self) -> float:
        """Where it begins, in Unix seconds."""
        return self.segments[0].began_at

    @property
    def ended_at(self) -> float:
        """Where it ends."""
        return self.segments[-1].ended_at

    @cached_property
    def attempts(self) -> frozenset[int]:
        """The Python ids of the attempts that are on it."""
        return frozenset(id(one.attempt) for one in self.segments if one.attempt is not None)

    @property
    def step_s(self) -> float:
        """The median duration of an iteration, or the duration of the run."""
        return median(self.iterations.durations_s) if self.iterations else self.ended_at - self.began_at

    @cached_property
    def shares(self) -> Sequence[PathShare]:
        """The path by function and kind, the largest share first; seconds are the mean of the iterations."""
        return _shares(self.segments, len(self.iterations.durations_s) if self.iterations else 1)

    @cached_property
    def by_iteration(self) -> Sequence[CriticalPath]:
        """The parts of all iterations that it explains."""
        times = self.iterations.times if self.iterations else []
        parts = (list(_within(self.segments, *pair)) for pair in pairwise(times))
        return [CriticalPath(self.whose, part, None) for part in parts if part]


def critical_path(model: RunModel) -> CriticalPath | None:
    """The path to the end of the last iteration, or else to the last end of a call; None without ended calls."""
    iterations = model.iterations
    if iterations is not None:
        walk = _Walk(model, iterations.times[0], iterations.times[-1])
        walk.explain(lambda: walk.in_caller(iterations.caller, iterations.starts[-1]))
    elif model.own_calls:
        last = max(model.own_calls, key=lambda call: call.ended_at)
        walk = _Walk(model, float("-inf"), last.ended_at)
        walk.explain(lambda: walk.end_of(last))
    else:
        return None
    whose = iterations.caller.name if iterations else model.title
    return CriticalPath(whose, walk.segments[::-1], iterations) if walk.segments else None


Next = Callable[[], "Next | None"]
"""The next step of the walk; None at the beginning of the run."""


class _Walk:
    """The way backwards in time; each step adds what it explains, and returns the next one."""

    def __init__(self, model: RunModel, began_at: float, ended_at: float) -> None:
        self.segments: list[Segment] = []
        self._began_at = began_at
        self._at = ended_at
        self._most_steps = MOST_STEPS_OF_A_CALL * (len(model.calls) + 1)
        self._waiter: tuple[Kind, float] = "runs", 0.0

    def explain(self, step: Next | None) -> None:
        """Walk to the beginning; times that contradict each other, in corrupt data, end the walk too."""
        for _ in range(self._most_steps):
            if step is None or self._at <= self._began_at:
                return
            step = step()

    def in_caller(self, caller: Caller, number: int) -> Next | None:
        """What a caller did before one of its steps, and what it had waited for."""
        for at in range(number, -1, -1):
            step = caller.steps[at]
            self._add(step.since, caller.name, "runs", caller.attempt)
            if step.last is not None:
                return partial(self.end_of, step.last)
        return partial(self.start_of, caller.call) if caller.call is not None else None

    def end_of(self, call: RunCall) -> Next:
        """What a call did before it ended."""
        (kind, since), self._waiter = self._waiter, ("runs", 0.0)
        if call.runs is not None and call.runs.steps:
            until = self._at + NOTICED_LATE_S
            number = bisect_right(call.runs.steps, until, key=lambda step: step.at) - 1
            return partial(self.in_caller, call.runs, number)
        self._add(max(call.started_at, since), call.name, kind, call.attempt)
        self._add(call.started_at, call.name, "runs", call.attempt)
        return partial(self.start_of, call)

    def start_of(self, call: RunCall) -> Next | None:
        """What a call waited for before it started: a slot or resources, its actor, or its arguments."""
        behind, created = call.behind, call.created_by
        if behind is not None:
            self._add(behind.free_at, call.name, "starts", call.attempt)
            self._waiter = "queued" if call.actor_id else "resources", call.ready_at
            return partial(self.end_of, behind)
        if created is not None and created.ended_at > call.ready_at:
            self._add(created.ended_at, call.name, "starts", call.attempt)
            return partial(self.end_of, created)
        self._add(call.ready_at, call.name, "starts", call.attempt)
        return self._submission_of(call)

    def _submission_of(self, call: RunCall) -> Next | None:
        """Its arguments, the attempt before, or its caller."""
        if call.makers and call.ready_at - call.submitted_at > KNOWN_S:
            last = max(call.makers, key=lambda one: one.ended_at)
            self._add(last.ended_at, call.name, "arguments", call.attempt)
            return partial(self.end_of, last)
        self._add(call.submitted_at, call.name, "arguments", call.attempt)
        if call.retried is not None:
            self._add(call.retried.ended_at, call.name, "starts", call.attempt)
            return partial(self.end_of, call.retried)
        return partial(self.in_caller, call.caller, call.step) if call.step >= 0 else None

    def _add(self, began_at: float, function: str, kind: Kind, attempt: Attempt | None) -> None:
        """Explain the time back to ``began_at``; what is explained already stays."""
        begin = max(began_at, self._began_at)
        if begin < self._at:
            self.segments.append(Segment(begin, self._at, function, kind, attempt))
            self._at = begin


def _within(segments: Sequence[Segment], began_at: float, ended_at: float) -> Iterator[Segment]:
    """The parts of segments in an interval."""
    for one in segments:
        begin, end = max(began_at, one.began_at), min(ended_at, one.ended_at)
        if begin < end:
            yield replace(one, began_at=begin, ended_at=end)


def _shares(segments: Sequence[Segment], iterations: int) -> list[PathShare]:
    whole = sum(one.duration_s for one in segments)
    seconds: Counter[tuple[str, Kind]] = Counter()
    for one in segments:
        seconds[one.function, one.kind] += one.duration_s  # type: ignore[assignment]  # typed for whole numbers
    return [PathShare(*key, spent / iterations, spent / whole) for key, spent in seconds.most_common()]
