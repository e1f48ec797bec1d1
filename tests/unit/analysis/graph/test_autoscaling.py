"""What the autoscaler reports is said of the waits for a node, and changes no verdict to a hang."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dstack.analysis.naming.descriptions import describe
from dstack.analysis.second_sample import plan_readings
from dstack.model.diagnosis import Diagnosis
from dstack.model.snapshot import AutoscalerState, Bundle, FailedLaunches, PendingNodes, PlatformEvent
from tests.unit.analysis.graph.resource_requests import labels, pending
from tests.unit.scenes import Call, Scene
from tests.unit.scenes.scene import TAKEN_AT

HOUR_S = 3_600.0
WANTED = {"CPU": 1.0, "GPU": 8.0}


class Autoscaled:
    """A cluster with an autoscaler, an hour old, whose one node has 4 GPU; a driver waits for a task with 8."""

    def __init__(self, needs: dict[str, float] | None = None, **state: Any) -> None:
        self.scene = Scene()
        head = self.scene.joined(self.scene.node(CPU=4.0, GPU=4.0), HOUR_S, is_head=True)
        self.scene.autoscaler, self.scene.autoscaler_state = "autoscaler", AutoscalerState(**state)
        self.driver = self.scene.driver(head)
        self.call: Call = pending(self.scene, self.driver, **(needs or WANTED))
        self.driver.gets(self.call)

    def awaited(self) -> str:
        """What the task waits for."""
        (label,) = labels(self.scene, self.scene.wait_of(self.call))
        return label

    def diagnose(self) -> Diagnosis:
        return self.scene.sample().second_sample().diagnose()


@pytest.mark.parametrize(
    ("state", "report"),
    [
        ({}, ""),
        (
            {"pending": (PendingNodes(node_type="gpus", count=2, status="requested", since=TAKEN_AT - 41.0),)},
            " (2 nodes of type gpus are pending (requested) for 41 s)",
        ),
        (
            {"pending": (PendingNodes(node_type="gpus", count=1),)},
            " (1 node of type gpus is pending)",
        ),
        (
            {"failed": (FailedLaunches(node_type="gpus", times=12, reason="no quota", last_at=TAKEN_AT - 4.0),)},
            " (12 launches of type gpus have failed, the last one 4.0 s ago: no quota)",
        ),
        (
            {"failed": (FailedLaunches(node_type="gpus", times=1),)},
            " (1 launch of type gpus has failed: it gives no reason)",
        ),
        (
            {"failed": (FailedLaunches(node_type="gpus", reason="Capacity: none", last_at=TAKEN_AT - 60.0),)},
            " (its provider had no node of type gpus 1 min ago: Capacity: none)",
        ),
        ({"error": "Terminated with signal 15"}, " (it has failed: Terminated with signal 15)"),
        ({"reported_at": TAKEN_AT - 300.0}, " (its last report is 5 min old)"),
        ({"reported_at": TAKEN_AT - 10.0}, ""),
    ],
)
def test_the_autoscaler_is_named_with_its_report(state: dict[str, Any], report: str) -> None:
    assert Autoscaled(**state).awaited() == f"autoscaler, which may add a node{report}"


def test_further_reports_are_lines_of_its_entry() -> None:
    failed = FailedLaunches(node_type="gpus", times=12, reason="no quota")
    cluster = Autoscaled(failed=(failed,), pending=(PendingNodes(node_type="small", count=1),))

    (finding,) = cluster.diagnose().findings

    also = [line for row in finding.diagram.rows for line in getattr(row, "also", ())]
    assert also == ["it reports: 1 node of type small is pending"]
    assert "12 launches of type gpus have failed: no quota" in finding.summary


def test_a_request_that_it_can_add_no_node_for_is_no_hang() -> None:
    cluster = Autoscaled(refused=({"GPU": 8.0, "CPU": 1.0},))

    diagnosis = cluster.diagnose()

    (finding,) = diagnosis.findings
    assert diagnosis.verdict in ("stalled", "running")
    assert (
        "node for 1 CPU and 8 GPU: the most a node has is 4 GPU, and the autoscaler reports that it can add no such"
        " node now" in finding.summary
    )
    assert finding.advice is not None
    assert finding.advice.text.startswith("Give the autoscaler a type of node that has it")


def test_another_request_is_not_refused() -> None:
    cluster = Autoscaled(needs={"CPU": 1.0, "special": 1.0}, refused=(WANTED,))

    assert cluster.awaited() == "autoscaler, which may add a node"


def test_a_limit_of_nodes_is_a_report_where_present_nodes_have_it() -> None:
    cluster = Autoscaled(needs={"CPU": 1.0, "GPU": 4.0}, refused=({"CPU": 1.0, "GPU": 4.0},))
    (node,) = cluster.scene.nodes
    cluster.scene.available[node.node_id] = {"CPU": 4.0, "GPU": 0.0}

    named = labels(cluster.scene, cluster.scene.wait_of(cluster.call))

    assert "autoscaler, which may add a node (it reports that it can add no such node now)" in named


def test_a_placement_group_is_refused_by_its_id() -> None:
    cluster = Autoscaled()
    scene = cluster.scene
    group = scene.group("PENDING", Bundle(resources={"GPU": 8.0}), strategy="STRICT_PACK")
    scene.autoscaler_state = AutoscalerState(refused_groups=(group.placement_group_id,))

    (label,) = labels(scene, scene.wait_of(group))

    assert "the autoscaler reports that it can add no such node now" in label


def test_nodes_that_come_and_go_are_counted() -> None:
    cluster = Autoscaled()
    for ago_s in (300.0, 120.0, 30.0):
        node = cluster.scene.joined(cluster.scene.node(alive=True, CPU=8.0, GPU=8.0), ago_s + 41.0)
        cluster.scene.lose(cluster.scene.joined(node, ago_s + 41.0, death_cause="its raylet was killed"), ago_s)

    assert cluster.awaited() == (
        "autoscaler, which may add a node (3 nodes that had it have joined and left, after at most 41 s, the last one"
        " 30 s ago: its raylet was killed)"
    )


@pytest.mark.parametrize("gpus", [4.0, 8.0])
def test_nodes_that_left_long_ago_or_lacked_it_do_not_count(gpus: float) -> None:
    cluster = Autoscaled()
    ago_s = HOUR_S if gpus == 8.0 else 30.0
    for _ in range(3):
        cluster.scene.lose(cluster.scene.joined(cluster.scene.node(alive=True, CPU=8.0, GPU=gpus), 2 * HOUR_S), ago_s)

    assert cluster.awaited() == "autoscaler, which may add a node"


# The platform

POD = PlatformEvent(
    kind="Pod",
    name="gpu-x7k2p",
    reason="FailedScheduling",
    message="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    at=TAKEN_AT - 12.0,
    count=7,
)
LACKS = "Pod gpu-x7k2p: FailedScheduling: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu"


def test_a_pod_that_is_pending_is_named_first() -> None:
    cluster = Autoscaled(pending=(PendingNodes(node_type="gpus", count=1),))
    cluster.scene.platform_events = (POD,)

    assert cluster.awaited() == f"autoscaler, which may add a node ({LACKS} (7 times, the last one 12 s ago))"


def test_a_pending_pod_may_be_the_node_without_an_autoscaler() -> None:
    cluster = Autoscaled()
    cluster.scene.autoscaler, cluster.scene.platform_events = None, (POD,)

    diagnosis = cluster.diagnose()

    (finding,) = diagnosis.findings
    assert diagnosis.verdict == "stalled"
    assert LACKS in finding.summary
    assert finding.advice is not None
    assert finding.advice.text == "`kubectl describe pod gpu-x7k2p` shows why it does not start."


def test_a_name_that_a_shell_would_run_is_not_in_a_command() -> None:
    cluster = Autoscaled()
    cluster.scene.autoscaler, cluster.scene.platform_events = None, (replace(POD, name="x; reboot"),)

    (finding,) = cluster.diagnose().findings

    assert finding.advice is not None
    assert finding.advice.text == "`kubectl describe pod POD` shows why it does not start."


@pytest.mark.parametrize("event", [replace(POD, reason="Unhealthy"), replace(POD, at=TAKEN_AT - HOUR_S)])
def test_other_warnings_and_old_ones_promise_no_node(event: PlatformEvent) -> None:
    cluster = Autoscaled()
    cluster.scene.autoscaler, cluster.scene.platform_events = None, (event,)

    assert cluster.diagnose().verdict == "hang"


def test_what_no_node_has_asks_the_platform() -> None:
    cluster = Autoscaled()
    cluster.scene.autoscaler = None

    assert plan_readings(cluster.scene.sample().snapshot()).waits_for_nodes


def test_what_waits_for_no_node_does_not() -> None:
    cluster = Autoscaled(needs={"CPU": 1.0})

    assert not plan_readings(cluster.scene.sample().snapshot()).waits_for_nodes


def test_a_snapshot_of_an_older_dstack_has_no_report() -> None:
    cluster = Autoscaled()
    cluster.scene.autoscaler_state = None

    assert [describe(one) for one in cluster.scene.graph().values() if one.kind == "unknown"] == [
        "autoscaler, which may add a node"
    ]
