"""Works that are reported as stuck are stuck, and all stuck works are found if the samples are complete."""

from __future__ import annotations

import random

from hypothesis import event, given
from hypothesis import strategies as st

from tests.unit.analysis.soundness.claims import (
    PERMANENT,
    claimed,
    confirmed,
    hide,
    hidings,
    many,
    stuck,
    stuck_at_worst,
    without_unread_stops,
)
from tests.unit.simulations.tasks import ClusterScene, SimulatedCluster, task_clusters


@given(task_clusters(), st.randoms(use_true_random=False))
@many
def test_the_unfinished_works_do_not_depend_on_the_order(cluster: SimulatedCluster, order: random.Random) -> None:
    expected = stuck(cluster)

    cluster.run(order)

    assert cluster.unfinished() == expected


@given(task_clusters())
@many
def test_works_that_are_reported_as_stuck_are_stuck(cluster: SimulatedCluster) -> None:
    shown = ClusterScene(cluster)

    found = claimed(shown.scene.diagnose(), shown.work_numbers())

    event("stuck" if found else "not stuck")
    assert found <= stuck(cluster)


@given(task_clusters(exact=True))
@many
def test_all_stuck_works_are_found_in_an_exact_sample(cluster: SimulatedCluster) -> None:
    shown = ClusterScene(cluster)

    diagnosis = shown.scene.diagnose()

    event("stuck" if stuck(cluster) else "not stuck")
    assert claimed(diagnosis, shown.work_numbers()) == stuck(cluster)


@given(task_clusters(exact=True))
@many
def test_a_second_sample_confirms_unchanged_findings(cluster: SimulatedCluster) -> None:
    shown = ClusterScene(cluster)
    shown.scene.sample().second_sample()

    diagnosis = shown.scene.diagnose()

    assert claimed(diagnosis, shown.work_numbers()) == stuck(cluster)
    assert confirmed(diagnosis, shown.work_numbers()) <= stuck_at_worst(cluster)
    findings = [one for one in diagnosis.findings if one.kind in PERMANENT]
    assert all(finding.confirmed or finding.assumed for finding in findings)


@given(task_clusters(), hidings)
@many
def test_an_unobserved_process_makes_no_work_stuck(cluster: SimulatedCluster, hidings: list[str]) -> None:
    shown = ClusterScene(cluster)
    work_numbers = shown.work_numbers()
    for proc, how in zip(shown.scene.procs, hidings, strict=False):
        hide(proc, how)

    found = claimed(shown.scene.diagnose(), work_numbers)

    assert found <= stuck(without_unread_stops(shown, hidings))


@given(task_clusters(), hidings, st.integers(0, 6), st.randoms(use_true_random=False))
@many
def test_steps_between_two_samples_make_no_work_stuck(
    cluster: SimulatedCluster, hidings: list[str], steps: int, order: random.Random
) -> None:
    shown = ClusterScene(cluster)
    shown.scene.sample()
    work_numbers = shown.work_numbers()
    cluster.run(order, steps)
    shown.update()
    for proc, how in zip(shown.scene.procs, hidings, strict=False):
        hide(proc, how)
    shown.scene.second_sample()

    confirmed = {
        work_numbers[key]
        for finding in shown.scene.diagnose().findings
        if finding.kind in PERMANENT and finding.confirmed
        for key in (*finding.members, *finding.blocked_behind)
    }

    assert confirmed <= stuck(cluster)
