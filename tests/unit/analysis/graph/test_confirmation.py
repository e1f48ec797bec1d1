"""The second sample confirms or ends the suspicions of the first."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dstack.analysis.naming.descriptions import describe
from dstack.model.diagnosis import Diagnosis
from dstack.observed.node import Failure
from tests.unit.scenes import Scene, SceneProcess


class TwoActors(Scene):
    """A deadlock of two actors whose methods get each other's calls, and a driver that gets the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.driver_ = self.driver()
        self.left, self.right = self.actor("Left"), self.actor("Right")
        self.first = self.call(self.left, "first", by=self.driver_)
        self.second = self.call(self.right, "second", by=self.driver_)
        self.to_right = self.call(self.right, "pong", by=self.left)
        self.to_left = self.call(self.left, "ping", by=self.right)
        self.driver_.gets(self.first, self.second)
        self.left.runs(self.first).gets(self.to_right)
        self.right.runs(self.second).gets(self.to_left)


def is_confirmed(diagnosis: Diagnosis) -> bool:
    """Whether the only finding, a deadlock, is confirmed."""
    assert diagnosis.verdict == "deadlock"
    return diagnosis.findings[0].confirmed


# Waits that persist


def test_a_deadlock_in_one_sample_is_suspected() -> None:
    scene = TwoActors()

    scene.sample()

    assert not is_confirmed(scene.diagnose())


def test_a_deadlock_in_both_samples_is_confirmed() -> None:
    scene = TwoActors()

    scene.sample().second_sample()

    assert is_confirmed(scene.diagnose())


def test_workers_in_and_behind_a_deadlock_are_sampled_again() -> None:
    scene = TwoActors()
    other, call = scene.driver(), scene.actor("Busy")
    other.gets(work := scene.call(call, "work", by=other))
    call.runs(work)

    scene.sample().second_sample()

    sampled = {worker.worker_id for worker in scene.samples[1].workers if worker.process}
    assert sampled == {proc.worker_id for proc in (scene.driver_, scene.left, scene.right, call)}


def test_only_what_runs_is_sampled_again_without_a_deadlock() -> None:
    """A second reading shows whether it computes."""
    scene = TwoActors()
    scene.right.computes()

    scene.sample().second_sample()

    sampled = {worker.worker_id for worker in scene.samples[1].workers if worker.process}
    assert sampled == {scene.right.worker_id}


def test_labels_are_those_of_the_first_sample() -> None:
    scene = TwoActors()

    scene.sample()
    scene.first.becomes(name="renamed")
    scene.second_sample()

    assert describe(scene.diagnose().vertices[scene.left.key]) == "Left.first"


def test_a_wait_persists_when_one_of_its_values_arrives() -> None:
    scene = TwoActors()
    extra = scene.task("extra", by=scene.left)
    scene.left.gets(extra, scene.to_right)

    scene.sample()
    scene.left.has(extra)
    scene.second_sample()

    diagnosis = scene.diagnose()
    assert is_confirmed(diagnosis)
    wait = diagnosis.vertices[scene.left.key].wait
    assert wait is not None
    assert [target.vertex for group in wait.groups for target in group.targets] == [scene.to_right.key]


def test_further_queued_calls_change_nothing() -> None:
    scene = TwoActors()

    scene.sample()
    scene.call(scene.right, "pong", by=scene.left)
    scene.second_sample()

    assert is_confirmed(scene.diagnose())


def test_a_wait_that_was_readable_in_one_sample_only_is_suspected() -> None:
    scene = TwoActors()
    scene.left.threads[0].waits_unreadably("its thread was woken during every reading")

    scene.sample()
    scene.left.gets(scene.to_right)
    scene.second_sample()

    assert not is_confirmed(scene.diagnose())


def test_a_process_that_was_unreadable_in_both_samples_may_be_stuck() -> None:
    scene = TwoActors()
    scene.left.threads[0].waits_unreadably("its thread was woken during every reading").is_unstable()

    scene.sample().second_sample()

    diagnosis = scene.diagnose()
    assert (diagnosis.verdict, diagnosis.incomplete) == ("running", True)


