"""The attempts of tasks that the GCS keeps, from the events that workers report once a second.

The GCS keeps the last 100,000 attempts or so, of all jobs, and has no way to read them in pages: a request has a limit,
and gives the newest. It leaves out attempts of which it has dropped the first events. Everything, of 90,000 attempts,
took 2 s and 55 MB on 2 busy cores; a request for few takes up to 1 s there, as the GCS reads all of them for each
request. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dstack.model import ACTOR_HANDLE, TaskAttempt, TaskHistory, producer_task_id
from dstack.observed_node import Failure, Ref, TaskKind
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.ray_stubs import common_pb2, gcs_service_pb2, gcs_service_pb2_grpc
from dstack.probes.connection.rpc import Call, CallFailure, call_all
from dstack.probes.node.core_workers.replies import group_asked_for
from dstack.probes.ray_state.failed_tasks import error_of
from dstack.probes.ray_state.task_times import states_of

_KINDS: dict[str, TaskKind] = {
    kind: kind for kind in ("NORMAL_TASK", "ACTOR_CREATION_TASK", "ACTOR_TASK", "DRIVER_TASK")
}


def ask_history(cluster: Cluster, limit: int, timeout_s: float) -> tuple[TaskHistory | None, list[Failure]]:
    """The newest ``limit`` attempts; None, with a failure, if the GCS does not answer in time."""
    asked_at = time.time()
    request = gcs_service_pb2.GetTaskEventsRequest(limit=limit)
    stub = gcs_service_pb2_grpc.TaskInfoGcsServiceStub
    (reply,) = call_all([Call(cluster.address, stub, "GetTaskEvents", request, timeout_s)], cluster.metadata)
    if isinstance(reply, CallFailure):
        reason = f"the GCS did not return the history of tasks: {reply.reason}"
        return None, [Failure(stage="control plane", reason=reason, cause=reply.cause)]
    return history_of(reply, asked_at), []


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
            kind = _KINDS.get(_kind_name(row.task_info.type))
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


def _kind_name(number: int) -> str:
    return common_pb2.TaskType.Name(number) if number in common_pb2.TaskType.values() else ""
