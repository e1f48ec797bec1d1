"""Calls on process groups: their dependencies, and the findings."""

from __future__ import annotations

import dataclasses

import pytest

from dstack.analysis.second_sample import plan_readings
from dstack.observed.ledgers import Collective, GroupLedger
from tests.unit.analysis.graph.rank_scenes import Gang, gang, only_finding, with_reward
from tests.unit.scenes import Scene, group_of, groups_of


def test_a_rank_that_waits_for_one_in_the_collective_is_a_deadlock() -> None:
    it, reward, weight = with_reward()

    diagnosis = it.diagnose()

    finding = only_finding(diagnosis)
    assert (diagnosis.verdict, finding.confirmed, finding.assumed) == ("deadlock", True, ())
    assert {it.ranks[0].key, it.ranks[3].key, reward.key, weight.key} <= set(finding.members)
    assert {it.ranks[1].key, it.ranks[2].key} <= {*finding.members, *finding.blocked_behind}
    assert finding.summary.startswith(
        "ranks 0-2 are in all_reduce of group default_pg; rank 3 is in ray.get for Reward.score, which calls rank 0"
    )


def test_a_slow_reward_is_the_final_blocker() -> None:
    it, reward, _ = with_reward()
    reward.computes()

    diagnosis = it.diagnose()

    finding = only_finding(diagnosis)
    assert diagnosis.verdict == "running"
    assert finding.final_blockers[0].vertex == reward.key


# The members that a call needs


