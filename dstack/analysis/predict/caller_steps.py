"""The steps of one caller: its calls in their order, with its waits and locks between them.

They come from the outline of its source, from samples, and from the times of its calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TypeAlias

from dstack.analysis.history.task_index import Attempt
from dstack.analysis.predict.source_walk import BEGIN, SourceWalk
from dstack.analysis.solve.world import Acquire, Id, Release, Step, Submit, WaitFor
from dstack.model.snapshot import TaskAttempt
from dstack.observed.outlines import FunctionOutline
from dstack.observed.outlines import Step as SourceStep

MOMENT_S = 0.002
"""Times of one process that differ by less count as equal."""
OF_OBJECT = "self."
CREATION = "ACTOR_CREATION_TASK"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run waits or takes a lock: its line, or that a sample showed it."""

    file: str | None = None
    line: int | None = None
    source: str = ""
    is_sampled: bool = False


_FoundWait: TypeAlias = "tuple[Attempt, int | None, bool]"
"""A call, the step of the source that waits for it, and whether that is certain."""


@dataclass
class Caller:
    """A run, or what is known of an unknown caller, with its calls in the order of their submission."""

    key: Id
    attempt: Attempt | None
    outline: FunctionOutline | None
    calls: list[Attempt] = field(default_factory=list)


class Order:
    """Where a caller waits for which of its calls: by a walk through its source, samples and the times of calls."""

    def __init__(self, caller: Caller, sampled: Set[tuple[Id, str]], walk: SourceWalk) -> None:
        self._caller = caller
        self._sampled = sampled
        self.walk = walk
        has_ended = caller.attempt is not None and caller.attempt.state == "finished"
        found = walk.sites([called(call) for call in caller.calls], has_ended=has_ended)
        ids = (call.task.task_id for call in caller.calls)
        self.site_of = {key: site for key, site in zip(ids, found, strict=True) if site is not None}

    def wait_of(self, call: Attempt) -> tuple[int | None, bool | None]:
        """The step that waits for a call, and whether that is certain; None if it is unknown whether there is one."""
        is_sampled = (self._caller.key, call.task.task_id) in self._sampled
        site = self.site_of.get(call.task.task_id)
        if site is None:
            return None, True if is_sampled else None
        wait, is_certain = self.walk.wait_for(site)
        return wait, True if is_sampled else is_certain

    @property
    def ended(self) -> float | None:
        """When the caller ended."""
        return self._caller.attempt.ended_at if self._caller.attempt else None

    def is_sampled(self, keys: Iterable[str]) -> bool:
        """Whether a sample shows the caller in a wait for one of these."""
        return any((self._caller.key, key) in self._sampled for key in keys)


class CallerSteps:
    """The steps of a caller: its calls in their order, with its waits and locks between them.

    ``passed`` are the names of what calls of its actor pass on, as far as that is known. ``places`` are those of the
    steps in which it can be stuck, by position; ``arguments`` are the calls whose values its calls take. ``permits``
    are how many can hold each of its locks, ``tokens`` how many there are of what it passes on. ``unsure_from`` is
    the position from which on it may have waited for anything before.
    """

    def __init__(self, caller: Caller, order: Order, passed: Set[str]) -> None:
        self.steps: list[Step] = []
        self.places: dict[int, Place] = {}
        self.arguments: dict[Id, tuple[Id, ...]] = {}
        self.permits: dict[Id, int] = {}
        self.tokens: dict[Id, int] = {}
        self.unsure_from: int | None = None
        self._caller = caller
        self._order = order
        self._passed = passed
        self._open = _OpenCalls(order)
        self._held: dict[str, SourceStep] = {}
        self._last: dict[int, Id] = {}
        """The last call of each step of the source."""
        self._done = -1
        """The last step of the source that has been passed, for its locks."""
        for call in caller.calls:
            self._add_call(call)
        self._add_waits(self._open.at_end(), len(order.walk.steps))
        self.steps += [Release(self._lock(step)) for step in self._held.values()]

    def _add_call(self, call: Attempt) -> None:
        order, key = self._order, call.task.task_id
        site = order.site_of.get(key)
        found = self._open.before(call)
        if order.walk.has_locks and site is not None and site <= self._done:
            self._add_locks(order.walk.end_of_loop(self._done, site))
            self._done = order.walk.begin_of_loop(self._done, site) - 1
        self._add_waits(found, site)
        takes = order.walk.steps[site].takes if site is not None else ()
        self.arguments[key] = tuple(self._last[one] for one in takes if one in self._last)
        self._note_unsure(site)
        self.steps.append(Submit(key))
        self._open.add(call)
        if site is not None:
            self._last[site] = key

    def _add_waits(self, found: Sequence[_FoundWait], then: int | None) -> None:
        """Add waits, each after the locks before its line, and then the locks up to a step of the source."""
        for wait, is_certain, calls in _grouped(found):
            if wait is not None:
                self._add_locks(wait)
            step = self._order.walk.steps[wait] if wait is not None else None
            keys = tuple(one.task.task_id for one in calls)
            if is_certain:
                is_sampled = self._order.is_sampled(keys)
                self.places[len(self.steps)] = (
                    Place(step.file, step.line, step.source, is_sampled) if step else Place(is_sampled=is_sampled)
                )
            self._note_unsure(wait)
            self.steps.append(WaitFor(keys, bool(step and step.awaits), is_certain))
        if then is not None:
            self._add_locks(then)

    def _note_unsure(self, site: int | None) -> None:
        """Note whether the source has a wait for something unknown before a step of it, or in a loop around it."""
        unsure = self._order.walk.first_unsure
        if self.unsure_from is None and unsure is not None:
            is_before = site is None or unsure < site or bool(self._order.walk.steps[site].loops)
            self.unsure_from = len(self.steps) if is_before else None

    def _add_locks(self, end: int) -> None:
        """Add what is locked and released up to a step of the source, and where locks are held in an ``await``."""
        for step in self._order.walk.steps[self._done + 1 : end] if self._order.walk.has_locks else ():
            if step.is_passed:
                if step.name in self._passed:
                    self._add_token(step)
            elif step.kind == "acquire" and not step.is_optional and step.name not in self._held:
                self._held[step.name] = step
                self._add_token(step)
            elif step.kind == "wait" and step.awaits and not step.of and self._held:
                self.places[len(self.steps)] = Place(step.file, step.line, step.source)
                self.steps.append(WaitFor((), yields=True))  # others may run meanwhile
            elif step.kind == "release" and step.name in self._held:
                self.steps.append(Release(self._lock(self._held.pop(step.name))))
        self._done = max(self._done, end - 1)

    def _add_token(self, step: SourceStep) -> None:
        """Add what is taken or given by a step of the source."""
        token = self._lock(step)
        (self.tokens if step.is_passed else self.permits)[token] = step.count
        if step.kind == "release":
            self.steps.append(Release(token))
            return
        if not step.is_timed:
            self.places[len(self.steps)] = Place(step.file, step.line, step.source)
        self.steps.append(Acquire(token, step.awaits, not step.is_timed))

    def _lock(self, step: SourceStep) -> Id:
        """The identity of a lock: of the object of an actor, or of its process and the file that names it.

        Of other callers it is a lock of their own: a process runs one task at a time.
        """
        task = self._caller.attempt.task if self._caller.attempt else None
        if task is None or task.actor_id is None:
            return "lock", self._caller.key, step.file, step.name
        if step.name.startswith(OF_OBJECT):
            return "lock", task.actor_id, step.name
        return "lock", task.worker_id or task.actor_id, step.file, step.name


