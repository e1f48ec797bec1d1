"""Requests that no present node satisfies, while other nodes may join or return."""

from __future__ import annotations

import re

import pytest

from dstack.analysis.diagnose import diagnose
from dstack.model.diagnosis import Diagnosis
from dstack.model.snapshot import Bundle, Node
from tests.unit.analysis.graph.resource_requests import labels, never, pending
from tests.unit.scenes import Call, Scene

LONG_AGO = 3_600.0
TIME = re.compile(r"\d\d:\d\d:\d\d")


class Cluster:
    """A cluster whose head has no ``special``, an hour old; a driver waits for a task that asks for two of them."""

    def __init__(self, age_s: float = LONG_AGO, **head: float) -> None:
        self.scene = Scene()
        self.head = self.scene.joined(self.scene.node(CPU=4.0), age_s, is_head=True, **head)
        self.driver = self.scene.driver(self.head)

    def node(self, joined_s: float = LONG_AGO, **resources: float) -> Node:
        return self.scene.joined(self.scene.node(resources, alive=True, **resources), joined_s)

    def lost(self, ago_s: float, **resources: float) -> Node:
        return self.scene.lose(self.node(**resources), ago_s)

    def asks(self, **needs: float) -> Call:
        call = pending(self.scene, self.driver, **(needs or {"special": 2.0}))
        self.driver.gets(call)
        return call

    def diagnose(self, nodes_settle_s: float = 60.0) -> Diagnosis:
        self.scene.sample().second_sample()
        return diagnose(self.scene.snapshot(), nodes_settle_s=nodes_settle_s)


def text(diagnosis: Diagnosis) -> str:
    (finding,) = diagnosis.findings
    return TIME.sub(
        "TIME", "\n".join((finding.summary, *(step.text for step in finding.explanation), str(finding.advice)))
    )


# A hang at once, or after a while


def test_in_a_cluster_of_one_driver_it_can_never_run() -> None:
    cluster = Cluster(age_s=1.0)
    cluster.scene.is_of_one_driver = True
    call = cluster.asks()

    diagnosis = cluster.diagnose()

    assert diagnosis.verdict == "hang"
    assert diagnosis.findings[0].summary == "wanting can never run: it asks for 2 special, but no node has any special"
    assert diagnosis.findings[0].members == (call.key,)


def test_a_cluster_of_one_driver_that_another_node_joined_may_get_more() -> None:
    cluster = Cluster()
    cluster.scene.is_of_one_driver = True
    cluster.node(joined_s=20.0, CPU=1.0)
    cluster.asks()

    assert cluster.diagnose().verdict == "stalled"


def test_when_no_node_has_joined_for_a_while_it_is_a_hang() -> None:
    cluster = Cluster()
    cluster.node(joined_s=180.0, CPU=1.0)
    cluster.asks()

    diagnosis = cluster.diagnose()

    assert diagnosis.verdict == "hang"
    assert diagnosis.findings[0].summary == (
        "wanting cannot run on the present nodes: it asks for 2 special, but no node has any special, and none has"
        " joined for 3 min"
    )


def test_without_times_it_is_a_hang() -> None:
    scene = Scene()
    scene.lose(scene.node(special=2.0), ago_s=1.0)
    driver = scene.driver(scene.node(CPU=4.0))

    assert never(scene, pending(scene, driver, special=2.0).key) == "asks for 2 special, but no node has any special"


# No hang yet


def test_in_a_young_cluster_a_node_may_still_join() -> None:
    cluster = Cluster(age_s=40.0)
    call = cluster.asks()

    diagnosis = cluster.diagnose()

    assert diagnosis.verdict == "stalled"
    assert not diagnosis.fails()
    assert set(diagnosis.findings[0].members) == {call.key, cluster.driver.key}
    assert text(diagnosis).replace("; its processes used 0.00 s of CPU time", "") == (
        "driver train.py waits for wanting; all depends on the node for 2 special that may still join: no node has "
        "any special, but the cluster is 40 s old\n"
        "the node for 2 special that may still join: no node has any special, but the cluster is 40 s old; 2 waiters"
        " depend on it\n"
        "No hang yet: nodes joined or left a short time ago, and such a node may still join\n"
        "No task of job 01000000 started or finished within the 1.5 s observed\n"
        "Fix: Start a node that has it, or ask for less."
    )


