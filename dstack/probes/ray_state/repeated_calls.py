"""Repeated short calls of one caller to one method of one actor: polls and heartbeats.

Ray Train's controller polls its workers about once a second, Serve's checks the health of its replicas, a program's
loop asks ``buffer.size.remote()``. Such calls are sequential, spaced regularly, and take a small part of the time. The
events do not show that they are no progress: those of a loop that computes between calls are similar. All times are
those of the caller's clock: when it submits a call and when it gets the result (seen on Ray 2.46 and 2.60).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from dstack.model.snapshot import FunctionTimes, RecentEnds, RepeatedCall
from dstack.probes.connection.ray_stubs import common_pb2
from dstack.words import grouped

LATEST = 253_370_764_799.0
"""The end of the calendar; later times are invalid."""
WINDOW_S = 10.0
"""How far back from the newest event of a caller its calls are counted."""
MIN_CALLS = 3
MIN_SPAN_S = 0.5
AT_ONCE_S = 0.5
"""A longer call is no poll: it works, or waits."""
MAX_SHARE = 0.5
"""Above this part of the time, the calls themselves are the caller's work."""
GAP_RATIO = 3.0
GAP_SLACK_S = 0.5
"""Intervals are regular up to this multiple of their median, plus a pause of the machine."""
REPORTED_S = 3.0
"""The time after which the GCS has a call's events: each process reports once a second."""

CallKey = tuple[str, str, str]


def event_time(ns: int | None) -> float | None:
    """Unix seconds of a time in task events; None if it is absent or invalid."""
    seconds = (ns or 0) / 1e9
    return seconds if 0 < seconds < LATEST else None


@dataclass(frozen=True)
class EndedCall:
    """A finished task; ``actor_id`` is empty where it is no actor's call, times are None where they are not kept."""

    job_id: str
    name: str
    actor_id: str
    parent_task_id: str
    submitted_at: float | None
    finished_at: float | None
    began_at: float | None = None

    @property
    def key(self) -> CallKey:
        """The key of calls that count as the same: caller, actor and method."""
        return self.parent_task_id, self.actor_id, self.name


@dataclass(frozen=True)
class _Timed:
    began: float
    ended: float


def call_of(row: Any) -> EndedCall:
    """The finished task that a row of the GCS's reply is about."""
    info, times = row.task_info, row.state_updates.state_ts_ns
    is_call = info.type == common_pb2.ACTOR_TASK
    return EndedCall(
        job_id=row.job_id.hex(),
        name=info.name or info.func_or_class_name,
        actor_id=info.actor_id.hex() if is_call else "",
        parent_task_id=info.parent_task_id.hex(),
        submitted_at=event_time(times.get(common_pb2.PENDING_ARGS_AVAIL)),
        finished_at=event_time(times.get(common_pb2.FINISHED)),
        began_at=event_time(times.get(common_pb2.RUNNING)),
    )


def repeated_calls(ended: Iterable[EndedCall], latest_at: float) -> tuple[RepeatedCall, ...]:
    """The calls that are repeated at ``latest_at``, most frequent first.

    ``latest_at`` is the earliest time that any caller's clock may show now; calls that ended long before are over.
    """
    by_caller: dict[str, dict[CallKey, list[_Timed]]] = defaultdict(lambda: defaultdict(list))
    example: dict[CallKey, EndedCall] = {}
    for one in ended:
        if one.submitted_at is not None and one.finished_at is not None:
            by_caller[one.parent_task_id][one.key].append(_Timed(one.submitted_at, one.finished_at))
            example[one.key] = one
    found = (call for calls in by_caller.values() for call in _of_caller(calls, example, latest_at))
    return tuple(sorted(found, key=lambda call: (-call.calls, call.parent_task_id, call.actor_id, call.name)))