def test_a_process_that_proceeds_after_an_unreadable_sample_is_not_stuck() -> None:
    scene = TwoActors()
    scene.left.threads[0].waits_unreadably("its thread was woken during every reading")

    scene.sample()
    scene.left.computes()
    scene.second_sample()

    diagnosis = scene.diagnose()
    assert (diagnosis.verdict, diagnosis.incomplete) == ("running", False)


# Waits that changed


def test_a_thread_that_left_its_wait_ends_the_suspicion() -> None:
    scene = TwoActors()

    scene.sample()
    scene.right.computes()
    scene.second_sample()

    assert scene.diagnose().verdict == "running"


def test_a_thread_that_waits_for_something_else_now_is_not_stuck() -> None:
    scene = TwoActors()
    other = scene.call(scene.left, "ping", by=scene.right)

    scene.sample()
    scene.right.gets(other)
    scene.second_sample()

    assert scene.diagnose().verdict == "running"


def test_the_same_wait_at_another_line_is_another_wait() -> None:
    scene = TwoActors()

    scene.sample()
    scene.right.threads[0].line += 1
    scene.second_sample()

    assert scene.diagnose().verdict == "running"


def test_the_same_pid_in_another_process_is_another_wait() -> None:
    scene = TwoActors()

    scene.sample()
    scene.right.is_restarted()
    scene.second_sample()

    assert scene.diagnose().verdict == "running"


def test_a_value_that_came_ends_the_suspicion() -> None:
    scene = TwoActors()

    scene.sample()
    scene.left.has(scene.to_right)
    scene.second_sample()

    assert scene.diagnose().verdict == "running"


def test_a_thread_that_has_ended_ends_the_suspicion() -> None:
    scene = TwoActors()
    helper = scene.right.thread("helper", "user").gets(scene.to_left)
    scene.right.joins(helper)

    scene.sample()
    scene.right.threads.remove(helper)
    scene.right.computes()
    scene.second_sample()

    assert scene.diagnose().verdict == "running"


def test_an_actor_that_runs_another_call_with_the_same_wait_is_not_stuck() -> None:
    scene = TwoActors()
    other = scene.call(scene.right, "second", by=scene.driver_)

    scene.sample()
    scene.right.runs(other).gets(scene.to_left)
    scene.second_sample()

    assert scene.diagnose().verdict == "running"


def test_an_actor_that_runs_one_more_call_now_is_not_stuck() -> None:
    scene = TwoActors()
    other = scene.call(scene.right, "other", by=scene.driver_)

    scene.sample()
    scene.right.thread()
    scene.right.runs(scene.second, other).gets(scene.to_left)
    scene.second_sample()

    assert scene.diagnose().verdict == "running"


@pytest.mark.parametrize("change", [{"attempt": 1}, {"state": "PENDING_NODE_ASSIGNMENT"}])
def test_another_attempt_or_state_of_a_pending_task_is_another_wait(change: dict[str, object]) -> None:
    scene = TwoActors()

    scene.sample()
    scene.to_left.becomes(**change)
    scene.second_sample()

    assert scene.diagnose().verdict == "running"


def test_another_attempt_of_a_running_task_is_another_wait() -> None:
    scene = TwoActors()

    scene.sample()
    scene.second.becomes(attempt=1)
    scene.second_sample()

    assert scene.diagnose().verdict == "running"


def test_a_wait_that_began_between_the_samples_is_not_in_a_deadlock_yet() -> None:
    scene = TwoActors()
    scene.right.computes()

    scene.sample()
    scene.right.gets(scene.to_left)
    scene.sample()

    assert scene.diagnose().verdict == "running"


def test_a_worker_that_is_new_in_the_second_sample_is_not_in_a_deadlock_yet() -> None:
    scene = TwoActors()

    scene.sample()
    loner = scene.actor("Loner")
    loner.runs(scene.call(loner, "outer", by=scene.driver_)).gets(scene.call(loner, "inner", by=loner))
    scene.sample()

    (finding,) = scene.diagnose().findings
    assert loner.key not in finding.members


def test_a_task_that_became_feasible_is_not_reported() -> None:
    scene = Scene()
    driver = scene.driver()
    call = scene.task("train", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"GPU": 1.0})
    driver.gets(call)

    scene.sample()
    call.becomes(state="SUBMITTED_TO_WORKER")
    scene.second_sample()

    assert scene.diagnose().verdict == "running"


