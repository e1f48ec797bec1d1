"""Calls that their actor has not begun: they wait for running calls, earlier calls and free slots."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from dstack.analysis.graph.builder import MANY
from dstack.analysis.naming.descriptions import describe, in_words
from tests.unit.analysis.graph.wait_targets import busy_actor, unknown_labels, unobserved_targets
from tests.unit.scenes import Scene, SceneProcess, groups_of


def test_a_call_waits_for_the_running_call_of_its_actor() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver)

    wait = scene.wait_of(scene.call(actor, "queued", by=driver))

    assert wait.kind == "actor slot"
    assert groups_of(wait) == [(1, [actor.key])]
    assert wait.evidence == "exact"


def test_a_call_waits_for_any_running_call_of_its_actor() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver, count=3)

    wait = scene.wait_of(scene.call(actor, "queued", by=driver).arrives())

    assert groups_of(wait) == [(1, [call.key for call in actor.running])]
    assert wait.evidence == "inferred"


def test_a_call_without_a_known_arrival_may_have_a_free_slot() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver, count=3)

    (target,) = unobserved_targets(scene, scene.wait_of(scene.call(actor, "queued", by=driver)))

    assert describe(target).startswith("free slot of actor Actor")


def test_an_arrival_counts_for_its_own_attempt_only() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver, count=3)
    call = scene.call(actor, "queued", by=driver).arrives()
    scene.sample()
    (sample,) = scene.samples
    scene.samples = [replace(sample, tasks=tuple(dataclasses.replace(task, attempt=1) for task in sample.tasks))]

    assert unobserved_targets(scene, scene.wait_of(call))


def test_a_call_also_waits_for_earlier_calls_that_have_not_arrived() -> None:
    scene = Scene()
    driver, other = scene.driver(), scene.driver()
    actor = busy_actor(scene, driver, count=2)
    on_its_way = scene.call(actor, "first", by=driver)
    scene.call(actor, "of another", by=other)

    wait = scene.wait_of(scene.call(actor, "queued", by=driver).arrives())

    assert groups_of(wait) == [(1, [*(call.key for call in actor.running), on_its_way.key])]


def grouped(scene: Scene, by: SceneProcess) -> SceneProcess:
    """An actor with a slot in each of two concurrency groups and in the default group, all in use."""
    actor = scene.threaded_actor(3)
    actor.groups, actor.tasks_read = {"read": "io", "write": "io", "train": "compute"}, True
    return actor.runs(*(scene.call(actor, method, by=by) for method in ("read", "train", "other")))


def test_a_call_waits_for_calls_in_the_declared_concurrency_group_of_its_method() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = grouped(scene, driver)
    reading, training, other = (thread.key for thread in actor.slots)

    wait = scene.wait_of(scene.call(actor, "write", by=driver).arrives())

    assert groups_of(wait) == [(1, [reading])]
    assert tuple(map(in_words, wait.assumed)) == (
        "Actor.write runs in the concurrency group io of its actor, as declared",
    )
    assert [(group.needs, [target.vertex for target in group.targets]) for group in wait.proven_groups] == [
        (1, [reading, training, other])
    ]


def test_a_call_of_a_method_without_a_group_waits_for_calls_in_the_default_group() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = grouped(scene, driver)

    wait = scene.wait_of(scene.call(actor, "another", by=driver).arrives())

    assert groups_of(wait) == [(1, [actor.slots[2].key])]


def test_a_call_with_a_name_of_its_own_may_be_in_any_group() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = grouped(scene, driver)
    named = scene.call(actor, "write", by=driver).becomes(name="nightly write").arrives()
    written = scene.call(actor, "write", by=driver).arrives()
    actor.running[1].becomes(name="training")

    assert len(groups_of(scene.wait_of(named))[0][1]) == 3
    assert groups_of(scene.wait_of(written)) == [(1, [thread.key for thread in actor.slots[:2]])]


def test_a_deadlock_within_a_declared_concurrency_group_is_suspected_with_an_assumption() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = grouped(scene, driver)
    actor.slots[0].gets(scene.call(actor, "write", by=actor).arrives())
    driver.gets(actor.running[0])

    (finding, *_) = scene.sample().second_sample().diagnose().findings

    assert (finding.kind, finding.confirmed) == ("deadlock", False)
    assert finding.assumed == ("Actor.write runs in the concurrency group io of its actor, as declared",)


def test_a_fully_stuck_actor_needs_no_assumption_about_its_groups() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = grouped(scene, driver)
    queued = scene.call(actor, "write", by=actor).arrives()
    for thread in actor.slots:
        thread.gets(queued)
    driver.gets(actor.running[0])

    (finding, *_) = scene.sample().second_sample().diagnose().findings

    assert (finding.kind, finding.confirmed, finding.assumed) == ("deadlock", True, ())


def test_a_call_of_an_idle_actor_is_about_to_begin() -> None:
    scene = Scene()
    driver = scene.driver()
    call = scene.call(scene.actor(), "next", by=driver)

    assert scene.graph()[call.key].wait is None


def test_a_call_of_an_unreachable_actor_has_an_unobserved_target() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver)
    actor.is_unreachable = True

    (target,) = unobserved_targets(scene, scene.wait_of(scene.call(actor, "queued", by=driver)))

    assert describe(target).endswith("whose core worker does not answer")
    assert target.os_thread_id == actor.threads[0].tid, "its memory was read"


def test_a_call_waits_for_the_only_thread_of_an_actor_that_does_not_answer() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    actor.runs(scene.call(actor, "crunch", by=driver))
    actor.is_unreachable = actor.tasks_read = True
    queued = scene.call(actor, "queued", by=driver)
    driver.gets(queued)

    (finding, *_) = scene.diagnose().findings

    assert groups_of(scene.wait_of(queued)) == [(1, [actor.threads[0].key])]
    assert finding.kind == "running"
    assert finding.final_blockers[0].vertex == actor.threads[0].key


def test_the_task_of_a_torn_thread_does_not_count_where_its_worker_does_not_answer() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    actor.runs(scene.call(actor, "crunch", by=driver))
    actor.is_unreachable = actor.tasks_read = actor.threads[0].is_torn = True

    assert unobserved_targets(scene, scene.wait_of(scene.call(actor, "queued", by=driver)))


def test_a_call_of_an_actor_without_answer_and_memory_has_an_unobserved_target() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    actor.is_unreachable = actor.has_no_stacks = True

    (target,) = unobserved_targets(scene, scene.wait_of(scene.call(actor, "queued", by=driver)))

    assert describe(target).endswith("which was not observed")


def test_a_task_that_its_worker_does_not_list_has_an_unobserved_target() -> None:
    scene = Scene()
    call = scene.task("f", by=scene.driver())

    assert unobserved_targets(scene, scene.wait_of(call))


def test_a_call_of_an_unlisted_actor_has_an_unobserved_target() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    call = scene.call(actor, "lost", by=driver, state="PENDING_NODE_ASSIGNMENT")
    scene.actors.clear()

    assert unobserved_targets(scene, scene.wait_of(call))


def test_many_calls_behind_many_running_ones_keep_the_graph_small() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver, count=MANY + 1)
    calls = [scene.call(actor, "queued", by=driver).arrives() for _ in range(100)]

    graph = scene.graph()

    assert {len(wait.groups[0].targets) for call in calls if (wait := graph[call.key].wait)} == {1}


def test_a_task_in_an_unspecific_state_has_an_unknown_target() -> None:
    scene = Scene()
    call = scene.task("f", by=scene.driver(), state="PENDING_OBJ_STORE_MEM_AVAIL")

    assert unknown_labels(scene, scene.wait_of(call)) == ["scheduler (PENDING_OBJ_STORE_MEM_AVAIL)"]