class _OpenCalls:
    """The calls of a caller that it may still wait for.

    Calls of steps whose wait is known are kept by their step, so that a caller of many calls looks at each call once.
    Of all others, whose waits can come at any time, those that have ended count as awaited.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._of_site: dict[int, list[Attempt]] = defaultdict(list)
        self._others: list[tuple[float, int, Attempt]] = []
        self._count = 0
        self._last = BEGIN
        """The last step that is known to have made a call."""

    def add(self, call: Attempt) -> None:
        """A call that was submitted; forgotten if the source shows that its caller never waits for it."""
        wait, is_certain = self._order.wait_of(call)
        site = self._order.site_of.get(call.task.task_id)
        self._last = self._last if site is None else site
        if is_certain is False:
            return
        if wait is None or site is None or is_certain is None:
            self._add_other(call)
        else:
            self._of_site[site].append(call)

    def _add_other(self, call: Attempt) -> None:
        self._count += 1
        heappush(self._others, (float("inf") if call.ended_at is None else call.ended_at, self._count, call))

    def before(self, following: Attempt) -> Sequence[_FoundWait]:
        """The waits that come before a call is submitted."""
        then, at = self._order.site_of.get(following.task.task_id), following.submitted_at
        found: list[_FoundWait] = []
        for site, calls in self._of_site.items():
            wait, _ = self._order.wait_of(calls[0]) if calls else (None, None)
            is_between = None if wait is None or then is None else self._order.walk.passes(wait, self._last, then)
            if not calls or is_between is False:
                continue
            for call in calls:
                if _is_before(call.ended_at, at):
                    found.append((call, wait, is_between is True))
                else:
                    self._add_other(call)  # it is not awaited there, whatever the source says
            self._of_site[site] = []
        while self._others and at is not None and _is_before(self._others[0][0], at):
            call = heappop(self._others)[2]
            found.append((call, self._order.wait_of(call)[0], False))
        return found

    def at_end(self) -> Sequence[_FoundWait]:
        """The waits after the last call."""
        ended = self._order.ended
        others = [call for _, _, call in self._others]
        known = [call for calls in self._of_site.values() for call in calls]
        found: list[_FoundWait] = []
        for call in (*known, *others):
            wait, is_certain = self._order.wait_of(call)
            has_not_waited = ended is not None and not _is_before(call.ended_at, ended)
            if not has_not_waited and (ended is not None or is_certain):
                found.append((call, wait, bool(is_certain)))
        return found


def name_of(task: TaskAttempt) -> str:
    """The name of a task as its source has it: Ray puts that of a named actor before its constructor (Ray 2.60)."""
    if task.kind == "DRIVER_TASK":
        return ""
    return task.name.rpartition(":")[2] if task.kind == CREATION else task.name


def called(attempt: Attempt) -> str:
    """The name of a call as its caller's source has it: its method or function, of a constructor its class."""
    first, _, last = name_of(attempt.task).rpartition(".")
    return first.rpartition(".")[2] if attempt.task.kind == CREATION else last


def _is_before(earlier: float | None, later: float | None) -> bool:
    """Whether a time is before another, or the other is not known yet."""
    return earlier is not None and (later is None or earlier <= later + MOMENT_S)


def _grouped(
    found: Iterable[_FoundWait],
) -> Iterator[tuple[int | None, bool, Sequence[Attempt]]]:
    """The calls of each wait, in the order of the waits; unknown waits one by one, and first."""
    groups: dict[tuple[int, bool], list[Attempt]] = defaultdict(list)
    for call, wait, is_certain in found:
        if wait is None:
            yield None, is_certain, [call]
        else:
            groups[wait, is_certain].append(call)
    for (wait, is_certain), calls in sorted(groups.items(), key=lambda one: one[0]):
        yield wait, is_certain, calls