def test_a_task_that_is_infeasible_in_both_samples_is_confirmed() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.gets(
        scene.task("train", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"GPU": 1.0}),
    )

    scene.sample().second_sample()

    (finding,) = scene.diagnose().findings
    assert (finding.kind, finding.confirmed) == ("infeasible", True)


def test_a_pending_task_may_proceed_when_a_possibly_missing_argument_arrives() -> None:
    scene = TwoActors()
    other, worker = scene.run("other", by=scene.driver_)
    worker.gets(scene.to_right)
    scene.driver_.passes(scene.first, other)
    pending = scene.task("use", by=scene.driver_, state="PENDING_ARGS_AVAIL")

    scene.sample()
    scene.driver_.has(other)
    scene.second_sample()

    (finding,) = scene.diagnose().findings
    assert finding.confirmed
    assert pending.key not in finding.blocked_behind


def test_a_pending_task_is_blocked_behind_while_all_possibly_missing_arguments_are() -> None:
    scene = TwoActors()
    other, worker = scene.run("other", by=scene.driver_)
    worker.gets(scene.to_right)
    scene.driver_.passes(scene.first, other)
    pending = scene.task("use", by=scene.driver_, state="PENDING_ARGS_AVAIL")

    scene.sample().second_sample()

    (finding,) = scene.diagnose().findings
    assert finding.confirmed
    assert {pending.key, worker.key} <= set(finding.blocked_behind)


# Processes without a second sample


def is_unreachable(scene: TwoActors, proc: SceneProcess) -> None:
    proc.is_unreachable = True


def is_unreadable(scene: TwoActors, proc: SceneProcess) -> None:
    proc.is_unreadable = True
    scene.failures.append(Failure(stage="process", reason="the process has ended", sample=2))


def has_no_stacks(scene: TwoActors, proc: SceneProcess) -> None:
    proc.has_no_stacks = True
    scene.failures.append(Failure(stage="stacks", reason="py-spy took too long", sample=2))


def is_lost(scene: TwoActors, proc: SceneProcess) -> None:
    proc.is_unreachable = proc.is_unreadable = True
    scene.failures.append(Failure(stage="node probe", reason="the node did not answer", sample=2))


@pytest.mark.parametrize("happens", [is_unreachable, is_unreadable, has_no_stacks, is_lost])
@pytest.mark.parametrize("to", ["left", "right"])
def test_a_process_without_a_second_sample_stays_suspected(
    happens: Callable[[TwoActors, SceneProcess], None], to: str
) -> None:
    scene = TwoActors()

    scene.sample()
    happens(scene, getattr(scene, to))
    scene.second_sample()

    diagnosis = scene.diagnose()
    assert diagnosis.verdict == "deadlock"
    assert happens is is_unreachable or not diagnosis.findings[0].confirmed


def test_a_thread_that_ran_during_its_second_reading_stays_suspected() -> None:
    scene = TwoActors()

    scene.sample()
    scene.right.threads[0].is_unstable()
    scene.second_sample()

    assert not is_confirmed(scene.diagnose())


def test_a_thread_that_ran_during_its_reading_at_another_place_has_moved() -> None:
    scene = TwoActors()

    scene.sample()
    scene.right.threads[0].is_unstable().computes()
    scene.second_sample()

    assert scene.diagnose().verdict == "running"


def test_an_unproven_wait_does_not_confirm_another_wait() -> None:
    scene = TwoActors()
    bystander, call = scene.driver(), scene.call(scene.left, "late", by=scene.driver_)
    bystander.gets(call)

    scene.sample()
    scene.left.threads[0].is_unstable()
    scene.second_sample()

    assert [finding.confirmed for finding in scene.diagnose().findings] == [False]


def test_two_deadlocks_are_confirmed_separately() -> None:
    scene = TwoActors()
    loner = scene.actor("Loner")
    loner.runs(scene.call(loner, "outer", by=scene.driver_)).gets(scene.call(loner, "inner", by=loner))

    scene.sample()
    loner.threads[0].is_unstable()
    scene.second_sample()

    findings = {loner.key in finding.members: finding.confirmed for finding in scene.diagnose().findings}
    assert findings == {True: False, False: True}
