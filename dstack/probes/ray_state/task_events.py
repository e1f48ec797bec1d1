"""What the task events that workers report say: arrived calls, times, the history, and ended tasks.

Workers report once a second, mostly to the GCS (:mod:`dstack.probes.ray_state.event_source`), which keeps the last
100,000 attempts or so, of all jobs: others are unknown. For each request it reads all of them, whatever the filters:
15 ms with 2,000 tasks, 0.65 s with 93,000 (Ray 2.60, busy machine). Several filters of one kind must all be met. There
are no pages, only a limit: without a filter that asks for one job the GCS gives the newest first, so a limited reply is
about the latest tasks. Seen on Ray 2.46 and 2.60.

``error_info.error_message`` has the last 500 characters of an exception's traceback (Ray 2.60), and the event
``task:execute`` of the executor has type, value and traceback as JSON. What cannot be parsed is left out.
"""

from __future__ import annotations

import re
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import msgspec

from dstack.model.snapshot import (
    ACTOR_HANDLE,
    FailedTask,
    Job,
    RepeatedCall,
    TaskAttempt,
    TaskEventWindow,
    TaskHistory,
    TaskTimes,
    producer_task_id,
)
from dstack.observed.node import Failure, Ref, TaskKind
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.ray_stubs import common_pb2, gcs_service_pb2
from dstack.probes.connection.rpc import CallFailure
from dstack.probes.node.core_worker_replies import KINDS, group_asked_for
from dstack.probes.node.ray_messages import name_of
from dstack.probes.node.stacks.origins import PACKAGES, STANDARD
from dstack.probes.ray_state.control_plane import GUESSES, label_options
from dstack.probes.ray_state.event_source import ask_for_events
from dstack.probes.ray_state.repeated_calls import (
    EndedCall,
    call_of,
    ends_of,
    event_time,
    function_times,
    recent_ends,
    repeated_calls,
)

MAX_TASKS = 200
MAX_ERROR = 300
"""The most characters of a message."""
MAX_DETAILS = 200_000
"""Longer descriptions are not parsed."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PLACE = re.compile(r'^\s*File "(.+)", line (\d{1,9}), in .*(?:\n    +(\S.*))?', re.MULTILINE)
_CLASS = re.compile(r"<class '(?:.*\.)?(.+)'>")
_CAUSE = re.compile(r"^(?:The above exception was the direct cause|During handling of the above exception)", re.M)


class _Details(msgspec.Struct):
    """The exception in an executor's event of a task."""

    type: str = ""
    value: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class TracebackLine:
    """A line of a traceback; ``source`` is its text, if the executor had the file."""

    file: str
    line: int
    source: str | None = None


_DETAILS = msgspec.json.Decoder(_Details)


def failed_tasks(rows: Iterable[Any]) -> tuple[FailedTask, ...]:
    """The newest failed tasks, each with its last failed attempt; a later attempt may be running."""
    latest: dict[str, FailedTask] = {}
    for row in rows:
        task = _failed_task(row)
        known = latest.get(task.task_id)
        if known is None or known.attempt < task.attempt:
            latest[task.task_id] = task
    newest_first = sorted(latest.values(), key=lambda task: (-(task.failed_at or 0.0), task.task_id))
    return tuple(newest_first[:MAX_TASKS])


def _failed_task(row: Any) -> FailedTask:
    info, state = row.task_info, row.state_updates
    details, message = _details(row), _message(row)
    place = innermost_place((details.traceback if details else "") or message)
    return FailedTask(
        task_id=row.task_id.hex(),
        name=info.name or info.func_or_class_name,
        job_id=row.job_id.hex(),
        error_type=_error_type(state.error_info.error_type),
        error=_first_line(details, message),
        failed_at=event_time(state.state_ts_ns.get(common_pb2.FAILED)),
        attempt=row.attempt_number,
        actor_id=info.actor_id.hex() or None,
        parent_task_id=info.parent_task_id.hex() or None,
        worker_id=state.worker_id.hex() or None,
        node_id=state.node_id.hex() or None,
        pid=state.worker_pid or None,
        file=place.file if place else None,
        line=place.line if place else None,
        source=place.source if place else None,
    )


def error_of(row: Any) -> tuple[str, str]:
    """Ray's name of the error of a failed attempt, and the exception with the first line of its message."""
    return _error_type(row.state_updates.error_info.error_type), _first_line(_details(row), _message(row))


