"""Members of process groups that are outside of the call: idle, failed, dead, pending or unobserved."""

from __future__ import annotations

import dataclasses
import json

from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.observed.processes import Frame
from dstack.report.check_json import check_json
from dstack.report.text import report_text
from tests.unit.analysis.graph.rank_scenes import Gang, gang, only_finding, with_reward
from tests.unit.scenes import group_of, groups_of

# Members that run nothing


def test_a_rank_that_returned_and_has_no_caller_never_enters() -> None:
    it = gang(3).collect((0, 1), "barrier").returns(2)

    finding = only_finding(it.diagnose())

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

    finding = only_finding(diagnosis)
    assert (diagnosis.verdict, finding.kind, finding.confirmed) == ("hang", "orphaned", True)
    assert finding.summary.startswith(
        "rank 1's Rank.train raised ValueError: 3, and its result may never have been fetched; "
        "ranks 0, 2 wait in all_reduce of group default_pg"
    )
    assert "ray.wait" in str(finding.advice)


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


def test_an_unread_rank_may_proceed() -> None:
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


def test_an_actor_of_the_class_without_a_group_is_assumed_to_be_the_missing_rank() -> None:
    it = starting()

    finding = only_finding(it.diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", False)
    (assumed,) = finding.assumed
    assert assumed == "rank 1 of init_process_group will be an actor of the same class that is in no group yet"
    assert finding.summary.startswith("rank 0 is in init_process_group of group default_pg; rank 1 is in ray.get for")


def test_the_environment_of_an_actor_gives_its_rank() -> None:
    it = starting()
    other = it.scene.actor("Rank").works_for().computes()
    assert it.diagnose().verdict == "running"

    it.scene.samples.clear()
    it.ranks[1].rank, other.rank = 1, 0

    assert it.diagnose().verdict == "running"


def test_an_actor_in_another_group_is_not_in_this_one() -> None:
    it = starting()
    it.ranks[1].is_member(group_of(0, 0, 1, world="tcp://10.0.0.9:29500"))

    assert not it.diagnose().is_stuck


def test_a_rank_waits_for_the_creation_of_its_actor() -> None:
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
    """The actor of a rank dies, and an error is available in place of its call's value."""
    dead = it.ranks[rank].actor
    assert dead is not None
    it.scene.procs.remove(it.ranks[rank])
    it.driver.submitted.remove(it.calls[rank])
    it.driver.has(it.calls[rank])
    at = it.scene.actors.index(dead)
    it.scene.actors[at] = replace(dead, state="DEAD", death_cause="exited with code 1", death_reason="WORKER_DIED")


def test_a_dead_member_orphans_the_ranks_in_a_collective() -> None:
    it = gang(3).collect((0, 1))
    dies(it, 2)

    finding = only_finding(it.diagnose())

    assert (finding.kind, finding.confirmed) == ("orphaned", True)
    assert "ranks 0-1 wait in all_reduce of group default_pg" in finding.summary


def test_a_missing_rank_without_a_dead_actor_may_be_outside_of_ray() -> None:
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

    finding = only_finding(it.diagnose())

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
    idle.role, idle.leaf = "ray", Frame(function="run", file="/ray/_private/worker.py", line=1, origin="ray")
    it.driver.gets(*it.calls, call)
    assert it.diagnose().is_stuck

    it.scene.samples.clear()
    it.driver.computes()

    assert not it.diagnose().is_stuck


def test_many_ranks_share_their_dependencies() -> None:
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


def test_the_json_has_the_present_and_missing_ranks() -> None:
    it, _, _ = with_reward()
    it.scene.sample().second_sample()

    document = json.loads(check_json(AnalysedSnapshot.of(it.scene.snapshot())))

    members = [*document["findings"][0]["members"], *document["findings"][0]["blocked_behind"]]
    calls = [wait["process_group"] for member in members for wait in member["waits_for"] if wait["process_group"]]
    assert {call["rank"] for call in calls} == {0, 1, 2}
    assert all((call["inside"], call["missing"]) == ([0, 1, 2], [3]) for call in calls)
    assert {(call["operation"], call["description"]) for call in calls} == {("all_reduce", "default_pg")}


def test_a_rank_in_an_open_chain_names_the_ranks_that_it_waits_for() -> None:
    it = gang(3).collect((0, 1))

    text = report_text(AnalysedSnapshot.of(it.scene.snapshot()))

    assert "all depends on Rank.train of actor" in text


def test_a_call_on_a_group_is_not_an_idle_service() -> None:
    """A main thread waits in a collective, and a helper in a queue that the main thread may fill."""
    it = gang(2).collect((0,)).collect((1,), "barrier")
    helper = it.ranks[0].thread("helper", "user")
    helper.is_in("queue.Queue.get", "0x1").is_reached_by(it.ranks[0].threads[0])

    finding = only_finding(it.diagnose())
    assert (finding.kind, helper.key in finding.members) == ("deadlock", True)


def test_a_forked_child_has_the_ranks_of_its_parent() -> None:
    it, _, _ = with_reward()
    it.scene.sample()
    for at, worker in enumerate(it.scene.samples[0].workers):
        if worker.worker_id == it.ranks[1].worker_id and worker.process is not None:
            child = dataclasses.replace(worker.process, pid=77, parent_pid=worker.process.pid, threads=(), children=())
            changed = replace(worker, process=dataclasses.replace(worker.process, children=(child,)))
            workers = it.scene.samples[0].workers
            it.scene.samples[0] = replace(it.scene.samples[0], workers=(*workers[:at], changed, *workers[at + 1 :]))

    assert it.scene.second_sample().diagnose().verdict == "deadlock"


def test_ranks_with_similar_waits_are_reported_as_one() -> None:
    it = gang(300).collect(range(150))
    for rank in range(150, 300):
        it.ranks[rank].gets(it.scene.call(it.ranks[0], "weight", by=it.ranks[rank]))

    assert only_finding(it.diagnose()).summary.startswith(
        "ranks 0-149 are in all_reduce of group default_pg; "
        "ranks 150-299 are in ray.get for Rank.weight, queued on rank 0"
    )
