"""Nodes with free resources for which tasks wait that are pinned to other nodes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.report.text import report_text
from tests.unit.scenes import Scene


def two_nodes(**asked: float) -> Scene:
    """The first node's GPU and slot are in use, those of the second are free; a task waits."""
    scene = Scene()
    pins = {"node:10.0.0.1": 1.0, "first": 1.0}
    scene.total[scene.node({"CPU": 4.0, **pins}).node_id] = {"CPU": 4.0, "GPU": 1.0, "slot": 1.0, **pins}
    own = {"CPU": 4.0, "GPU": 2.0, "slot": 1.0, "node:10.0.0.2": 1.0}
    scene.total[scene.node(own).node_id] = own
    driver = scene.driver()
    driver.gets(scene.task("train", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources=asked))
    return scene


def starving(scene: Scene) -> list[str]:
    return list(AnalysedSnapshot.of(scene.snapshot()).starving)


@pytest.mark.parametrize("pin", ["node:10.0.0.1", "first"])
def test_a_task_is_pinned_by_a_resource_of_one_node(pin: str) -> None:
    assert starving(two_nodes(GPU=1.0, **{pin: 0.001})) == [
        "2 of 2 GPU are free on node 10.0.0.2, while 1 task (train) waits for GPU on node 10.0.0.1: "
        f"it asks for {pin}, which node 10.0.0.2 does not have"
    ]


def test_custom_slots_count_and_several_tasks_are_one_sentence() -> None:
    scene = two_nodes(slot=1.0, first=0.1)
    driver = scene.procs[0]
    scene.task("train", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"slot": 1.0, "first": 0.1})

    (text,) = starving(scene)

    assert text.startswith("1 of 1 slot is free on node 10.0.0.2, while 2 tasks (train) wait for slot")


@pytest.mark.parametrize(
    "asked",
    [
        {"GPU": 1.0},  # the second node can run it: it is not placed yet
        {"GPU": 3.0, "first": 0.1},  # no node has it
        {"CPU": 4.0, "first": 0.1},  # the first node has room
        {"GPU": 1.0, "slot": 1.0, "node:10.0.0.2": 0.1},  # the second node has room
    ],
)
def test_other_requests_starve_no_node(asked: dict[str, float]) -> None:
    assert starving(two_nodes(**asked)) == []


def test_too_little_elsewhere_is_not_free() -> None:
    scene = two_nodes(GPU=1.0, first=0.1)
    scene.available[scene.nodes[1].node_id]["GPU"] = 0.5

    assert starving(scene) == []


def test_a_label_pins_too() -> None:
    scene = two_nodes()
    scene.nodes[0] = replace(scene.nodes[0], labels={"zone": "a"})
    driver = scene.procs[0]
    asked = {"required_resources": {"GPU": 1.0}, "label_selector": {"zone": "a"}}
    scene.task("pinned", by=driver, state="PENDING_NODE_ASSIGNMENT", **asked)

    (text,) = starving(scene)

    assert text.endswith("it asks for label zone: a, which node 10.0.0.2 does not have")


def test_both_samples_must_show_it() -> None:
    scene = two_nodes(GPU=1.0, first=0.1).sample()
    assert len(starving(scene)) == 1

    scene.available[scene.nodes[0].node_id]["GPU"] = 1.0
    assert starving(scene.sample()) == []


def test_the_report_says_so() -> None:
    text = report_text(AnalysedSnapshot.of(two_nodes(GPU=1.0, first=0.1).snapshot()))

    assert "Free elsewhere: 2 of 2 GPU are free on node 10.0.0.2" in text
    assert "Free elsewhere" not in report_text(AnalysedSnapshot.of(two_nodes(GPU=1.0).snapshot()))
