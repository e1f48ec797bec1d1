"""Waits for dead producers: orphaned only where no answer can come any more."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dstack.analysis.diagnose import diagnose
from dstack.analysis.naming.descriptions import in_words
from dstack.model.diagnosis import Finding
from dstack.model.snapshot import Actor, TaskTimes
from dstack.observed.node import Task
from tests.unit.scenes import JOB, Call, Scene, SceneProcess, groups_of


def only_finding(scene: Scene) -> Finding:
    (finding,) = scene.diagnose().findings
    return finding


def waits_for_task_of(scene: Scene, owner: SceneProcess) -> Call:
    """A task whose ref another worker received, which now waits for it."""
    task, worker = scene.run("slow", by=owner)
    scene.procs.remove(worker)
    scene.driver().gets(task)
    return task


# Owners


def test_a_ref_whose_owner_died_long_ago_is_orphaned() -> None:
    scene = Scene()
    owner = scene.worker()
    task = waits_for_task_of(scene, owner)
    scene.dies(owner, "out of memory")
    scene.sample().second_sample()

    diagnosis = scene.diagnose()

    (finding,) = diagnosis.findings
    assert (diagnosis.verdict, diagnosis.incomplete) == ("hang", False)
    assert (finding.kind, finding.members, finding.confirmed) == ("orphaned", (task.key,), True)
    pid = owner.worker.pid
    assert f"its owner, worker (pid {pid}, node 10.0.0.2), died: out of memory" in finding.summary
    assert "can never complete" in finding.summary


def test_a_ref_whose_owner_died_just_now_may_yet_give_an_error() -> None:
    scene = Scene()
    owner = scene.worker()
    waits_for_task_of(scene, owner)
    scene.dies(owner, "out of memory", ago_s=3)

    finding = only_finding(scene)

    assert finding.kind == "running"
    assert "or an error, because its owner" in finding.summary


@pytest.mark.parametrize(("ago_s", "ahead_s", "kind"), [(100, -3600.0, "running"), (100, -50.0, "orphaned")])
def test_the_clock_that_is_furthest_behind_gives_the_time_of_an_owners_death(
    ago_s: float, ahead_s: float, kind: str
) -> None:
    scene = Scene()
    owner = scene.worker()
    waits_for_task_of(scene, owner)
    scene.dies(owner, "out of memory", ago_s=ago_s)
    scene.nodes[0] = msgspec.structs.replace(scene.nodes[0], clock_ahead_s=ahead_s)

    assert only_finding(scene).kind == kind


def test_a_ref_whose_owner_does_not_answer_is_unknown() -> None:
    scene = Scene()
    owner = scene.worker()
    waits_for_task_of(scene, owner)
    owner.is_unreachable = owner.has_no_stacks = True
    scene.sample().second_sample()

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("running", True)
    assert f"whose owner, worker (pid {owner.worker.pid}, node 10.0.0.2), did not answer" in str(diagnosis.findings)


def test_a_ref_with_an_unlisted_owner_is_unknown() -> None:
    scene = Scene()
    owner = scene.worker()
    waits_for_task_of(scene, owner)
    scene.procs.remove(owner)

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("running", True)


def test_a_task_that_still_runs_is_not_orphaned_by_its_owners_death() -> None:
    scene = Scene()
    owner = scene.worker()
    task, _ = scene.run("slow", by=owner)
    scene.driver().gets(task)
    scene.dies(owner)

    assert only_finding(scene).kind == "running"


def test_an_available_value_is_not_orphaned_by_its_owners_death() -> None:
    scene = Scene()
    owner, reader = scene.worker(), scene.driver()
    task = scene.task("slow", by=owner)
    reader.gets(task)
    reader.has(task)
    scene.dies(owner)

    assert only_finding(scene).kind == "running"


def test_a_wait_with_a_timeout_is_not_orphaned() -> None:
    scene = Scene()
    owner = scene.worker()
    scene.driver().gets(scene.task("slow", by=owner), timeout_s=5.0)
    scene.dies(owner)

    assert all(not finding.blocked_behind for finding in scene.diagnose().findings)


# Actors


@pytest.mark.parametrize("state", ["PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER"])
def test_a_call_of_a_dead_actor_never_runs(state: str) -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Gone")
    call = scene.call(actor, "work", by=driver, state=state)
    scene.dies(actor, "out of memory")

    vertex = scene.graph()[call.key]

    assert vertex.wait is None
    assert vertex.never is not None
    assert vertex.never.is_orphaned
    assert in_words(vertex.never).endswith("is dead: out of memory")


@pytest.mark.parametrize("state", ["PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER"])
def test_the_caller_of_an_actor_that_died_just_now_gets_an_error_soon(state: str) -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Gone")
    driver.gets(scene.call(actor, "work", by=driver, state=state))
    scene.dies(actor, ago_s=1)

    assert only_finding(scene).kind == "running"


def test_an_actor_that_is_exiting_still_ends_its_calls() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Leaving")
    call = scene.call(actor, "work", by=driver)
    assert actor.actor is not None
    scene.becomes(actor.actor, state="DEAD", ended_at=1.0)

    assert scene.graph()[call.key].never is None


# Restarts


def restarting(scene: Scene, by: SceneProcess, **known: Any) -> tuple[Actor, Call]:
    """An actor that is being restarted, and a call that waits for that."""
    actor = scene.actor("Phoenix").actor
    assert actor is not None
    scene.procs.pop()
    actor = scene.becomes(
        actor, state="RESTARTING", owner_id=by.worker_id, **{"worker_id": None, "num_restarts": 2} | known
    )
    call = scene.call(actor, "work", by=by, state="PENDING_NODE_ASSIGNMENT")
    by.gets(call)
    return actor, call


def test_a_restart_that_no_node_can_hold_is_infeasible() -> None:
    scene = Scene()
    driver = scene.driver()
    _, call = restarting(scene, by=driver, required_resources={"special": 1.0})
    scene.sample().second_sample()

    finding = only_finding(scene)

    assert (finding.kind, finding.confirmed) == ("infeasible", True)
    assert {call.key, driver.key} == set(finding.blocked_behind)
    assert finding.summary.startswith("Phoenix.__init__ (restart 2) can never run: it asks for 1 special")


def test_a_restart_that_is_under_way_is_waited_for_at_its_worker() -> None:
    scene = Scene()
    driver, worker = scene.driver(), scene.worker()
    actor, call = restarting(scene, by=driver, worker_id=worker.worker_id)
    task_id = f"{'f' * 16}{actor.actor_id}"
    worker.runs(Call(Task(task_id=task_id, owner_id="", name="", kind="ACTOR_CREATION_TASK", state="", job_id=JOB)))

    assert groups_of(scene.wait_of(call)) == [(1, [worker.key])]


def test_a_restart_on_a_worker_that_does_not_answer_is_unknown() -> None:
    scene = Scene()
    driver, worker = scene.driver(), scene.worker()
    restarting(scene, by=driver, worker_id=worker.worker_id, required_resources={"special": 1.0})
    worker.is_unreachable = True

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("running", True)


def test_a_creation_with_a_dead_owner_can_be_infeasible() -> None:
    scene = Scene()
    owner, driver = scene.worker(), scene.driver()
    actor, _ = scene.pending_actor("Left", by=owner)
    actor = scene.becomes(actor, is_detached=True, required_resources={"special": 1.0})
    driver.gets(scene.call(actor, "work", by=driver, state="PENDING_NODE_ASSIGNMENT"))
    scene.dies(owner)

    assert only_finding(scene).kind == "infeasible"


# Placement groups


def test_a_task_in_a_removed_placement_group_is_orphaned() -> None:
    scene = Scene()
    driver = scene.driver()
    group = scene.group("REMOVED", name="trainers")
    task = scene.task("train", by=driver, state="PENDING_NODE_ASSIGNMENT", placement_group_id=group.placement_group_id)
    driver.gets(task)

    finding = only_finding(scene)

    assert (finding.kind, finding.members) == ("orphaned", (task.key,))
    assert "placement group trainers, which it must run in, was removed" in finding.summary


def test_tasks_in_a_removed_placement_group_are_no_hang_if_no_code_needs_them() -> None:
    scene = Scene()
    driver = scene.driver()
    group = scene.group("REMOVED", name="trainers")
    for _ in range(2):
        left = scene.task("train", by=driver, state="PENDING_NODE_ASSIGNMENT")
        left.becomes(placement_group_id=group.placement_group_id)
    working, _ = scene.run("work", by=driver)
    driver.gets(working)
    scene.sample().second_sample()

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "running"
    first, second = diagnosis.findings
    assert first.members == (driver.key,)
    assert "removed placement group trainers (no code was seen to need the results)" in second.summary
    assert "ray.cancel" in str(second.advice)


def test_a_given_up_task_beside_one_that_code_waits_for_is_no_hang() -> None:
    scene = Scene()
    driver = scene.driver()
    group = scene.group("REMOVED", name="trainers")
    left, awaited, takes_it = (scene.task(name, by=driver, state="PENDING_NODE_ASSIGNMENT") for name in "abc")
    for task in (left, awaited):
        task.becomes(placement_group_id=group.placement_group_id)
    takes_it.becomes(state="PENDING_ARGS_AVAIL")
    driver.passes(awaited)
    driver.gets(takes_it)
    scene.sample().second_sample()

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "hang"
    first, second = diagnosis.findings
    assert (first.kind, first.members) == ("orphaned", (awaited.key,))
    assert second.members == (left.key,)


def test_a_task_in_a_removed_placement_group_is_orphaned_if_code_polls_for_it() -> None:
    scene = Scene()
    driver = scene.driver()
    group = scene.group("REMOVED", name="trainers")
    task = scene.task("train", by=driver, state="PENDING_NODE_ASSIGNMENT", placement_group_id=group.placement_group_id)
    driver.waits(task, timeout_s=1.0)
    scene.sample().watch().second_sample()

    finding = scene.diagnose().findings[0]

    assert (finding.kind, finding.members) == ("orphaned", (task.key,))


def test_a_task_that_one_of_several_tasks_may_replace_is_no_hang() -> None:
    scene = Scene()
    driver = scene.driver()
    group = scene.group("REMOVED", name="trainers")
    left = scene.task("train", by=driver, state="PENDING_NODE_ASSIGNMENT")
    left.becomes(placement_group_id=group.placement_group_id)
    working, _ = scene.run("work", by=driver)
    driver.waits(left, working)
    scene.sample().second_sample()

    assert scene.diagnose().verdict == "running"


@pytest.mark.parametrize(("attempt", "ago_s", "kind"), [(0, 1, "orphaned"), (1, 1, "running"), (1, 60, "orphaned")])
def test_a_retried_task_in_a_removed_placement_group_may_yet_fail(attempt: int, ago_s: float, kind: str) -> None:
    scene = Scene()
    driver = scene.driver()
    group = scene.group("REMOVED", name="trainers")
    task = scene.task("train", by=driver, state="PENDING_NODE_ASSIGNMENT", attempt=attempt)
    task.becomes(placement_group_id=group.placement_group_id)
    driver.gets(task)
    snapshot = scene.sample().second_sample().snapshot()
    times = TaskTimes(attempt=attempt, states={"PENDING_NODE_ASSIGNMENT": snapshot.taken_at - ago_s})

    diagnosis = diagnose(msgspec.structs.replace(snapshot, task_times={task.task.task_id: times}))

    (finding,) = diagnosis.findings
    assert finding.kind == kind
    assert "was removed" in finding.summary


def test_a_call_of_an_actor_in_a_removed_placement_group_is_behind_its_creation() -> None:
    scene = Scene()
    driver = scene.driver()
    group = scene.group("REMOVED")
    actor, creation = scene.pending_actor("Trainer", by=driver)
    creation.becomes(state="PENDING_NODE_ASSIGNMENT", placement_group_id=group.placement_group_id)
    call = scene.call(actor, "train", by=driver, state="PENDING_NODE_ASSIGNMENT")
    driver.gets(call)

    finding = only_finding(scene)

    assert (finding.kind, finding.members) == ("orphaned", (creation.key,))
    assert {driver.key, call.key} == set(finding.blocked_behind)


@pytest.mark.parametrize("in_group", [True, False])
def test_the_creation_of_a_dead_actor_that_is_still_listed_is_no_hang(in_group: bool) -> None:
    scene = Scene()
    driver = scene.driver()
    group = scene.group("REMOVED")
    actor, creation = scene.pending_actor("Trainer", by=driver, special=1.0)
    creation.becomes(state="PENDING_NODE_ASSIGNMENT", placement_group_id=group.placement_group_id if in_group else None)
    call = scene.call(actor, "train", by=driver, state="PENDING_NODE_ASSIGNMENT")
    driver.gets(call)
    assert only_finding(scene).kind == ("orphaned" if in_group else "infeasible")

    scene.becomes(actor, state="DEAD", death_cause="its node has died")

    assert {finding.kind for finding in scene.diagnose().findings} == {"running"}


# Lost values


def test_a_lost_value_that_is_reconstructed_is_waited_for_as_a_new_one() -> None:
    scene = Scene()
    owner, borrower = scene.driver(), scene.driver()
    task = scene.task("load", by=owner, state="PENDING_NODE_ASSIGNMENT", required_resources={"special": 1.0}, attempt=1)
    owner.knows(task, state="PENDING_NODE_ASSIGNMENT", size_bytes=1000, attempt=1)
    borrower.has(task, size_bytes=1000)
    borrower.gets(task)

    finding = only_finding(scene)

    assert (finding.kind, finding.blocked_behind) == ("infeasible", (borrower.key,))


def test_an_item_of_a_retried_generator_is_available() -> None:
    scene = Scene()
    driver = scene.driver()
    stream, _ = scene.run("stream", by=driver)
    item = f"{stream.task.task_id}02000000"
    driver.knows(item, state="SUBMITTED_TO_WORKER", size_bytes=8, attempt=1)
    driver.gets(item)

    (step,) = only_finding(scene).explanation[-1:]

    assert "is already available" in step.text
