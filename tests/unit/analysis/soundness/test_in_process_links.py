"""Threads that are reported as stuck on objects of their process are stuck, and all of them are found."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from dstack.analysis.graph.object_waits import NO_OTHERS
from dstack.model.diagnosis import Diagnosis
from tests.unit.analysis.soundness.claims import PERMANENT, claimed, different, many
from tests.unit.scenes import SceneThread
from tests.unit.simulations.in_process_links import ClusterScene as LinkedScene
from tests.unit.simulations.in_process_links import SimulatedCluster as LinkedCluster
from tests.unit.simulations.in_process_links import linked_clusters


def stuck_works(cluster: LinkedCluster) -> set[int]:
    """The works that are unfinished when no step is possible."""
    cluster = copy.deepcopy(cluster)
    cluster.run(random.Random(0))
    return cluster.unfinished()


def linked_without_polls(cluster: LinkedCluster) -> LinkedCluster:
    """The same world in which all that have timeouts give up in the end."""
    cluster = copy.deepcopy(cluster)
    for thread in cluster.threads:
        if thread.wait and thread.wait.timeout == "polls":
            thread.wait = replace(thread.wait, timeout="gives up")
    return cluster


@given(linked_clusters(), st.randoms(use_true_random=False))
@many
def test_the_unfinished_threads_do_not_depend_on_the_order(cluster: LinkedCluster, order: random.Random) -> None:
    expected = stuck_works(cluster)

    cluster.run(order)

    assert cluster.unfinished() == expected


@given(linked_clusters())
@many
def test_threads_that_are_stuck_on_process_objects_are_found(cluster: LinkedCluster) -> None:
    shown = LinkedScene(cluster)

    diagnosis = shown.scene.sample().sample().diagnose()

    links = [vertex.key for vertex in diagnosis.vertices.values() if vertex.wait and NO_OTHERS in vertex.wait.assumed]
    found = claimed(diagnosis, shown.work_numbers())
    event(
        "stuck on an object"
        if any(shown.work_numbers().get(key) in found for key in links)
        else "stuck"
        if found
        else "free"
    )
    check_claims(cluster, found)
    assert confirmed_numbers(diagnosis, shown) <= proven_stuck(cluster)


def check_claims(cluster: LinkedCluster, found: set[int]) -> None:
    """Checks that all stuck works are found, except idle services and works that are stuck only under assumptions."""
    active = cluster.without_waits(cluster.idle_services())
    assert proven_stuck(cluster) <= found <= stuck_works(active)
    event("under assumptions alone" if active.stuck_under_assumptions() else "all found")
    assert active.stuck_under_assumptions() or found == stuck_works(active)


def proven_stuck(cluster: LinkedCluster) -> set[int]:
    """The works that are stuck even if other code may reach the objects, and no loop only polls."""
    return stuck_works(cluster.without_waits(cluster.suspected()))


def confirmed_numbers(diagnosis: Diagnosis, shown: LinkedScene) -> set[int]:
    """The numbers of the members of confirmed findings."""
    confirmed = (finding for finding in diagnosis.findings if finding.kind in PERMANENT and finding.confirmed)
    return {shown.work_numbers()[key] for finding in confirmed for key in finding.members}


@given(linked_clusters(timeouts=("none", "none", "polls")))
@many
def test_stuck_threads_that_poll_objects_are_found_where_all_loops_only_poll(cluster: LinkedCluster) -> None:
    shown = LinkedScene(cluster)

    diagnosis = shown.scene.watch(4).diagnose()

    found = claimed(diagnosis, shown.work_numbers())
    event("stuck by polls" if stuck_works(cluster) != stuck_works(linked_without_polls(cluster)) else "no polls")
    check_claims(cluster, found)
    assert confirmed_numbers(diagnosis, shown) <= proven_stuck(cluster)


@given(linked_clusters(timeouts=("none", "none", "polls", "gives up")), different)
@many
def test_polls_of_objects_with_one_other_activity_make_no_work_stuck(
    cluster: LinkedCluster, different: list[tuple[int, Callable[[SceneThread], None]]]
) -> None:
    shown = LinkedScene(cluster)
    givers = [
        number for number, thread in enumerate(cluster.threads) if thread.wait and thread.wait.timeout == "gives up"
    ]
    for number in range(6):
        for thread, (when, change) in zip(givers, different, strict=False):
            shown.show_thread(thread)
            if when == number:
                change(shown.threads[thread])
        shown.scene.read() if 0 < number < 5 else shown.scene.sample()

    diagnosis = shown.scene.diagnose()

    found = claimed(diagnosis, shown.work_numbers())
    event("stuck" if found else "not stuck")
    assert found <= stuck_works(cluster)
    assert confirmed_numbers(diagnosis, shown) <= proven_stuck(cluster)
