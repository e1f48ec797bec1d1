"""Live workers, an autoscaler, and a cluster of one driver, by replies of the GCS of Ray 2.46 and 2.60."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from ray.core.generated import autoscaler_pb2, common_pb2, gcs_pb2

from dstack.probes.connection.rpc import CallFailure
from dstack.probes.ray_state.control_plane import active_autoscaler, is_of_one_driver, live_workers

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


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"ray_version": "2.60.0", "ray_init_cluster": true}', True),
        (b'{"ray_version": "2.60.0", "ray_init_cluster": false}', False),  # ray start, cluster_utils.Cluster
        (b'{"ray_version": "2.40.0"}', False),
        (b'{"ray_init_cluster": "yes"}', False),
        (b"[]", False),
        (b"\xff", False),
        (b"", False),
    ],
)
def test_a_cluster_of_ray_init_is_of_one_driver(value: bytes, expected: bool) -> None:
    assert is_of_one_driver(SimpleNamespace(value=value)) is expected


def test_a_cluster_whose_metadata_are_unknown_may_get_other_nodes() -> None:
    assert not is_of_one_driver(CallFailure("no answer within 3.0 s"))


def test_a_driver_with_an_uncaught_exception_is_found_by_its_job() -> None:
    job = gcs_pb2.JobTableData(driver_pid=77)
    address = job.driver_address
    address.worker_id, address.node_id, address.ip_address, address.port = b"\1", b"\2", "10.0.0.1", 9000
    replaced = gcs_pb2.WorkerTableData(is_alive=True, worker_type=common_pb2.DRIVER)
    replaced.worker_address.worker_id = b"\1"
    other = gcs_pb2.WorkerTableData(is_alive=True, pid=78)
    other.worker_address.worker_id = b"\3"

    driver, worker = live_workers([replaced, other, gcs_pb2.WorkerTableData()], [job])

    assert (driver.worker_id, driver.node_id, driver.ip, driver.port) == ("01", "02", "10.0.0.1", 9000)
    assert (driver.pid, driver.is_driver) == (77, True)
    assert (worker.worker_id, worker.pid, worker.is_driver) == ("03", 78, False)
