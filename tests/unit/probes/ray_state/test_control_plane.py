"""Live workers, and a cluster of one driver, by replies of the GCS of Ray 2.46 and 2.60."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray.core.generated import common_pb2, gcs_pb2

from dstack.probes.connection.rpc import CallFailure
from dstack.probes.ray_state.control_plane import (
    is_of_one_driver,
    label_options,
    live_workers,
)


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


def test_the_labels_of_a_fallback_strategy_come_after_the_selector() -> None:
    row = common_pb2.TaskInfoEntry(label_selector={"zone": "in(a,b)"})
    for operator, values in (("IN", ["c"]), ("NOT_IN", ["d", "e"])):
        constraints = row.fallback_strategy.options.add().label_selector.label_constraints
        constraints.add(label_key="zone", operator=f"LABEL_OPERATOR_{operator}", label_values=values)

    assert label_options(row) == ({"zone": "in(a,b)"}, {"zone": "c"}, {"zone": "!in(d,e)"})
    assert label_options(common_pb2.TaskInfoEntry()) == ()
