"""Coroutines that are reported as stuck are stuck, and all stuck coroutines are found."""

from __future__ import annotations

import random

from hypothesis import event, given
from hypothesis import strategies as st

from tests.unit.analysis.soundness.claims import (
    PERMANENT,
    claimed,
    confirmed,
    detectable_hidings,
    hide,
    hidings,
    many,
    sample_during_steps,
    stuck,
    stuck_at_worst,
)
from tests.unit.simulations.coroutines import Block, Work, coroutine_clusters
from tests.unit.simulations.coroutines import ClusterScene as CoroutineScene
from tests.unit.simulations.coroutines import SimulatedCluster as CoroutineCluster
from tests.unit.simulations.tasks import ClusterScene, SimulatedCluster, task_clusters


@given(
    task_clusters(exact=True),
    detectable_hidings,
    detectable_hidings,
    st.integers(0, 6),
    st.randoms(use_true_random=False),
)
@many
def test_stuck_works_are_found_or_the_check_is_incomplete(
    cluster: SimulatedCluster, before: list[str], after: list[str], steps: int, order: random.Random
) -> None:
    is_stuck = bool(stuck(cluster))
    shown = ClusterScene(cluster)
    sample_during_steps(shown, cluster, before, after, steps, order)

    diagnosis = shown.scene.diagnose()

    event(f"{'stuck' if is_stuck else 'not stuck'}: {diagnosis.verdict}{', incomplete' * diagnosis.incomplete}")
    assert not is_stuck or diagnosis.is_stuck or diagnosis.incomplete


@given(
    coroutine_clusters(), detectable_hidings, detectable_hidings, st.integers(0, 6), st.randoms(use_true_random=False)
)
@many
def test_stuck_coroutines_are_found_or_the_check_is_incomplete(
    cluster: CoroutineCluster, before: list[str], after: list[str], steps: int, order: random.Random
) -> None:
    is_stuck = bool(stuck(cluster))
    shown = CoroutineScene(cluster)
    before = [how.replace("unstable", "") for how in before]  # an unstable coroutine proceeds
    sample_during_steps(shown, cluster, before, after, steps, order)

    diagnosis = shown.scene.diagnose()

    event(f"{'stuck' if is_stuck else 'not stuck'}: {diagnosis.verdict}{', incomplete' * diagnosis.incomplete}")
    assert not is_stuck or diagnosis.is_stuck or diagnosis.incomplete


@given(coroutine_clusters(), st.randoms(use_true_random=False))
@many
def test_the_unfinished_coroutines_do_not_depend_on_the_order(cluster: CoroutineCluster, order: random.Random) -> None:
    expected = stuck(cluster)

    cluster.run(order)

    assert cluster.unfinished() == expected


@given(coroutine_clusters())
@many
def test_all_stuck_coroutines_are_found(cluster: CoroutineCluster) -> None:
    shown = CoroutineScene(cluster)

    found = claimed(shown.scene.diagnose(), shown.work_numbers)

    event("stuck" if stuck(cluster) else "not stuck")
    assert found == stuck(cluster)


@given(coroutine_clusters())
@many
def test_a_second_sample_confirms_stuck_coroutines(cluster: CoroutineCluster) -> None:
    shown = CoroutineScene(cluster)
    shown.scene.sample().second_sample()

    diagnosis = shown.scene.diagnose()

    assert claimed(diagnosis, shown.work_numbers) == stuck(cluster)
    assert confirmed(diagnosis, shown.work_numbers) <= stuck_at_worst(cluster)
    findings = [one for one in diagnosis.findings if one.kind in PERMANENT]
    assert all(finding.confirmed or finding.assumed for finding in findings)
    assert stuck_at_worst(cluster) != stuck(cluster) or all(finding.confirmed for finding in findings)


@given(coroutine_clusters(), hidings)
@many
def test_unobserved_coroutines_make_no_work_stuck(cluster: CoroutineCluster, hidings: list[str]) -> None:
    shown = CoroutineScene(cluster)
    for proc, how in zip(shown.scene.procs, hidings, strict=False):
        hide(proc, how)

    found = claimed(shown.scene.diagnose(), shown.work_numbers)

    assert found <= stuck(cluster)


@given(coroutine_clusters(), hidings, st.integers(0, 6), st.randoms(use_true_random=False))
@many
def test_coroutines_that_proceed_between_two_samples_are_not_stuck(
    cluster: CoroutineCluster, hidings: list[str], steps: int, order: random.Random
) -> None:
    shown = CoroutineScene(cluster)
    shown.scene.sample()
    cluster.run(order, steps)
    shown.update()
    for proc, how in zip(shown.scene.procs, hidings, strict=False):
        hide(proc, how)
    shown.scene.second_sample()

    findings = [one for one in shown.scene.diagnose().findings if one.kind in PERMANENT and one.confirmed]

    found = {shown.work_numbers[key] for one in findings for key in (*one.members, *one.blocked_behind)}
    assert found <= stuck(cluster)


def test_a_failure_of_the_work_that_blocks_the_loop_ends_a_gathering() -> None:
    on_loop = Work(actor=0, phase="runs", is_on_loop=True)
    gathers = Work(actor=0, phase="runs", block=Block(works=(0, 1), needs=2, fails_fast=True))
    cluster = CoroutineCluster(slots=[2], works=[on_loop, gathers], driver=None, is_driver_async=False)
    shown = CoroutineScene(cluster)

    found = claimed(shown.scene.diagnose(), shown.work_numbers)

    assert found == stuck(cluster) == set()
