"""Ranks that are reported as stuck are stuck, and all stuck ranks are found once no step is possible."""

from __future__ import annotations

import copy
import random

from hypothesis import event, example, given
from hypothesis import strategies as st

from dstack.model.diagnosis import Diagnosis
from tests.unit.analysis.soundness.claims import claimed_keys, many
from tests.unit.simulations.process_groups import ClusterScene as GroupScene
from tests.unit.simulations.process_groups import Op, group_clusters
from tests.unit.simulations.process_groups import SimulatedCluster as GroupCluster


def unfinished_ranks(cluster: GroupCluster, order: random.Random) -> set[int]:
    """The ranks that never end in one continuation of the cluster."""
    cluster = copy.deepcopy(cluster)
    cluster.run(order)
    return cluster.unfinished()


def claimed_ranks(shown: GroupScene, diagnosis: Diagnosis) -> set[int]:
    """The ranks that the findings report as stuck."""
    ranks = shown.rank_numbers()
    return {rank for key in claimed_keys(diagnosis) if (rank := ranks[key]) is not None}


@given(group_clusters(), st.randoms(use_true_random=False))
@many
def test_all_stuck_ranks_are_found_once_no_step_is_possible(cluster: GroupCluster, order: random.Random) -> None:
    cluster.run(order)
    shown = GroupScene(cluster)

    diagnosis = shown.scene.sample().second_sample().diagnose()

    found = claimed_ranks(shown, diagnosis)
    event("in doubt" if cluster.is_in_doubt() else "stuck" if cluster.unfinished() else "not stuck")
    assert found <= cluster.unfinished()
    assert cluster.is_in_doubt() or found == cluster.unfinished()


pauses = st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=12, max_size=12)


def with_ended_steps(cluster: GroupCluster, *ranks: int) -> GroupCluster:
    """The cluster after the present steps of these ranks have ended."""
    for rank in ranks:
        cluster.end(rank)
    return cluster


MEET, ROOT = Op("all_reduce"), Op("broadcast", peer=0)


BEGUN = with_ended_steps(GroupCluster([(0, 1, 2)], [[MEET], [Op("work"), MEET], [Op("begin"), Op("call", peer=0)]]), 2)
"""Rank 2 has begun the call that rank 0 waits in, and calls that rank; only rank 1 is late."""


SENT = with_ended_steps(GroupCluster([(0, 1, 2)], [[ROOT, Op("call", peer=2)], [Op("work"), ROOT], [ROOT]]), 0)
"""The root has sent its data, and calls the rank to which rank 1 forwards them."""


@example(BEGUN, [0] * 12, random.Random(0))
@example(SENT, [0] * 12, random.Random(0))
@given(group_clusters(), pauses, st.randoms(use_true_random=False))
@many
def test_processes_read_at_different_times_make_no_rank_stuck(
    cluster: GroupCluster, pauses: list[int], order: random.Random
) -> None:
    cluster = copy.deepcopy(cluster)
    shown = GroupScene(cluster)
    read_processes_in_turn(shown, pauses[:6], order)
    shown.scene.sample()
    cluster.settle(order)
    at = copy.deepcopy(cluster)
    read_processes_in_turn(shown, pauses[6:], order)
    shown.scene.sample()

    found = claimed_ranks(shown, shown.scene.diagnose())

    event("stuck" if found else "not stuck")
    for seed in range(5):
        assert found <= unfinished_ranks(at, random.Random(seed))


def read_processes_in_turn(shown: GroupScene, pauses: list[int], order: random.Random) -> None:
    """Reads one process after the other, in random order, while the others proceed."""
    several: list[int | None] = [None, *range(len(shown.ranks))]
    order.shuffle(several)
    for one, steps in zip(several, pauses, strict=False):
        shown.cluster.run(order, steps)
        if one is None:
            shown.update_driver()
        else:
            shown.update(one)
