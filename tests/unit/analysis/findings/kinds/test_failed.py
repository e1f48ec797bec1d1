"""Failed calls whose results are held while nothing waits for them: found beside hangs, not beside progress."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.model.diagnosis import Diagnosis, Finding
from dstack.model.snapshot import FailedTask, TaskEventWindow, TaskTimes
from dstack.report.text import report_text
from tests.examples.recorded import RECORDED
from tests.unit.analysis.findings.kinds.small_findings import deadlocked, kinds, parked
from tests.unit.scenes import JOB, Scene, SceneProcess
from tests.unit.scenes.calls import APP, Call
from tests.unit.scenes.scene import TAKEN_AT

DRIVER_TASK = f"{'f' * 40}{JOB}"
EVENT = "threading.Event.wait"
AGE_S = 40.0


def failed(**known: Any) -> FailedTask:
    """A call by the driver that raised 40 s before the snapshot, and whose result is held."""
    fields: dict[str, Any] = {
        "task_id": f"{'1a' * 8}{'2b' * 12}{JOB}",
        "name": "Worker.execute_model",
        "job_id": JOB,
        "error_type": "TASK_EXECUTION_EXCEPTION",
        "error": "RuntimeError: out of memory",
        "failed_at": TAKEN_AT - AGE_S,
        "parent_task_id": DRIVER_TASK,
        "pid": 7,
        "file": APP,
        "line": 31,
        "source": "return self.forward(batch)",
        "is_held": True,
    }
    return FailedTask(**{**fields, **known})


def judged(scene: Scene, *tasks: FailedTask, last_ended_s: float | None = None, **changes: Any) -> Diagnosis:
    """The diagnosis; the last task of the job ended so many seconds before the snapshot."""
    ends = {} if last_ended_s is None else {JOB: TAKEN_AT - last_ended_s}
    window = TaskEventWindow(kept=9, read=9, last_ended_at=ends)
    return diagnose(replace(scene.snapshot(), **{"failed_tasks": tasks, "task_event_window": window, **changes}))


def of_failure(diagnosis: Diagnosis) -> Finding:
    (found,) = (finding for finding in diagnosis.findings if finding.kind == "failed")
    return found


def getting() -> tuple[Scene, SceneProcess, Call]:
    """A driver that gets the result of a running call."""
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Gate")
    call = scene.call(actor, "enter", by=driver)
    actor.runs(call).computes()
    driver.gets(call)
    return scene, driver, call


def test_a_failure_beside_a_wait_outside_of_ray_is_the_only_finding() -> None:
    diagnosis = judged(parked(), failed())

    finding = of_failure(diagnosis)
    assert (diagnosis.verdict, kinds(diagnosis), finding.jobs) == ("running", ["failed"], (JOB,))
    assert finding.summary.startswith(
        "Worker.execute_model raised RuntimeError: out of memory, 40 s ago; nothing waits for its result: "
        f"driver train.py waits in {EVENT}"
    )
    assert [wait.call for wait in diagnosis.outside] == [EVENT], "the wait is listed as before"
    assert not diagnosis.fails("starved")


def test_the_report_draws_the_caller_and_the_failed_call() -> None:
    window = TaskEventWindow(kept=1, read=1)
    snapshot = replace(parked().snapshot(), failed_tasks=(failed(),), task_event_window=window)

    text = " ".join(report_text(AnalysedSnapshot.of(snapshot), details=True).split())

    assert text.startswith("RUNNING Worker.execute_model raised RuntimeError: out of memory, 40 s ago")
    assert "1 driver train.py pid 1000 on 10.0.0.2" in text
    assert f"{APP}:10 return run_of(me) waits in {EVENT}" in text
    assert f"2 Worker.execute_model pid 7 {APP}:31 return self.forward(batch) raised RuntimeError" in text
    assert "Fix: Correct the error of Worker.execute_model." in text


def test_a_failure_in_a_deadlocked_job_is_found_after_the_deadlock_whatever_else_ends() -> None:
    diagnosis = judged(deadlocked(), failed(), last_ended_s=0.0)

    assert (diagnosis.verdict, kinds(diagnosis)) == ("deadlock", ["deadlock", "failed"])
    assert diagnosis.findings[0].failed_before, "the deadlock has it, too"
    assert not diagnosis.findings[0].diagram.remarks, "but does not repeat it"


def test_a_failure_beside_a_running_call_is_found_where_nothing_has_ended_since() -> None:
    scene, _, _ = getting()

    assert kinds(judged(scene, failed())) == ["running", "failed"]
    assert kinds(judged(scene, failed(), last_ended_s=AGE_S + 5.0)) == ["running", "failed"]
    assert kinds(judged(scene, failed(), last_ended_s=AGE_S - 5.0)) == ["running", "failed"], "a call of the same step"


@pytest.mark.parametrize("last_ended_s", [0.0, 3.0, AGE_S / 3])
def test_a_job_in_which_calls_end_has_no_such_finding(last_ended_s: float) -> None:
    scene, _, _ = getting()

    assert kinds(judged(scene, failed(), last_ended_s=last_ended_s)) == ["running"]


def test_a_job_in_which_calls_fail_again_and_again_has_no_such_finding_about_the_first() -> None:
    scene, _, _ = getting()
    later = failed(task_id="5c" * 24, failed_at=TAKEN_AT - 1.0, is_held=False)

    assert kinds(judged(scene, failed(), later)) == ["running"]


def test_a_caller_that_waits_for_a_later_call_has_gone_on() -> None:
    scene, _, call = getting()
    later, before = (TaskTimes(submitted_at=TAKEN_AT - AGE_S + by_s) for by_s in (1.0, -1.0))

    assert kinds(judged(scene, failed(), task_times={call.task.task_id: later})) == ["running"]
    assert kinds(judged(scene, failed(), task_times={call.task.task_id: before})) == ["running", "failed"]


def test_a_young_failure_is_found_only_in_a_job_that_is_stuck() -> None:
    young = failed(failed_at=TAKEN_AT - 2.0)

    assert kinds(judged(parked(), young)) == []
    assert kinds(judged(deadlocked(), young)) == ["deadlock", "failed"]


def test_without_the_ended_tasks_a_failure_beside_a_running_call_is_not_found() -> None:
    scene, _, _ = getting()

    assert kinds(judged(scene, failed(), task_event_window=None)) == ["running"]


def test_a_result_that_is_not_held_or_is_awaited_is_no_finding() -> None:
    scene, driver, call = getting()
    driver.waits(call, f"{failed().task_id}01000000")

    assert kinds(judged(scene, failed(is_held=False))) == ["running"]
    assert kinds(judged(scene, failed())) == ["running"]


def test_a_caller_that_waits_for_unread_refs_may_wait_for_the_result() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Gate")
    call = scene.call(actor, "enter", by=driver)
    actor.runs(call).computes()
    driver.keeps(call).threads[0].gets_held_refs()

    assert "failed" not in kinds(judged(scene, failed()))


def test_a_caller_that_runs_is_at_work() -> None:
    scene = Scene()
    driver, other = scene.driver(), scene.driver()
    driver.computes()
    call, _ = scene.run("work", by=other)
    other.gets(call)
    of_first = failed(parent_task_id=None, holders=(driver.worker_id,))

    assert kinds(judged(scene, of_first)) == ["running"]
    assert kinds(judged(scene, replace(of_first, holders=(other.worker_id,)))) == ["running", "failed"]


def test_the_caller_is_the_task_that_made_the_call() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("train", by=driver)
    slow, _ = scene.run("slow", by=worker)
    worker.gets(slow)
    driver.gets(call)
    scene.sample().second_sample()

    finding = of_failure(judged(scene, failed(parent_task_id=call.task.task_id)))

    assert [str(key) for key in finding.members] == [str(worker.threads[0].key)]
    assert "train waits in ray.get" in finding.summary


def test_a_failure_that_a_stall_names_as_its_cause_is_no_finding_of_its_own() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("train", by=driver)
    worker.is_in(EVENT, "0x1")
    driver.gets(call)
    scene.sample().second_sample()

    diagnosis = judged(scene, failed(parent_task_id=call.task.task_id))

    assert kinds(diagnosis) == ["stalled"]
    assert "Worker.execute_model raised RuntimeError: out of memory" in diagnosis.findings[0].summary
    assert any("Failed before" in step.text for step in diagnosis.findings[0].diagram.remarks)


def test_a_cancelled_call_is_no_finding() -> None:
    assert kinds(judged(parked(), failed(error_type="TASK_CANCELLED"))) == []


def test_similar_failures_are_one_finding_with_their_number() -> None:
    several = [failed(task_id=f"{number:048x}") for number in range(5)]

    finding = of_failure(judged(parked(), *several))

    assert "40 s ago (5 alike); nothing waits for its result" in finding.summary
    assert finding.failed_before[0].count == 5


def test_a_caller_that_has_waited_since_before_has_certainly_not_fetched_the_error() -> None:
    recent = failed(failed_at=TAKEN_AT - 0.2)
    proven = " ".join(step.text for step in of_failure(judged(deadlocked(), recent)).explanation)
    likely = " ".join(step.text for step in of_failure(judged(parked(), failed())).explanation)

    assert "since before the failure, so it has not fetched the error" in proven
    assert "Ray does not tell whether the result was fetched before" in likely


def test_findings_of_another_job_are_left_out() -> None:
    snapshot = replace(parked().snapshot(), failed_tasks=(failed(),), task_event_window=TaskEventWindow(kept=1, read=1))

    assert kinds(diagnose(snapshot, job=JOB)) == ["failed"]
    assert kinds(judged(parked(), failed(job_id="02000000", parent_task_id=f"{'f' * 40}02000000"))) == []


def test_a_recorded_program_that_keeps_failed_results_has_no_such_finding() -> None:
    diagnosis = diagnose(load(RECORDED / "look_alikes" / "failed_results_kept.json.gz"))

    assert kinds(diagnosis) == ["running"]
    assert diagnosis.findings[0].failed_before[0].is_held