@pytest.mark.parametrize("operation", ["all_reduce", "barrier", "all_gather_object", "reduce_scatter", "all_to_all"])
def test_ranks_in_two_operations_of_a_group_wait_for_each_other(operation: str) -> None:
    it = gang(4).collect((0, 1), operation).collect((2, 3), "broadcast", peer=0)

    finding = only_finding(it.diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", True)
    calls = f"ranks 0-1 are in {operation} and ranks 2-3 in broadcast of group default_pg"
    assert finding.summary.startswith(calls)
    assert "same order" in str(finding.advice)


def test_a_rank_that_runs_may_come() -> None:
    it = gang(3).collect((0, 1))

    diagnosis = it.diagnose()

    finding = only_finding(diagnosis)
    first = finding.explanation[0].text
    assert first.startswith("Ranks 0-1")
    assert "are in all_reduce of group default_pg, and wait for rank 2; the first" in first
    assert (diagnosis.verdict, diagnosis.incomplete) == ("running", False)
    assert finding.final_blockers[0].vertex == it.ranks[2].key


def test_a_running_rank_may_be_the_missing_one() -> None:
    it, _, _ = with_reward()
    it.ranks[1].computes()

    assert it.diagnose().verdict == "running"


def test_all_ranks_inside_are_no_deadlock() -> None:
    it = gang(3).collect((0, 1, 2))

    assert not it.diagnose().is_stuck


def test_without_the_instance_of_a_group_nothing_is_claimed() -> None:
    it, _, _ = with_reward()
    for rank in range(4):
        it.groups[rank] = dataclasses.replace(it.groups[rank], world="")
        it.ranks[rank].memberships = [it.groups[rank]]

    assert not it.collect((0, 1, 2)).diagnose().is_stuck


def test_two_processes_of_one_rank_are_two_groups() -> None:
    it, _, _ = with_reward()
    it.scene.actor("Rank").works_for().is_member(it.groups[1]).computes()

    assert not it.diagnose().is_stuck


def test_a_group_of_another_job_is_another_one() -> None:
    it, _, _ = with_reward()
    it.scene.actor("Rank", job_id="02000000").works_for("02000000").is_member(it.groups[1]).computes()

    assert it.diagnose().verdict == "deadlock"


def test_a_wait_for_a_collective_that_began_before_may_be_for_the_same_one() -> None:
    it = gang(2).collect((0,)).collect((1,), "Work.wait")
    assert not it.diagnose().is_stuck

    it = gang(3).collect((0,)).collect((1,), "backward")
    it.ranks[2].gets(it.calls[0])
    assert it.diagnose().is_stuck


def test_a_send_needs_the_receive_of_its_peer() -> None:
    it = gang(2).collect((0,), "send", peer=1).collect((1,), "recv", peer=0)
    assert not it.diagnose().is_stuck

    it = gang(2).collect((0,), "recv", peer=1).collect((1,), "recv", peer=0)
    finding = only_finding(it.diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", True)
    assert finding.summary.startswith(
        "rank 0 is in recv from rank 1 and rank 1 in recv from rank 0 of group default_pg"
    )
    assert "isend" in str(finding.advice)


def test_a_receive_from_any_rank_needs_one_of_them() -> None:
    it = gang(3).collect((0,), "recv").collect((1,), "recv", peer=0)
    assert it.diagnose().verdict == "running"

    it = gang(3).collect((0,), "recv").collect((1, 2), "recv", peer=0)
    assert it.diagnose().verdict == "deadlock"


def test_a_broadcast_waits_for_its_root_or_for_the_ranks_that_forward_its_data() -> None:
    it = gang(3).collect((1,), "broadcast", peer=0).collect((0,), "all_reduce")

    waits = groups_of(it.scene.wait_of(it.ranks[1]))

    assert waits == [(1, [it.ranks[0].key, it.ranks[2].key])]
    assert it.diagnose().verdict == "running"


def test_a_broadcast_whose_root_has_entered_ends_by_itself() -> None:
    it = gang(3).collect((0, 1), "broadcast", peer=0).collect((2,), "all_reduce")

    (_, targets), *_ = groups_of(it.scene.wait_of(it.ranks[1]))

    assert it.ranks[2].key not in targets


def test_a_scatter_waits_for_its_root_alone() -> None:
    it = gang(3).collect((1,), "scatter", peer=0)

    assert groups_of(it.scene.wait_of(it.ranks[1])) == [(1, [it.ranks[0].key])]


def test_a_root_waits_for_any_rank_that_may_be_missing() -> None:
    it = gang(3).collect((0,), "gather", peer=0)

    assert groups_of(it.scene.wait_of(it.ranks[0])) == [(1, [it.ranks[1].key, it.ranks[2].key])]


def test_a_new_group_waits_for_each_of_its_members() -> None:
    it = gang(3).collect((0,), "new_group")

    assert groups_of(it.scene.wait_of(it.ranks[0])) == [(1, [it.ranks[1].key]), (1, [it.ranks[2].key])]


def test_two_groups_entered_in_two_orders_are_a_deadlock() -> None:
    it = gang(2)
    tp, dp = ([group_of(r, 0, 1, name=n, description=d) for r in (0, 1)] for n, d in (("1", "tp"), ("2", "dp")))
    it.ranks[0].is_member(tp[0], dp[0]).collects("all_reduce", tp[0])
    it.ranks[1].is_member(tp[1], dp[1]).collects("all_reduce", dp[1])

    finding = only_finding(it.diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", True)
    assert finding.summary.startswith("rank 0 is in all_reduce of group tp; rank 1 is in all_reduce of group dp")
    assert "same order" in str(finding.advice)


def test_a_driver_can_be_a_rank() -> None:
    scene = Scene()
    driver, worker = scene.driver(), scene.actor("Worker")
    worker.tasks_read = True
    step = scene.call(worker, "step", by=driver)
    worker.works_for().runs(step).is_member(group_of(1, 0, 1)).collects("all_reduce", group_of(1, 0, 1))
    driver.is_member(group_of(0, 0, 1)).gets(step)

    finding = only_finding(scene.sample().second_sample().diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", True)
    assert finding.summary.startswith(
        "rank 1 is in all_reduce of group default_pg; rank 0 is in ray.get for Worker.step"
    )


def test_a_coroutine_can_make_the_call_of_a_rank() -> None:
    """Rank 0 reports through an actor; rank 1, for which that waits, is in an all_reduce with rank 0."""
    train = [group_of(r, 0, 1, name="report", description="report", library="ray.train", world="run 1") for r in (0, 1)]
    it = gang(2).collect((1,))
    barrier = it.scene.async_actor("SynchronizationActor", owner_id=it.driver.worker_id).works_for()
    report = it.scene.call(barrier, "barrier", by=it.ranks[0])
    waiter = barrier.begins(report).collects("barrier", train[0], mark="")
    for rank in (0, 1):
        it.ranks[rank].is_member(train[rank])
    it.ranks[0].gets(report)

    finding = only_finding(it.diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", True)
    assert {waiter.key, it.ranks[0].key, it.ranks[1].key} == set(finding.members)


# Two samples


def test_a_call_whose_thread_ran_between_the_samples_is_another_call() -> None:
    it = gang(4).collect((0, 1)).collect((2, 3), "broadcast", peer=0)
    it.scene.sample()
    it.collect((0,), mark="8")

    diagnosis = it.scene.second_sample().diagnose()

    assert not diagnosis.is_stuck


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_was_in_the_call_in_one_sample_may_have_left_it(rank: int) -> None:
    it = gang(3).collect((0, 1, 2))
    it.scene.sample()
    it.collect((rank,), "broadcast", peer=1, mark="8")

    assert not it.scene.sample(only=None).diagnose().is_stuck


def test_a_thread_of_a_rank_may_have_made_the_call_before() -> None:
    it = gang(2).collect((0,))
    it.ranks[1].gets(it.calls[0])
    sync = it.ranks[1].thread("sync", "user").collects("all_reduce", it.groups[1])
    it.scene.sample()
    it.ranks[1].threads.remove(sync)

    assert not it.scene.sample(only=None).diagnose().is_stuck


def test_one_sample_is_no_proof() -> None:
    it, _, _ = with_reward()

    diagnosis = it.scene.sample().diagnose()

    assert (diagnosis.is_stuck, diagnosis.incomplete) == (False, True)


def test_a_rank_that_was_not_read_again_is_no_proof() -> None:
    it = gang(2).collect((0,)).collect((1,), "barrier")
    it.scene.sample()
    it.ranks[1].is_unreadable = True

    diagnosis = it.scene.second_sample().diagnose()

    assert (diagnosis.is_stuck, diagnosis.incomplete) == (False, True)


def test_a_library_that_moves_data_may_end_the_call() -> None:
    it = gang(2).collect((0,)).collect((1,), "barrier")
    it.scene.sample()
    it.ranks[0].cpu_s += 0.5

    assert not it.scene.second_sample().diagnose().is_stuck


def test_a_process_that_was_stopped_may_continue_the_call() -> None:
    it = gang(2).collect((0,)).collect((1,), "barrier")
    it.ranks[0].state = "T"

    assert not it.diagnose().is_stuck


def test_a_library_that_polls_while_it_makes_a_group_moves_no_data() -> None:
    it = gang(2).collect((0,), "new_group").collect((1,), "barrier")
    it.scene.sample()
    it.ranks[0].cpu_s += 0.5

    assert it.scene.second_sample().diagnose().is_stuck


def test_library_timeouts_that_differ_by_rounding_are_equal() -> None:
    it = gang(2).collect((0,), fails_at=1.7e9 + 600.0).collect((1,), "barrier")
    it.scene.sample()
    it.collect((0,), fails_at=1.7e9 + 600.0004)

    finding = only_finding(it.scene.second_sample().diagnose())

    assert finding.confirmed
    assert any("times out in 10 min" in step.text for step in finding.explanation)


def test_a_call_that_polls_is_one_call_under_an_assumption() -> None:
    it = gang(2).collect((0,), mark="").collect((1,), "barrier")
    assert it.ranks[0].worker_id in plan_readings(it.scene.sample().snapshot()).pollers

    finding = only_finding(it.scene.read().second_sample().diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", False)
    assert finding.assumed == ("rank 0 was in the same all_reduce in all samples",)


def test_a_call_that_polls_and_was_observed_elsewhere_is_another_call() -> None:
    it = gang(2).collect((0,), mark="").collect((1,), "barrier")
    it.scene.sample()
    it.ranks[0].computes()
    it.scene.read(only=it.ranks)
    it.collect((0,), mark="")

    assert not it.scene.second_sample().diagnose().is_stuck


def test_possibly_stuck_ranks_get_quick_readings() -> None:
    it, _, _ = with_reward()

    assert plan_readings(it.scene.sample().snapshot()).may_be_stalled


# Members whose ledgers were read


def with_counts(it: Gang, *counts: int) -> Gang:
    """Each rank has entered so many collectives of its group, which are all alike."""
    for process, count in zip(it.ranks, counts, strict=True):
        ledger = GroupLedger(group=0, backend="gloo", entered=count, recorded=count, calls=(0,) * count)
        process.known |= {"ledgers": (ledger,), "collectives": (Collective(operation="all_reduce"),)}
    return it


def test_a_rank_in_an_earlier_call_of_the_same_name_has_not_entered() -> None:
    """It waits for nothing: all others have entered its call."""
    it = with_counts(gang(4).collect((0, 1, 2, 3)), 5, 5, 5, 4)

    diagnosis = it.diagnose()

    wait = diagnosis.vertices[it.ranks[0].key].wait
    assert wait is not None
    assert wait.of_group is not None
    assert (wait.of_group.inside, wait.of_group.missing) == ((0, 1, 2), (3,))
    assert diagnosis.verdict not in ("deadlock", "hang")


def test_a_rank_that_has_entered_without_waiting_is_not_missing() -> None:
    it = with_counts(gang(3).collect((0, 2)), 5, 5, 4)
    it.ranks[1].computes()

    diagnosis = it.diagnose()

    wait = diagnosis.vertices[it.ranks[0].key].wait
    assert wait is not None
    assert wait.of_group is not None
    assert wait.of_group.missing == (2,)


@pytest.mark.parametrize("has_counts", [False, True])
def test_each_rank_that_has_not_entered_an_all_reduce_must_enter(has_counts: bool) -> None:
    """One of two missing ranks runs, which is enough only as long as it may be the only one."""
    it = gang(4).collect((0, 1))
    it.ranks[2].computes()
    it.ranks[3].gets(it.scene.call(it.ranks[0], "weight", by=it.ranks[3]))
    if has_counts:
        with_counts(it, 5, 5, 4, 4)

    assert it.diagnose().verdict == ("deadlock" if has_counts else "running")


def test_ranks_that_wait_for_different_roots_wait_for_each_other() -> None:
    it = gang(3).collect((0,), "scatter", peer=1).collect((2,), "scatter", peer=2)
    it.ranks[1].computes()
    with_counts(it, 5, 6, 5)

    finding = it.diagnose().findings[0]

    assert finding.kind == "deadlock"
    assert {it.ranks[0].key, it.ranks[2].key} <= set(finding.members)


def test_a_finding_begins_with_the_rank_that_differs() -> None:
    it, _, _ = with_reward()

    finding = only_finding(with_counts(it, 5, 5, 5, 4).diagnose())

    assert finding.difference is not None
    assert (finding.difference.kind, finding.difference.ranks, finding.difference.number) == ("behind", (3,), 5)
    assert finding.summary.startswith("rank 3 is 1 collective behind since number 5 (all_reduce at app.py:10): ")
    counts = next(step.text for step in finding.explanation if step.text.startswith("Collectives of"))
    last = "the last is all_reduce at app.py:10"
    assert counts == f"Collectives of group default_pg on gloo: ranks 0-2 entered 5, {last}; rank 3 entered 4, {last}"
