"""Whether an autoscaler may add nodes to the cluster, and what it has decided: its reports in the GCS.

- The first version, of ``ray start --autoscaling-config``, writes its report as JSON under a key of the GCS about once
  in 5 s. It names the configured type of every node. So does the monitor that any ``ray start --head`` runs, which can
  add nothing; but it makes up the types, as ``node_`` and the node's id. ``ray.init`` without a cluster runs none.
- The second version, also that of KubeRay, reports its state to the GCS. Where it can add nothing, no node has a type.

Neither reports the configured types of nodes and their limits. Only the second one says which requests it can add no
node for. It gives no reason for failed launches by a provider of the first version (Ray 2.60).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from dstack.model.snapshot import AutoscalerState, FailedLaunches, PendingNodes
from dstack.probes.connection.ray_stubs import autoscaler_pb2, gcs_service_pb2
from dstack.probes.connection.rpc import KV, CallFailure, Request
from dstack.words import grouped

MAX_ROWS, MAX_KINDS, MAX_TEXT = 1_000, 20, 300
"""At most so many rows of a report are read, so many of them are kept, and so much of their texts."""

AUTOSCALER_REQUESTS: dict[str, Request] = {
    "autoscaler's report": (
        KV,
        "InternalKVGet",
        lambda: gcs_service_pb2.InternalKVGetRequest(key=b"__autoscaling_status"),
    ),
    "autoscaler's state": (
        ("AutoscalerStateService", "autoscaler"),
        "GetClusterStatus",
        lambda: autoscaler_pb2.GetClusterStatusRequest(),
    ),
    "autoscaler's error": (
        KV,
        "InternalKVGet",
        lambda: gcs_service_pb2.InternalKVGetRequest(key=b"__autoscaling_error"),
    ),
}
"""What shows whether there is an autoscaler, and its state; in the order of the arguments of the functions below."""


class _Unavailable(msgspec.Struct):
    category: str = ""
    description: str = ""


class _Availability(msgspec.Struct):
    node_type: str
    is_available: bool = True
    last_checked_timestamp: float = 0.0
    unavailable_node_information: _Unavailable | None = None


class _Availabilities(msgspec.Struct):
    node_availabilities: dict[str, _Availability] = {}


class _Report(msgspec.Struct):
    """What the first version's report has of nodes; the nodes are by address, type and status."""

    node_type_mapping: dict[str, str] | None = None
    pending_nodes: list[tuple[str, str, str]] = []
    pending_launches: dict[str, int] = {}
    failed_nodes: list[tuple[str, str]] = []
    node_availability_summary: _Availabilities = msgspec.field(default_factory=_Availabilities)


class _Status(msgspec.Struct):
    autoscaler_report: _Report
    time: float = 0.0


def active_autoscaler(v1: Any, v2: Any, _error: Any = None) -> str | None:
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
        report = msgspec.json.decode(status, type=_Status).autoscaler_report
    except msgspec.DecodeError:
        return True
    if report.node_type_mapping is None:
        return True
    return any(node_type != f"node_{node}" for node, node_type in report.node_type_mapping.items())


def _may_add_v2(status: Any) -> bool:
    state = status.autoscaling_state
    is_adding = state.pending_instance_requests or state.pending_instances or state.failed_instance_requests
    has_types = any(node.ray_node_type_name for node in status.cluster_resource_state.node_states)
    return bool(state.autoscaler_state_version and (is_adding or has_types))


def autoscaler_state(v1: Any, v2: Any, error: Any) -> AutoscalerState | None:
    """What the autoscaler reports, by the replies to these requests; None if it reports nothing that is understood."""
    failed = "" if isinstance(error, CallFailure) else _error(error.value.decode(errors="replace"))
    if not isinstance(v2, CallFailure) and v2.autoscaling_state.autoscaler_state_version:
        return _state_v2(v2.autoscaling_state, failed)
    try:
        status = msgspec.json.decode(b"" if isinstance(v1, CallFailure) else v1.value, type=_Status)
    except msgspec.DecodeError:
        return AutoscalerState(error=failed) if failed else None
    return _state_v1(status, failed)


def _error(text: str) -> str:
    """The exception of a traceback, or the first line of another text, after Ray's own first line."""
    lines = [line.strip() for line in text.splitlines()[1:] if line.strip()] or text.splitlines()
    of_traceback = bool(lines) and lines[0].startswith("Traceback")
    return (lines[-1] if of_traceback else lines[0])[:MAX_TEXT] if lines else ""


# The first version


def _state_v1(status: _Status, failed: str) -> AutoscalerState:
    report = status.autoscaler_report
    pending = grouped(((kind, state), address) for address, kind, state in report.pending_nodes[:MAX_ROWS])
    launches = {(kind, "requested"): count for kind, count in report.pending_launches.items() if count}
    counts = launches | {key: len(nodes) for key, nodes in pending.items()}
    return AutoscalerState(
        reported_at=status.time or None,
        pending=tuple(PendingNodes(node_type=kind, count=n, status=state) for (kind, state), n in counts.items()),
        failed=tuple(_failed_v1(report))[:MAX_KINDS],
        error=failed,
    )


def _failed_v1(report: _Report) -> Iterator[FailedLaunches]:
    """The types that the provider had none of, and the nodes that were launched and then lost."""
    for one in report.node_availability_summary.node_availabilities.values():
        if not one.is_available:
            why = one.unavailable_node_information or _Unavailable()
            reason = ": ".join(filter(None, (why.category, why.description)))[:MAX_TEXT]
            yield FailedLaunches(node_type=one.node_type, reason=reason, last_at=one.last_checked_timestamp or None)
    for kind, nodes in grouped((kind, address) for address, kind in report.failed_nodes[:MAX_ROWS]).items():
        yield FailedLaunches(node_type=kind, times=len(nodes), reason="the node's raylet was lost or never started")


# The second version


def _state_v2(state: Any, failed: str) -> AutoscalerState:
    return AutoscalerState(
        pending=tuple(_pending_v2(state))[:MAX_KINDS],
        failed=tuple(_failed_v2(state.failed_instance_requests[:MAX_ROWS]))[:MAX_KINDS],
        refused=tuple(_distinct(dict(one.resources_bundle) for one in state.infeasible_resource_requests[:MAX_ROWS])),
        refused_groups=tuple(
            one.details.partition(":")[0] for one in state.infeasible_gang_resource_requests[:MAX_ROWS]
        ),
        error=failed,
    )


def _pending_v2(state: Any) -> Iterator[PendingNodes]:
    """The launches that were requested, and the instances that are there without a running raylet."""
    for one in state.pending_instance_requests[:MAX_ROWS]:
        yield PendingNodes(
            node_type=one.ray_node_type_name, count=one.count, status="requested", since=one.request_ts or None
        )
    allocated = ((one.ray_node_type_name, one.details[:MAX_TEXT]) for one in state.pending_instances[:MAX_ROWS])
    for (kind, details), several in grouped((key, None) for key in allocated).items():
        yield PendingNodes(node_type=kind, count=len(several), status=details or "allocated")


def _failed_v2(rows: Iterable[Any]) -> Iterator[FailedLaunches]:
    alike = grouped(((one.ray_node_type_name, one.reason[:MAX_TEXT]), one) for one in rows)
    for (kind, reason), several in alike.items():
        last_at = max(one.failed_ts for one in several)
        times = sum(one.count for one in several)
        yield FailedLaunches(node_type=kind, times=times, reason=reason, last_at=last_at or None)


def _distinct(requests: Iterable[dict[str, float]]) -> list[dict[str, float]]:
    return list({tuple(sorted(one.items())): one for one in requests}.values())
