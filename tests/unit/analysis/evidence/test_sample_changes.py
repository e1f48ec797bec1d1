"""A wait of any kind whose dependency changed between the samples was transient: neither a finding nor a gap."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dstack.model.snapshot import Bundle
from dstack.observed.node import Failure
from tests.unit.analysis.evidence.sample_change_outcomes import NOTHING, UNDECIDED, Busy, of, unread
from tests.unit.scenes import Scene, SceneProcess

# Calls that ended


def test_calls_that_ended_while_similar_calls_began_are_no_finding() -> None:
    scene = Busy()
    scene.call_down()
    scene.sample()

    scene.call_down()
    scene.sample()

    assert of(scene) == NOTHING


def test_the_states_alone_show_that_calls_have_ended() -> None:
    scene = Busy()
    scene.call_down()
    scene.sample()

    scene.call_down()
    scene.sample(only=())

    assert of(scene) == NOTHING


def test_calls_that_are_the_same_in_both_samples_are_a_finding() -> None:
    scene = Busy()
    scene.call_down()

    scene.sample().sample(only=())

    assert of(scene) == ("running", False)


def test_a_call_that_ended_does_not_wait_with_the_stack_of_the_next_call() -> None:
    """The worker listed one call, and then its thread was read in the next call."""
    scene = Busy()
    scene.call_down()
    listed = scene.call(scene.front, "serve", by=scene.driver_)
    scene.front.running = [listed]
    scene.sample()

    scene.call_down()
    scene.sample(only=())

    assert of(scene) == NOTHING


def test_a_thread_of_a_worker_that_became_idle_does_not_wait() -> None:
    scene = Busy()
    scene.call_down()
    scene.front.tasks_read = False
    scene.front.running = []
    scene.sample()

    scene.driver_.submitted.clear()
    scene.sample(only=())

    assert of(scene) == NOTHING


# Values


def test_a_value_that_its_owner_listed_in_neither_sample_has_arrived() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    call = scene.call(actor, "work", by=driver)
    driver.gets(call)
    driver.submitted.clear()
    scene.sample()

    driver.threads[0].is_unstable().computes()
    driver.threads[0].gets(call).call = None
    scene.sample()

    assert of(scene) == NOTHING


def unstable(driver: SceneProcess) -> None:
    driver.threads[0].is_unstable()


def not_read(driver: SceneProcess) -> None:
    driver.is_unreadable = True


@pytest.mark.parametrize("happens", [unread, unstable, not_read])
def test_a_value_that_arrived_ends_a_wait_that_was_not_read_again(
    happens: Callable[[SceneProcess], None],
) -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    driver.gets(scene.call(actor, "work", by=driver))
    driver.submitted.clear()
    scene.sample()

    happens(driver)
    scene.sample()

    assert of(scene) == NOTHING


@pytest.mark.parametrize("happens", [unread, unstable, not_read])
def test_a_value_whose_owner_did_not_answer_again_may_still_be_missing(happens: Callable[[SceneProcess], None]) -> None:
    scene = Scene()
    driver, actor, owner = scene.driver(), scene.actor(), scene.actor("Owner")
    driver.gets(scene.call(actor, "work", by=owner))
    owner.submitted.clear()
    scene.sample()

    happens(driver)
    owner.is_unreachable = True
    scene.sample()

    assert of(scene) == UNDECIDED


def test_a_value_whose_owner_listed_only_some_of_its_tasks_may_still_be_missing() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    driver.gets(scene.call(actor, "work", by=driver))
    driver.submitted.clear()
    scene.sample()

    unstable(driver)
    truncated = Failure(stage="core worker", reason="1 of 2 tasks", cause="truncated", worker_id=driver.worker_id)
    scene.failures.append(dataclasses.replace(truncated, sample=2))
    scene.sample()

    assert of(scene) == UNDECIDED


def test_a_wait_in_both_samples_for_a_value_that_no_owner_lists_may_be_stuck() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    driver.gets(scene.call(actor, "work", by=driver))
    driver.submitted.clear()

    scene.sample().second_sample()

    assert of(scene) == UNDECIDED


def test_a_generator_item_that_arrived_ends_the_wait_for_it() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    call = scene.call(actor, "produce", by=driver)
    driver.threads[0].gets_next_item(f"{call.task.task_id}02000000")
    driver.submitted.clear()
    scene.sample()

    unstable(driver)
    scene.sample()

    assert of(scene) == NOTHING


# Threads and coroutines that were found only in one sample


def test_an_ended_task_whose_thread_was_not_found_is_no_gap() -> None:
    scene = Busy()
    scene.call_down()
    scene.front.threads[0].task_id = None
    scene.sample()

    scene.call_down()
    scene.sample()

    assert of(scene) == NOTHING


def test_a_deadlock_with_a_thread_that_only_the_second_sample_found_is_kept() -> None:
    scene = Busy()
    scene.call_down()
    back = scene.call(scene.front, "again", by=scene.back)
    scene.back.gets(back)
    scene.front.threads[0].task_id = None
    scene.sample()

    scene.front.threads[0].task_id = scene.front.running[0].task.task_id
    scene.sample()

    diagnosis = scene.diagnose()
    assert diagnosis.verdict == "deadlock"
    assert not diagnosis.findings[0].confirmed


def in_a_step(scene: Scene) -> SceneProcess:
    """An async actor with a call that the driver gets, and that was neither suspended nor in its code."""
    driver, server = scene.driver(), scene.async_actor("Server")
    server.coroutines_read = server.tasks_read = True
    call = scene.call(server, "serve", by=driver)
    driver.gets(call)
    server.running = [call]
    return server


def test_a_coroutine_between_two_steps_that_is_suspended_a_moment_later_is_no_gap() -> None:
    scene = Scene()
    server = in_a_step(scene)
    scene.sample()

    (call,) = server.running
    server.running = []
    server.begins(call).sleeps()
    scene.second_sample()

    assert of(scene) == ("running", False)


def test_a_coroutine_between_two_steps_that_ended_is_no_gap() -> None:
    scene = Scene()
    server = in_a_step(scene)
    scene.sample()

    server.running = []
    scene.procs[0].submitted.clear()
    scene.procs[0].computes()
    scene.second_sample()

    assert of(scene) == NOTHING


def test_a_coroutine_that_is_between_two_steps_in_both_samples_may_be_stuck() -> None:
    scene = Scene()
    in_a_step(scene)

    scene.sample().second_sample()

    assert of(scene) == UNDECIDED


def test_another_coroutine_at_the_same_address_has_another_wait() -> None:
    scene = Scene()
    driver, server = scene.driver(), scene.async_actor("Server")
    coroutine = server.begins(scene.call(server, "serve", by=driver))
    coroutine.waits_unreadably("its memory moved")
    scene.sample()

    server.coros.clear()
    driver.submitted.clear()
    server.running = []
    server.begins(scene.call(server, "serve", by=driver)).waits_unreadably("its memory moved")
    scene.sample()

    assert of(scene) == NOTHING


# Pending calls and tasks


def test_a_call_that_is_now_queued_behind_another_call_is_no_finding() -> None:
    scene = Busy()
    scene.call_down()
    scene.call(scene.back, "work", by=scene.front)
    scene.sample()

    done = scene.back.running[0]
    following = scene.call(scene.back, "work", by=scene.front)
    scene.front.submitted.remove(done)
    scene.front.gets(following)
    scene.back.runs(following).computes()
    scene.sample(only={scene.front.worker_id, scene.back.worker_id})

    diagnosis = scene.diagnose()
    waiting = scene.front.submitted[0].key
    assert diagnosis.vertices[waiting].wait is None
    assert not diagnosis.incomplete


def test_a_call_that_may_lack_a_slot_is_no_gap_where_no_running_call_could_depend_on_it() -> None:
    scene = Scene()
    driver, pool = scene.driver(), scene.threaded_actor(2, "Pool")
    running, queued = (scene.call(pool, "work", by=driver) for _ in range(2))
    pool.tasks_read = True
    pool.running = [running]
    pool.slots[0].task_id = running.task.task_id
    driver.gets(queued)

    scene.sample().second_sample()

    assert of(scene) == ("running", False)


def test_a_call_that_may_lack_a_slot_is_a_gap_where_a_running_call_waits_for_it() -> None:
    scene = Scene()
    driver, pool = scene.driver(), scene.threaded_actor(2, "Pool")
    running = scene.call(pool, "work", by=driver)
    queued = scene.call(pool, "work", by=pool)
    pool.tasks_read = True
    pool.running = [running]
    pool.slots[0].task_id = running.task.task_id
    pool.slots[0].gets(queued)
    driver.gets(running)

    scene.sample().second_sample()

    assert of(scene) == UNDECIDED


def test_a_task_with_an_unknown_missing_argument_that_was_sent_since_is_no_gap() -> None:
    scene = Scene()
    driver = scene.driver()
    call = scene.task("use", by=driver, state="PENDING_ARGS_AVAIL")
    driver.gets(call)
    scene.sample()

    scene.worker().runs(call.becomes(state="SUBMITTED_TO_WORKER"))
    scene.second_sample()

    assert of(scene)[1] is False


def test_a_task_on_its_way_that_runs_since_is_no_gap() -> None:
    scene = Scene()
    driver, worker = scene.driver(), scene.worker().idles()
    call = scene.task("work", by=driver)
    driver.gets(call)
    scene.sample()

    worker.threads[0].role = "task"
    worker.runs(call)
    scene.second_sample()

    assert of(scene)[1] is False


def test_a_task_that_is_on_its_way_in_both_samples_may_be_stuck() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.gets(scene.task("work", by=driver))

    scene.sample().second_sample()

    assert of(scene) == UNDECIDED


def test_an_actor_that_was_created_between_the_samples_is_no_dependency() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, creation = scene.pending_actor("Late", by=driver, CPU=1.0)
    first = scene.call(actor, "work", by=driver, state="PENDING_NODE_ASSIGNMENT")
    driver.gets(first)
    scene.sample()

    driver.submitted.remove(creation)
    first.becomes(state="SUBMITTED_TO_WORKER")
    scene.sample()

    diagnosis = scene.diagnose()
    assert diagnosis.vertices[creation.key].wait is None
    assert diagnosis.vertices[first.key].wait is None


def test_a_placement_group_that_was_placed_since_is_no_finding() -> None:
    scene = Scene()
    scene.node({"CPU": 0.0}, CPU=4.0)
    group = scene.group("PENDING", Bundle(resources={"CPU": 4.0}))
    scene.sample()

    scene.groups[0] = replace(group, state="CREATED")
    scene.sample()

    assert of(scene) == NOTHING