def _message(row: Any) -> str:
    return _COLOUR.sub("", row.state_updates.error_info.error_message)


def _first_line(details: _Details | None, message: str) -> str:
    return (raised(details) if details else "") or first_line_of_error(message)


def _details(row: Any) -> _Details | None:
    """The first description of an exception among a task's events."""
    texts = (event.extra_data for event in row.profile_events.events if event.event_name == "task:execute")
    return next((found for text in texts if (found := _parsed(text))), None)


def _parsed(text: str) -> _Details | None:
    if not 2 < len(text) <= MAX_DETAILS:
        return None
    try:
        details = _DETAILS.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return details if details.type else None


def raised(details: Any) -> str:
    """``ValueError: no such batch``: the class without its module, and the first line of the message.

    The value of an exception that another task raised before is the whole traceback of that one.
    """
    match = _CLASS.fullmatch(details.type)
    name = match[1] if match else details.type
    value = _COLOUR.sub("", details.value)
    if _PLACE.search(value) or value.startswith("ray::"):
        return first_line_of_error(value)
    return _short(f"{name}: {value}" if value.strip() else name)


def first_line_of_error(message: str) -> str:
    """The line that names the exception, after the last frame of the traceback; else the first line.

    Of a message with several lines, it is the first.
    """
    lines = message.splitlines()
    last_place = max((i for i, line in enumerate(lines) if _PLACE.match(line)), default=-1)
    after = [line for line in lines[last_place + 1 :] if line.strip()]
    if last_place >= 0:
        return _short(next((line for line in after if not line[0].isspace()), ""))
    plain = (line for line in after if not line.startswith(("User exception:", "ray::")))
    return _short(next((line for line in plain if line.strip(" ^~")), ""))


def _short(text: str) -> str:
    """The first line, without the list of possible causes of a worker's death."""
    return (text.strip().splitlines() or [""])[0].partition(GUESSES)[0].strip()[:MAX_ERROR]


def innermost_place(traceback: str) -> TracebackLine | None:
    """The innermost frame of the user's code, in the last exception."""
    raised_last = _CAUSE.split(traceback)[-1]
    places = (TracebackLine(match[1], int(match[2]), match[3]) for match in _PLACE.finditer(raised_last))
    own = [place for place in places if _is_users(place.file)]
    return own[-1] if own else None


def _is_users(file: str) -> bool:
    """Whether a file is neither Ray's, nor of an installed package or the standard library."""
    is_installed = PACKAGES.search(file) or STANDARD.match(file)
    return not is_installed and not file.startswith(("python/ray/", "<"))


def _error_type(number: int) -> str:
    """Ray's name of an error type; empty for an unknown number."""
    named: Iterator[tuple[str, int]] = iter(common_pb2.ErrorType.items())
    return next((name for name, value in named if value == number), "")


@cache
def _state_names() -> dict[int, str]:
    return dict(zip(common_pb2.TaskStatus.values(), common_pb2.TaskStatus.keys(), strict=True))


def states_of(ts_ns: Any) -> dict[str, float]:
    """Unix seconds by state, without invalid states and times."""
    known = _state_names()
    times = ((state, event_time(ns)) for state, ns in ts_ns.items() if state in known)
    return {known[state]: seconds for state, seconds in times if seconds is not None}


ARRIVED = "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY"
MAX_ARRIVED = 200_000
MAX_TIMED = 200
MAX_FAILED = 500
MAX_FINISHED = 2000
"""The rows that are requested: 3 kB each of failed tasks, with their tracebacks, and 0.5 kB each of others."""
MAX_EXCLUDED = 50
"""The newest dead jobs, whose tasks the GCS leaves out; those of other dead jobs are left out here."""


def ask_arrived_calls(cluster: Cluster, timeout_s: float, sample: int) -> tuple[dict[str, int], list[Failure]]:
    """The actor calls that have arrived at their actor by task id, with the attempt that has; and the failures.

    An executor reports that state only when all arguments of the call are available: then only its order or a free slot
    delays it. 5 ms with few tasks.
    """
    (reply,) = ask_for_events(cluster, [_request_of_arrived], timeout_s).replies
    if isinstance(reply, CallFailure):
        reason = f"the GCS did not return its task events: {reply.reason}"
        return {}, [Failure(stage="control plane", reason=reason, cause=reply.cause, sample=sample)]
    return {row.task_id.hex(): row.attempt_number for row in reply.events_by_task}, []


