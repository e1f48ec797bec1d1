"""What `dstack doctor` says about a cluster and its nodes."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.capabilities import cluster_checks, conclusion, node_checks
from dstack.model.diagnosis import Check
from dstack.model.snapshot import Snapshot
from dstack.observed.node import Failure
from tests.unit.scenes import Scene

NO_PERMISSION = Failure(stage="memory", reason="no permission", remedy="Run dstack as root.")


def of_nodes(snapshot: Snapshot) -> dict[str, list[Check]]:
    return {node.node_id: checks for node, checks in node_checks(AnalysedSnapshot.of(snapshot))}


def test_a_node_that_is_read_wholly_has_no_limit() -> None:
    scene = Scene()
    scene.driver()
    snapshot = scene.sample().snapshot()

    ((check,),) = of_nodes(snapshot).values()
    assert check == Check("ok", "1 of 1 process read: 1 by memory")


def test_alike_failures_of_processes_are_one_line_with_their_remedy() -> None:
    scene = Scene()
    first, second = scene.driver(), scene.worker()
    snapshot = scene.sample(only=[]).snapshot()
    node = snapshot.nodes[0].node_id
    failures = tuple(
        dataclasses.replace(NO_PERMISSION, node_id=node, worker_id=one.worker.worker_id, pid=one.worker.pid)
        for one in (first, second)
    )

    (checks,) = of_nodes(replace(snapshot, failures=failures)).values()
    assert checks[0].level == "limit"
    assert checks[1] == Check("failure", "no permission (2 processes)", "Run dstack as root.")


def test_a_refused_process_is_not_counted_as_read() -> None:
    scene = Scene()
    scene.driver()
    refused = scene.worker()
    snapshot = scene.sample().snapshot()
    (sample,) = snapshot.samples
    without_threads = tuple(
        replace(one, process=dataclasses.replace(one.process, threads=()))
        if one.process and one.worker_id == refused.worker.worker_id
        else one
        for one in sample.workers
    )
    snapshot = replace(snapshot, samples=(replace(sample, workers=without_threads),))

    ((check,),) = of_nodes(snapshot).values()
    assert check == Check("limit", "1 of 2 processes read: 1 by memory")


def test_a_dead_node_is_left_out_and_one_without_workers_is_fine() -> None:
    scene = Scene()
    dead, empty = scene.node(alive=False), scene.node()
    scene.driver()
    found = of_nodes(scene.sample().snapshot())

    assert dead.node_id not in found
    assert found[empty.node_id] == [Check("ok", "no worker or driver runs here")]


def test_a_failure_without_a_node_concerns_the_cluster() -> None:
    scene = Scene()
    scene.driver()
    snapshot = replace(scene.sample().snapshot(), failures=(Failure(stage="control plane", reason="no actors"),))

    checks = cluster_checks(AnalysedSnapshot.of(snapshot))
    assert [check.level for check in checks] == ["ok", "failure"]
    assert checks[1].text == "no actors"


def test_the_conclusion_says_whether_everything_was_read() -> None:
    scene = Scene()
    scene.driver()
    scene.worker()
    analysed = AnalysedSnapshot.of(scene.sample().snapshot())

    assert conclusion(analysed, [Check("ok", "fine")]) == "dstack can read everything on this cluster: 2 processes."
    limited = conclusion(analysed, [Check("ok", "fine"), Check("limit", "no py-spy")])
    assert limited == "dstack works with 1 limit, marked above: it has read 2 of 2 processes."
