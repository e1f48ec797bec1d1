"""Ended tasks in the newest task events: failed tasks, and calls that are repeated.

Workers report once a second, and the GCS keeps the last 100,000 tasks or so. It reads all of them for each request,
whatever the filters: 15 ms with 2,000 tasks, 0.65 s with 93,000 (Ray 2.60, busy machine). Without a filter that asks
for one job it gives the newest first, so a limited reply is about the latest tasks. Several filters of one kind must
all be met. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dstack.model import FailedTask, Job, RepeatedCall, TaskEventWindow
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.ray_stubs import gcs_service_pb2, gcs_service_pb2_grpc
from dstack.probes.connection.rpc import Call, CallFailure, call_all
from dstack.probes.ray_state.failed_tasks import failed_tasks
from dstack.probes.ray_state.repeated_calls import EndedCall, call_of, last_ended, repeated_calls

MAX_FAILED = 500
MAX_FINISHED = 2000
"""The rows that are requested: 3 kB each of failed tasks, with their tracebacks, and 0.5 kB each of others."""
MAX_EXCLUDED = 50
"""The newest dead jobs, whose tasks the GCS leaves out; those of other dead jobs are left out here."""


@dataclass(frozen=True)
class EndedTasks:
    """Ended tasks; ``window`` is None if the GCS timed out."""

    failed: tuple[FailedTask, ...] = ()
    repeated: tuple[RepeatedCall, ...] = ()
    window: TaskEventWindow | None = None


def ask_ended_tasks(cluster: Cluster, jobs: Sequence[Job], timeout_s: float, latest_at: float) -> EndedTasks:
    """The tasks of live jobs that failed, newest first, and the calls that were still repeated at ``latest_at``."""
    dead = sorted((job.job_id for job in jobs if job.is_dead), reverse=True)[:MAX_EXCLUDED]
    requests = [_request("FAILED", MAX_FAILED, dead), _request("FINISHED", MAX_FINISHED, dead)]
    stub = gcs_service_pb2_grpc.TaskInfoGcsServiceStub
    calls = [Call(cluster.address, stub, "GetTaskEvents", request, timeout_s) for request in requests]
    failed, finished = call_all(calls, cluster.metadata)
    live = {job.job_id for job in jobs if not job.is_dead}
    ended = [] if isinstance(finished, CallFailure) else [call_of(row) for row in _of(finished, live)]
    repeated = repeated_calls(ended, latest_at)
    return EndedTasks(
        failed=() if isinstance(failed, CallFailure) else failed_tasks(_of(failed, live)),
        repeated=repeated,
        window=None if isinstance(finished, CallFailure) else _window(finished, ended, repeated),
    )


def _request(state: str, limit: int, without_jobs: Iterable[str]) -> Any:
    request = gcs_service_pb2.GetTaskEventsRequest(limit=limit)
    request.filters.exclude_driver = True
    request.filters.state_filters.add(state=state)
    for job_id in without_jobs:
        request.filters.job_filters.add(predicate=gcs_service_pb2.NOT_EQUAL, job_id=bytes.fromhex(job_id))
    return request


def _of(reply: Any, job_ids: Collection[str]) -> list[Any]:
    return [row for row in reply.events_by_task if row.job_id.hex() in job_ids]


def _window(reply: Any, ended: Sequence[EndedCall], repeated: Sequence[RepeatedCall]) -> TaskEventWindow:
    ends = [call.finished_at for call in ended if call.finished_at is not None]
    return TaskEventWindow(
        kept=max(0, reply.num_total_stored),
        read=len(ended),
        is_limited=reply.num_truncated > 0,
        oldest_at=min(ends, default=None),
        last_ended_at=last_ended(ended, repeated),
    )