def test_after_a_node_has_joined_another_may() -> None:
    cluster = Cluster()
    cluster.node(joined_s=20.0, CPU=1.0)
    cluster.asks()

    assert "no node has any special, but node 10.0.0.3 joined 20 s ago" in text(cluster.diagnose())


def test_after_any_node_has_left_another_may_join() -> None:
    cluster = Cluster()
    cluster.lost(30.0, CPU=1.0)
    cluster.asks()

    assert "no node has any special, but node 10.0.0.3 left 30 s ago" in text(cluster.diagnose())


def test_a_lost_node_that_had_it_may_return() -> None:
    cluster = Cluster()
    cluster.lost(240.0, CPU=1.0, special=2.0)
    cluster.asks()

    diagnosis = cluster.diagnose()

    assert diagnosis.verdict == "stalled"
    assert "no node has any special, but node 10.0.0.3 had 2 special until TIME" in text(diagnosis)


@pytest.mark.parametrize(
    ("ago_s", "resources"),
    [(301.0, {"special": 2.0}), (61.0, {"special": 1.0}), (61.0, {"CPU": 64.0})],
    ids=["long ago", "too little", "another resource"],
)
def test_a_lost_node_that_does_not_help_changes_nothing(ago_s: float, resources: dict[str, float]) -> None:
    cluster = Cluster()
    cluster.lost(ago_s, **resources)
    cluster.asks()

    assert cluster.diagnose().verdict == "hang"


@pytest.mark.parametrize(("zone", "verdict"), [("eu", "stalled"), ("us", "hang")])
def test_the_labels_of_a_lost_node_count(zone: str, verdict: str) -> None:
    cluster = Cluster()
    node = cluster.node(CPU=1.0)
    cluster.scene.lose(cluster.scene.joined(node, LONG_AGO, labels={"zone": zone}), 100.0)
    cluster.asks(CPU=1.0).becomes(label_selector={"zone": "eu"})

    diagnosis = cluster.diagnose()

    assert diagnosis.verdict == verdict
    assert ("had zone: eu until TIME" in text(diagnosis)) is (verdict == "stalled")


def test_how_long_nodes_take_to_settle_is_an_option() -> None:
    cluster = Cluster(age_s=1.0)
    cluster.lost(1.0, special=2.0)
    cluster.asks()

    assert cluster.diagnose(nodes_settle_s=0.0).verdict == "hang"


def test_with_other_work_it_is_blocked() -> None:
    cluster = Cluster(age_s=40.0)
    cluster.asks()
    work, worker = cluster.scene.run("work", by=cluster.driver)
    worker.computes()

    diagnosis = cluster.diagnose()

    assert diagnosis.verdict == "running"
    assert "the cluster is 40 s old" in diagnosis.findings[0].summary
    assert work.task.name == "work"


def test_an_autoscaler_is_named_instead() -> None:
    cluster = Cluster(age_s=40.0)
    cluster.scene.autoscaler = "autoscaler"
    call = cluster.asks()

    assert labels(cluster.scene, cluster.scene.wait_of(call)) == ["autoscaler, which may add a node"]


# Clocks


def test_the_start_of_a_node_is_by_its_own_clock() -> None:
    cluster = Cluster()
    node = cluster.node(joined_s=20.0, CPU=1.0)
    cluster.scene.joined(node, 20.0 - 100.0, clock_ahead_s=100.0)
    cluster.asks()

    assert "joined 20 s ago" in text(cluster.diagnose())


def test_the_end_of_a_node_is_by_the_clock_of_the_head() -> None:
    cluster = Cluster(clock_ahead_s=-1000.0)
    cluster.lost(1010.0, special=2.0)
    cluster.asks()

    assert cluster.diagnose().verdict == "stalled"


