"""Pending tasks and calls: they wait for arguments, for earlier calls, and for the creation of their actor."""

from __future__ import annotations

from dstack.analysis.graph.builder import MANY
from dstack.model.diagnosis import Wait
from dstack.model.vertex_facts import reason
from dstack.model.vertex_keys import AnyKey, Key
from tests.unit.analysis.graph.wait_targets import unknown_labels, unobserved_targets
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
