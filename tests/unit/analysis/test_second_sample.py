"""The workers that the second sample reads again."""

from __future__ import annotations

import pytest

from dstack.analysis.second_sample import plan_readings
from dstack.model.snapshot import Bundle, Snapshot
from tests.unit.analysis.findings.kinds.small_findings import ring
from tests.unit.scenes import JOB, Scene


def test_without_a_first_sample_nothing_is_read_again() -> None:
    snapshot = Snapshot(dstack_version="0.1.0", taken_at=0.0, address="h:1", ray_version="2.60.0")

    assert plan_readings(snapshot).workers == set()


def test_workers_of_interest_seem_stuck() -> None:
    scene = Scene()
    left, right = ring(scene, "Left", "Right")
    owner, behind, bystander = scene.procs[0], scene.driver(), scene.driver()
    behind.gets(left.running[0])
    call, works = scene.run("work", by=bystander)
    bystander.gets(call)

    found = plan_readings(scene.snapshot()).workers

    assert found == {proc.worker_id for proc in (left, right, owner, behind, works)}, "and what runs, which may compute"


def test_the_creator_of_an_infeasible_group_is_of_interest() -> None:
    scene = Scene()
    owner, maker, _ = scene.driver(), scene.actor(), scene.actor()
    scene.group(
        "PENDING",
        Bundle(resources={"GPU": 99}),
        scheduling_state="INFEASIBLE",
        job_id=owner.worker.job_id,
        creator_actor_id=maker.actor_id,
    )

    (finding,) = scene.second_sample().diagnose().findings

    assert finding.confirmed
    assert plan_readings(scene.snapshot()).workers == {owner.worker_id, maker.worker_id}


def test_waiters_of_unobserved_vertices_are_of_interest() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.gets(scene.task("on its way", by=driver))
    scene.driver()

    assert plan_readings(scene.snapshot()).workers == {driver.worker_id}


@pytest.mark.parametrize(
    ("in_job", "timeout_s", "is_watched"), [(JOB, None, False), (JOB, 60.0, True), ("02000000", None, True)]
)
def test_a_wait_for_what_is_outside_is_not_watched_beside_a_deadlock_of_its_job(
    in_job: str, timeout_s: float | None, is_watched: bool
) -> None:
    scene = Scene()
    ring(scene, "Left", "Right")
    scene.driver(job_id=in_job).is_in("threading.Event.wait", "0x1", timeout_s=timeout_s)

    plan = plan_readings(scene.snapshot())

    assert (plan.has_waits, plan.may_be_stalled) == (True, is_watched)


def test_a_wait_for_what_is_outside_is_watched_without_a_deadlock() -> None:
    scene = Scene()
    scene.driver().is_in("threading.Event.wait", "0x1")

    assert plan_readings(scene.snapshot()).may_be_stalled
