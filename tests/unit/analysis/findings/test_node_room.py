"""The table of a request that no node has room for, and what is free though not on one node."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dstack.model.diagnosis import Finding
from dstack.model.snapshot import Bundle
from tests.unit.analysis.graph.resource_requests import NOTHING, pending
from tests.unit.scenes import Scene, SceneProcess


def busy(free: float, nodes: int = 2) -> tuple[Scene, SceneProcess]:
    """Nodes with 4 GPU each of which these are free, and a driver."""
    scene = Scene()
    driver = scene.driver(scene.node(CPU=1.0))
    for _ in range(nodes):
        node = scene.node(free={"GPU": free} if free else NOTHING, GPU=4.0)
        scene.run("train", driver, node, GPU=4.0 - free)[1].computes()
    return scene, driver


def rows(finding: Finding) -> list[str]:
    return [step.text for step in finding.explanation if step.text.startswith("Node ")]


def test_free_resources_on_several_nodes_are_named() -> None:
    scene, driver = busy(2.0)
    driver.gets(pending(scene, driver, GPU=4.0))

    (finding,) = scene.sample().second_sample().diagnose().findings

    assert "because 4 GPU are free, 2 GPU on each of 2 nodes, and 4 GPU must be on one" in finding.summary
    assert [row.partition(": ")[2] for row in rows(finding)] == [
        *["2 of 4 GPU free; lacks 2 GPU"] * 2,
        "has 0 GPU in all",
    ]


@pytest.mark.parametrize(("asked", "free"), [(4.0, 1.0), (2.0, 0.0)])
def test_too_little_on_all_nodes_together_is_not_enough(asked: float, free: float) -> None:
    scene, driver = busy(free)
    driver.gets(pending(scene, driver, GPU=asked))

    (finding,) = scene.sample().second_sample().diagnose().findings

    assert "because not enough GPU is free" in finding.summary


def test_bundles_that_must_be_together_are_one_request() -> None:
    scene, _ = busy(3.0)
    scene.group("PENDING", Bundle(resources={"GPU": 2.0}), Bundle(resources={"GPU": 2.0}), strategy="STRICT_PACK")

    (finding,) = scene.sample().second_sample().diagnose().findings

    assert "6 GPU are free, 3 GPU on each of 2 nodes, and 4 GPU must be on one" in finding.summary


def test_labels_of_bundles_are_asked_for_too() -> None:
    scene, _ = busy(2.0)
    scene.nodes[1] = replace(scene.nodes[1], labels={"zone": "a"})
    group = scene.group("PENDING", Bundle(resources={"GPU": 1.0}, label_selector={"zone": "b"}))

    (finding, *_) = scene.sample().second_sample().diagnose().findings

    assert (finding.kind, finding.summary.split("but ")[1]) == ("infeasible", "no node has the labels zone: b")
    assert rows(finding)[0].endswith("2 of 4 GPU free; has no label zone: b")
    scene.groups[0] = replace(group, bundles=(replace(group.bundles[0], label_selector={"zone": "a"}),))
    scene.samples.clear()
    assert scene.sample().second_sample().diagnose().findings[0].kind != "infeasible"


def test_many_nodes_are_counted() -> None:
    scene, driver = busy(1.0, nodes=11)
    driver.gets(pending(scene, driver, GPU=2.0))

    (finding,) = scene.sample().second_sample().diagnose().findings

    assert len(rows(finding)) == 8
    assert "4 more nodes" in [step.text for step in finding.explanation]