def test_a_time_after_the_snapshot_began_is_now() -> None:
    cluster = Cluster(age_s=-3.0)
    cluster.asks()

    assert "the cluster is 0.0 s old" in text(cluster.diagnose())


# Placement groups, actors, and resources that are held


def spread(cluster: Cluster, bundles: int) -> None:
    group = cluster.scene.group(
        "PENDING", *[Bundle(resources={"CPU": 1.0})] * bundles, strategy="STRICT_SPREAD", name="witnesses"
    )
    task = cluster.scene.task("inside", by=cluster.driver, state="PENDING_NODE_ASSIGNMENT")
    task.becomes(placement_group_id=group.placement_group_id)
    cluster.driver.gets(task)


def test_a_group_of_many_nodes_waits_for_the_lost_ones() -> None:
    cluster = Cluster()
    cluster.lost(200.0, CPU=1.0)
    cluster.lost(100.0, CPU=1.0)
    spread(cluster, 3)

    diagnosis = cluster.diagnose()

    assert diagnosis.verdict == "stalled"
    assert (
        "all depends on the node for placement group witnesses that may still join: there is 1 node for 3 bundles, but"
        " node 10.0.0.4 had 1 CPU until TIME"
    ) in text(diagnosis)


def test_a_group_of_more_nodes_than_there_ever_were_is_a_hang() -> None:
    cluster = Cluster()
    cluster.lost(100.0, CPU=1.0)
    spread(cluster, 3)

    diagnosis = cluster.diagnose()

    assert diagnosis.verdict == "hang"
    assert "there is 1 node for 3 bundles, and none has joined for 1 h" in text(diagnosis)


def test_more_than_a_bundle_has_can_never_run_whatever_joins() -> None:
    cluster = Cluster(age_s=1.0)
    node = cluster.head
    group = cluster.scene.group("CREATED", Bundle(resources={"CPU": 1.0}, node_id=node.node_id))
    name = f"CPU_group_0_{group.placement_group_id}"
    cluster.scene.total[node.node_id] = {**node.resources, name: 1.0}
    cluster.asks(**{name: 2.0})

    assert "no bundle has that much" in text(cluster.diagnose())


def test_an_actor_whose_node_died_may_restart_when_that_returns() -> None:
    cluster = Cluster()
    cluster.lost(100.0, special=2.0)
    actor, creation = cluster.scene.pending_actor("Store", by=cluster.driver, special=2.0)
    cluster.driver.submitted.clear()
    cluster.scene.becomes(actor, state="RESTARTING", required_resources={"special": 2.0}, num_restarts=1)
    call = cluster.scene.call(actor, "load", by=cluster.driver, state="PENDING_NODE_ASSIGNMENT")
    cluster.driver.gets(call)

    diagnosis = cluster.diagnose()

    assert diagnosis.verdict == "stalled"
    assert creation.key in diagnosis.findings[0].members
    assert "node 10.0.0.3 had 2 special until TIME" in text(diagnosis)


@pytest.mark.parametrize(("ago_s", "verdict"), [(100.0, "stalled"), (301.0, "deadlock")])
def test_a_lost_node_may_end_a_deadlock_for_what_it_had(ago_s: float, verdict: str) -> None:
    cluster = Cluster()
    full = cluster.scene.node(free={}, GPU=1.0)
    cluster.scene.joined(full, LONG_AGO)
    cluster.lost(ago_s, GPU=1.0)
    outer, worker = cluster.scene.run("outer", by=cluster.driver, node=full, GPU=1.0)
    inner = pending(cluster.scene, worker, GPU=1.0)
    worker.gets(inner)
    cluster.driver.gets(outer)

    diagnosis = cluster.diagnose()

    assert diagnosis.verdict == verdict
    assert ("node 10.0.0.4 had 1 GPU until TIME" in text(diagnosis)) is (verdict == "stalled")