def _of_caller(
    calls: dict[CallKey, list[_Timed]], example: dict[CallKey, EndedCall], latest_at: float
) -> Iterable[RepeatedCall]:
    newest = max(one.ended for times in calls.values() for one in times)
    recent = {key: _recent(times, newest) for key, times in calls.items()}
    repeated = {key for key, times in recent.items() if example[key].actor_id and _is_repeated(times)}
    others = sum(len(times) for key, times in recent.items() if key not in repeated)
    for key in repeated:
        run = _run(calls[key])
        last, interval = run[-1].ended, _interval(run)
        if max(latest_at, newest) - last > interval * GAP_RATIO + GAP_SLACK_S + REPORTED_S:
            continue
        times, one = sorted(recent[key], key=lambda t: t.began), example[key]
        yield RepeatedCall(
            name=one.name,
            actor_id=one.actor_id,
            job_id=one.job_id,
            parent_task_id=one.parent_task_id,
            calls=len(times),
            over_s=round(times[-1].began - times[0].began, 3),
            first_at=run[0].began,
            last_at=last,
            longest_s=round(max(t.ended - t.began for t in times), 4),
            other_calls=others,
        )


def _recent(times: Sequence[_Timed], newest: float) -> list[_Timed]:
    """The calls that ended recently, without the first one if it took longer: its actor had to start."""
    first = min(times, key=lambda t: t.began)
    has_waited = first.ended - first.began >= AT_ONCE_S
    return [t for t in times if t.ended >= newest - WINDOW_S and not (has_waited and t is first)]


def _is_repeated(times: Sequence[_Timed]) -> bool:
    """Whether these calls follow each other regularly, and end at once."""
    if len(times) < MIN_CALLS:
        return False
    times = sorted(times, key=lambda t: t.began)
    span = times[-1].began - times[0].began
    is_sequential = all(later.began >= earlier.ended for earlier, later in pairwise(times))
    at_once = all(0 <= t.ended - t.began < AT_ONCE_S for t in times)
    if span < MIN_SPAN_S or not is_sequential or not at_once:
        return False
    share = sum(t.ended - t.began for t in times[:-1]) / span
    return share <= MAX_SHARE and _run(times) == times


def _run(times: Sequence[_Timed]) -> list[_Timed]:
    """The newest of these calls, in order, back to the first interval that is longer than the others are."""
    ordered = sorted(times, key=lambda t: t.began)
    limit = _interval(ordered) * GAP_RATIO + GAP_SLACK_S
    start = len(ordered) - 1
    while start > 0 and ordered[start].began - ordered[start - 1].began <= limit:
        start -= 1
    return ordered[start:]


def _interval(ordered: Sequence[_Timed]) -> float:
    """The median interval of the newest calls; 0 of a single one."""
    newest = ordered[-50:]
    return median([later.began - earlier.began for earlier, later in pairwise(newest)] or [0.0])


def ends_of(ended: Iterable[EndedCall], repeated: Iterable[RepeatedCall]) -> dict[str, list[float]]:
    """By job, when its tasks that are no repeated calls finished, in order."""
    keys = {(call.parent_task_id, call.actor_id, call.name) for call in repeated}
    ends = grouped((one.job_id, one.finished_at) for one in ended if one.finished_at and one.key not in keys)
    return {job_id: sorted(times) for job_id, times in ends.items()}


def recent_ends(ends: Sequence[float], asked_at: float, *, is_limited: bool) -> RecentEnds:
    """How many of these ended in the last :data:`WINDOW_S` that a reply shows; fewer if it shows only the newest."""
    latest = max(ends[-1], asked_at)
    since = max(latest - WINDOW_S, ends[0]) if is_limited else latest - WINDOW_S
    return RecentEnds(tasks=sum(one >= since for one in ends), over_s=round(latest - since, 3))


def function_times(ended: Iterable[EndedCall]) -> dict[str, dict[str, FunctionTimes]]:
    """The run times of functions and methods by job and name, where beginning and end are known."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in ended:
        if one.began_at is not None and one.finished_at is not None:
            found[one.job_id][one.name].append(max(0.0, one.finished_at - one.began_at))
    return {
        job_id: {
            name: FunctionTimes(calls=len(times), usual_s=round(median(times), 3)) for name, times in functions.items()
        }
        for job_id, functions in found.items()
    }
