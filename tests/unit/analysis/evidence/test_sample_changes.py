"""A wait whose dependency changed between the samples was transient: of every kind, it is no finding and no hole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose, plan_readings
from dstack.diagnosis import Diagnosis
from dstack.model import Bundle, Failure, Worker
from tests.unit.scenes import Scene, SceneProcess

NOTHING = ("clear", False)
UNDECIDED = ("blocked", True)


def outcome(diagnosis: Diagnosis) -> tuple[str, bool]:
    return diagnosis.verdict, diagnosis.incomplete


def of(scene: Scene) -> tuple[str, bool]:
    return outcome(scene.diagnose())


class Busy(Scene):
    """A driver that calls two actors all the time; each wait is over in a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.driver_ = self.driver()
        self.front, self.back = self.actor("Front"), self.actor("Back")
        for proc in (self.front, self.back):
            proc.tasks_read = True

    def call_down(self) -> None:
        """The driver gets a call of the front actor, which gets one of the back actor, which computes."""
        for proc in (self.driver_, self.front):
            proc.submitted.clear()
        outer = self.call(self.front, "serve", by=self.driver_)
        inner = self.call(self.back, "work", by=self.front)
        self.driver_.gets(outer)
        self.front.runs(outer).gets(inner)
        self.back.runs(inner).computes()


# Calls that ended


def test_calls_that_ended_while_others_like_them_began_are_no_finding() -> None:
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

    assert of(scene) == ("blocked", False)


def test_a_call_that_ended_waits_no_more_though_its_stack_was_read_for_the_next_one() -> None:
    """Its worker listed the call before when it was asked, and its thread showed the next one when it was read."""
    scene = Busy()
    scene.call_down()
    listed = scene.call(scene.front, "serve", by=scene.driver_)
    scene.front.running = [listed]
    scene.sample()

    scene.call_down()
    scene.sample(only=())

    assert of(scene) == NOTHING


def test_a_thread_of_a_worker_that_runs_nothing_by_now_waits_no_more_whatever_it_ran() -> None:
    scene = Busy()
    scene.call_down()
    scene.front.tasks_read = False
    scene.front.running = []
    scene.sample()

    scene.driver_.submitted.clear()
    scene.sample(only=())

    assert of(scene) == NOTHING


# Values


def test_a_value_that_its_owner_did_not_list_yet_and_lists_no_more_has_come() -> None:
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


def unread(driver: SceneProcess) -> None:
    driver.threads[0].waits_unreadably("its thread was woken during every reading")


def not_still(driver: SceneProcess) -> None:
    driver.threads[0].is_unstable()


def not_read(driver: SceneProcess) -> None:
    driver.is_unreadable = True


