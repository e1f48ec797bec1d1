"""Calls on process groups: what they wait for, which members have to come, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import plan_readings
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.diagnosis import Diagnosis, Finding
from dstack.model import FailedTask, ProcessGroup
from dstack.report.check_json import check_json
from dstack.report.text import report_text
from tests.unit.scenes import JOB, Call, Scene, SceneProcess, group_of, groups_of


@dataclass
class Gang:
    """Actors that are the ranks of one process group, each in a call of the driver, which waits for all."""

    scene: Scene
    driver: SceneProcess
    ranks: list[SceneProcess]
    calls: list[Call]
    groups: list[ProcessGroup]

    def diagnose(self) -> Diagnosis:
        """By two samples."""
        return self.scene.sample().second_sample().diagnose()

    def collect(self, ranks: Sequence[int], operation: str = "all_reduce", **known: Any) -> Gang:
        for rank in ranks:
            self.ranks[rank].collects(operation, self.groups[rank], **known)
        return self

    def returns(self, rank: int) -> Gang:
        """A rank has ended its call, whose value is there."""
        self.ranks[rank].idles()
        self.driver.submitted.remove(self.calls[rank])
        self.driver.has(self.calls[rank])
        return self

    def fails(self, rank: int, *, is_held: bool = True) -> Gang:
        """A rank's call has raised an exception."""
        task = self.calls[rank].task
        self.returns(rank)
        self.scene.failed.append(
            FailedTask(
                task_id=task.task_id,
                name="Rank.train",
                job_id=JOB,
                error_type="TASK_EXECUTION_EXCEPTION",
                error="ValueError: 3",
                actor_id=self.ranks[rank].actor_id,
                is_held=is_held,
            )
        )
        return self


def gang(count: int, **known: Any) -> Gang:
    scene = Scene()
    driver = scene.driver()
    ranks = [scene.actor("Rank", owner_id=driver.worker_id) for _ in range(count)]
    groups = [group_of(rank, *range(count), **known) for rank in range(count)]
    calls = []
    for rank, group in zip(ranks, groups, strict=True):
        rank.tasks_read = True
        calls.append(scene.call(rank, "train", by=driver))
        rank.works_for().runs(calls[-1]).is_member(group)
    driver.gets(*calls)
    return Gang(scene, driver, ranks, calls, groups)


def only(diagnosis: Diagnosis) -> Finding:
    (finding,) = diagnosis.findings
    return finding


def with_reward() -> tuple[Gang, SceneProcess, Call]:
    """Ranks 0 to 2 in all_reduce, rank 3 in ray.get on an actor that calls rank 0."""
    it = gang(4)
    reward = it.scene.actor("Reward", owner_id=it.driver.worker_id).works_for()
    score = it.scene.call(reward, "score", by=it.ranks[3])
    weight = it.scene.call(it.ranks[0], "weight", by=reward)
    reward.runs(score).gets(weight)
    it.collect((0, 1, 2)).ranks[3].gets(score)
    return it, reward, weight


def test_a_rank_that_waits_for_one_in_the_collective_is_a_deadlock() -> None:
    it, reward, weight = with_reward()

    diagnosis = it.diagnose()

    finding = only(diagnosis)
    assert (diagnosis.verdict, finding.confirmed, finding.assumed) == ("deadlock", True, ())
    assert {it.ranks[0].key, it.ranks[3].key, reward.key, weight.key} <= set(finding.members)
    assert {it.ranks[1].key, it.ranks[2].key} <= {*finding.members, *finding.blocked_behind}
    assert finding.summary.startswith(
        "ranks 0-2 are in all_reduce of group default_pg; rank 3 is in ray.get for Reward.score, which calls rank 0"
    )


def test_a_slow_reward_is_waited_for() -> None:
    it, reward, _ = with_reward()
    reward.computes()

    diagnosis = it.diagnose()

    finding = only(diagnosis)
    assert diagnosis.verdict == "blocked"
    assert finding.final_blockers[0].vertex == reward.key


# Which members have to come


