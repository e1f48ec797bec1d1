"""Infeasible and orphaned waits, whose dependencies can never complete."""

from __future__ import annotations

import pytest

from dstack.model.snapshot import Bundle
from dstack.model.vertex_keys import GroupKey
from tests.unit.analysis.findings.kinds.small_findings import infeasible, kinds, only_finding
from tests.unit.scenes import Scene


def test_a_task_without_waiters_can_be_infeasible() -> None:
    scene = Scene()
    big = infeasible(scene, by=scene.driver())

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "hang"
    assert only_finding(diagnosis).members == (big.key,)


def test_similar_infeasible_tasks_are_one_finding() -> None:
    scene = Scene()
    first, second = scene.driver(), scene.driver()
    similar = [infeasible(scene, by=driver) for driver in (first, first, second)]
    other = infeasible(scene, second, GPU=64.0)
    first.gets(*similar[:2])

    several, single = scene.diagnose().findings

    assert several.members == tuple(call.key for call in similar)
    assert several.blocked_behind == (first.key,)
    assert several.summary == ("big (3 alike) can never run: each asks for 1 TPU, but no node has any TPU")
    assert single.members == (other.key,)
    assert single.summary == "big can never run: it asks for 64 GPU, but no node has any GPU"


@pytest.mark.parametrize("resource", ["TPU", "deadline_slots"])
def test_the_name_of_a_resource_does_not_matter(resource: str) -> None:
    scene = Scene()
    infeasible(scene, scene.driver(), **{resource: 1.0})

    assert kinds(scene.diagnose()) == ["infeasible"]


def test_an_infeasible_placement_group_blocks_its_tasks() -> None:
    scene = Scene()
    driver = scene.driver()
    group = scene.group("PENDING", Bundle(resources={"CPU": 64.0}), scheduling_state="INFEASIBLE", name="large")
    task = scene.task("inside", by=driver, state="PENDING_NODE_ASSIGNMENT")
    task.becomes(placement_group_id=group.placement_group_id)
    driver.gets(task)

    finding = only_finding(scene.diagnose())

    assert (finding.kind, finding.members) == ("infeasible", (GroupKey(group.placement_group_id),))
    assert set(finding.blocked_behind) == {task.key, driver.key}


def test_an_infeasible_actor_blocks_its_callers() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, creation = scene.pending_actor("Huge", by=driver, CPU=1000.0)
    creation.becomes(state="PENDING_NODE_ASSIGNMENT")
    call = scene.call(actor, "work", by=driver, state="PENDING_NODE_ASSIGNMENT")
    driver.gets(call)

    finding = only_finding(scene.diagnose())

    assert (finding.kind, finding.members) == ("infeasible", (creation.key,))
    assert set(finding.blocked_behind) == {call.key, driver.key}


def test_a_call_of_a_dead_actor_is_orphaned() -> None:
    scene = Scene()
    driver = scene.driver()
    dead = scene.actor("Gone")
    call = scene.call(dead, "work", by=driver, state="PENDING_NODE_ASSIGNMENT")
    scene.dies(dead, "out of memory")
    driver.gets(call)

    diagnosis = scene.diagnose()

    finding = only_finding(diagnosis)
    assert diagnosis.verdict == "hang"
    assert (finding.kind, finding.members) == ("orphaned", (call.key,))
    assert "is dead: out of memory" in finding.summary
