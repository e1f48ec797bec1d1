"""Whether an autoscaler may add nodes to the cluster, by the GCS.

Seen on Ray 2.46 and 2.60:

- The autoscaler of `ray start --autoscaling-config` writes its report as JSON under a key of the GCS about once in 5 s.
  It names the configured type of every node. So does the monitor that any `ray start --head` runs, which can add
  nothing; but it makes up the types, as ``node_`` and the node's id. `ray.init` without a cluster runs none.
- The second version reports its state to the GCS. Where it can add nothing, no node has a type.

What types of nodes there are, and whether one more of them may be added, is in neither.
"""

from __future__ import annotations

import json
from typing import Any

from dstack.probes.connection.ray_stubs import (
    autoscaler_pb2,
    autoscaler_pb2_grpc,
    gcs_service_pb2,
    gcs_service_pb2_grpc,
)
from dstack.probes.connection.rpc import CallFailure, Request

REQUESTS: dict[str, Request] = {
    "autoscaler's report": (
        gcs_service_pb2_grpc.InternalKVGcsServiceStub,
        "InternalKVGet",
        gcs_service_pb2.InternalKVGetRequest(key=b"__autoscaling_status"),
    ),
    "autoscaler's state": (
        autoscaler_pb2_grpc.AutoscalerStateServiceStub,
        "GetClusterStatus",
        autoscaler_pb2.GetClusterStatusRequest(),
    ),
}


def active(v1: Any, v2: Any) -> str | None:
    """The autoscaler by the replies to these requests, or None."""
    if isinstance(v1, CallFailure) or isinstance(v2, CallFailure):
        return "autoscaler, if there is one (the GCS did not say)"
    if _may_add_v1(v1.value) or _may_add_v2(v2):
        return "autoscaler"
    return None


def _may_add_v1(status: bytes) -> bool:
    if not status:
        return False
    try:
        types = json.loads(status)["autoscaler_report"]["node_type_mapping"]
        return any(node_type != f"node_{node}" for node, node_type in types.items())
    except (ValueError, KeyError, TypeError, AttributeError):
        return True


def _may_add_v2(status: Any) -> bool:
    state = status.autoscaling_state
    is_adding = state.pending_instance_requests or state.pending_instances or state.failed_instance_requests
    has_types = any(node.ray_node_type_name for node in status.cluster_resource_state.node_states)
    return bool(state.autoscaler_state_version and (is_adding or has_types))
