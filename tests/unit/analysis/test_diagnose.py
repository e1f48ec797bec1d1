"""The verdict, and one finding for each thing that is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given

from dstack.analysis.diagnose import diagnose, plan_readings
from dstack.analysis.findings.kinds.deadlock import SHOWN_CYCLE
from dstack.analysis.solve.open_chains import MAX_RANKED
from dstack.diagnosis import Diagnosis, Finding, Ratio
from dstack.model import Bundle, Failure, Snapshot
from dstack.snapshot_file import save
from dstack.vertex_keys import GroupKey, ThreadKey
from tests.fuzzing.effort import examples
from tests.paths import ROOT
from tests.unit.scenes import Call, Scene, SceneProcess
from tests.unit.support.random_snapshots import related_snapshots


def ring(scene: Scene, *names: str) -> list[SceneProcess]:
    """Actors each of which runs a call that gets one of the next, round a ring."""
    owner = scene.driver()
    actors = [scene.actor(name) for name in names]
    for actor in actors:
        actor.runs(scene.call(actor, "run", by=owner))
    for number, actor in enumerate(actors):
        actor.gets(scene.call(actors[(number + 1) % len(actors)], "step", by=actor))
    return actors


def infeasible(scene: Scene, by: SceneProcess, **needs: float) -> Call:
    """A task that asks for what there is nowhere."""
    return scene.task("big", by=by, state="PENDING_NODE_ASSIGNMENT", required_resources=needs or {"TPU": 1.0})


def kinds(diagnosis: Diagnosis) -> list[str]:
    return [finding.kind for finding in diagnosis.findings]


def only_finding(diagnosis: Diagnosis) -> Finding:
    (finding,) = diagnosis.findings
    return finding


# Verdicts


def test_without_a_sample_nothing_is_said_for_sure() -> None:
    snapshot = Snapshot(dstack_version="0.1.0", taken_at=0.0, address="h:1", ray_version="2.60.0")

    diagnosis = diagnose(snapshot)

    assert (diagnosis.verdict, diagnosis.incomplete, diagnosis.findings) == ("clear", True, ())
    assert plan_readings(snapshot).workers == set()


def test_an_empty_cluster_is_clear() -> None:
    diagnosis = Scene().diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete, diagnosis.findings) == ("clear", False, ())


def test_a_cluster_where_nobody_waits_is_clear() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    actor.runs(scene.call(actor, "work", by=driver))

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete, diagnosis.findings) == ("clear", False, ())


def test_the_worst_finding_gives_the_verdict_and_comes_first() -> None:
    scene = Scene()
    ring(scene, "Left", "Right")
    unlucky, patient = scene.driver(), scene.driver()
    unlucky.gets(infeasible(scene, by=unlucky))
    work, _ = scene.run("work", by=patient)
    patient.gets(work)

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "deadlock"
    assert kinds(diagnosis) == ["deadlock", "infeasible", "blocked"]


def test_a_hang_is_worse_than_an_open_chain() -> None:
    scene = Scene()
    unlucky, patient = scene.driver(), scene.driver()
    unlucky.gets(infeasible(scene, by=unlucky))
    work, _ = scene.run("work", by=patient)
    patient.gets(work)

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "hang"
    assert kinds(diagnosis) == ["infeasible", "blocked"]


# Deadlocks


def test_independent_deadlocks_are_findings_each_the_larger_first() -> None:
    scene = Scene()
    pair, trio = ring(scene, "A", "B"), ring(scene, "C", "D", "E")

    diagnosis = scene.diagnose()

    assert kinds(diagnosis) == ["deadlock", "deadlock"]
    assert {actor.key for actor in trio} <= set(diagnosis.findings[0].members)
    assert {actor.key for actor in pair} <= set(diagnosis.findings[1].members)


def test_the_cycle_is_told_in_the_order_of_waiting_and_begins_at_an_execution() -> None:
    scene = Scene()
    actors = ring(scene, "A", "B", "C")

    finding = only_finding(scene.diagnose())

    executions = [key for key in finding.cycle if isinstance(key, ThreadKey)]
    assert executions == [actor.key for actor in actors]
    assert finding.cycle[0] == actors[0].key
    assert finding.members == finding.cycle


def test_the_cycle_begins_where_others_come_to_wait() -> None:
    scene = Scene()
    actors = ring(scene, "A", "B", "C")
    scene.driver().gets(actors[1].running[0])

    assert only_finding(scene.diagnose()).cycle[0] == actors[1].key


def test_the_shortest_way_round_is_told_and_the_rest_are_members_too() -> None:
    scene = Scene()
    actors = ring(scene, "A", "B", "C", "D")
    (forth,) = actors[1].submitted
    actors[1].gets(scene.call(actors[0], "back", by=actors[1]), forth)

    finding = only_finding(scene.diagnose())

    assert {key for key in finding.cycle if isinstance(key, ThreadKey)} == {actors[0].key, actors[1].key}
    assert {actor.key for actor in actors} <= set(finding.members)


def test_all_who_wait_for_a_deadlock_are_behind_it() -> None:
    scene = Scene()
    left, _ = ring(scene, "Left", "Right")
    near, far = scene.driver(), scene.driver()
    relay, worker = scene.run("relay", by=far)
    near.gets(left.running[0])
    worker.gets(left.running[0])
    far.gets(relay)

    finding = only_finding(scene.diagnose())

    assert set(finding.blocked_behind) == {near.key, worker.key, far.key}


def test_who_waits_for_two_deadlocks_is_behind_both() -> None:
    scene = Scene()
    (first,), (second,) = ring(scene, "Self"), ring(scene, "Other")
    driver = scene.driver()
    driver.gets(first.running[0], second.running[0])

    behind = [set(finding.blocked_behind) for finding in scene.diagnose().findings]

    assert behind == [{driver.key}, {driver.key}]


def test_a_circle_that_waits_for_something_impossible_besides_is_both() -> None:
    scene = Scene()
    left, right = ring(scene, "Left", "Right")
    big = infeasible(scene, by=left)
    left.gets(left.submitted[0], big)

    diagnosis = scene.diagnose()

    assert kinds(diagnosis) == ["deadlock", "infeasible"]
    assert {left.key, right.key} <= set(diagnosis.findings[0].members)
    assert diagnosis.findings[1].members == (big.key,)
    assert {left.key, right.key} <= set(diagnosis.findings[1].blocked_behind)


def test_a_circle_over_resources_names_them() -> None:
    scene = Scene()
    scene.node({"CPU": 4.0}, CPU=4.0, GPU=1.0)
    driver = scene.driver()
    outer, worker = scene.run("outer", by=driver, GPU=1.0)
    inner = scene.task("inner", by=worker, state="PENDING_NODE_ASSIGNMENT", required_resources={"GPU": 1.0})
    worker.gets(inner)
    driver.gets(outer)

    finding = only_finding(scene.diagnose())

    assert (finding.kind, finding.resources) == ("deadlock", ("GPU",))
    assert set(finding.members) == {worker.key, inner.key}
    assert finding.blocked_behind == (driver.key,)


def test_the_story_of_a_long_way_round_is_told_in_part() -> None:
    scene = Scene()
    ring(scene, *(f"Member{number}" for number in range(SHOWN_CYCLE)))

    finding = only_finding(scene.diagnose())

    assert len(finding.cycle) == 2 * SHOWN_CYCLE
    assert finding.explanation[SHOWN_CYCLE].text == f"{SHOWN_CYCLE} more in the same cycle"


# What can never be given


def test_a_task_that_nobody_waits_for_is_infeasible_all_the_same() -> None:
    scene = Scene()
    big = infeasible(scene, by=scene.driver())

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "hang"
    assert only_finding(diagnosis).members == (big.key,)


def test_alike_tasks_that_ask_in_vain_for_the_same_are_one_finding() -> None:
    scene = Scene()
    first, second = scene.driver(), scene.driver()
    alike = [infeasible(scene, by=driver) for driver in (first, first, second)]
    other = infeasible(scene, second, GPU=64.0)
    first.gets(*alike[:2])

    several, single = scene.diagnose().findings

    assert several.members == tuple(call.key for call in alike)
    assert several.blocked_behind == (first.key,)
    assert several.summary == ("big (3 alike) can never run: each asks for 1 TPU, but no node has any TPU")
    assert single.members == (other.key,)
    assert single.summary == "big can never run: it asks for 64 GPU, but no node has any GPU"


@pytest.mark.parametrize("resource", ["TPU", "deadline_slots"])
def test_what_a_resource_is_called_does_not_matter(resource: str) -> None:
    scene = Scene()
    infeasible(scene, scene.driver(), **{resource: 1.0})

    assert kinds(scene.diagnose()) == ["infeasible"]


def test_an_infeasible_placement_group_holds_its_tasks() -> None:
    scene = Scene()
    driver = scene.driver()
    group = scene.group("PENDING", Bundle(resources={"CPU": 64.0}), scheduling_state="INFEASIBLE", name="large")
    task = scene.task("inside", by=driver, state="PENDING_NODE_ASSIGNMENT")
    task.becomes(placement_group_id=group.placement_group_id)
    driver.gets(task)

    finding = only_finding(scene.diagnose())

    assert (finding.kind, finding.members) == ("infeasible", (GroupKey(group.placement_group_id),))
    assert set(finding.blocked_behind) == {task.key, driver.key}


def test_an_actor_that_can_never_be_created_holds_its_callers() -> None:
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
    gone = scene.actor("Gone")
    call = scene.call(gone, "work", by=driver, state="PENDING_NODE_ASSIGNMENT")
    scene.dies(gone, "out of memory")
    driver.gets(call)

    diagnosis = scene.diagnose()

    finding = only_finding(diagnosis)
    assert diagnosis.verdict == "hang"
    assert (finding.kind, finding.members) == ("orphaned", (call.key,))
    assert "is dead: out of memory" in finding.summary


# Open chains


def test_the_end_of_a_chain_is_its_final_blocker() -> None:
    scene = Scene()
    driver = scene.driver()
    first, relay = scene.run("first", by=driver)
    last, worker = scene.run("last", by=relay)
    driver.gets(first)
    relay.gets(last)

    diagnosis = scene.diagnose()

    finding = only_finding(diagnosis)
    assert (diagnosis.verdict, finding.kind) == ("blocked", "blocked")
    assert set(finding.members) == {driver.key, relay.key}
    (blocker,) = finding.final_blockers
    assert (blocker.vertex, blocker.waiters_direct, blocker.waiters_total) == (worker.key, 1, 2)


def test_final_blockers_are_ranked_by_all_who_wait_on_them() -> None:
    scene = Scene()
    driver = scene.driver()
    call, relay = scene.run("relay", by=driver)
    heavy, behind_relay = scene.run("heavy", by=relay)
    light, popular = scene.run("light", by=driver)
    relay.gets(heavy)
    driver.gets(call, light)
    scene.driver().gets(call)
    scene.driver().gets(light)

    blockers = only_finding(scene.diagnose()).final_blockers

    told = [(blocker.vertex, blocker.waiters_direct, blocker.waiters_total) for blocker in blockers]
    assert told == [(behind_relay.key, 1, 3), (popular.key, 2, 2)]


def test_of_very_many_final_blockers_the_most_waited_for_are_told() -> None:
    scene = Scene()
    driver = scene.driver()
    ends = [scene.run("work", by=driver) for _ in range(3 * MAX_RANKED)]
    driver.gets(*(call for call, _ in ends))
    popular, worker = ends[-1]
    for _ in range(5):
        scene.driver().gets(popular)

    blockers = only_finding(scene.diagnose()).final_blockers

    assert len(blockers) == MAX_RANKED
    assert (blockers[0].vertex, blockers[0].waiters_total) == (worker.key, 6)


def test_separate_chains_are_findings_each_the_longest_first() -> None:
    scene = Scene()
    for waiters in (1, 3, 2):
        call, _ = scene.run(f"work{waiters}", by=scene.driver())
        for _ in range(waiters):
            scene.driver().gets(call)

    assert [len(finding.members) for finding in scene.diagnose().findings] == [3, 2, 1]


def test_a_long_queue_is_blocked_on_the_call_that_runs() -> None:
    scene = Scene()
    driver, clerk = scene.driver(), scene.actor("Clerk")
    calls = [scene.call(clerk, "stamp", by=driver) for _ in range(100)]
    clerk.runs(calls[0])
    driver.gets(calls[-1])

    diagnosis = scene.diagnose()

    (blocker,) = only_finding(diagnosis).final_blockers
    assert diagnosis.verdict == "blocked"
    assert (blocker.vertex, blocker.waiters_total) == (clerk.key, 100)


def test_waiting_for_what_others_hold_is_starved() -> None:
    scene = Scene()
    scene.node({"CPU": 4.0}, CPU=4.0, GPU=1.0)
    driver = scene.driver()
    _, holder = scene.run("train", by=driver, GPU=1.0)
    driver.gets(scene.task("next", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"GPU": 1.0}))

    diagnosis = scene.diagnose()

    finding = only_finding(diagnosis)
    assert (diagnosis.verdict, finding.kind, finding.resources) == ("blocked", "starved", ("GPU",))
    assert [blocker.vertex for blocker in finding.final_blockers] == [holder.key]


def test_waiting_with_timeouts_is_polling() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("work", by=driver)
    driver.waits(call, timeout_s=0.5)

    diagnosis = scene.diagnose()

    finding = only_finding(diagnosis)
    assert (diagnosis.verdict, finding.kind) == ("blocked", "polling")
    assert [blocker.vertex for blocker in finding.final_blockers] == [worker.key]


def test_a_circle_that_one_polls_is_polling() -> None:
    scene = Scene()
    left, _ = ring(scene, "Left", "Right")
    left.gets(left.submitted[0], timeout_s=1.0)

    assert kinds(scene.diagnose()) == ["polling"]


def test_so_it_is_where_somebody_waits_for_them_without_a_timeout() -> None:
    scene = Scene()
    left, _ = ring(scene, "Left", "Right")
    left.gets(left.submitted[0], timeout_s=1.0)
    scene.procs[0].gets(left.running[0])

    assert kinds(scene.diagnose()) == ["polling"]


def test_two_who_poll_each_other_have_no_final_blocker() -> None:
    scene = Scene()
    for actor in ring(scene, "Left", "Right"):
        actor.gets(actor.submitted[0], timeout_s=1.0)

    finding = only_finding(scene.diagnose())

    assert (finding.kind, finding.final_blockers) == ("polling", ())
    assert finding.summary == "4 tasks wait for each other's timeouts"


# Whether all was seen


def test_what_was_all_seen_is_complete() -> None:
    scene = Scene()
    driver = scene.driver()
    call, _ = scene.run("work", by=driver)
    driver.gets(call)

    diagnosis = scene.diagnose()

    assert not diagnosis.incomplete
    assert diagnosis.coverage.workers == Ratio(observed=2, total=2)
    assert diagnosis.coverage.nodes == Ratio(observed=1, total=1)


@pytest.mark.parametrize("hidden", ["is_unreachable", "is_unreadable", "has_no_stacks"])
def test_a_worker_that_was_not_seen_might_be_stuck(hidden: str) -> None:
    scene = Scene()
    scene.driver()
    setattr(scene.worker(scene.node(CPU=1.0)), hidden, True)

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("clear", True)
    assert diagnosis.coverage.workers == Ratio(observed=1, total=2)
    assert diagnosis.coverage.nodes == Ratio(observed=1, total=2)


def test_a_wait_for_what_nobody_knows_might_never_end() -> None:
    scene = Scene()
    scene.driver().gets("ab" * 28)

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("blocked", True)


def test_a_chain_that_ends_in_a_coroutine_is_incomplete() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Server")
    actor.thread("AsyncIO Thread: default", role="loop")
    call = scene.call(actor, "serve", by=driver)
    actor.runs(call)
    driver.gets(call)

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("blocked", True)


def test_a_control_plane_that_did_not_tell_all_hides_something() -> None:
    scene = Scene()
    scene.driver()
    scene.failures.append(Failure(stage="control plane", reason="the GCS did not return its actors"))

    assert scene.diagnose().incomplete


def test_a_deadlock_is_one_whatever_else_was_not_seen() -> None:
    scene = Scene()
    ring(scene, "Left", "Right")
    scene.worker().is_unreadable = True

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("deadlock", False)
    assert diagnosis.coverage.workers.observed < diagnosis.coverage.workers.total


def test_a_dead_node_is_not_missed() -> None:
    scene = Scene()
    scene.driver(scene.node(CPU=1.0))
    scene.node(CPU=1.0, alive=False)

    diagnosis = scene.diagnose()

    assert not diagnosis.incomplete
    assert diagnosis.coverage.nodes == Ratio(observed=1, total=1)


# Whom to look at again


def test_suspects_are_those_who_seem_stuck() -> None:
    scene = Scene()
    left, right = ring(scene, "Left", "Right")
    owner, behind, bystander = scene.procs[0], scene.driver(), scene.driver()
    behind.gets(left.running[0])
    call, _ = scene.run("work", by=bystander)
    bystander.gets(call)

    found = plan_readings(scene.snapshot()).workers

    assert found == {proc.worker_id for proc in (left, right, owner, behind)}


def test_who_made_a_group_that_never_fits_is_suspect_even_where_nobody_waits_for_it() -> None:
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


def test_suspects_are_also_those_who_wait_for_what_was_not_seen() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.gets(scene.task("on its way", by=driver))
    scene.driver()

    assert plan_readings(scene.snapshot()).workers == {driver.worker_id}


def test_calls_whose_stacks_were_not_read_are_no_finding_of_their_own() -> None:
    scene = Scene()
    driver = scene.driver()
    for _ in range(3):
        actor = scene.actor("Worker")
        actor.runs(scene.call(actor, "work", by=driver))
        actor.is_unreadable = True

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete, diagnosis.findings) == ("clear", True, ())


# Whatever is in it


@given(related_snapshots())
@examples(150, suppress_health_check=[HealthCheck.too_slow])
def test_findings_and_waits_are_about_vertices_there_are(snapshot: Snapshot) -> None:
    diagnosis = diagnose(snapshot)

    told = {
        key
        for finding in diagnosis.findings
        for key in (*finding.members, *finding.blocked_behind, *(blocker.vertex for blocker in finding.final_blockers))
    }
    waited_for = {
        target.vertex
        for vertex in diagnosis.vertices.values()
        if vertex.wait
        for group in vertex.wait.groups
        for target in group.targets
    }
    assert told | waited_for <= diagnosis.vertices.keys()


def test_the_same_snapshot_gives_the_same_diagnosis_in_every_process(tmp_path: Path) -> None:
    scene = Scene()
    for names in ("AB", "CD", "EFG", "HIJ"):
        first, *_ = ring(scene, *names)
        first.gets(first.submitted[0], infeasible(scene, by=first))
    for _ in range(2 * MAX_RANKED):
        call, _ = scene.run("work", by=scene.procs[0])
        scene.driver().gets(call)
    scene.sample().second_sample()
    file = tmp_path / "taken.json"
    save(scene.snapshot(), file)

    show = [sys.executable, "-c", f"from dstack.cli import main; main(['show', '--json', {str(file)!r}])"]
    seeds = [{**os.environ, "PYTHONHASHSEED": seed} for seed in "123"]
    told = {subprocess.run(show, cwd=ROOT, env=seed, capture_output=True, check=True).stdout for seed in seeds}

    assert len(told) == 1
