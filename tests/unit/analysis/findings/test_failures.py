"""Failures that are named beside a wait: their selection, their order, and their uncertainty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.findings.failures import HELD, NOT_HELD
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.diagnosis import Diagnosis, FailedBefore
from dstack.model.snapshot import Actor, FailedTask, Node, Snapshot
from dstack.observed.processes import EndedTask
from dstack.report.text import report_text
from dstack.words import SHOWN
from tests.unit.analysis.findings.kinds.small_findings import deadlocked, parked
from tests.unit.scenes import APP, JOB, TAKEN_AT, Scene

CONDITION = "threading.Condition.wait"
RAISED = "TASK_EXECUTION_EXCEPTION"
OTHER_JOB = "02000000"


def failed(**known: Any) -> FailedTask:
    """A call on an actor of another class, that raised 40 s before the snapshot."""
    fields: dict[str, Any] = {
        "task_id": "1a" * 24,
        "name": "Worker.execute_model",
        "job_id": JOB,
        "error_type": RAISED,
        "error": "RuntimeError: out of memory",
        "failed_at": TAKEN_AT - 40.0,
        "actor_id": "2b" * 16,
        "pid": 7,
        "file": APP,
        "line": 31,
        "source": "return self.forward(batch)",
    }
    return FailedTask(**{**fields, **known})


def dead(reason: str | None, **known: Any) -> Actor:
    fields: dict[str, Any] = {
        "actor_id": "3c" * 16,
        "job_id": JOB,
        "class_name": "Worker",
        "state": "DEAD",
        "death_cause": "the worker process has died",
        "death_reason": reason,
        "ended_at": TAKEN_AT - 90.0,
    }
    return Actor(**{**fields, **known})


def stalled() -> Scene:
    """A driver that gets from an actor that waits in a condition."""
    scene = Scene()
    driver, gate = scene.driver(), scene.actor("Gate")
    call = scene.call(gate, "enter", by=driver)
    gate.runs(call).is_in(CONDITION, "0x1")
    driver.gets(call)
    return scene.sample().second_sample()


def working() -> Scene:
    """A driver that waits for a call that runs."""
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Gate")
    call = scene.call(actor, "enter", by=driver)
    actor.runs(call).computes()
    driver.gets(call)
    return scene.sample().second_sample()


def judged(scene: Scene, *tasks: FailedTask, actors: tuple[Actor, ...] = (), **changes: Any) -> Diagnosis:
    return diagnose(with_failures(scene, *tasks, actors=actors, **changes))


def with_failures(scene: Scene, *tasks: FailedTask, actors: tuple[Actor, ...] = (), **changes: Any) -> Snapshot:
    snapshot = scene.snapshot()
    return replace(snapshot, failed_tasks=tasks, actors=(*snapshot.actors, *actors), **changes)


def failures_beside(diagnosis: Diagnosis) -> tuple[FailedBefore, ...]:
    return diagnosis.findings[0].failed_before if diagnosis.findings else diagnosis.failed_before


def with_ended_tasks(*ended: EndedTask) -> Diagnosis:
    """The verdict on a driver that gets from an actor that waits in a condition, beside ended asyncio tasks."""
    scene = Scene()
    driver, gate = scene.driver(), scene.actor("Gate")
    call = scene.call(gate, "enter", by=driver)
    gate.runs(call).is_in(CONDITION, "0x1")
    driver.gets(call)
    gate.known["ended_tasks"] = ended
    return diagnose(scene.sample().second_sample().snapshot())


def ended(**known: Any) -> EndedTask:
    fields: dict[str, Any] = {
        "coroutine_id": "0x9",
        "name": "Task-4",
        "function": "Engine.start.<locals>.serve",
        "stack": 0,
        "error": "KeyError",
        "message": "7",
    }
    return EndedTask(**{**fields, **known})


def test_an_asyncio_task_that_held_what_is_awaited_is_named_in_all_parts_of_a_finding() -> None:
    diagnosis = with_ended_tasks(ended(held=("0x1",)))

    (finding,) = diagnosis.findings
    (failure,) = finding.failed_before
    assert (diagnosis.verdict, failure.name) == ("stalled", "asyncio task serve")
    assert (failure.error, failure.is_related, failure.coroutine_id) == ("KeyError: 7", True, "0x9")
    assert finding.summary.endswith("; asyncio task serve, which held what is awaited, ended with KeyError")
    assert str(finding.advice).startswith("Fix: Correct the KeyError at app.py:10. Where asyncio task serve ends, set")
    assert finding.diagram.remarks[0].text == "Ended before: asyncio task serve with KeyError: 7"


def test_an_asyncio_task_that_failed_in_the_same_process_is_a_remark_only() -> None:
    (finding,) = with_ended_tasks(ended(held=("0x2",))).findings

    assert [one.is_related for one in finding.failed_before] == [False]
    assert "KeyError" not in finding.summary + str(finding.advice)
    assert finding.diagram.remarks[0].text.endswith("; it was in the same process")


@pytest.mark.parametrize(("held", "count"), [(("0x1",), 1), ((), 0)])
def test_a_cancelled_asyncio_task_is_named_if_it_held_what_is_awaited(held: tuple[str, ...], count: int) -> None:
    (finding,) = with_ended_tasks(ended(error="CancelledError", is_cancelled=True, held=held)).findings

    assert len(finding.failed_before) == count


def test_ended_asyncio_tasks_change_no_verdict() -> None:
    assert with_ended_tasks(ended(held=("0x1",))).verdict == with_ended_tasks().verdict == "stalled"


SCENES = [stalled, parked, deadlocked, working]


@pytest.mark.parametrize("scene", SCENES)
def test_a_failure_changes_no_verdict(scene: Callable[[], Scene]) -> None:
    without, with_it = judged(scene()), judged(scene(), failed(is_held=True), actors=(dead("WORKER_DIED"),))

    assert (with_it.verdict, with_it.incomplete) == (without.verdict, without.incomplete)
    assert [one.kind for one in with_it.findings] == [one.kind for one in without.findings]


@pytest.mark.parametrize("scene", SCENES)
def test_a_failed_call_whose_result_is_held_is_named_beside_any_wait(scene: Callable[[], Scene]) -> None:
    diagnosis = judged(scene(), failed(is_held=True))

    (one,) = failures_beside(diagnosis)
    assert (one.name, one.error, one.ago_s, one.pid) == (
        "Worker.execute_model",
        "RuntimeError: out of memory",
        40.0,
        7,
    )
    assert (one.is_held, one.is_related, one.count) == (True, False, 1)


def test_the_report_gives_the_failed_call_its_time_and_its_place() -> None:
    snapshot = with_failures(stalled(), failed(is_held=True))

    text = " ".join(report_text(AnalysedSnapshot.of(snapshot)).split())

    assert "nothing that could end it runs; Worker.execute_model raised RuntimeError: out of memory" in text
    assert f"Failed before: Worker.execute_model (pid 7) raised RuntimeError: out of memory, 40 s ago{HELD}" in text
    assert f"{APP}:31 return self.forward(batch)" in text
    assert "Fix: Correct the error of Worker.execute_model." in text


def test_a_verdict_without_findings_names_it_too() -> None:
    snapshot = with_failures(parked(), failed(is_held=True))

    text = " ".join(report_text(AnalysedSnapshot.of(snapshot)).split())

    assert text.startswith("STALLED")
    assert "threading.Event.wait" in text.partition("Ray 2.60.0")[0]
    assert "; Worker.execute_model raised RuntimeError: out of memory" in text.partition("Ray 2.60.0")[0]
    assert f"40 s ago{HELD}" in text


def test_an_error_whose_result_is_not_held_may_have_been_handled() -> None:
    snapshot = with_failures(stalled(), failed())

    text = " ".join(report_text(AnalysedSnapshot.of(snapshot)).split())

    assert f"40 s ago{NOT_HELD}" in text
    assert HELD not in text
    assert "raised RuntimeError" not in text.partition("likely, not proven")[0]
    assert "may be what these wait for" not in text


@pytest.mark.parametrize("scene", [deadlocked, working])
def test_an_unrelated_failed_call_is_not_named(scene: Callable[[], Scene]) -> None:
    assert failures_beside(judged(scene(), failed())) == ()


def test_a_call_on_an_actor_that_takes_part_is_named() -> None:
    scene = working()
    (gate,) = (actor for actor in scene.actors if actor.class_name == "Gate")
    other = replace(gate, actor_id="4d" * 16)
    on_it, on_similar = failed(actor_id=gate.actor_id), failed(task_id="5e" * 24, actor_id=other.actor_id, line=32)

    found = failures_beside(judged(scene, on_it, on_similar, failed(task_id="6f" * 24), actors=(other,)))

    assert [(one.line, one.is_related) for one in found] == [(31, True), (32, True)]


def test_a_task_that_something_in_the_wait_called_is_named() -> None:
    scene = working()
    (call,) = (task for task in scene.samples[0].tasks if task.name == "Gate.enter")

    (one,) = failures_beside(judged(scene, failed(actor_id=None, parent_task_id=call.task_id)))

    assert one.is_related


@pytest.mark.parametrize("scene", SCENES)
def test_other_jobs_failures_are_not_named(scene: Callable[[], Scene]) -> None:
    tasks, actors = failed(is_held=True, job_id=OTHER_JOB), dead("WORKER_DIED", job_id=OTHER_JOB)

    assert failures_beside(judged(scene(), tasks, actors=(actors,))) == ()


def test_similar_failures_are_one_and_few_are_shown() -> None:
    similar = [failed(task_id=f"{i:048x}", failed_at=TAKEN_AT - i, is_held=True) for i in range(1, 9)]
    others = [failed(task_id=f"{i:048x}", line=i, failed_at=TAKEN_AT - i) for i in range(100, 110)]

    found = failures_beside(judged(stalled(), *others, *similar))

    assert [(one.count, one.ago_s) for one in found] == [(8, 1.0), (1, 100.0), (1, 101.0)]
    assert len(found) == SHOWN


@pytest.mark.parametrize(
    ("reason", "is_named"),
    [("WORKER_DIED", True), ("NODE_DIED", True), ("oom_context", True), ("UNSPECIFIED", True)]
    + [(reason, False) for reason in ("OUT_OF_SCOPE", "REF_DELETED", "OWNER_DIED", "RAY_KILL", None)],
)
def test_an_actor_that_died_is_named_unless_it_was_released(reason: str | None, is_named: bool) -> None:
    found = failures_beside(judged(stalled(), actors=(dead(reason),)))

    assert [(one.is_death, one.ago_s) for one in found] == [(True, 90.0)] * is_named


def test_an_actor_that_was_killed_on_purpose_is_named_where_the_wait_is_about_its_class() -> None:
    (one,) = failures_beside(judged(stalled(), actors=(dead("RAY_KILL", class_name="Gate"),)))

    assert (one.is_death, one.is_related) == (True, True)


def test_calls_that_failed_with_their_actor_are_reported_as_its_death() -> None:
    lost = failed(actor_id="3c" * 16, error_type="ACTOR_DIED", error="The actor is dead")
    raised = failed(task_id="7a" * 24, actor_id="3c" * 16)

    found = failures_beside(judged(stalled(), lost, raised, actors=(dead("WORKER_DIED"),)))

    assert [(one.is_death, one.error_type) for one in found] == [(False, RAISED), (True, "WORKER_DIED")]


def test_a_cancelled_task_is_named_only_beside_a_wait_for_it() -> None:
    cancelled = failed(error_type="TASK_CANCELLED", is_held=True)

    assert failures_beside(judged(stalled(), cancelled)) == ()


def test_the_age_of_a_failure_is_unknown_where_clocks_differ() -> None:
    node = Node(node_id="9" * 56, ip="10.0.0.9", clock_ahead_s=60.0)
    scene = stalled()

    (one,) = failures_beside(judged(scene, failed(), nodes=(*scene.snapshot().nodes, node)))

    assert one.ago_s is None
