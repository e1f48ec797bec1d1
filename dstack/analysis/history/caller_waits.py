"""What callers waited for before each of their calls, inferred from times, as Ray does not record it.

A caller that submits a call right after others have ended has waited for them, unless calls of the same function often
were unfinished then. A loop that polls an actor waits for the call of another function that ended before its last poll.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from statistics import median, pstdev

from dstack.analysis.history.calls import Caller, CallerStep, RunCall
from dstack.analysis.history.slices import NOTICED_LATE_S
from dstack.words import grouped

SUBMITTED_AT_ONCE_S = 0.002
"""Calls that are submitted within this time of each other are submitted without a wait in between."""
USUAL = 0.9
"""The part of the cases in which something must be so, to be believed in all."""
FEWEST_CASES, STEADY = 8, 0.25
"""A caller did not wait if, in at least so many cases, its times since its last submission vary so much less than those
since the last end."""
POLLS, POLL_S, FEWEST_POLLED = 4, 0.2, 3
"""A poll is one of at least so many equal calls, that follow each other so quickly, and at least so many times."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A submission or the end of a caller, and the calls that had ended since the one before.

    ``unused`` are those that had ended since the caller has last waited. For their functions, ``counts`` has how many
    calls had ended; of those in ``pending`` some had not, and of those in ``in_order`` the oldest ones had. At a
    barrier all calls had ended.
    """

    caller: Caller
    at: float
    before: float
    submits: RunCall | None
    ended: Sequence[RunCall] = ()
    unused: Sequence[RunCall] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    pending: Collection[str] = ()
    in_order: Collection[str] = ()
    is_barrier: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """The functions of the caller and of what it submits."""
        return self.caller.name, self.submits.name if self.submits else ""

    @property
    def last(self) -> RunCall:
        """The call that ended last."""
        return max(self.ended, key=lambda one: one.ended_at)


def find_waits(callers: Collection[Caller]) -> None:
    """Set the steps of all callers, which share what is usual for equal functions."""
    cases = [case for caller in callers for case in _Cases(caller)]
    usual = _UsualWaits([case for case in cases if case.ended])
    for case in cases:
        step = usual.step(case) if case.ended else None
        case.caller.steps.append(step or CallerStep(case.at, case.before, case.submits))


class _Cases:
    """All submissions of a caller in order, and its end. Nothing waits for the end of a creation."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._final = {call.attempt.task.task_id: call for call in caller.calls}
        self._ends: list[tuple[float, int, RunCall]] = []
        self._pending: dict[str, dict[int, None]] = defaultdict(dict)
        self._counts: Counter[str] = Counter()
        self._unused: list[RunCall] = []

    def __iter__(self) -> Iterator[_Case]:
        before = self._caller.began_at
        for call in self._caller.calls:
            if call.retried is None:
                at = max(before, call.submitted_at)
                yield self._case(at, before, call)
                self._submit(call)
                before = at
        if self._caller.call is not None:
            yield self._case(max(before, self._caller.call.ended_at), before, None)

    def _case(self, at: float, before: float, call: RunCall | None) -> _Case:
        ended = list(self._ended_until(at + SUBMITTED_AT_ONCE_S))
        self._unused += ended
        if not ended or at - before <= SUBMITTED_AT_ONCE_S:
            return _Case(self._caller, at, before, call)
        unused, self._unused = self._unused, []
        names = {one.name for one in unused}
        oldest = {name: next(iter(self._pending[name])) for name in names if name in self._pending}
        in_order = {one.name for one in ended if one.number < oldest.get(one.name, one.number + 1)}
        counts = {name: self._counts[name] for name in names}
        is_barrier = not self._pending
        return _Case(self._caller, at, before, call, ended, unused, counts, oldest.keys(), in_order, is_barrier)

    def _ended_until(self, at: float) -> Iterator[RunCall]:
        while self._ends and self._ends[0][0] <= at:
            call = heappop(self._ends)[2]
            del self._pending[call.name][call.number]
            if not self._pending[call.name]:
                del self._pending[call.name]
            self._counts[call.name] += 1
            yield call

    def _submit(self, call: RunCall) -> None:
        if not call.is_creation:
            last = self._final[call.attempt.task.task_id]
            heappush(self._ends, (last.ended_at, last.number, last))
            self._pending[call.name][last.number] = None


