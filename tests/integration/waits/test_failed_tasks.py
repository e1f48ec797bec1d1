"""Failed tasks and repeated calls, as the task events of a real cluster show them."""

from __future__ import annotations

import pytest

from dstack.files.snapshot_file import load
from dstack.model.snapshot import Actor, Snapshot
from tests.clusters.dstack_command import Json, dstack
from tests.clusters.shared_cluster import SharedCluster
from tests.paths import PROGRAMS
from tests.processes import wait_until

pytestmark = pytest.mark.ray

REPORTED_S = 60.0
"""Deadline for the events of a program to reach the GCS: workers report once a second."""
FAILED = {"RuntimeError: no batch 7", "RuntimeError: no batch 8"}


@pytest.fixture(scope="module")
def snapshot(shared: SharedCluster, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """A snapshot with all failures of the program, and its polling."""
    file = tmp_path_factory.mktemp("failed") / "failed.json"
    last: list[Snapshot] = []

    with shared.running(PROGRAMS / "drivers/failed_tasks.py") as program:
        where = ("--address", program.address, "-o", str(file), "--force")

        def is_reported() -> Snapshot | None:
            done = dstack("snapshot", *where, environment=program.environment)
            assert done.returncode == 0, done.stderr
            last[:] = [load(file)]
            is_whole = {task.error for task in last[0].failed_tasks} >= FAILED and len(dead_actors(last[0])) == 2
            return last[0] if is_whole and last[0].repeated_calls else None

        return wait_until(is_reported, deadline_s=REPORTED_S, what=lambda: f"reported: {last[0].failed_tasks}")


def dead_actors(snapshot: Snapshot) -> list[Actor]:
    jobs = {job.job_id for job in snapshot.jobs if not job.is_dead}
    return [actor for actor in snapshot.actors if actor.state == "DEAD" and actor.job_id in jobs]


def test_a_failed_call_has_its_error_its_position_and_whether_it_is_held(snapshot: Snapshot) -> None:
    path = PROGRAMS / "drivers/failed_tasks.py"
    line = (
        path.read_text().splitlines().index('        raise RuntimeError(f"no batch {batch}\\nnot even a part of it")')
    )
    failed = {task.error: task for task in snapshot.failed_tasks}
    (actor_id,) = {failed[error].actor_id for error in FAILED}
    (actor,) = (actor for actor in snapshot.actors if actor.actor_id == actor_id)

    assert {failed[error].name for error in FAILED} == {"Worker.fail"}
    assert {failed[error].pid for error in FAILED} == {actor.pid}
    assert {(failed[error].file, failed[error].line) for error in FAILED} == {(str(path), line + 1)}
    assert failed["RuntimeError: no batch 7"].is_held
    assert not failed["RuntimeError: no batch 8"].is_held
    assert all(0 < (failed[error].failed_at or 0.0) <= snapshot.taken_at + snapshot.total_s for error in FAILED)


def test_a_call_on_a_dead_actor_has_failed(snapshot: Snapshot) -> None:
    (task,) = (task for task in snapshot.failed_tasks if task.name == "Worker.end")
    (actor,) = (actor for actor in snapshot.actors if actor.actor_id == task.actor_id)

    assert task.error_type == "ACTOR_DIED"
    assert (actor.state, actor.death_reason) == ("DEAD", "WORKER_DIED")


def test_an_actor_that_was_released_has_another_reason(snapshot: Snapshot) -> None:
    reasons = {str(actor.death_reason) for actor in dead_actors(snapshot)}

    assert "WORKER_DIED" in reasons
    assert len(reasons & {"OUT_OF_SCOPE", "REF_DELETED"}) == 1, reasons


def test_a_retried_task_has_not_failed(snapshot: Snapshot) -> None:
    assert "retried" not in {task.name for task in snapshot.failed_tasks}
    assert "retried" in {task.name for task in snapshot.samples[-1].tasks}


def test_polling_differs_from_work(snapshot: Snapshot) -> None:
    (call,) = snapshot.repeated_calls
    window = snapshot.task_event_window

    assert call.name == "Buffer.size"
    assert 0.1 < call.over_s / (call.calls - 1) < 2.0
    assert call.other_calls > 0
    assert window is not None
    assert window.read > call.calls
    assert window.last_ended_at.keys() == {call.job_id}


@pytest.mark.parametrize(("what", "is_held"), [("held", True), ("dropped", False), ("fetched", False)])
def test_a_driver_that_waits_outside_of_ray_has_the_failed_call_beside_it(
    what: str, is_held: bool, shared: SharedCluster
) -> None:
    with shared.running(PROGRAMS / "drivers/rank_zero.py", [what]):
        named = wait_until(lambda: beside(shared.check()), deadline_s=REPORTED_S, what=lambda: "named")

    assert [one["name"] for one in named] == ["Rank.execute"]
    assert named[0]["error"] == "MemoryError: no room for 9000 blocks"
    assert named[0]["source"] == 'raise MemoryError(f"no room for {size} blocks")'
    assert named[0]["is_held"] is is_held


@pytest.mark.exhaustive
def test_a_held_failure_that_nothing_waits_for_becomes_a_finding_and_changes_no_exit_code(
    shared: SharedCluster,
) -> None:
    with shared.running(PROGRAMS / "drivers/rank_zero.py", ["held"]) as program:
        found = wait_until(lambda: of_failures(shared.check()), deadline_s=REPORTED_S, what=lambda: "found")
        where = ("--address", program.address, "--fail-on", "starved")
        code = dstack("check", *where, environment=program.environment).returncode

    assert [one["members"][0]["execution"] for one in found] == ["driver rank_zero.py"]
    assert found[0]["summary"].startswith("Rank.execute raised MemoryError: no room for 9000 blocks, ")
    assert code == 0


def of_failures(document: Json) -> list[Json]:
    """The findings of the kind ``failed``."""
    return [one for one in document["findings"] if one["kind"] == "failed"]


def beside(document: Json) -> list[Json]:
    """The failed calls beside all waits, in findings or not."""
    findings = [one for finding in document["findings"] for one in finding["failed_before"]]
    return [*document["failed_before"], *findings]
