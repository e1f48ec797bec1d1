"""Where tasks spend their time: the call tree of a history, as stacks whose weights are microseconds.

A stack is a chain of calls: the driver, a task, a subtask. At each moment a task is as wide as the tasks below it that
run, and at least 1 wide while it runs itself. So an attempt adds its **own time**: the time that it runs while no task
below it runs. The width of a call is the own time of all its attempts and of all calls below it, over time. It is no
less than the run time of its attempts, and no less than the widths of its children: children that run in parallel stand
side by side and make their caller wider, a caller that only waits for one child is as wide as that child. Widths of
adjoining intervals add up exactly.

The own time in spans of ``dstack.span`` is below the call, as if each span were a call.

This is the time of tasks, not of CPUs: a task that sleeps or waits runs. An attempt that has not ended runs until the
history was requested. Of a retried task each attempt counts, with the subtasks of all attempts below them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from threading import Lock

from dstack.analysis.history.marked_spans import MarkedSpans, by_chain
from dstack.analysis.history.task_index import Attempt, HistoryIndex
from dstack.analysis.index import ray_libraries
from dstack.analysis.naming import names
from dstack.analysis.stacks.app_threads import job_in_words, span_step
from dstack.analysis.stacks.stack_tree import Grouping
from dstack.analysis.stacks.weighted_stacks import WeightedStack, WeightedStacks
from dstack.model.profile import PathStep
from dstack.model.snapshot import TaskAttempt
from dstack.words import grouped

Span = tuple[int, int]
"""Begin and end."""
FEW = 16
"""Spans are inserted one by one into a union that has so many times more of them; else all are sorted."""
Path = tuple[PathStep, ...]
MAX_DEPTH = 100
"""Calls that are deeper are one step of the flame."""
DEEPER = PathStep("deeper calls")
NO_CALLER = PathStep("caller not kept by the GCS")
UNKNOWN_CALLER: Path = (NO_CALLER,)
GROUPINGS: tuple[Grouping | None, ...] = (None, "kind", "node", "job")


class Spans:
    """Disjoint spans in order.

    They are kept from the last to the first with their signs changed: callers begin before what they call, so a span
    that is added usually comes last, and moves no others.
    """

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self._begins)

    def __iter__(self) -> Iterator[Span]:
        """The spans, the first one first."""
        return ((-end, -begin) for begin, end in zip(reversed(self._begins), reversed(self._ends), strict=True))

    @classmethod
    def union(cls, parts: Iterable[Spans], single: Iterable[Span] = ()) -> Spans:
        """The union of several and of single spans.

        It is built into the largest of them, so that merging up a deep tree stays cheap.
        """
        ordered = list(parts)
        if singles := sorted((-end, -begin) for begin, end in single):
            ordered.append(cls._joined(singles))
        if len(ordered) < 2:
            return ordered[0] if ordered else cls()
        ordered.sort(key=len)
        largest = ordered.pop()
        added = sum(map(len, ordered))
        if added * FEW >= len(largest):
            pairs = (pair for part in (*ordered, largest) for pair in zip(part._begins, part._ends, strict=True))
            return cls._joined(sorted(pairs)) if added else largest
        for part in ordered:
            for span in part:
                largest.add(span)
        return largest

    @classmethod
    def _joined(cls, ordered: Iterable[Span]) -> Spans:
        """Spans with changed signs, in order; those that overlap or touch become one."""
        made = cls()
        begins, ends = made._begins, made._ends
        for begin, end in ordered:
            if ends and begin <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                begins.append(begin)
                ends.append(end)
        return made

    def add(self, span: Span) -> None:
        """Add one; those that it overlaps or touches become one with it."""
        begin, end = -span[1], -span[0]
        first, behind = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        if first < behind:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[behind - 1])
        self._begins[first:behind] = [begin]
        self._ends[first:behind] = [end]

    def gaps_in(self, span: Span) -> tuple[Span, ...]:
        """The parts of a span that are in none of these; empty parts are left out."""
        begin, end = -span[1], -span[0]
        first, behind = bisect_right(self._ends, begin), bisect_left(self._begins, end)
        if first >= behind:
            return (span,) if begin < end else ()
        edges = [begin]
        for at in range(first, behind):
            edges += (self._begins[at], self._ends[at])
        edges.append(end)
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return tuple((-right, -left) for left, right in pairs if left < right)


class TaskNames:
    """The steps and groups of attempts; those of the same name are the same."""

    def __init__(self, history: HistoryIndex) -> None:
        self._index = history.index
        self._attempts = history.history.attempts
        self._steps: dict[tuple[str, str, str | None], PathStep] = {}

    def groups(self, task: TaskAttempt, by: Grouping | None) -> tuple[str, ...]:
        """The group of an attempt, if it is to be in one: ``node 10.0.0.1``, ``job 01000000 train.py``, a class."""
        if by is None:
            return ()
        if by == "node":
            return (self._nodes.get(task.node_id or "", "node unknown"),)
        return (self._jobs[task.job_id] if by == "job" else _kind(task),)

    def step(self, task: TaskAttempt) -> PathStep:
        """The step of a call: of a task or method by its name, of a driver by its script."""
        key = task.name, task.kind, task.job_id if task.kind == "DRIVER_TASK" else task.actor_id
        if key not in self._steps:
            self._steps[key] = self._new_step(task)
        return self._steps[key]

    def _new_step(self, task: TaskAttempt) -> PathStep:
        if task.kind == "DRIVER_TASK":
            job = self._index.jobs.get(task.job_id)
            name = f"driver {names.script(job.entrypoint)}" if job and job.entrypoint else "driver"
            return PathStep(name, function=name)
        actor = self._index.actors.get(task.actor_id or "")
        part = ray_libraries.part_of(actor)
        library = part.call(task.name) if part else ray_libraries.data_operator(task.name)
        name = library or task.name or "unnamed task"
        return PathStep(name, function=name, origin="ray" if library else "user")

    @cached_property
    def _nodes(self) -> Mapping[str, str]:
        return names.nodes(self._index.snapshot.nodes)

    @cached_property
    def _jobs(self) -> Mapping[str, str]:
        return {job_id: job_in_words(self._index, job_id) for job_id in {task.job_id for task in self._attempts}}


def _kind(task: TaskAttempt) -> str:
    """``actor Trainer``, ``tasks`` or ``drivers``."""
    if task.kind in ("ACTOR_TASK", "ACTOR_CREATION_TASK"):
        return f"actor {task.name.rpartition('.')[0] or 'unknown'}"
    return "drivers" if task.kind == "DRIVER_TASK" else "tasks"


@dataclass(frozen=True, slots=True)
class Interval:
    """A time span of a history, in microseconds since 1970."""

    began_us: int
    ended_us: int

    @property
    def length_us(self) -> int:
        """How long it is."""
        return self.ended_us - self.began_us

    def moved(self, times: int) -> Interval:
        """The interval of the same length that many lengths later, or earlier if negative."""
        return Interval(self.began_us + times * self.length_us, self.ended_us + times * self.length_us)

    def part_us(self, span: Span) -> int:
        """How much of a span is in it."""
        return max(0, min(span[1], self.ended_us) - max(span[0], self.began_us))

    def contains(self, span: Span) -> bool:
        """Whether a whole span is in it, which may have no length."""
        return self.began_us <= span[0] and span[1] <= self.ended_us


@dataclass(slots=True)
class Runs:
    """The attempts of one call that ran in an interval: how many, how long together, and how they ended."""

    attempts: int = 0
    run_us: int = 0
    failed: int = 0
    running: int = 0


@dataclass(slots=True)
class _Call:
    """One attempt that ran: its chain of calls, when it ran, and the parts of that which are its own time.

    Attempts with the same chain share one path. ``marked`` are the parts in spans of ``dstack.span``, with their paths;
    ``own`` are the others.
    """

    attempt: Attempt
    path: Path
    span: Span
    own: Sequence[Span]
    own_us: int
    marked: Sequence[tuple[Path, Sequence[Span]]] = ()

    def weights(self, interval: Interval) -> Iterator[tuple[Path, int]]:
        """Its own time in an interval, and that in each chain of spans."""
        yield self.path, self.own_within(interval)
        for path, spans in self.marked:
            yield path, sum(map(interval.part_us, spans))

    def own_within(self, interval: Interval) -> int:
        """Its own time in an interval."""
        begin, end = self.span
        if interval.began_us <= begin and end <= interval.ended_us:
            return self.own_us
        if end <= interval.began_us or interval.ended_us <= begin:
            return 0
        return sum(map(interval.part_us, self.own))


class _Below:
    """When tasks below a caller ran; the span of a task without subtasks is kept as it is, as most are such."""

    def __init__(self) -> None:
        self._single: dict[str, list[Span]] = {}
        self._unions: dict[str, list[Spans]] = {}

    def add(self, caller: str | None, span: Span) -> None:
        """Add when a task without subtasks ran."""
        if caller is not None:
            self._single.setdefault(caller, []).append(span)

    def add_all(self, caller: str | None, spans: Spans) -> None:
        """Add when a task or a task below it ran."""
        if caller is not None:
            self._unions.setdefault(caller, []).append(spans)

    def pop(self, caller: str) -> Spans | None:
        """When any of them ran; None if there is none."""
        single, unions = self._single.pop(caller, ()), self._unions.pop(caller, ())
        return Spans.union(unions, single) if single or unions else None


class TaskTime:
    """The time of all attempts of a history, computed once for any interval and grouping."""

    def __init__(self, history: HistoryIndex) -> None:
        self._history = history
        self._names = TaskNames(history)
        self._spans = MarkedSpans(history)
        self._lock = Lock()
        self._computed: Sequence[_Call] | None = None
        self._paths: dict[tuple[int, PathStep], Path] = {}

    @cached_property
    def whole(self) -> Interval:
        """From the first begin of an attempt to the request of the history, or the last end after it."""
        begins = (call.span[0] for call in self._calls)
        ended = microseconds(self._history.ended_at)
        return Interval(min(begins, default=ended), ended)

    def halves(self) -> tuple[Interval, Interval]:
        """The first and the second half, of the same length."""
        whole = self.whole
        second = Interval(whole.ended_us - (whole.length_us + 1) // 2, whole.ended_us)
        return second.moved(-1), second

    @cached_property
    def without_times(self) -> int:
        """How many attempts have ended but have no time of their begin, as their worker never reported it."""
        return sum(one.state in ("finished", "failed") and one.started_at is None for one in self._history.attempts)

    def stacks(self, interval: Interval | None = None, by: Grouping | None = None) -> WeightedStacks:
        """The own times within an interval, or of all, below one group for each if wanted."""
        within = interval or self.whole
        found = (
            (path, self._names.groups(call.attempt.task, by), weight)
            for call in self._calls
            for path, weight in call.weights(within)
            if weight
        )
        paths: dict[int, Path] = {}
        weights: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        for path, groups, weight in found:
            paths[id(path)] = path
            weights.setdefault((id(path), groups), []).append(weight)
        stacks = ((groups, paths[path], sum(parts)) for (path, groups), parts in weights.items())
        return WeightedStacks.summed("task time", "microseconds", stacks)

    def stacks_in_order(self, interval: Interval | None = None, by: Grouping | None = None) -> WeightedStacks:
        """As :meth:`stacks`, but what one caller calls is in the order in which it first ran."""
        within = interval or self.whole
        first: dict[Path, int] = {}
        for call in self._calls:
            groups = tuple(map(PathStep, self._names.groups(call.attempt.task, by)))
            for path, spans in ((call.path, [call.span]), *call.marked):
                begins = [begin for begin, end in spans if within.part_us((begin, end))]
                whole = (*groups, *path)
                for depth in range(1, len(whole) + 1) if begins else ():
                    first[whole[:depth]] = min(first.get(whole[:depth], begins[0]), min(begins))
        stacks = self.stacks(within, by)

        def order(stack: WeightedStack) -> list[tuple[int, PathStep]]:
            whole = (*map(PathStep, stack.groups), *stack.frames)
            return [(first.get(whole[:depth], 0), whole[depth - 1]) for depth in range(1, len(whole) + 1)]

        return WeightedStacks(stacks.name, stacks.unit, tuple(sorted(stacks.stacks, key=order)))

    def runs(self, interval: Interval | None = None, by: Grouping | None = None) -> Mapping[Path, Runs]:
        """The attempts of each call that ran within an interval, by the path of the call with its group."""
        within = interval or self.whole
        found: dict[tuple[int, tuple[str, ...]], tuple[Path, Runs]] = {}
        for call in self._calls:
            run_us = within.part_us(call.span)
            if run_us or within.contains(call.span):
                key = id(call.path), self._names.groups(call.attempt.task, by)
                _, runs = found.setdefault(key, (call.path, Runs()))
                _count(runs, call.attempt, run_us)
        return {(*map(PathStep, groups), *path): runs for (_, groups), (path, runs) in found.items()}

    # The tree

    @property
    def is_computed(self) -> bool:
        """Whether the expensive part is done; until then, each other property and method takes a while."""
        return self._computed is not None

    @property
    def _calls(self) -> Sequence[_Call]:
        """All attempts that ran; threads that need them at the same time share them."""
        with self._lock:
            if self._computed is None:
                self._computed = self._compute()
            return self._computed

    def _compute(self) -> Sequence[_Call]:
        """All attempts that ran; own times from the leaves up, as a task needs the spans of all tasks below it."""
        tasks = self._tasks
        order = list(self._from_the_roots())
        paths: dict[str, Path] = {}
        for task_id, caller in order:
            paths[task_id] = self._path(tasks[task_id][0], paths.get(caller or ""))
        below = _Below()
        calls: list[_Call] = []
        for task_id, caller in reversed(order):
            path, ran = paths[task_id], list(self._ran(tasks[task_id]))
            spans = below.pop(task_id)
            if spans is None and len(ran) == 1:
                ((attempt, span),) = ran
                calls.append(self._call(attempt, path, span, (span,)))
                below.add(caller, span)
                continue
            busy = spans or Spans()
            for attempt, span in ran:
                calls.append(self._call(attempt, path, span, busy.gaps_in(span)))
            for _, span in ran:
                busy.add(span)
            below.add_all(caller, busy)
        return calls

    def _call(self, attempt: Attempt, path: Path, span: Span, own: Sequence[Span]) -> _Call:
        """A call with its own time, of which the parts in spans are below it."""
        marked: list[tuple[Path, Sequence[Span]]] = []
        if spans := self._spans.of(attempt):
            times = ((microseconds(one.began_at), microseconds(one.ended_at), one.name) for one in spans)
            parts = dict(by_chain(sorted(own), times))
            own = parts.pop((), ())
            marked = [(self._marked_path(path, names), times) for names, times in parts.items()]
        return _Call(attempt, path, span, own, sum(end - begin for begin, end in own), marked)

    def _marked_path(self, path: Path, names: Iterable[str]) -> Path:
        for name in names:
            path = self._below(path, span_step(name))
        return path

    def _below(self, above: Path, step: PathStep) -> Path:
        """The path with one more step; equal ones are the same."""
        key = id(above), step
        if key not in self._paths:
            self._paths[key] = (*above, step)
        return self._paths[key]

    @cached_property
    def _tasks(self) -> Mapping[str, Sequence[Attempt]]:
        found = grouped((attempt.task.task_id, attempt) for attempt in self._history.attempts)
        for attempts in found.values():
            attempts.sort(key=lambda attempt: attempt.task.attempt)
        return found

    def _from_the_roots(self) -> Iterator[tuple[str, str | None]]:
        """Each task with its caller, callers first; None at a root, and where callers form a cycle."""
        callers = {task_id: attempts[0].task.parent_task_id or "" for task_id, attempts in self._tasks.items()}
        called = grouped((caller, task_id) for task_id, caller in callers.items())
        seen: set[str] = set()
        for task_id in sorted(callers, key=lambda one: callers[one] in callers):
            ahead: list[tuple[str, str | None]] = [(_root_of(task_id, callers), None)] if task_id not in seen else []
            while ahead:
                one, its_caller = ahead.pop()
                if one not in seen:
                    seen.add(one)
                    yield one, its_caller
                    ahead += ((callee, one) for callee in called.get(one, ()))

    def _path(self, attempt: Attempt, above: Path | None) -> Path:
        """The chain of calls down to a task, below that of its caller."""
        if above is None:
            above = () if attempt.task.kind == "DRIVER_TASK" else UNKNOWN_CALLER
        is_deeper = len(above) >= MAX_DEPTH
        if is_deeper and above[-1] == DEEPER:
            return above
        return self._below(above, DEEPER if is_deeper else self._names.step(attempt.task))

    def _ran(self, attempts: Sequence[Attempt]) -> Iterator[tuple[Attempt, Span]]:
        """The attempts of a task that have begun, and when they ran.

        An attempt without an end runs until now; if there is a later one, its end was not reported, but is before that.
        """
        for attempt, following in zip_longest(attempts, attempts[1:]):
            ended = attempt.ended_at
            if ended is None:
                ended = following.began_at if following else self._history.asked_at
            if attempt.started_at is not None:
                began = microseconds(attempt.started_at)
                yield attempt, (began, max(began, microseconds(ended)))


def _root_of(task_id: str, callers: Mapping[str, str]) -> str:
    """The outermost caller of a task; where callers form a cycle, which no cluster reports, one task of the cycle."""
    walked = {task_id}
    while (caller := callers[task_id]) in callers and caller not in walked:
        task_id = caller
        walked.add(task_id)
    return caller if caller in walked else task_id


def _count(runs: Runs, attempt: Attempt, run_us: int) -> None:
    runs.attempts += 1
    runs.run_us += run_us
    runs.failed += attempt.state == "failed"
    runs.running += attempt.state == "running"


def microseconds(time_s: float) -> int:
    """A time in whole microseconds, so that sums are exact."""
    return round(time_s * 1_000_000)


def runs_of(paths: Iterable[Path], runs: Mapping[Path, Runs]) -> Runs:
    """The attempts of several calls together."""
    total = Runs()
    for path in paths:
        if found := runs.get(path):
            total.attempts += found.attempts
            total.run_us += found.run_us
            total.failed += found.failed
            total.running += found.running
    return total