class _UsualWaits:
    """What callers wait for before a call of a function, from all cases."""

    def __init__(self, cases: Sequence[_Case]) -> None:
        self._all: Counter[tuple[str, str, str]] = Counter()
        self._complete: Counter[tuple[str, str, str]] = Counter()
        self._in_order: Counter[tuple[str, str, str]] = Counter()
        for case in cases:
            for name in {one.name for one in case.ended}:
                key = (*case.key, name)
                self._all[key] += 1
                self._complete[key] += name not in case.pending
                self._in_order[key] += name in case.in_order
        by_key = grouped((case.key, case) for case in cases)
        self._without_wait = {key for key, some in by_key.items() if _is_steady(some)}

    def step(self, case: _Case) -> CallerStep | None:
        """The step of a case; None if it did not wait."""
        if case.key in self._without_wait:
            return None
        last, key = case.last, (*case.key, case.last.name)
        complete = {name for name in {one.name for one in case.unused} if self._is_complete(case, name)}
        needs = [one for one in case.unused if one.name in complete]
        counted = None
        if last.name not in complete:
            if self._in_order[key] >= USUAL * self._all[key]:
                needs.append(last)
            else:
                counted = last.name, case.counts[last.name]
        since = min(case.at, last.ended_at)
        return CallerStep(case.at, since, case.submits, tuple(needs), counted, last, is_barrier=case.is_barrier)

    def _is_complete(self, case: _Case, name: str) -> bool:
        """Whether the caller waits for all calls of a function that it has submitted."""
        key = (*case.key, name)
        return self._complete[key] >= USUAL * self._all[key] if self._all[key] else name not in case.pending


def _is_steady(cases: Sequence[_Case]) -> bool:
    """Whether the caller submits in even times, whatever ends meanwhile."""
    if len(cases) < FEWEST_CASES:
        return False
    since_last = [case.at - case.before for case in cases]
    since_end = [case.at - case.last.ended_at for case in cases]
    return median(since_end) > NOTICED_LATE_S and pstdev(since_last) < STEADY * pstdev(since_end)


@dataclass(frozen=True, slots=True)
class _PollRun:
    """Equal submissions of a caller that follow each other quickly, by their steps, and what ended before the last.

    ``cause`` is a call of another caller to the same actor, None if there is none.
    """

    caller: Caller
    first: int
    last: int
    cause: RunCall | None

    @property
    def has_ended(self) -> bool:
        """Whether the caller has submitted something else since."""
        return self.last < len(self.caller.steps) - 1


def skip_polls(callers: Iterable[Caller], calls: Iterable[RunCall]) -> None:
    """Replace each loop that polls by its last poll, which waits for what ended before it."""
    calls_of = grouped((call.actor_id, call) for call in calls if call.actor_id)
    for of_actor in calls_of.values():
        of_actor.sort(key=_ended_at)
    runs = [run for caller in callers for run in _poll_runs(caller, calls_of)]
    for alike in grouped(((run.caller.name, _submitted(run)), run) for run in runs).values():
        if _are_polls(alike):
            for of_caller in grouped((id(run.caller), run) for run in alike).values():
                _replace(of_caller[0].caller, of_caller)


def _poll_runs(caller: Caller, calls_of: Mapping[str, Sequence[RunCall]]) -> Iterator[_PollRun]:
    steps = caller.steps
    first = 0
    for number in range(1, len(steps) + 1):
        if number < len(steps) and _repeats(steps[number - 1], steps[number]):
            continue
        if number - first >= POLLS:
            yield _PollRun(caller, first, number - 1, _cause(caller, calls_of, first, number - 1))
        first = number


def _repeats(before: CallerStep, step: CallerStep) -> bool:
    """Whether a step submits the same function again, as soon as the call of the one before has ended."""
    is_same = before.submits is not None and step.submits is not None and before.submits.name == step.submits.name
    return is_same and step.last is before.submits and step.at - before.at <= POLL_S


def _cause(caller: Caller, calls_of: Mapping[str, Sequence[RunCall]], first: int, last: int) -> RunCall | None:
    """The call of another caller that ended last before the last poll of a run began, after the run's beginning."""
    poll, began = caller.steps[last].submits, caller.steps[first].at
    others = calls_of.get(poll.actor_id, ()) if poll else ()
    latest = bisect_right(others, poll.started_at + SUBMITTED_AT_ONCE_S, key=_ended_at) if poll else 0
    for other in reversed(others[:latest]):
        if other.ended_at < began:
            return None
        if other.caller is not caller:
            return other
    return None


def _are_polls(runs: Sequence[_PollRun]) -> bool:
    """Whether runs end after varying numbers of calls, and after calls of one function of others."""
    ended = [run for run in runs if run.has_ended]
    causes = Counter(run.cause.name for run in ended if run.cause)
    varies = len({run.last - run.first for run in ended}) > 1
    return len(ended) >= FEWEST_POLLED and varies and max(causes.values(), default=0) >= USUAL * len(ended)


def _replace(caller: Caller, runs: Iterable[_PollRun]) -> None:
    """Only the last poll of each run stays; of one that still polls, none."""
    steps: list[CallerStep] = []
    kept = 0
    for run in runs:
        if run.has_ended and run.cause is None:
            continue
        steps += caller.steps[kept : run.first]
        kept = run.last + 1
        if run.has_ended and run.cause is not None:
            begin, end = caller.steps[run.first], caller.steps[run.last]
            since = min(max(begin.since, run.cause.ended_at), end.at)
            steps.append(CallerStep(end.at, since, end.submits, (*begin.needs, run.cause), begin.counted, run.cause))
    caller.steps = [*steps, *caller.steps[kept:]]


def _submitted(run: _PollRun) -> str:
    poll = run.caller.steps[run.first].submits
    return poll.name if poll else ""


def _ended_at(call: RunCall) -> float:
    return call.ended_at
