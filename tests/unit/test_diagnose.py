"""Findings and the verdict over them."""

from __future__ import annotations

from dstack.analysis.diagnose import diagnose, suspects
from dstack.diagnosis import Ratio
from dstack.model import Snapshot
from tests.unit.scenes import Proc, Scene


def ring(scene: Scene, size: int, name: str = "Member") -> list[Proc]:
    """Actors of which each waits for a call on the next, which is busy."""
    members = [scene.actor(f"{name}{number}") for number in range(size)]
    for number, member in enumerate(members):
        member.runs(scene.call(member, "run", by=members[number - 1]))
    for number, member in enumerate(members):
        following = members[(number + 1) % size]
        member.gets(scene.call(following, "pass", by=member))
    return members


def infeasible(scene: Scene, by: Proc) -> str:
    call = scene.task("train", by=by, state="PENDING_NODE_ASSIGNMENT", required_resources={"TPU": 4.0})
    by.gets(call)
    return call.key


def test_without_a_sample_nothing_is_said_for_sure() -> None:
    taken = Snapshot(dstack_version="0", taken_at=0, address="h:1", ray_version="2.60.0")

    diagnosis = diagnose(taken)

    assert (diagnosis.verdict, diagnosis.incomplete, diagnosis.findings) == ("clear", True, ())
    assert suspects(taken) == set()


def test_an_empty_cluster_is_clear() -> None:
    diagnosis = Scene().diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("clear", False)


def test_the_worst_finding_makes_the_verdict_and_stands_first() -> None:
    scene = Scene()
    scene.node(CPU=4.0)
    running, _ = scene.run("work", by=scene.driver(), CPU=1.0)
    scene.driver().gets(running)
    infeasible(scene, scene.driver())
    hang = scene.diagnose()
    ring(scene, 2)
    scene.samples.clear()
    deadlock = scene.diagnose()

    assert [finding.kind for finding in hang.findings] == ["infeasible", "blocked"]
    assert hang.verdict == "hang"
    assert [finding.kind for finding in deadlock.findings] == ["deadlock", "infeasible", "blocked"]
    assert deadlock.verdict == "deadlock"


def test_independent_deadlocks_are_findings_of_their_own() -> None:
    scene = Scene()
    ring(scene, 2, "Left")
    ring(scene, 3, "Right")

    findings = scene.diagnose().findings

    assert [len(finding.cycle) for finding in findings] == [6, 4], "executions and the calls queued between them"


def test_who_waits_behind_is_not_a_member() -> None:
    scene = Scene()
    members = ring(scene, 2)
    driver, other = scene.driver(), scene.driver()
    driver.gets(members[0].running[0])
    call, worker = scene.run("work", by=other)
    worker.gets(members[1].running[0])
    other.gets(call)

    (finding,) = scene.diagnose().findings

    assert {member.key for member in members} <= set(finding.members)
    assert set(finding.blocked_behind) == {driver.key, other.key, worker.key}


def test_the_story_begins_where_others_came_in() -> None:
    scene = Scene()
    members = ring(scene, 4)
    scene.driver().gets(members[2].running[0])

    (finding,) = scene.diagnose().findings

    assert finding.cycle[0] == members[2].key
    assert finding.cycle == finding.members


def test_a_deadlock_that_also_waits_for_the_impossible_is_told_besides() -> None:
    scene = Scene()
    first, second = ring(scene, 2)
    never = scene.task("train", by=first, state="PENDING_NODE_ASSIGNMENT", required_resources={"TPU": 4.0})
    assert first.strands[0].call
    first.gets(first.strands[0].call.refs[0], never)

    findings = scene.diagnose().findings

    assert [finding.kind for finding in findings] == ["deadlock", "infeasible"]
    assert {first.key, second.key} <= set(findings[0].members)
    assert findings[1].members == (never.key,)
    assert {first.key, second.key} <= set(findings[1].blocked_behind)


def test_a_call_on_a_dead_actor_is_orphaned() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, _ = scene.pending_actor("Trainer", by=driver)
    call = scene.call(actor, "fit", by=driver, state="PENDING_NODE_ASSIGNMENT")
    driver.gets(call)
    scene.actors[0] = type(actor)(
        actor_id=actor.actor_id, job_id=actor.job_id, class_name="Trainer", state="DEAD", death_cause="out of memory"
    )

    finding = scene.diagnose().findings[0]

    assert finding.kind == "orphaned"
    assert "is dead: out of memory" in finding.summary