@pytest.mark.parametrize("happens", [unread, not_still, not_read])
def test_a_value_that_came_ends_the_wait_also_where_that_was_not_read_again(
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


@pytest.mark.parametrize("happens", [unread, not_still, not_read])
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


def test_a_value_whose_owner_told_of_a_part_of_its_tasks_may_still_be_missing() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    driver.gets(scene.call(actor, "work", by=driver))
    driver.submitted.clear()
    scene.sample()

    not_still(driver)
    truncated = Failure(stage="core worker", reason="1 of 2 tasks", cause="truncated", worker_id=driver.worker_id)
    scene.failures.append(replace(truncated, sample=2))
    scene.sample()

    assert of(scene) == UNDECIDED


def test_a_wait_in_both_samples_for_a_value_that_no_owner_lists_may_be_stuck() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    driver.gets(scene.call(actor, "work", by=driver))
    driver.submitted.clear()

    scene.sample().second_sample()

    assert of(scene) == UNDECIDED


def test_the_item_of_a_generator_that_came_ends_the_wait_for_it() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    call = scene.call(actor, "produce", by=driver)
    driver.threads[0].gets_next_item(f"{call.task.task_id}02000000")
    driver.submitted.clear()
    scene.sample()

    not_still(driver)
    scene.sample()

    assert of(scene) == NOTHING


# Threads and coroutines that were found only in one sample


def test_a_task_whose_thread_is_not_found_in_the_first_sample_and_that_ended_is_no_hole() -> None:
    scene = Busy()
    scene.call_down()
    scene.front.threads[0].task_id = None
    scene.sample()

    scene.call_down()
    scene.sample()

    assert of(scene) == NOTHING


def test_a_deadlock_in_which_a_thread_was_not_found_at_first_is_not_dropped() -> None:
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


def test_a_coroutine_between_two_steps_that_is_suspended_a_moment_later_is_no_hole() -> None:
    scene = Scene()
    server = in_a_step(scene)
    scene.sample()

    (call,) = server.running
    server.running = []
    server.begins(call).sleeps()
    scene.second_sample()

    assert of(scene) == ("blocked", False)


def test_a_coroutine_between_two_steps_that_ended_is_no_hole() -> None:
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


def test_another_coroutine_at_the_same_address_waits_anew() -> None:
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


def test_a_call_that_is_queued_behind_another_call_by_now_is_no_finding() -> None:
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


def test_a_call_that_may_lack_a_slot_is_no_hole_where_nothing_that_runs_there_could_depend_on_it() -> None:
    scene = Scene()
    driver, pool = scene.driver(), scene.threaded_actor(2, "Pool")
    running, queued = (scene.call(pool, "work", by=driver) for _ in range(2))
    pool.tasks_read = True
    pool.running = [running]
    pool.slots[0].task_id = running.task.task_id
    driver.gets(queued)

    scene.sample().second_sample()

    assert of(scene) == ("blocked", False)


def test_a_call_that_may_lack_a_slot_is_a_hole_where_a_call_that_runs_there_waits_for_it() -> None:
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


def test_a_task_whose_missing_argument_is_not_known_and_that_was_sent_by_now_is_no_hole() -> None:
    scene = Scene()
    driver = scene.driver()
    call = scene.task("use", by=driver, state="PENDING_ARGS_AVAIL")
    driver.gets(call)
    scene.sample()

    scene.worker().runs(call.becomes(state="SUBMITTED_TO_WORKER"))
    scene.second_sample()

    assert of(scene)[1] is False


def test_a_task_on_its_way_to_a_worker_that_runs_by_now_is_no_hole() -> None:
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


def test_an_actor_that_was_created_in_between_is_waited_for_no_more() -> None:
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


def test_a_placement_group_that_has_its_place_by_now_is_no_finding() -> None:
    scene = Scene()
    scene.node({"CPU": 0.0}, CPU=4.0)
    group = scene.group("PENDING", Bundle(resources={"CPU": 4.0}))
    scene.sample()

    scene.groups[0] = replace(group, state="CREATED")
    scene.sample()

    assert of(scene) == NOTHING


# Within a process


def test_a_lock_that_another_thread_holds_by_now_is_another_wait() -> None:
    scene = Scene()
    worker = scene.driver()
    first, second = worker.thread("first", "user"), worker.thread("second", "user")
    worker.threads[0].wants_lock("0x1", first)
    scene.sample()

    worker.threads[0].wants_lock("0x1", second).is_unstable()
    scene.sample()

    assert of(scene) == NOTHING


def test_a_future_that_another_thread_runs_by_now_is_another_wait() -> None:
    scene = Scene()
    worker = scene.driver()
    first, second = worker.thread("first", "user"), worker.thread("second", "user")
    worker.threads[0].awaits_future(first)
    scene.sample()

    worker.threads[0].awaits_future(second).is_unstable()
    scene.sample()

    assert of(scene) == NOTHING


def test_an_unreadable_wait_that_is_elsewhere_by_now_was_transient() -> None:
    scene = Scene()
    driver = scene.driver()
    unread(driver)
    scene.sample()

    driver.threads[0].line += 1
    scene.second_sample()

    assert of(scene) == NOTHING


def test_an_unreadable_wait_of_a_call_that_ended_was_transient() -> None:
    scene = Busy()
    scene.call_down()
    unread(scene.front)
    scene.sample()

    scene.call_down()
    unread(scene.front)
    scene.sample()

    assert of(scene) == NOTHING


def test_an_unreadable_wait_at_the_same_place_in_both_samples_may_be_stuck() -> None:
    scene = Scene()
    driver = scene.driver()
    unread(driver)

    scene.sample().second_sample()

    assert of(scene) == UNDECIDED


def test_a_poll_of_a_call_that_ended_is_no_finding() -> None:
    scene = Busy()
    scene.call_down()
    scene.driver_.gets(scene.front.running[0], timeout_s=1.0)
    scene.sample()

    scene.call_down()
    scene.driver_.gets(scene.front.running[0], timeout_s=1.0)
    scene.sample()

    assert of(scene) == NOTHING


# Workers that begin and end


def test_a_worker_that_ended_takes_its_waits_and_its_tasks_with_it() -> None:
    scene = Scene()
    driver = scene.driver()
    outer, worker = scene.run("outer", by=driver)
    worker.gets(scene.task("inner", by=worker))
    driver.gets(outer)
    scene.sample()

    scene.procs.remove(worker)
    driver.submitted.clear()
    driver.computes()
    listed = scene.sample().snapshot()

    everybody = (*listed.workers, worker.worker)
    assert outcome(diagnose_with(scene, everybody)) == NOTHING


def diagnose_with(scene: Scene, workers: tuple[Worker, ...]) -> Diagnosis:
    """The diagnosis of a snapshot that lists these workers."""
    return diagnose(replace(scene.snapshot(), workers=workers))


def test_a_worker_that_ended_before_it_was_seen_is_no_hole() -> None:
    scene = Scene()
    driver, ending = scene.driver().computes(), scene.worker()
    ending.is_unreachable = ending.is_unreadable = True
    scene.sample()

    scene.procs.remove(ending)
    scene.sample()

    assert outcome(diagnose_with(scene, (driver.worker, ending.worker))) == NOTHING


def test_a_worker_that_was_not_asked_again_because_it_had_not_answered_is_a_hole() -> None:
    scene = Scene()
    driver, silent = scene.driver().computes(), scene.worker()
    silent.is_unreachable = True
    late = Failure(stage="core worker", reason="no answer", cause="timeout", worker_id=silent.worker_id)
    scene.failures.append(late)
    scene.sample()

    scene.procs.remove(silent)
    scene.sample()

    assert outcome(diagnose_with(scene, (driver.worker, silent.worker))) == ("clear", True)


def test_a_worker_that_began_between_the_samples_and_was_not_read_is_no_hole() -> None:
    scene = Scene()
    scene.driver().computes()
    scene.sample()

    scene.worker().is_unreadable = True
    scene.sample()

    assert of(scene) == NOTHING


def test_a_node_that_was_read_only_in_the_first_sample_is_no_hole() -> None:
    scene = Busy()
    scene.call_down()
    scene.sample()

    scene.failures.append(Failure(stage="node probe", reason="too late", cause="timeout", sample=2))
    scene.sample(only=())

    assert of(scene) == ("blocked", False)


def test_a_process_that_was_not_read_is_read_again_unless_that_would_fail_again() -> None:
    scene = Scene()
    scene.driver().computes()
    late, forbidden = scene.worker(), scene.worker()
    late.is_unreadable = forbidden.is_unreadable = True
    reason = Failure(stage="process", reason="not allowed", cause="permission", worker_id=forbidden.worker_id)
    scene.failures.append(reason)

    assert plan_readings(scene.snapshot()).workers == {late.worker_id}


def test_a_deadlock_of_processes_that_only_the_second_sample_could_read_is_not_dropped() -> None:
    scene = Busy()
    scene.call_down()
    scene.back.gets(scene.call(scene.front, "again", by=scene.back))
    scene.back.is_unreadable = True
    scene.sample()

    scene.back.is_unreadable = False
    scene.sample()

    diagnosis = scene.diagnose()
    assert (diagnosis.verdict, diagnosis.findings[0].confirmed) == ("deadlock", False)
