"""Whether there is an autoscaler, and what it reports, by replies of the GCS of Ray 2.46 and 2.60."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from ray.core.generated import autoscaler_pb2

from dstack.model.snapshot import AutoscalerState, FailedLaunches, PendingNodes
from dstack.probes.connection.rpc import CallFailure
from dstack.probes.ray_state.autoscaler import MAX_KINDS, active_autoscaler, autoscaler_state

NODE = "fe7512b43181b5aa2bf352d9b8466d9d0015beb05e2700aec7c9858a"
NOTHING = autoscaler_pb2.GetClusterStatusReply()


def v1(types: object) -> SimpleNamespace:
    """The report of the first version, or of the monitor that every head has."""
    report = {"autoscaler_report": {"active_nodes": {}, "node_type_mapping": types}, "monitor_pid": 11273}
    return SimpleNamespace(value=json.dumps(report).encode())


def v2(*types: str, version: int = 2) -> autoscaler_pb2.GetClusterStatusReply:
    """The state that the second version reports, with the types of its nodes."""
    reply = autoscaler_pb2.GetClusterStatusReply()
    reply.autoscaling_state.autoscaler_state_version = version
    for node_type in types:
        reply.cluster_resource_state.node_states.add(ray_node_type_name=node_type)
    return reply


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (SimpleNamespace(value=b""), NOTHING),  # ray.init without a cluster
        (v1({NODE: f"node_{NODE}"}), NOTHING),  # ray start --head
        (SimpleNamespace(value=b""), v2("")),  # ray start --head with the second version
        (SimpleNamespace(value=b""), v2("headgroup", version=0)),  # nodes of Kubernetes without an autoscaler
    ],
)
def test_a_monitor_that_cannot_add_nodes_is_no_autoscaler(first: SimpleNamespace, second: object) -> None:
    assert active_autoscaler(first, second) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (v1({"f" * 51 + "00000": "ray.head.default"}), NOTHING),  # ray start --head --autoscaling-config
        (SimpleNamespace(value=b""), v2("headgroup", "workers")),
        (SimpleNamespace(value=b"{}"), NOTHING),  # a malformed value
    ],
)
def test_configured_types_of_nodes_mean_an_autoscaler(first: SimpleNamespace, second: object) -> None:
    assert active_autoscaler(first, second) == "autoscaler"


def test_pending_instances_mean_an_autoscaler() -> None:
    reply = v2("")
    reply.autoscaling_state.pending_instance_requests.add(ray_node_type_name="workers", count=1)

    assert active_autoscaler(SimpleNamespace(value=b""), reply) == "autoscaler"


def test_a_cluster_that_does_not_answer_may_have_an_autoscaler() -> None:
    assert "if there is one" in (active_autoscaler(CallFailure("no answer within 3.0 s"), NOTHING) or "")


# What it reports

EMPTY = SimpleNamespace(value=b"")
FAILED = "The autoscaler failed with the following error:"
NO_ANSWER = CallFailure("no answer within 3.0 s")


def state_of(first: object = EMPTY, second: object = NOTHING, error: bytes = b"") -> AutoscalerState | None:
    return autoscaler_state(first, second, SimpleNamespace(value=error))


def report(**known: object) -> SimpleNamespace:
    """The report of the first version."""
    status = {"time": 1795912392.5, "autoscaler_report": {"node_type_mapping": {"1": "gpus"}, "legacy": True, **known}}
    return SimpleNamespace(value=json.dumps(status).encode())


def test_the_first_version_reports_pending_nodes() -> None:
    pending = [["10.0.0.1", "gpus", "setting-up"], ["10.0.0.2", "gpus", "setting-up"], ["10.0.0.3", "small", "waiting"]]

    state = state_of(report(pending_nodes=pending, pending_launches={"gpus": 3, "small": 0}))

    assert state is not None
    assert state.reported_at == 1795912392.5
    assert state.pending == (
        PendingNodes(node_type="gpus", count=3, status="requested"),
        PendingNodes(node_type="gpus", count=2, status="setting-up"),
        PendingNodes(node_type="small", count=1, status="waiting"),
    )


def test_the_first_version_reports_what_its_provider_has_none_of() -> None:
    why = {"category": "InsufficientInstanceCapacity", "description": "none in us-east-1a"}
    rows = {
        "dear": {
            "node_type": "dear",
            "is_available": False,
            "last_checked_timestamp": 1795912380,
            "unavailable_node_information": why,
        },
        "gpus": {
            "node_type": "gpus",
            "is_available": True,
            "last_checked_timestamp": 1,
            "unavailable_node_information": None,
        },
    }

    state = state_of(
        report(node_availability_summary={"node_availabilities": rows}, failed_nodes=[["10.0.0.4", "gpus"]])
    )

    assert state is not None
    first, second = state.failed
    assert first == FailedLaunches(
        node_type="dear", reason="InsufficientInstanceCapacity: none in us-east-1a", last_at=1795912380.0
    )
    assert (second.node_type, second.times) == ("gpus", 1)


def test_the_second_version_reports_requests_that_it_can_add_no_node_for() -> None:
    reply = v2("gpus")
    for _ in range(2):
        reply.autoscaling_state.infeasible_resource_requests.add(resources_bundle={"GPU": 8.0, "CPU": 1.0})
    reply.autoscaling_state.infeasible_gang_resource_requests.add(details="29e1:STRICT_SPREAD|PENDING")

    state = state_of(second=reply)

    assert state == AutoscalerState(refused=({"GPU": 8.0, "CPU": 1.0},), refused_groups=("29e1",))


def test_failed_launches_of_a_kind_are_counted() -> None:
    reply = v2("gpus")
    for number in range(3):
        reply.autoscaling_state.failed_instance_requests.add(
            ray_node_type_name="dear", count=1, reason="no quota", failed_ts=100 + number
        )
    reply.autoscaling_state.pending_instance_requests.add(ray_node_type_name="dear", count=2, request_ts=90)
    reply.autoscaling_state.pending_instances.add(ray_node_type_name="gpus")

    state = state_of(second=reply)

    assert state is not None
    assert state.failed == (FailedLaunches(node_type="dear", times=3, reason="no quota", last_at=102.0),)
    assert state.pending == (
        PendingNodes(node_type="dear", count=2, status="requested", since=90.0),
        PendingNodes(node_type="gpus", count=1, status="allocated"),
    )


def test_a_report_of_any_size_is_bounded() -> None:
    reply = v2("gpus")
    for number in range(2_000):
        reply.autoscaling_state.failed_instance_requests.add(ray_node_type_name=str(number), reason="x" * 5_000)

    state = state_of(second=reply)

    assert state is not None
    assert len(state.failed) == MAX_KINDS
    assert all(len(one.reason) <= 300 for one in state.failed)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "The autoscaler failed with the following error:\nTerminated with signal 15\n  File x",
            "Terminated with signal 15",
        ),
        (
            "The autoscaler failed with the following error:\nTraceback (most ...\n  f()\nKeyError: 'a'\n",
            "KeyError: 'a'",
        ),
        ("", ""),
    ],
)
def test_an_autoscaler_that_has_ended_says_why(text: str, error: str) -> None:
    state = state_of(report(), error=text.encode())

    assert state is not None
    assert state.error == error


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"autoscaler_report": {"pending_nodes": [[1, 2]]}}'])
def test_a_report_that_is_not_understood_is_none(value: bytes) -> None:
    assert state_of(SimpleNamespace(value=value)) is None


def test_a_control_plane_that_does_not_answer_reports_nothing() -> None:
    assert autoscaler_state(NO_ANSWER, NO_ANSWER, NO_ANSWER) is None
