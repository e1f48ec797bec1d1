"""When tasks entered their states, from the task events that workers report to the GCS. Seen on Ray 2.46 and 2.60.

Workers report once a second, and the GCS keeps the last 100,000 tasks or so: other times are unknown. A
request finds one task by its id, two ids in one request find none. 100 requests at once took 0.06 s (2.46) and
0.34 s (2.60) on a busy machine with 20,000 tasks in the GCS; one for all of a job's tasks, 0.7 s and 4 MB there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from dstack.model import TaskTimes
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.ray_stubs import common_pb2, gcs_service_pb2, gcs_service_pb2_grpc
from dstack.probes.connection.rpc import Call, CallFailure, call_all

MAX_TASKS = 200
LATEST = 253_370_764_799.0
"""The end of the calendar; later times are invalid."""


def ask_task_times(cluster: Cluster, task_ids: Sequence[str], timeout_s: float) -> dict[str, TaskTimes]:
    """The times by task id that are known within ``timeout_s``, of the first :data:`MAX_TASKS`."""
    task_ids = task_ids[:MAX_TASKS]
    stub = gcs_service_pb2_grpc.TaskInfoGcsServiceStub
    calls = [Call(cluster.address, stub, "GetTaskEvents", _request(task_id), timeout_s) for task_id in task_ids]
    replies = zip(task_ids, call_all(calls, cluster.metadata), strict=True)
    known = {task_id: reply.events_by_task for task_id, reply in replies if not isinstance(reply, CallFailure)}
    return {task_id: times for task_id, attempts in known.items() if (times := _times(attempts))}


def _request(task_id: str) -> Any:
    request = gcs_service_pb2.GetTaskEventsRequest()
    request.filters.task_filters.add(task_id=bytes.fromhex(task_id))
    return request


def _times(attempts: Iterable[Any]) -> TaskTimes | None:
    """The states of the latest attempt, and the beginning of the first, if that is still kept."""
    rows = {row.attempt_number: states_of(row.state_updates.state_ts_ns) for row in attempts}
    if not rows:
        return None
    latest = max(rows)
    submitted_at = min(rows[0].values(), default=None) if 0 in rows else None
    return TaskTimes(attempt=latest, submitted_at=submitted_at, states=rows[latest])


@cache
def _state_names() -> dict[int, str]:
    return dict(zip(common_pb2.TaskStatus.values(), common_pb2.TaskStatus.keys(), strict=True))


def states_of(ts_ns: Any) -> dict[str, float]:
    """Unix seconds by state, without invalid states and times."""
    known = _state_names()
    times = ((state, event_time(ns)) for state, ns in ts_ns.items() if state in known)
    return {known[state]: seconds for state, seconds in times if seconds is not None}


def event_time(ns: int | None) -> float | None:
    """Unix seconds of a time in task events; None if it is absent or invalid."""
    seconds = (ns or 0) / 1e9
    return seconds if 0 < seconds < LATEST else None
