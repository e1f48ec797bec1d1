"""Loops that only poll: all stuck works are found, and other activities make no work stuck."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from dstack.model.diagnosis import Diagnosis
from tests.unit.analysis.soundness.claims import PERMANENT, claimed, detectable_hidings, different, hide, many, stuck
from tests.unit.scenes import SceneThread
from tests.unit.simulations.tasks import POLLS, POLLS_AND_TIMEOUTS, ClusterScene, SimulatedCluster, task_clusters


def read_between(shown: ClusterScene, change: Callable[[int], object] = lambda number: None) -> Diagnosis:
    """The diagnosis of two samples, with four readings between them of all processes that may poll.

    Before each of the six, the scene is restored to the cluster's state, and changed.
    """
    for number in range(6):
        restore(shown)
        change(number)
        shown.scene.read() if 0 < number < 5 else shown.scene.sample()
    return shown.scene.diagnose()


def restore(shown: ClusterScene) -> None:
    """Brings the scene up to date with the cluster, with every thread in its own code."""
    for proc in shown.scene.procs:
        for thread in proc.threads:
            thread.function, thread.is_torn = "run", False
    shown.driver.threads[0].task_id = None
    shown.update()


def without_polls(cluster: SimulatedCluster) -> SimulatedCluster:
    """The same world in which all that have timeouts give up in the end."""
    cluster = copy.deepcopy(cluster)
    for work in cluster.works:
        work.block = work.block and replace(work.block, polls=False)
    cluster.driver = cluster.driver and replace(cluster.driver, polls=False)
    return cluster


@given(task_clusters(exact=True, kinds_of_block=POLLS))
@many
def test_all_stuck_works_are_found_where_all_loops_only_poll(cluster: SimulatedCluster) -> None:
    """Loops that wait only for each other are excluded: their values may come from outside."""
    shown = ClusterScene(cluster)

    diagnosis = read_between(shown)

    found, proven = claimed(diagnosis, shown.work_numbers()), stuck(without_polls(cluster))
    event(
        "loops alone" if cluster.mutually_polling_loops() else "stuck by polls" if found != proven else "stuck by none"
    )
    assert proven <= found <= stuck(cluster)
    assert cluster.mutually_polling_loops() or found == stuck(cluster)


@given(task_clusters(kinds_of_block=POLLS), st.lists(detectable_hidings, min_size=6, max_size=6))
@many
def test_unobserved_polling_loops_make_no_work_stuck(cluster: SimulatedCluster, hidings: list[list[str]]) -> None:
    shown = ClusterScene(cluster)
    work_numbers = shown.work_numbers()

    def hide_some(number: int) -> None:
        for proc, how in zip(shown.scene.procs, hidings[number], strict=False):
            hide(proc, how)

    assert claimed(read_between(shown, hide_some), work_numbers) <= stuck(cluster)


@given(task_clusters(kinds_of_block=POLLS_AND_TIMEOUTS))
@many
def test_confirmed_works_are_stuck_without_assumptions_about_polling_loops(cluster: SimulatedCluster) -> None:
    shown = ClusterScene(cluster)

    confirmed = {
        shown.work_numbers()[key]
        for finding in read_between(shown).findings
        if finding.kind in PERMANENT and finding.confirmed
        for key in finding.members
    }

    event("confirmed" if confirmed else "nothing confirmed")
    assert confirmed <= stuck(without_polls(cluster))


def gives_up(shown: ClusterScene, thread: SceneThread) -> bool:
    """Whether a thread waits with a timeout and does not only poll."""
    block = shown.blocks.get(thread.key)
    return thread.call is not None and block is not None and block.is_timed and not block.polls


@given(task_clusters(exact=True, kinds_of_block=POLLS_AND_TIMEOUTS), different)
@many
def test_loops_with_one_other_activity_make_no_work_stuck(
    cluster: SimulatedCluster, different: list[tuple[int, Callable[[SceneThread], None]]]
) -> None:
    shown = ClusterScene(cluster)

    def differ(at: int) -> None:
        blocked = (thread for proc in shown.scene.procs for thread in proc.threads if gives_up(shown, thread))
        for thread, (when, change) in zip(blocked, different, strict=False):
            if when == at:
                change(thread)

    found = claimed(read_between(shown, differ), shown.work_numbers())

    event("some give up" if any(one.is_timed and not one.polls for one in cluster.blocks()) else "none gives up")
    event("stuck" if found else "not stuck")
    assert found <= stuck(cluster)


@given(task_clusters(exact=True, kinds_of_block=POLLS), st.integers(1, 3), st.randoms(use_true_random=False))
@many
def test_no_deadlock_depends_on_a_poll_where_the_job_made_progress(
    cluster: SimulatedCluster, steps: int, order: random.Random
) -> None:
    shown = ClusterScene(cluster)
    before = running_of(cluster)

    def run(number: int) -> None:
        if number == 4:
            cluster.run(order, steps)
            shown.update()

    diagnosis = read_between(shown, run)

    has_moved = before != running_of(cluster)
    polls = [vertex for vertex in diagnosis.vertices.values() if vertex.wait and vertex.wait.polls]
    event("progress" if has_moved else "no progress")
    assert not (has_moved and polls)
    confirmed = {
        shown.work_numbers()[key]
        for finding in diagnosis.findings
        if finding.kind in PERMANENT and finding.confirmed
        for key in finding.members
    }
    assert confirmed <= stuck(without_polls(cluster))


def running_of(cluster: SimulatedCluster) -> set[int]:
    """The numbers of the running works."""
    return {number for number, work in enumerate(cluster.works) if work.phase == "runs"}