def test_final_blockers_are_ranked_by_who_waits_on_them_in_all() -> None:
    scene = Scene()
    owner = scene.driver()
    slow, _ = scene.run("slow", by=owner)
    quick, _ = scene.run("quick", by=owner)
    middle, worker = scene.run("middle", by=owner)
    worker.gets(slow)
    owner.gets(middle, quick)
    for _ in range(3):
        scene.driver().gets(middle)

    (finding,) = scene.diagnose().findings

    ranked = [
        (scene.diagnose().vertices[b.vertex].label, b.waiters_direct, b.waiters_total) for b in finding.final_blockers
    ]
    assert ranked == [("slow", 1, 5), ("quick", 1, 1)]


def test_separate_chains_are_separate_findings_the_larger_first() -> None:
    scene = Scene()
    for waiters in (1, 3):
        owner = scene.driver()
        call, _ = scene.run(f"work{waiters}", by=owner)
        owner.gets(call)
        for _ in range(waiters - 1):
            scene.driver().gets(call)

    findings = scene.diagnose().findings

    assert [len(finding.members) for finding in findings] == [3, 1]


def test_waits_with_a_timeout_are_polling_and_never_a_deadlock() -> None:
    scene = Scene()
    members = ring(scene, 2)
    assert members[0].strands[0].call
    members[0].gets(members[0].strands[0].call.refs[0], timeout_s=5.0)

    (finding,) = scene.diagnose().findings

    assert finding.kind == "polling"


def test_waits_for_what_others_hold_are_starved() -> None:
    scene = Scene()
    node = scene.node(free={"CPU": 0.0}, CPU=1.0)
    driver = scene.driver(node)
    holder, _ = scene.run("holder", by=driver, node=node, CPU=1.0)
    waiting = scene.task("next", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"CPU": 1.0})
    driver.gets(waiting)

    (finding,) = scene.diagnose().findings

    assert (finding.kind, finding.resources) == ("starved", ("CPU",))
    assert [scene.diagnose().vertices[b.vertex].label for b in finding.final_blockers] == [holder.task.name]


def test_the_same_scene_is_a_deadlock_once_the_holder_waits_for_it() -> None:
    scene = Scene()
    node = scene.node(free={"GPU": 0.0}, CPU=1.0, GPU=1.0)
    driver = scene.driver(node)
    outer, worker = scene.run("outer", by=driver, node=node, GPU=1.0)
    inner = scene.task("inner", by=worker, state="PENDING_NODE_ASSIGNMENT", required_resources={"GPU": 1.0})
    worker.gets(inner)
    driver.gets(outer)

    (finding,) = scene.diagnose().findings

    assert (finding.kind, finding.resources) == ("deadlock", ("GPU",))
    assert set(finding.members) == {worker.key, inner.key}
    assert finding.blocked_behind == (driver.key,)


def test_who_was_not_seen_makes_a_verdict_incomplete_but_not_a_deadlock() -> None:
    scene = Scene()
    owner = scene.driver()
    call, _ = scene.run("work", by=owner)
    owner.gets(call)
    hidden = scene.worker()
    hidden.is_unseen = True
    blocked = scene.diagnose()
    ring(scene, 2)
    scene.samples.clear()
    deadlock = scene.diagnose()

    assert (blocked.verdict, blocked.incomplete) == ("blocked", True)
    assert (deadlock.verdict, deadlock.incomplete) == ("deadlock", False)
    assert blocked.coverage.workers == Ratio(seen=2, total=3)


def test_a_chain_that_ends_in_a_coroutine_is_incomplete() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Server")
    actor.strand("AsyncIO Thread: default", role="loop")
    call = scene.call(actor, "serve", by=driver)
    actor.runs(call)
    driver.gets(call)

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("blocked", True)


def test_suspects_are_those_who_seem_stuck_and_those_who_could_tell_more() -> None:
    scene = Scene()
    members = ring(scene, 2)
    driver = scene.driver()
    driver.gets(members[0].running[0])
    bystander = scene.driver()
    call, worker = scene.run("work", by=bystander)
    bystander.gets(call)

    found = suspects(scene.snapshot())

    assert found == {driver.worker_id, *(member.worker_id for member in members)}
    assert worker.worker_id not in found