@pytest.mark.parametrize("operation", ["all_reduce", "barrier", "all_gather_object", "reduce_scatter", "all_to_all"])
def test_ranks_in_two_operations_of_a_group_wait_for_each_other(operation: str) -> None:
    it = gang(4).collect((0, 1), operation).collect((2, 3), "broadcast", peer=0)

    finding = only(it.diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", True)
    calls = f"ranks 0-1 are in {operation} and ranks 2-3 in broadcast of group default_pg"
    assert finding.summary.startswith(calls)
    assert "same order" in finding.advice


def test_a_rank_that_runs_may_come() -> None:
    it = gang(3).collect((0, 1))

    diagnosis = it.diagnose()

    finding = only(diagnosis)
    first = finding.explanation[0].text
    assert first.startswith("Ranks 0-1")
    assert "are in all_reduce of group default_pg, and wait for rank 2; the first" in first
    assert (diagnosis.verdict, diagnosis.incomplete) == ("blocked", False)
    assert finding.final_blockers[0].vertex == it.ranks[2].key


def test_one_rank_that_runs_may_be_the_one_that_has_not_entered() -> None:
    it, _, _ = with_reward()
    it.ranks[1].computes()

    assert it.diagnose().verdict == "blocked"


def test_all_ranks_inside_are_no_deadlock() -> None:
    it = gang(3).collect((0, 1, 2))

    assert not it.diagnose().is_stuck


def test_without_the_instance_of_a_group_nothing_is_claimed() -> None:
    it, _, _ = with_reward()
    for rank in range(4):
        it.groups[rank] = replace(it.groups[rank], world="")
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
    finding = only(it.diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", True)
    assert finding.summary.startswith(
        "rank 0 is in recv from rank 1 and rank 1 in recv from rank 0 of group default_pg"
    )
    assert "isend" in finding.advice


def test_a_receive_from_any_rank_needs_one_of_them() -> None:
    it = gang(3).collect((0,), "recv").collect((1,), "recv", peer=0)
    assert it.diagnose().verdict == "blocked"

    it = gang(3).collect((0,), "recv").collect((1, 2), "recv", peer=0)
    assert it.diagnose().verdict == "deadlock"


def test_a_broadcast_waits_for_its_root_or_for_what_passes_its_data_on() -> None:
    it = gang(3).collect((1,), "broadcast", peer=0).collect((0,), "all_reduce")

    waits = groups_of(it.scene.wait_of(it.ranks[1]))

    assert waits == [(1, [it.ranks[0].key, it.ranks[2].key])]
    assert it.diagnose().verdict == "blocked"


def test_a_broadcast_whose_root_has_come_ends_by_itself() -> None:
    it = gang(3).collect((0, 1), "broadcast", peer=0).collect((2,), "all_reduce")

    (_, targets), *_ = groups_of(it.scene.wait_of(it.ranks[1]))

    assert it.ranks[2].key not in targets


def test_a_scatter_waits_for_its_root_alone() -> None:
    it = gang(3).collect((1,), "scatter", peer=0)

    assert groups_of(it.scene.wait_of(it.ranks[1])) == [(1, [it.ranks[0].key])]


def test_a_root_waits_for_any_that_may_not_have_come() -> None:
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

    finding = only(it.diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", True)
    assert finding.summary.startswith("rank 0 is in all_reduce of group tp; rank 1 is in all_reduce of group dp")
    assert "same order" in finding.advice


def test_a_driver_is_a_rank_as_any_other() -> None:
    scene = Scene()
    driver, worker = scene.driver(), scene.actor("Worker")
    worker.tasks_read = True
    step = scene.call(worker, "step", by=driver)
    worker.works_for().runs(step).is_member(group_of(1, 0, 1)).collects("all_reduce", group_of(1, 0, 1))
    driver.is_member(group_of(0, 0, 1)).gets(step)

    finding = only(scene.sample().second_sample().diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", True)
    assert finding.summary.startswith(
        "rank 1 is in all_reduce of group default_pg; rank 0 is in ray.get for Worker.step"
    )


def test_a_coroutine_stands_for_a_rank_that_calls_it() -> None:
    """Rank 0 reports through an actor; rank 1, for which that waits, is in an all_reduce with rank 0."""
    train = [group_of(r, 0, 1, name="report", description="report", library="ray.train", world="run 1") for r in (0, 1)]
    it = gang(2).collect((1,))
    barrier = it.scene.async_actor("SynchronizationActor", owner_id=it.driver.worker_id).works_for()
    report = it.scene.call(barrier, "barrier", by=it.ranks[0])
    waiter = barrier.begins(report).collects("barrier", train[0], mark="")
    for rank in (0, 1):
        it.ranks[rank].is_member(train[rank])
    it.ranks[0].gets(report)

    finding = only(it.diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", True)
    assert {waiter.key, it.ranks[0].key, it.ranks[1].key} == set(finding.members)


# Two samples


def test_a_call_whose_thread_ran_between_the_samples_is_another_one() -> None:
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


def test_a_process_that_was_stopped_may_go_on_with_the_call() -> None:
    it = gang(2).collect((0,)).collect((1,), "barrier")
    it.ranks[0].state = "T"

    assert not it.diagnose().is_stuck


def test_a_library_that_polls_while_it_makes_a_group_moves_no_data() -> None:
    it = gang(2).collect((0,), "new_group").collect((1,), "barrier")
    it.scene.sample()
    it.ranks[0].cpu_s += 0.5

    assert it.scene.second_sample().diagnose().is_stuck


def test_when_the_library_gives_up_differs_by_the_clock() -> None:
    it = gang(2).collect((0,), fails_at=1.7e9 + 600.0).collect((1,), "barrier")
    it.scene.sample()
    it.collect((0,), fails_at=1.7e9 + 600.0004)

    finding = only(it.scene.second_sample().diagnose())

    assert finding.confirmed
    assert any("times out in 10 min" in step.text for step in finding.explanation)


def test_a_call_that_polls_is_one_call_under_an_assumption() -> None:
    it = gang(2).collect((0,), mark="").collect((1,), "barrier")
    assert it.ranks[0].worker_id in plan_readings(it.scene.sample().snapshot()).pollers

    finding = only(it.scene.read().second_sample().diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", False)
    assert finding.assumed == ("rank 0 was in the same all_reduce in all samples",)


def test_a_call_that_polls_and_was_seen_elsewhere_is_not_one() -> None:
    it = gang(2).collect((0,), mark="").collect((1,), "barrier")
    it.scene.sample()
    it.ranks[0].computes()
    it.scene.read(only=it.ranks)
    it.collect((0,), mark="")

    assert not it.scene.second_sample().diagnose().is_stuck


def test_what_may_be_stuck_is_watched_for_a_while() -> None:
    it, _, _ = with_reward()

    assert plan_readings(it.scene.sample().snapshot()).may_stand_still


# Members that run nothing


def test_a_rank_that_returned_and_that_nothing_can_call_is_waited_for_for_good() -> None:
    it = gang(3).collect((0, 1), "barrier").returns(2)

    finding = only(it.diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", True)
    assert finding.summary.startswith("ranks 0-1 are in barrier of group default_pg; rank 2 (actor Rank ")
    assert "is idle" in finding.summary
    assert {it.ranks[0].key, it.driver.key} <= {*finding.members, *finding.blocked_behind}


def test_a_caller_that_can_proceed_may_call_the_rank_again() -> None:
    it = gang(3).collect((0, 1), "barrier").returns(2)
    it.driver.computes()

    assert not it.diagnose().is_stuck


def test_a_rank_whose_call_failed_orphans_the_others() -> None:
    it = gang(3).collect((0, 2)).fails(1)

    diagnosis = it.diagnose()

    finding = only(diagnosis)
    assert (diagnosis.verdict, finding.kind, finding.confirmed) == ("hang", "orphaned", True)
    assert finding.summary.startswith(
        "rank 1's Rank.train raised ValueError: 3, and its result was never fetched; "
        "ranks 0, 2 wait in all_reduce of group default_pg"
    )
    assert "ray.wait" in finding.advice


def test_a_rank_whose_call_failed_may_be_called_again() -> None:
    it = gang(3).collect((0, 2)).fails(1)
    it.driver.computes()

    assert not it.diagnose().is_stuck


def test_a_rank_that_has_just_returned_may_have_been_in_the_call() -> None:
    it = gang(3).collect((0, 1))
    it.ranks[2].gets(it.calls[0])
    it.scene.sample()
    it.returns(2)

    assert not it.scene.sample(only=None).diagnose().is_stuck


def test_an_unread_rank_leaves_it_open() -> None:
    it = gang(3).collect((0, 1))
    it.ranks[2].is_unreadable = True

    diagnosis = it.diagnose()

    assert (diagnosis.is_stuck, diagnosis.incomplete) == (False, True)


# Groups that are being made


def starting() -> Gang:
    """Rank 0 makes a process group with rank 1, which is in ray.get on rank 0 before."""
    it = gang(2, name="")
    for rank in it.ranks:
        rank.memberships.clear()
    it.collect((0,), "init_process_group", mark="")
    address = it.scene.call(it.ranks[0], "address", by=it.ranks[1])
    it.ranks[1].gets(address)
    return it


def test_an_actor_of_the_class_that_is_in_no_group_is_assumed_to_be_the_missing_rank() -> None:
    it = starting()

    finding = only(it.diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", False)
    (assumed,) = finding.assumed
    assert assumed == "rank 1 of init_process_group will be an actor of the same class that is in no group yet"
    assert finding.summary.startswith("rank 0 is in init_process_group of group default_pg; rank 1 is in ray.get for")


def test_a_rank_in_its_environment_tells_which_actor_it_is() -> None:
    it = starting()
    other = it.scene.actor("Rank").works_for().computes()
    assert it.diagnose().verdict == "blocked"

    it.scene.samples.clear()
    it.ranks[1].rank, other.rank = 1, 0

    assert it.diagnose().verdict == "blocked"


def test_an_actor_that_is_in_another_group_is_none_of_this_one() -> None:
    it = starting()
    it.ranks[1].is_member(group_of(0, 0, 1, world="tcp://10.0.0.9:29500"))

    assert not it.diagnose().is_stuck


def test_a_rank_whose_actor_is_to_be_created_comes_with_it() -> None:
    it = gang(2, name="").collect((0,), "init_process_group", mark="")
    it.ranks[0].memberships.clear()
    it.ranks[1].memberships.clear()
    it.ranks[1].idles()
    scene = it.scene
    scene.procs.remove(it.ranks[1])
    scene.actors.remove(it.ranks[1].actor or scene.actors[-1])
    it.driver.submitted.remove(it.calls[1])
    _, creation = scene.pending_actor("Rank", it.driver, CPU=1.0)

    waits = groups_of(scene.wait_of(it.ranks[0]))
    helper = scene.graph()[waits[0][1][0]]

    assert helper.wait is not None
    assert groups_of(helper.wait) == [(1, [creation.key])]


def dies(it: Gang, rank: int) -> None:
    """The actor of a rank has died, and the error is there in place of its call's value."""
    dead = it.ranks[rank].actor
    assert dead is not None
    it.scene.procs.remove(it.ranks[rank])
    it.driver.submitted.remove(it.calls[rank])
    it.driver.has(it.calls[rank])
    at = it.scene.actors.index(dead)
    it.scene.actors[at] = replace(dead, state="DEAD", death_cause="exited with code 1", death_reason="WORKER_DIED")


def test_a_member_that_died_orphans_those_in_a_collective() -> None:
    it = gang(3).collect((0, 1))
    dies(it, 2)

    finding = only(it.diagnose())

    assert (finding.kind, finding.confirmed) == ("orphaned", True)
    assert "ranks 0-1 wait in all_reduce of group default_pg" in finding.summary


def test_a_missing_rank_that_no_death_explains_may_be_outside_of_ray() -> None:
    it = gang(3).collect((0,))
    dies(it, 1)
    it.scene.procs.remove(it.ranks[2])
    it.scene.actors.remove(it.ranks[2].actor or it.scene.actors[-1])
    it.driver.submitted.remove(it.calls[2])
    it.driver.has(it.calls[2])

    assert not it.diagnose().is_stuck


def test_a_driver_that_can_proceed_may_replace_a_dead_rank() -> None:
    it = gang(3).collect((0, 1))
    dies(it, 2)
    it.driver.computes()

    assert not it.diagnose().is_stuck


def test_a_rank_whose_actor_died_orphans_the_others() -> None:
    it = gang(2, name="").collect((0,), "init_process_group", mark="")
    it.ranks[0].memberships.clear()
    dies(it, 1)

    finding = only(it.diagnose())

    assert (finding.kind, finding.confirmed) == ("orphaned", True)
    assert finding.summary.startswith("rank 1 (actor Rank ")
    assert "has died: exited with code 1; rank 0 waits in init_process_group of group default_pg" in finding.summary


# Other executions of a member


def test_a_thread_of_the_user_in_a_member_may_make_the_call() -> None:
    it, _, _ = with_reward()
    it.ranks[3].thread("sync", "user").computes()

    assert not it.diagnose().is_stuck


def test_a_member_with_a_free_slot_may_be_called() -> None:
    it, _, _ = with_reward()
    free = it.scene.threaded_actor(2, "Rank", owner_id=it.driver.worker_id).works_for()
    call = it.scene.call(free, "train", by=it.driver)
    free.tasks_read = True
    free.runs(call).is_member(it.groups[3])
    it.ranks[3].memberships.clear()
    free.slots[0].gets(it.calls[0])
    idle = free.slots[1]
    idle.role, idle.name = "ray", "ray_slot"
    it.driver.gets(*it.calls, call)
    assert it.diagnose().is_stuck

    it.scene.samples.clear()
    it.driver.computes()

    assert not it.diagnose().is_stuck


def test_many_ranks_share_what_they_wait_for() -> None:
    it = (
        gang(80)
        .collect(range(1, 40), "broadcast", peer=0)
        .collect(range(40, 80), "all_reduce")
        .collect((0,), "barrier")
    )

    graph = it.scene.graph()
    edges = sum(len(group.targets) for vertex in graph.values() if vertex.wait for group in vertex.wait.groups)

    assert edges < 80 * 8
    assert it.diagnose().verdict == "deadlock"


def test_the_json_has_the_ranks_inside_and_those_missing() -> None:
    it, _, _ = with_reward()
    it.scene.sample().second_sample()

    document = json.loads(check_json(AnalysedSnapshot.of(it.scene.snapshot())))

    members = [*document["findings"][0]["members"], *document["findings"][0]["blocked_behind"]]
    calls = [wait["process_group"] for member in members for wait in member["waits_for"] if wait["process_group"]]
    assert {call["rank"] for call in calls} == {0, 1, 2}
    assert all((call["inside"], call["missing"]) == ([0, 1, 2], [3]) for call in calls)
    assert {(call["operation"], call["description"]) for call in calls} == {("all_reduce", "default_pg")}


def test_a_rank_in_an_open_chain_says_for_which_ranks_it_waits() -> None:
    it = gang(3).collect((0, 1))

    text = report_text(AnalysedSnapshot.of(it.scene.snapshot()))

    assert "all depend on Rank.train of actor" in text


def test_a_call_on_a_group_is_no_service_at_rest() -> None:
    """A main thread in a collective and a helper that waits in a queue which it may fill."""
    it = gang(2).collect((0,)).collect((1,), "barrier")
    helper = it.ranks[0].thread("helper", "user")
    helper.is_in("queue.Queue.get", "0x1").is_reached_by(it.ranks[0].threads[0])

    finding = only(it.diagnose())
    assert (finding.kind, helper.key in finding.members) == ("deadlock", True)


def test_a_forked_child_has_the_ranks_of_its_parent() -> None:
    it, _, _ = with_reward()
    it.scene.sample()
    for at, worker in enumerate(it.scene.samples[0].workers):
        if worker.worker_id == it.ranks[1].worker_id and worker.process is not None:
            child = replace(worker.process, pid=77, parent_pid=worker.process.pid, threads=(), children=())
            changed = replace(worker, process=replace(worker.process, children=(child,)))
            workers = it.scene.samples[0].workers
            it.scene.samples[0] = replace(it.scene.samples[0], workers=(*workers[:at], changed, *workers[at + 1 :]))

    assert it.scene.second_sample().diagnose().verdict == "deadlock"


def test_ranks_that_wait_alike_elsewhere_are_told_as_one() -> None:
    it = gang(300).collect(range(150))
    for rank in range(150, 300):
        it.ranks[rank].gets(it.scene.call(it.ranks[0], "weight", by=it.ranks[rank]))

    assert only(it.diagnose()).summary.startswith(
        "ranks 0-149 are in all_reduce of group default_pg; "
        "ranks 150-299 are in ray.get for Rank.weight, queued on rank 0"
    )
