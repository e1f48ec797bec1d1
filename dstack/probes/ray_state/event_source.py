"""Asks for task events where they are: in the GCS, or in the dashboard head if Ray reports them there.

Ray 2.58 to 2.60 do so if RAY_enable_task_events_to_dashboard_head and four more variables are set. The dashboard head
then answers ``POST /api/task_events/query`` with the messages of the GCS; others do not know the path. It reads all
events for each request: 0.5 to 0.8 s with 60,000 of them, and 1.6 s to give all (busy machine).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dstack.observed.node import Cause, Failure
from dstack.probes.connection.connect import WHERE_TOKENS_ARE, Cluster
from dstack.probes.connection.ray_protocol import protocol
from dstack.probes.connection.ray_stubs import common_pb2, gcs_service_pb2
from dstack.probes.connection.rpc import CallFailure, UnaryCall, call_all, gcs_service
from dstack.probes.node.ray_messages import name_of
from dstack.probes.ray_state.dashboard_head import HttpCall, ask_dashboard_head

QUERY = "/api/task_events/query"
REMEDIES: dict[Cause, str] = {
    "unreachable": "Start the head with ray[default] and its dashboard, and with --dashboard-host=0.0.0.0 for other"
    " hosts.",
    "timeout": "Check the dashboard's processes on the head node, or use a longer --timeout.",
    "permission": WHERE_TOKENS_ARE,
}
TURN_ON = (
    "Start all nodes with ray[default] and the head with its dashboard, or without"
    " RAY_enable_core_worker_task_event_to_gcs=0. RAY_task_events_report_interval_ms=0 turns task events off."
)
DIVIDED = Failure(
    stage="task events",
    reason="drivers report task events to the GCS, and workers to the dashboard head: it is unknown when tasks of these"
    " drivers ran",
    cause="missing",
    remedy="Start drivers with the same RAY_enable_... variables as the cluster.",
)


@dataclass(frozen=True, slots=True)
class EventReplies:
    """A reply, or a :class:`CallFailure`, for each request; ``failure`` says what Ray should have and has not."""

    replies: list[Any]
    failure: Failure | None = None


Message = Callable[[], Any]
"""Makes the message of a request, which this Ray may not have."""


def ask_for_events(cluster: Cluster, requests: Sequence[Message], timeout_s: float) -> EventReplies:
    """Asks the GCS, and the dashboard head if the GCS has nothing, or ends of tasks without the runs before."""
    service = gcs_service("TaskInfo")
    calls = [UnaryCall(cluster.address, service, "GetTaskEvents", request, timeout_s) for request in requests]
    of_gcs = call_all(calls, cluster.metadata)
    if any(isinstance(reply, CallFailure) for reply in of_gcs) or _is_whole(of_gcs):
        return EventReplies(of_gcs)
    of_head = ask_dashboard_head(cluster, [_http_call(request) for request in requests], timeout_s)
    if not isinstance(of_head, CallFailure) and not any(map(_stored, of_head)):
        of_head = CallFailure("has none", "missing")
    if isinstance(of_head, CallFailure):
        return EventReplies(of_gcs, None if any(map(_stored, of_gcs)) else _absent(of_head))
    if not any(map(_stored, of_gcs)):
        return EventReplies(of_head)
    return EventReplies(list(map(_joined, of_gcs, of_head)), DIVIDED)


def _http_call(request: Message) -> HttpCall:
    """The request to the dashboard head."""

    def reply(body: bytes) -> Any:
        return protocol().checked(gcs_service_pb2.GetTaskEventsReply.FromString(body))

    return HttpCall("POST", QUERY, reply, lambda: request().SerializeToString())


def _is_whole(replies: Sequence[Any]) -> bool:
    """Whether there are events, and executors reported theirs too: the tasks that have ended ran before."""

    def has(state: int) -> bool:
        rows = (row for reply in replies for row in reply.events_by_task)
        return any(state in row.state_updates.state_ts_ns and not _is_driver(row) for row in rows)

    return any(map(_stored, replies)) and (has(common_pb2.RUNNING) or not has(common_pb2.FINISHED))


def _is_driver(row: Any) -> bool:
    return name_of(common_pb2.TaskType, row.task_info.type) == "DRIVER_TASK"


def _stored(reply: Any) -> int:
    return 0 if isinstance(reply, CallFailure) else int(reply.num_total_stored) or len(reply.events_by_task)


@dataclass(frozen=True, slots=True)
class _Joined:
    """Two replies as one; they have no attempt in common, as either has those that their owners report there."""

    events_by_task: list[Any]
    num_total_stored: int
    num_truncated: int
    num_status_task_events_dropped: int


def _joined(one: Any, other: Any) -> Any:
    if isinstance(other, CallFailure):
        return one
    return _Joined(
        [*one.events_by_task, *other.events_by_task],
        one.num_total_stored + other.num_total_stored,
        one.num_truncated + other.num_truncated,
        one.num_status_task_events_dropped + other.num_status_task_events_dropped,
    )


def _absent(head: CallFailure) -> Failure:
    return Failure(
        stage="task events",
        reason=f"Ray has no events of the tasks that have run: the GCS has none, and the dashboard head {head.reason}",
        cause=head.cause,
        remedy=REMEDIES.get(head.cause, TURN_ON),
    )
