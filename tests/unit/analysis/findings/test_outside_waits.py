"""Executions that sleep, poll by sleeping or exit: they are shown where there is no finding."""

from __future__ import annotations

import pytest

from dstack.model.diagnosis import Diagnosis
from dstack.observed.processes import Frame, LoopBody
from tests.unit.scenes import Scene, SceneThread
from tests.unit.scenes.calls import APP

LOOP = LoopBody(first_line=20, last_line=25, calls=("ray.nodes",), sleeps=True)
RAY = Frame(function="nodes", file="/site-packages/ray/_private/state.py", line=3, origin="ray")


def polling(thread: SceneThread, body: LoopBody = LOOP, *, sleeps: bool = True) -> SceneThread:
    """The thread in a loop: it sleeps there, or is in a call of Ray."""
    own = Frame(function="wait_for_nodes", file=APP, line=25, only_polls=True, body=body)
    thread.sleeps, thread.is_asleep = sleeps, True
    thread.leaf, thread.outer = (own, ()) if sleeps else (RAY, (own,))
    return thread


def texts(diagnosis: Diagnosis) -> list[str]:
    return [step.text for step in diagnosis.explanation]


@pytest.mark.parametrize("sleeps", [True, False])
def test_a_driver_that_polls_is_shown_with_its_loop(sleeps: bool) -> None:
    scene = Scene()
    polling(scene.driver().threads[0], sleeps=sleeps)

    diagnosis = scene.sample().second_sample().diagnose()

    (wait,) = diagnosis.outside
    assert (diagnosis.verdict, diagnosis.findings) == ("running", ())
    assert (wait.kind, wait.does, wait.loop, wait.line) == ("driver", "rests", LOOP, 25)
    first, rest, progress = texts(diagnosis)
    assert first.endswith("its loop in lines 20-25 calls ray.nodes")
    assert diagnosis.explanation[0].line == 25
    assert rest.startswith("Nothing else of job 01000000 runs")
    assert progress.startswith("No task of job 01000000 started or finished")


def test_a_driver_that_computes_in_such_a_loop_is_not_at_rest() -> None:
    scene = Scene()
    driver = polling(scene.driver().threads[0])
    driver.sleeps = driver.is_asleep = False

    assert scene.diagnose().verdict == "running"


def test_a_call_of_another_function_may_compute_off_the_cpu() -> None:
    scene = Scene()
    driver = polling(scene.driver().threads[0])
    driver.sleeps = False
    driver.leaf, driver.outer = Frame(function="train", file=APP, line=3), (driver.frames()[0],)

    assert scene.diagnose().verdict == "running"


def test_a_sleep_in_a_library_is_not_explained() -> None:
    scene = Scene()
    driver = scene.driver().threads[0]
    driver.sleeps, driver.leaf = True, RAY

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.explanation) == ("idle", ())
    assert [(wait.name, wait.does, wait.line) for wait in diagnosis.outside] == [("driver train.py", "rests", None)]


def test_a_thread_that_sleeps_outside_of_loops_is_shown() -> None:
    scene = Scene()
    scene.driver().thread("user").sleeps = True

    _, wait = scene.diagnose().outside

    assert (wait.kind, wait.does, wait.loop) == ("thread", "rests", None)


@pytest.mark.parametrize("what", ["task", "thread", "unread"])
def test_nothing_else_runs_only_where_that_was_observed(what: str) -> None:
    scene = Scene()
    driver = scene.driver()
    polling(driver.threads[0])
    if what == "task":
        scene.worker().runs(scene.task("f", by=driver))
    elif what == "thread":
        driver.thread("ray")
    else:
        scene.worker().is_unreadable = True

    assert not any(text.startswith("Nothing else") for text in texts(scene.sample().second_sample().diagnose()))


def test_what_rests_is_left_out_where_there_is_a_finding() -> None:
    scene = Scene()
    driver = scene.driver()
    polling(driver.thread("user"))
    driver.gets(scene.task("f", by=driver))

    diagnosis = scene.diagnose()

    assert diagnosis.findings
    assert (diagnosis.outside, diagnosis.explanation) == ((), ())


def test_the_exit_of_a_process_is_shown_without_user_code() -> None:
    scene = Scene()
    driver = scene.driver().threads[0]
    driver.exits_in, driver.leaf, driver.is_asleep = "ray.shutdown", RAY, True

    diagnosis = scene.diagnose()

    (wait,) = diagnosis.outside
    assert (wait.call, wait.kind, wait.does) == ("the exit of its process (ray.shutdown)", "driver", "waits")
    assert texts(diagnosis)[0].startswith("exit of driver train.py (ray.shutdown)")


def test_the_exit_of_a_driver_waits_for_what_its_calls_need() -> None:
    scene = Scene()
    driver, worker = scene.driver(), scene.worker()
    task = scene.task("f", by=driver)
    worker.runs(task)
    driver.gets(task)
    driver.threads[0].exits_in = "ray.shutdown"

    (finding,) = scene.diagnose().findings

    assert finding.summary.startswith("exit of driver train.py (ray.shutdown) waits for f")
