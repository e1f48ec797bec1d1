"""Waits that changed within a process, and workers that started or ended, between the samples."""

from __future__ import annotations

from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.second_sample import plan_readings
from dstack.model.diagnosis import Diagnosis
from dstack.model.snapshot import Worker
from dstack.observed.node import Failure
from tests.unit.analysis.evidence.sample_change_outcomes import NOTHING, UNDECIDED, Busy, of, outcome, unread
from tests.unit.scenes import Scene

# Within a process


def test_a_lock_that_another_thread_now_holds_is_another_wait() -> None:
    scene = Scene()
    worker = scene.driver()
    first, second = worker.thread("first", "user"), worker.thread("second", "user")
    worker.threads[0].wants_lock("0x1", first)
    scene.sample()

    worker.threads[0].wants_lock("0x1", second).is_unstable()
    scene.sample()

    assert of(scene) == NOTHING


def test_a_future_that_another_thread_now_runs_is_another_wait() -> None:
    scene = Scene()
    worker = scene.driver()
    first, second = worker.thread("first", "user"), worker.thread("second", "user")
    worker.threads[0].awaits_future(first)
    scene.sample()

    worker.threads[0].awaits_future(second).is_unstable()
    scene.sample()

    assert of(scene) == NOTHING


def test_an_unreadable_wait_that_is_now_at_another_line_was_transient() -> None:
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


def test_a_worker_that_ended_has_no_waits_and_no_tasks() -> None:
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

    all_workers = (*listed.workers, worker.worker)
    assert outcome(diagnose_with(scene, all_workers)) == NOTHING


def diagnose_with(scene: Scene, workers: tuple[Worker, ...]) -> Diagnosis:
    """The diagnosis of a snapshot that lists these workers."""
    return diagnose(replace(scene.snapshot(), workers=workers))


def test_a_worker_that_ended_before_its_reading_is_no_gap() -> None:
    scene = Scene()
    driver, ending = scene.driver().computes(), scene.worker()
    ending.is_unreachable = ending.is_unreadable = True
    scene.sample()

    scene.procs.remove(ending)
    scene.sample()

    assert outcome(diagnose_with(scene, (driver.worker, ending.worker))) == NOTHING


def test_an_unreachable_worker_that_was_not_asked_again_is_a_gap() -> None:
    scene = Scene()
    driver, unreachable = scene.driver().computes(), scene.worker()
    unreachable.is_unreachable = True
    late = Failure(stage="core worker", reason="no answer", cause="timeout", worker_id=unreachable.worker_id)
    scene.failures.append(late)
    scene.sample()

    scene.procs.remove(unreachable)
    scene.sample()

    assert outcome(diagnose_with(scene, (driver.worker, unreachable.worker))) == ("nothing", True)


def test_a_worker_that_started_between_the_samples_and_was_not_read_is_no_gap() -> None:
    scene = Scene()
    scene.driver().computes()
    scene.sample()

    scene.worker().is_unreadable = True
    scene.sample()

    assert of(scene) == NOTHING


def test_a_node_that_was_read_only_in_the_first_sample_is_no_gap() -> None:
    scene = Busy()
    scene.call_down()
    scene.sample()

    scene.failures.append(Failure(stage="node probe", reason="too late", cause="timeout", sample=2))
    scene.sample(only=())

    assert of(scene) == ("running", False)


def test_an_unread_process_is_retried_unless_a_retry_would_fail() -> None:
    scene = Scene()
    scene.driver().computes()
    late, forbidden = scene.worker(), scene.worker()
    late.is_unreadable = forbidden.is_unreadable = True
    reason = Failure(stage="process", reason="not allowed", cause="permission", worker_id=forbidden.worker_id)
    scene.failures.append(reason)

    assert plan_readings(scene.snapshot()).workers == {late.worker_id}


def test_a_deadlock_of_processes_that_were_readable_in_the_second_sample_only_is_kept() -> None:
    scene = Busy()
    scene.call_down()
    scene.back.gets(scene.call(scene.front, "again", by=scene.back))
    scene.back.is_unreadable = True
    scene.sample()

    scene.back.is_unreadable = False
    scene.sample()

    diagnosis = scene.diagnose()
    assert (diagnosis.verdict, diagnosis.findings[0].confirmed) == ("deadlock", False)