def _request_of_arrived() -> Any:
    request = gcs_service_pb2.GetTaskEventsRequest(limit=MAX_ARRIVED)
    request.filters.state_filters.add(state=ARRIVED)
    return request


def ask_task_times(cluster: Cluster, task_ids: Sequence[str], timeout_s: float) -> dict[str, TaskTimes]:
    """The times by task id that are known within ``timeout_s``, of the first :data:`MAX_TIMED`.

    A request finds one task by its id, two ids in one request find none. 100 requests at once took 0.06 s (2.46) and
    0.34 s (2.60) on a busy machine with 20,000 tasks in the GCS; one for all of a job's tasks, 0.7 s and 4 MB there.
    """
    task_ids = task_ids[:MAX_TIMED]
    replies = ask_for_events(cluster, [partial(_request_of_task, task_id) for task_id in task_ids], timeout_s).replies
    pairs = zip(task_ids, replies, strict=True)
    known = {task_id: reply.events_by_task for task_id, reply in pairs if not isinstance(reply, CallFailure)}
    return {task_id: times for task_id, attempts in known.items() if (times := times_of(attempts))}


def _request_of_task(task_id: str) -> Any:
    request = gcs_service_pb2.GetTaskEventsRequest()
    request.filters.task_filters.add(task_id=bytes.fromhex(task_id))
    return request


def times_of(attempts: Iterable[Any]) -> TaskTimes | None:
    """The states of the latest attempt, and the beginning of the first, if that is still kept."""
    by_number = {row.attempt_number: row for row in attempts}
    if not by_number:
        return None
    rows = {number: states_of(row.state_updates.state_ts_ns) for number, row in by_number.items()}
    latest = max(rows)
    submitted_at = min(rows[0].values(), default=None) if 0 in rows else None
    labels = label_options(by_number[latest].task_info)
    return TaskTimes(attempt=latest, submitted_at=submitted_at, states=rows[latest], label_options=labels)


def ask_history(cluster: Cluster, limit: int, timeout_s: float) -> tuple[TaskHistory | None, Failure | None]:
    """The newest ``limit`` attempts, and what they lack; None if the GCS does not answer in time.

    The GCS leaves out attempts of which it has dropped the first events. Everything, of 90,000 attempts, took 2 s and
    55 MB on 2 busy cores; a request for few takes up to 1 s there.
    """
    asked_at = time.time()
    asked = ask_for_events(cluster, [lambda: gcs_service_pb2.GetTaskEventsRequest(limit=limit)], timeout_s)
    (reply,) = asked.replies
    if isinstance(reply, CallFailure):
        reason = f"the GCS did not return the history of tasks: {reply.reason}"
        return None, Failure(stage="task events", reason=reason, cause=reply.cause, remedy="Use a longer --timeout.")
    return history_of(reply, asked_at), asked.failure


def history_of(reply: Any, asked_at: float) -> TaskHistory:
    """The history in a reply; invalid rows are left out."""
    attempts = sorted(_Reader().attempts(reply.events_by_task), key=_began)
    left_out = max(0, reply.num_truncated)
    return TaskHistory(
        asked_at=asked_at,
        attempts=tuple(attempts),
        kept=max(0, reply.num_total_stored),
        left_out=left_out,
        dropped=max(0, reply.num_status_task_events_dropped - left_out),
    )


def object_bytes(refs: Iterable[Ref]) -> dict[str, int]:
    """By task: the sizes of the objects that it has made and that are alive; each object counts once."""
    sizes: dict[str, int] = {}
    for ref in refs:
        if ref.size_bytes > 0 and not ref.ref.startswith(ACTOR_HANDLE):
            sizes[ref.ref] = max(ref.size_bytes, sizes.get(ref.ref, 0))
    found: dict[str, int] = defaultdict(int)
    for ref_id, size in sizes.items():
        found[producer_task_id(ref_id)] += size
    return dict(found)


def _began(attempt: TaskAttempt) -> tuple[float, str, int]:
    return min(attempt.states.values()), attempt.task_id, attempt.attempt


