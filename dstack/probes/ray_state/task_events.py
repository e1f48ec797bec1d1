"""Which actor calls have arrived at their actor, by the task events that workers report to the GCS.

An executor reports that state only when all arguments of the call are available: then only its order or a free slot
delays it. Workers report once a second, and the GCS keeps the last 100,000 tasks or so: other calls are unknown. Seen
on Ray 2.46 and 2.60; 5 ms with few tasks.
"""

from __future__ import annotations

from dstack.observed_node import Failure
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.ray_stubs import gcs_service_pb2, gcs_service_pb2_grpc
from dstack.probes.connection.rpc import Call, CallFailure, call_all

ARRIVED = "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY"
LIMIT = 200_000


def ask_arrived_calls(cluster: Cluster, timeout_s: float, sample: int) -> tuple[dict[str, int], list[Failure]]:
    """The arrived calls by task id, with the attempt that has arrived; and the failures."""
    request = gcs_service_pb2.GetTaskEventsRequest(limit=LIMIT)
    request.filters.state_filters.add(state=ARRIVED)
    stub = gcs_service_pb2_grpc.TaskInfoGcsServiceStub
    (reply,) = call_all([Call(cluster.address, stub, "GetTaskEvents", request, timeout_s)], cluster.metadata)
    if isinstance(reply, CallFailure):
        reason = f"the GCS did not return its task events: {reply.reason}"
        return {}, [Failure(stage="control plane", reason=reason, cause=reply.cause, sample=sample)]
    return {row.task_id.hex(): row.attempt_number for row in reply.events_by_task}, []
