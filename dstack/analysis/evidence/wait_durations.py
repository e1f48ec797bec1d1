"""Bounds of the duration of each wait.

A wait in both samples lasted at least from the first to the second. A task has been in its state since the time that
its owner reported. A call for a value began after the value's task was submitted, and after its own task began to run.
These times are by other hosts' clocks: if one is known to differ from dstack's, only the observed time counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from dstack.analysis.evidence.evidence import Evidence
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.diagnosis import Since, Vertex
from dstack.model.snapshot import Snapshot, TaskTimes, producer_task_id
from dstack.model.vertex_keys import Key

UNKNOWN = TaskTimes()


class _Bound(NamedTuple):
    """A time before which a wait cannot have begun: the submission of what it waits for, or its own beginning."""

    at: float
    is_submission: bool = False


def with_bounds(evidence: Evidence, vertices: Mapping[Key, Vertex]) -> dict[Key, Vertex]:
    """The same vertices, with bounds for those that wait and for running tasks.

    There are none for timed waits, which begin again and again.
    """
    bounds = _Bounds(evidence.snapshot, evidence.first)
    return {key: bounds.added_to(vertex) for key, vertex in vertices.items()}


def of_all(several: Sequence[Since]) -> Since:
    """The time since the last of these began."""
    at_least = [since.at_least_s for since in several]
    known = [bound for bound in at_least if bound is not None]
    bounded = [since for since in several if since.at_most_s is not None]
    latest = min(bounded, key=lambda since: (since.at_most_s or 0.0, not since.is_close), default=Since())
    return msgspec.structs.replace(latest, at_least_s=min(known) if known and len(known) == len(at_least) else None)


def of_any(several: Sequence[Since]) -> Since:
    """Bounds that hold for each of these."""
    at_least = [since.at_least_s for since in several if since.at_least_s is not None]
    bounded = [since for since in several if since.at_most_s is not None]
    earliest = max(bounded, key=lambda since: since.at_most_s or 0.0, default=Since())
    return msgspec.structs.replace(
        earliest if len(bounded) == len(several) else Since(),
        at_least_s=min(at_least, default=None) if len(at_least) == len(several) else None,
    )


class _Bounds:
    def __init__(self, snapshot: Snapshot, first: SampleIndex) -> None:
        self._has_one_time = snapshot.has_one_time
        self._times = snapshot.task_times if self._has_one_time else {}
        self._first = first
        last = snapshot.samples[-1]
        self._watched_s = max(0.0, last.began_s - snapshot.samples[0].ended_s) if len(snapshot.samples) > 1 else None
        at = snapshot.taken_at
        shown = [(at + sample.began_s, at + sample.ended_s) for sample in (snapshot.samples[0], last)]
        self._last_shown = dict(zip((False, True), shown, strict=True))
        """Beginning and end of the last sample that shows a wait, by whether that is confirmed."""

    def added_to(self, vertex: Vertex) -> Vertex:
        if vertex.wait and vertex.wait.is_timed:
            return vertex
        since = self._since(vertex) if vertex.wait or vertex.never else self._running(vertex)
        if since.at_least_s is None and since.at_most_s is None:
            return vertex
        return msgspec.structs.replace(vertex, since=since)

    def _since(self, vertex: Vertex) -> Since:
        began, ended = self._last_shown[vertex.is_confirmed]
        watched_s = self._watched_s if vertex.is_confirmed else None
        entered = self._entered(vertex)
        if entered is not None:
            return _since(max(began - entered, watched_s or 0.0), ended - entered, entered, is_close=True)
        earliest = max(self._not_before(vertex), default=None)
        if earliest is None:
            return _since(watched_s)
        return _since(watched_s, ended - earliest.at, earliest.at, is_close=earliest.is_submission)

    def _running(self, vertex: Vertex) -> Since:
        """For how long the task of an execution that does not wait has run."""
        task = self._first.tasks.get(vertex.task_id or "")
        times = self._times.get(vertex.task_id or "", UNKNOWN)
        began_at = times.states.get("RUNNING")
        if vertex.worker_id is None or began_at is None or (task is not None and times.attempt < task.attempt):
            return Since()
        began, ended = self._last_shown[False]
        return _since(max(0.0, began - began_at), ended - began_at, began_at, is_close=True)

    def _entered(self, vertex: Vertex) -> float | None:
        """When a pending vertex entered its state."""
        if vertex.placement_group_id is not None:
            group = self._first.placement_groups.get(vertex.placement_group_id)
            return group.requested_at if group and self._has_one_time else None
        task = self._first.tasks.get(vertex.task_id or "")
        if task is None or vertex.worker_id is not None:
            return None
        times = self._times.get(task.task_id, UNKNOWN)
        return times.states.get(task.state) if times.attempt >= task.attempt else None

    def _not_before(self, vertex: Vertex) -> Iterator[_Bound]:
        """Times before which the wait cannot have begun."""
        own = self._times.get(vertex.task_id or "", UNKNOWN)
        began_at = own.states.get("RUNNING")
        if vertex.worker_id is not None and began_at is not None:
            yield _Bound(began_at)
        for group in vertex.wait.groups if vertex.wait else ():
            for target in group.targets:
                producer = self._times.get(producer_task_id(target.ref), UNKNOWN) if target.ref else UNKNOWN
                if producer.submitted_at is not None:
                    yield _Bound(producer.submitted_at, is_submission=True)


def _since(
    at_least_s: float | None,
    at_most_s: float | None = None,
    began_at: float | None = None,
    *,
    is_close: bool = False,
) -> Since:
    """Bounds that fit each other, whatever the clocks say."""
    at_least_s = None if at_least_s is None else round(at_least_s, 3)
    if at_most_s is None:
        return Since(at_least_s=at_least_s)
    at_most_s = round(max(at_most_s, at_least_s or 0.0), 3)
    return Since(at_least_s=at_least_s, at_most_s=at_most_s, began_at=began_at, is_close=is_close)