class _Reader:
    """Converts rows; texts and resources that many attempts share are kept once."""

    def __init__(self) -> None:
        self._ids: dict[bytes, str | None] = {}
        self._resources: dict[tuple[tuple[str, float], ...], dict[str, float]] = {}

    def attempts(self, rows: Iterable[Any]) -> Iterator[TaskAttempt]:
        """The attempts that have a kind and a time."""
        for row in rows:
            states = states_of(row.state_updates.state_ts_ns)
            kind = KINDS.get(name_of(common_pb2.TaskType, row.task_info.type))
            if states and kind is not None:
                yield self._attempt(row, kind, states)

    def _attempt(self, row: Any, kind: TaskKind, states: dict[str, float]) -> TaskAttempt:
        info, state = row.task_info, row.state_updates
        resources = self._shared_resources(info.required_resources)
        has_failed = "FAILED" in states
        error_type, error = error_of(row) if has_failed else ("", "")
        return TaskAttempt(
            task_id=row.task_id.hex(),
            name=sys.intern(info.name or info.func_or_class_name),
            kind=kind,
            job_id=self._id(row.job_id) or "",
            attempt=row.attempt_number,
            actor_id=self._id(info.actor_id),
            parent_task_id=self._id(info.parent_task_id),
            worker_id=self._id(state.worker_id),
            node_id=self._id(state.node_id),
            pid=state.worker_pid or None,
            states=states,
            required_resources=resources,
            placement_group_id=self._id(info.placement_group_id) or group_asked_for(resources),
            error_type=error_type,
            error=error,
        )

    def _id(self, data: bytes) -> str | None:
        """An id in hex; None if it is empty, or that of nothing."""
        if data not in self._ids:
            text = data.hex()
            self._ids[data] = text if text.strip("f") else None
        return self._ids[data]

    def _shared_resources(self, resources: Mapping[str, float]) -> dict[str, float]:
        key = tuple(sorted(resources.items()))
        return self._resources.setdefault(key, dict(key))


@dataclass(frozen=True)
class EndedTasks:
    """Ended tasks; ``window`` is None if the GCS timed out, and ``failure`` what the events lack."""

    failed: tuple[FailedTask, ...] = ()
    repeated: tuple[RepeatedCall, ...] = ()
    window: TaskEventWindow | None = None
    failure: Failure | None = None


def ask_ended_tasks(cluster: Cluster, jobs: Sequence[Job], timeout_s: float, latest_at: float) -> EndedTasks:
    """The tasks of live jobs that failed, newest first, and the calls that were still repeated at ``latest_at``."""
    dead = sorted((job.job_id for job in jobs if job.is_dead), reverse=True)[:MAX_EXCLUDED]
    limits = {"FAILED": MAX_FAILED, "FINISHED": MAX_FINISHED}
    requests = [partial(_request_of_ended, state, limit, dead) for state, limit in limits.items()]
    asked = ask_for_events(cluster, requests, timeout_s)
    failed, finished = asked.replies
    live = {job.job_id for job in jobs if not job.is_dead}
    ended = [] if isinstance(finished, CallFailure) else [call_of(row) for row in _of(finished, live)]
    repeated = repeated_calls(ended, latest_at)
    return EndedTasks(
        failed=() if isinstance(failed, CallFailure) else failed_tasks(_of(failed, live)),
        repeated=repeated,
        window=None if isinstance(finished, CallFailure) else _window(finished, ended, repeated, latest_at),
        failure=asked.failure,
    )


def _request_of_ended(state: str, limit: int, without_jobs: Iterable[str]) -> Any:
    request = gcs_service_pb2.GetTaskEventsRequest(limit=limit)
    request.filters.exclude_driver = True
    request.filters.state_filters.add(state=state)
    for job_id in without_jobs:
        request.filters.job_filters.add(predicate=gcs_service_pb2.NOT_EQUAL, job_id=bytes.fromhex(job_id))
    return request


def _of(reply: Any, job_ids: Collection[str]) -> list[Any]:
    return [row for row in reply.events_by_task if row.job_id.hex() in job_ids]


def _window(
    reply: Any, ended: Sequence[EndedCall], repeated: Sequence[RepeatedCall], latest_at: float
) -> TaskEventWindow:
    ends = [call.finished_at for call in ended if call.finished_at is not None]
    by_job, is_limited = ends_of(ended, repeated), reply.num_truncated > 0
    return TaskEventWindow(
        kept=max(0, reply.num_total_stored),
        read=len(ended),
        is_limited=is_limited,
        oldest_at=min(ends, default=None),
        last_ended_at={job_id: times[-1] for job_id, times in by_job.items()},
        recent={job_id: recent_ends(times, latest_at, is_limited=is_limited) for job_id, times in by_job.items()},
        functions=function_times(ended),
    )
