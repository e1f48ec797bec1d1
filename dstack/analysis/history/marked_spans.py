"""The spans that programs mark with ``dstack.span``, by the attempt of a task in which each of them was.

A process keeps its last spans without their tasks. A span belongs to the only attempt that ran in its process during
all of it; one that may belong to several, as in an async actor, is left out. An open span is that of its execution.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from dstack.analysis.history.task_index import Attempt, HistoryIndex
from dstack.analysis.stacks.app_threads import span_step
from dstack.observed.processes import FinishedSpan

MAX_DEPTH = 32
Interval = tuple[int, int]
"""Begin and end."""


class MarkedSpan(NamedTuple):
    """A span with its times by the clock of dstack's host, in Unix seconds; an open one ends with the history."""

    began_at: float
    ended_at: float
    name: str
    is_open: bool = False


class MarkedSpans:
    """The spans of a history."""

    def __init__(self, history: HistoryIndex) -> None:
        self._history = history
        self._index = history.index

    def of(self, attempt: Attempt) -> Sequence[MarkedSpan]:
        """The spans within an attempt, in the order of their begins, the outer ones first."""
        return self._by_attempt.get(id(attempt), ())

    @cached_property
    def _by_attempt(self) -> Mapping[int, Sequence[MarkedSpan]]:
        found: dict[int, dict[MarkedSpan, None]] = defaultdict(dict)
        for attempt, span in (*self._finished(), *self._open()):
            found[id(attempt)][span] = None
        return {key: sorted(spans, key=lambda one: (one.began_at, -one.ended_at)) for key, spans in found.items()}

    def _open(self) -> Iterator[tuple[Attempt, MarkedSpan]]:
        """The open spans of executions whose tasks are known, and of drivers."""
        for worker_id, process in self._index.processes.items():
            driver = self._drivers.get(worker_id)
            for execution in process.executions():
                attempt = self._history.latest.get(execution.task_id or "") or driver
                if attempt is None or attempt.started_at is None:
                    continue
                for span in execution.spans:  # a coroutine may have those in which it was created, before its task
                    began_at = max(attempt.started_at, span.began_at - self._ahead_s(worker_id))
                    if began_at <= self._end(attempt):
                        yield attempt, MarkedSpan(began_at, self._end(attempt), span.name, is_open=True)

    @cached_property
    def _drivers(self) -> Mapping[str, Attempt]:
        """The attempts of drivers, by their processes."""
        drivers = (one for one in self._history.attempts if one.task.kind == "DRIVER_TASK")
        return {self._index.drivers[one.task.job_id]: one for one in drivers if one.task.job_id in self._index.drivers}

    def _finished(self) -> Iterator[tuple[Attempt, MarkedSpan]]:
        processes = {key: one.finished_spans for key, one in self._index.processes.items() if one.finished_spans}
        attempts: dict[str, list[Attempt]] = {key: [] for key in processes}
        for attempt in self._history.attempts if processes else ():
            if attempt.started_at is not None and (worker_id := self._worker_of(attempt)) in attempts:
                attempts[worker_id].append(attempt)
        for worker_id, spans in processes.items():
            yield from self._placed(spans, attempts[worker_id], self._ahead_s(worker_id))

    def _worker_of(self, attempt: Attempt) -> str:
        task = attempt.task
        if task.kind == "DRIVER_TASK":
            return self._index.drivers.get(task.job_id, "")
        actor = self._index.actors.get(task.actor_id or "")
        return task.worker_id or (actor.worker_id if actor else None) or ""

    def _placed(
        self, spans: Iterable[FinishedSpan], attempts: Sequence[Attempt], ahead_s: float
    ) -> Iterator[tuple[Attempt, MarkedSpan]]:
        """The spans of one process that were within one of its attempts only."""
        ordered = sorted(attempts, key=attrgetter("started_at"))
        begins = [one.started_at or 0.0 for one in ordered]
        ends = [self._end(one) for one in ordered]
        latest_ends = list(accumulate(ends, max))
        for span in spans:
            began_at, ended_at = span.began_at - ahead_s, span.ended_at - ahead_s
            around: list[Attempt] = []
            at = bisect_right(begins, began_at) - 1
            while at >= 0 and len(around) < 2 and latest_ends[at] >= ended_at:
                around += [ordered[at]] if ends[at] >= ended_at else []
                at -= 1
            if len(around) == 1:
                yield around[0], MarkedSpan(began_at, ended_at, span.name)

    def _end(self, attempt: Attempt) -> float:
        return self._history.asked_at if attempt.ended_at is None else attempt.ended_at

    def _ahead_s(self, worker_id: str) -> float:
        """How far the clock of a process is ahead of that of dstack's host."""
        worker = self._index.workers.get(worker_id)
        return self._history.ahead_s(worker.node_id if worker else None)


def with_depths(spans: Iterable[MarkedSpan]) -> Iterator[tuple[int, MarkedSpan]]:
    """Spans in the order of their begins, each with the number of earlier ones that had not ended when it began."""
    around: list[MarkedSpan] = []
    for span in spans:
        around = [one for one in around if one.ended_at > span.began_at]
        yield len(around), span
        around.append(span)


def as_attempt(attempt: Attempt, span: MarkedSpan) -> Attempt:
    """A span as an attempt that charts draw: it runs in the task of the attempt in which it is."""
    task = replace(attempt.task, name=span_step(span.name).name, error="", error_type="")
    return Attempt(
        task=task,
        state="running" if span.is_open else "finished",
        started_at=span.began_at,
        ended_at=None if span.is_open else span.ended_at,
    )


def by_chain(
    times: Iterable[Interval], spans: Iterable[tuple[int, int, str]]
) -> Mapping[tuple[str, ...], list[Interval]]:
    """Ordered times that do not overlap, in parts by the names of the spans that contain each, the outermost first.

    ``spans`` are ordered by their begins, the outer ones first.
    """
    following = list(spans)
    edges = sorted({edge for begin, end, _ in following for edge in (begin, end)})
    following.reverse()
    around: list[tuple[int, int, str]] = []
    found: dict[tuple[str, ...], list[Interval]] = defaultdict(list)
    for begin, end in times:
        inner = edges[bisect_right(edges, begin) : bisect_right(edges, end - 1)]
        for left, right in pairwise((begin, *inner, end)):
            while following and following[-1][0] <= left:
                around.append(following.pop())
            around = [span for span in around if span[1] > left]
            found[tuple(name for *_, name in around[:MAX_DEPTH])].append((left, right))
    return found
