"""Pending tasks and calls: they wait for arguments, earlier and running calls, free slots, and their actor."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from dstack.analysis.graph.builder import MANY
from dstack.analysis.naming.descriptions import describe, in_words
from dstack.model.diagnosis import Wait
from dstack.model.vertex_facts import reason
from dstack.model.vertex_keys import AnyKey, Key
from tests.unit.analysis.graph.wait_targets import busy_actor, unknown_labels, unobserved_targets
from tests.unit.scenes import Scene, SceneProcess, groups_of

# Arguments


def pending_call(scene: Scene, driver: SceneProcess, arguments: int) -> tuple[Wait, list[Key]]:
    """The wait of a call whose owner has passed this many unavailable refs, and the tasks that make them."""
    makers = [scene.run("make", by=driver) for _ in range(arguments)]
    driver.passes(*(call for call, _ in makers))
    call = scene.task("use", by=driver, state="PENDING_ARGS_AVAIL")
    return scene.wait_of(call), [worker.key for _, worker in makers]


def test_the_only_unavailable_argument_is_the_missing_one() -> None:
    scene = Scene()

    wait, makers = pending_call(scene, scene.driver(), 1)

    assert wait.kind == "arguments"
    assert groups_of(wait) == [(1, makers)]
    assert wait.evidence == "exact"


def test_any_of_several_unavailable_arguments_may_be_missing() -> None:
    scene = Scene()

    wait, makers = pending_call(scene, scene.driver(), 3)

    assert groups_of(wait) == [(1, makers)]
    assert wait.evidence == "inferred"
    assert wait.inferred == reason("any pending argument", 3)


def test_retried_calls_do_not_wait_for_other_arguments_of_their_owner() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Librarian")
    retried = [scene.call(actor, "find", by=driver, state="PENDING_ARGS_AVAIL", attempt=1) for _ in range(2)]
    driver.passes(*retried)
    driver.gets(scene.call(actor, "pack", by=driver, state="PENDING_ARGS_AVAIL"))

    assert [scene.wait_of(call).kind for call in retried] == ["retry", "retry"]
    assert [finding.kind for finding in scene.diagnose().findings] == ["running"]


def test_possible_waiters_share_many_arguments() -> None:
    scene = Scene()
    driver = scene.driver()

    wait, makers = pending_call(scene, driver, MANY + 1)

    shared = AnyKey("arguments", (driver.worker_id,))
    assert groups_of(wait) == [(1, [shared])]
    assert (wait_of_all := scene.graph()[shared].wait) is not None
    assert groups_of(wait_of_all) == [(1, makers)]
    assert wait_of_all.evidence == "inferred"


def test_an_unlisted_argument_is_unobserved() -> None:
    scene = Scene()

    wait, _ = pending_call(scene, scene.driver(), 0)

    assert unobserved_targets(scene, wait)


def test_an_available_argument_is_no_dependency() -> None:
    scene = Scene()
    driver = scene.driver()
    made, pending = scene.task("made", by=driver), scene.task("pending", by=driver)
    driver.passes(pending).knows(made, argument_uses=1, size_bytes=8)
    call = scene.task("use", by=driver, state="PENDING_ARGS_AVAIL")

    assert groups_of(scene.wait_of(call)) == [(1, [pending.key])]


def test_arguments_of_other_owners_are_no_dependencies() -> None:
    scene = Scene()
    driver, other = scene.driver(), scene.driver()
    mine, theirs = scene.task("mine", by=driver), scene.task("theirs", by=other)
    driver.passes(mine)
    other.passes(theirs)
    call = scene.task("use", by=driver, state="PENDING_ARGS_AVAIL")

    assert groups_of(scene.wait_of(call)) == [(1, [mine.key])]


def test_a_call_never_waits_for_its_own_value() -> None:
    scene = Scene()
    driver = scene.driver()
    first = scene.task("first", by=driver)
    second = scene.task("second", by=driver, state="PENDING_ARGS_AVAIL")
    third = scene.task("third", by=driver, state="PENDING_ARGS_AVAIL")
    driver.passes(first, second)

    assert groups_of(scene.wait_of(second)) == [(1, [first.key])]
    assert groups_of(scene.wait_of(third)) == [(1, [first.key, second.key])]


def test_an_actor_handle_is_no_missing_argument() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    driver.passes(f"{'f' * 16}{actor.actor_id}01000000")
    call = scene.task("use", by=driver, state="PENDING_ARGS_AVAIL")

    assert unobserved_targets(scene, scene.wait_of(call))


def test_a_borrowed_argument_may_be_missing_though_its_owner_has_it() -> None:
    scene = Scene()
    owner, borrower = scene.driver(), scene.driver()
    made, pending = scene.task("made", by=owner), scene.task("pending", by=borrower)
    owner.has(made)
    borrower.passes(pending).knows(made, argument_uses=1)
    call = scene.task("use", by=borrower, state="PENDING_ARGS_AVAIL")

    wait = scene.wait_of(call)

    assert pending.key in [target.vertex for target in wait.groups[0].targets]
    assert scene.diagnose().verdict == "running"
    assert wait.total == 2


# The order of calls


def test_a_call_not_sent_yet_waits_for_the_earlier_one_that_lacks_an_argument() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    driver.passes(scene.task("make", by=driver))
    earlier = scene.call(actor, "first", by=driver, state="PENDING_ARGS_AVAIL")
    later = scene.call(actor, "second", by=driver, state="PENDING_NODE_ASSIGNMENT")

    wait = scene.wait_of(later)

    assert wait.kind == "order"
    assert groups_of(wait) == [(1, [earlier.key])]


def test_a_call_is_not_behind_calls_of_other_callers_or_actors() -> None:
    scene = Scene()
    driver, other, actor, another = scene.driver(), scene.driver(), scene.actor(), scene.actor()
    scene.call(actor, "first", by=other, state="PENDING_ARGS_AVAIL")
    scene.call(another, "first", by=driver, state="PENDING_ARGS_AVAIL")
    later = scene.call(actor, "second", by=driver, state="PENDING_NODE_ASSIGNMENT")

    assert unknown_labels(scene, scene.wait_of(later)) == ["caller, which has not sent it yet"]


def test_a_call_is_not_behind_one_that_runs_since_its_owner_answered() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    earlier = scene.call(actor, "first", by=driver, state="PENDING_ARGS_AVAIL")
    actor.runs(earlier)
    later = scene.call(actor, "second", by=driver, state="PENDING_NODE_ASSIGNMENT")
    driver.gets(later)

    assert unknown_labels(scene, scene.wait_of(later)) == ["caller, which has not sent it yet"]
    assert scene.diagnose().verdict == "running"


def test_many_calls_behind_many_that_lack_arguments_keep_the_graph_small() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    for _ in range(MANY + 1):
        scene.call(actor, "first", by=driver, state="PENDING_ARGS_AVAIL")
    later = [scene.call(actor, "second", by=driver, state="PENDING_NODE_ASSIGNMENT") for _ in range(100)]

    graph = scene.graph()

    assert {len(wait.groups[0].targets) for call in later if (wait := graph[call.key].wait)} == {1}


# Actors that are not created yet


def test_a_call_waits_for_the_creation_of_its_actor() -> None:
    scene = Scene()
    scene.node(free={}, CPU=1.0)
    driver = scene.driver()
    actor, creation = scene.pending_actor("Late", by=driver, CPU=1.0)
    creation.becomes(state="PENDING_NODE_ASSIGNMENT")
    call = scene.call(actor, "work", by=driver, state="PENDING_NODE_ASSIGNMENT")

    wait = scene.wait_of(call)

    assert wait.kind == "actor creation"
    assert groups_of(wait) == [(1, [creation.key])]


def test_a_call_of_an_actor_in_creation_waits_for_its_constructor() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, creation = scene.pending_actor("Late", by=driver)
    maker = scene.worker().runs(creation)
    call = scene.call(actor, "work", by=driver, state="PENDING_NODE_ASSIGNMENT")

    wait = scene.wait_of(call)

    assert wait.kind == "actor creation"
    assert groups_of(wait) == [(1, [maker.key])]


def test_a_call_of_an_actor_with_an_unlisted_creation_has_an_unknown_target() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, _ = scene.pending_actor("Late", by=driver)
    driver.submitted.clear()
    call = scene.call(actor, "work", by=driver, state="PENDING_NODE_ASSIGNMENT")

    (label,) = unknown_labels(scene, scene.wait_of(call))

    assert label.startswith("creation of actor Late")


def test_a_task_that_waits_for_a_value_that_it_put_does_not_wait_for_itself() -> None:
    scene = Scene()
    call, worker = scene.run("reserve", by=scene.driver())
    worker.gets(f"{call.task.task_id}01e1f505")

    assert scene.diagnose().verdict == "running"


def test_a_shared_vertex_is_not_counted_among_the_waiters() -> None:
    scene = Scene()
    driver = scene.driver()
    makers = [scene.run("make", by=driver) for _ in range(MANY + 1)]
    driver.passes(*(call for call, _ in makers))
    call = scene.task("use", by=driver, state="PENDING_ARGS_AVAIL")

    (finding,) = scene.diagnose().findings

    assert finding.members == (call.key,)
    assert finding.helpers == (AnyKey("arguments", (driver.worker_id,)),)
    assert (finding.waiters_direct, finding.waiters_total) == (1, 1)
    assert {(one.waiters_direct, one.waiters_total) for one in finding.final_blockers} == {(1, 1)}


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
