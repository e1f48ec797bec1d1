"""Actors with repeated restarts, and calls that are retried: their number, and the last error."""

from __future__ import annotations

from typing import Any

from ray.core.generated import gcs_pb2

from dstack.model.diagnosis import Finding
from dstack.model.snapshot import GoneWorker
from dstack.probes.ray_state.control_plane import actors_of
from tests.unit.scenes import Call, Scene, SceneProcess


def crashing(attempt: int, **known: Any) -> tuple[Scene, SceneProcess, Call]:
    """A call that Ray is about to retry, since the call killed its actor; its driver waits."""
    scene = Scene()
    driver, parser = scene.driver(), scene.actor("Parser", name="parser")
    call = scene.call(parser, "parse", by=driver).becomes(state="PENDING_ARGS_AVAIL", attempt=attempt)
    driver.gets(call)
    assert parser.actor is not None
    scene.becomes(parser.actor, **{"num_restarts": attempt, "max_restarts": -1, **known})
    return scene, driver, call


def only_finding(scene: Scene) -> Finding:
    (finding,) = scene.sample().sample().diagnose().findings
    return finding


def texts(finding: Finding) -> list[str]:
    return [step.text for step in finding.explanation]


def test_a_retried_call_waits_for_its_next_attempt_and_not_for_an_argument() -> None:
    scene, _, call = crashing(4, last_error="Worker exited with code 1")

    diagnosis = scene.sample().sample().diagnose()

    (finding,) = diagnosis.findings
    assert (diagnosis.verdict, diagnosis.incomplete) == ("running", False)
    wait = diagnosis.vertices[call.key].wait
    assert wait is not None
    assert wait.kind == "retry"
    assert "the next attempt of Parser.parse" in finding.summary
    assert (
        'actor Parser "parser" has been restarted 4 times (no limit); '
        "its last process ended with: Worker exited with code 1" in texts(finding)
    )
    assert "Parser.parse is at attempt 5: the first 4 failed" in texts(finding)
    assert "max_task_retries" in str(finding.advice)


def test_a_retried_call_waits_for_its_actor_first() -> None:
    scene, driver, call = crashing(4, state="RESTARTING", worker_id=None)
    scene.procs = [driver]

    diagnosis = scene.sample().sample().diagnose()

    (finding,) = diagnosis.findings
    wait = diagnosis.vertices[call.key].wait
    assert wait is not None
    assert wait.kind == "actor creation"
    assert "has been restarted 4 times" in "".join(texts(finding))


def test_one_restart_is_reported_without_a_fix() -> None:
    scene, _, _ = crashing(1, max_restarts=2)

    finding = only_finding(scene)

    assert 'actor Parser "parser" has been restarted once (at most 2 times)' in texts(finding)
    assert "Parser.parse is at attempt 2: the first failed" in texts(finding)
    assert "max_task_retries" not in str(finding.advice)


def test_an_actor_that_was_restarted_long_ago_is_not_mentioned() -> None:
    scene = Scene()
    driver, parser = scene.driver(), scene.actor("Parser")
    call = scene.call(parser, "parse", by=driver)
    parser.runs(call).computes()
    driver.gets(call)
    assert parser.actor is not None
    scene.becomes(parser.actor, num_restarts=3, max_restarts=-1)

    assert not [text for text in texts(only_finding(scene)) if "restarted" in text]


def test_a_first_attempt_without_known_arguments_waits_for_an_unobserved_one() -> None:
    scene, _, call = crashing(0)

    diagnosis = scene.sample().sample().diagnose()

    wait = diagnosis.vertices[call.key].wait
    assert diagnosis.incomplete
    assert wait is not None
    assert wait.kind == "arguments"


def test_the_last_error_is_that_of_the_previous_process_if_ray_names_it() -> None:
    fields = gcs_pb2.ActorTableData.DESCRIPTOR.fields_by_name
    row = gcs_pb2.ActorTableData(actor_id=bytes(16), num_restarts=2)
    processes = [bytes([number]) * 28 for number in (1, 2)]
    names_process = "previous_incarnations" in fields  # from Ray 2.60
    for worker_id in processes if names_process else ():
        row.previous_incarnations.add(worker_id=worker_id)
    dead = {one.hex(): GoneWorker(worker_id=one.hex(), node_id="", pid=7, cause=f"code {one[0]}") for one in processes}

    with_dead, without = [[one.last_error for one in actors_of([row], known)] for known in (dead, {})]

    assert with_dead == (["code 2"] if names_process else [None])
    assert without == [None]
