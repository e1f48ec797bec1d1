"""The history of tasks of a real cluster, from the GCS and from the dashboard head, in a saved snapshot."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dstack.analysis.history.task_index import Attempt, HistoryIndex
from dstack.analysis.history.task_time import TaskTime
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from tests.clusters.dstack_command import check, dstack
from tests.clusters.ray_clusters import Example, run_example
from tests.clusters.shared_cluster import SharedCluster
from tests.integration.programs.drivers.task_history import BYTES
from tests.paths import PROGRAMS
from tests.processes import carrying, command_line, wait_until

pytestmark = pytest.mark.ray

REPORTED_S = 60.0
"""Deadline for the events of a program to reach the GCS: workers report once a second."""
NAMES = {"load", "outer", "fail", "Worker.__init__", "Worker.step", "Worker.hang", "never_placed"}
PROGRAM = PROGRAMS / "drivers/task_history.py"
TO_DASHBOARD_HEAD = {
    "RAY_enable_ray_event": "1",
    "RAY_enable_ray_task_event_recorder": "1",
    "RAY_enable_core_worker_ray_event_to_aggregator": "1",
    "RAY_enable_task_events_to_dashboard_head": "1",
    "RAY_enable_core_worker_task_event_to_gcs": "0",
}
HAS_THEM = importlib.util.find_spec("ray.dashboard.modules.task_events") is not None


@pytest.fixture(scope="module")
def without_events_in_gcs() -> Iterator[Example]:
    """The program on a cluster whose workers report to the dashboard head alone."""
    with run_example(PROGRAM, variables=TO_DASHBOARD_HEAD) as program:
        yield program


@pytest.fixture(
    scope="module",
    params=[
        "shared",
        pytest.param(
            "without_events_in_gcs",
            marks=(
                pytest.mark.libraries,  # the dashboard head needs ray[default]
                pytest.mark.skipif(not HAS_THEM, reason="this version of Ray has task events only in the GCS"),
            ),
        ),
    ],
)
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HistoryIndex:
    """The history of the program in a saved snapshot, once all of its events are reported."""
    file = tmp_path_factory.mktemp("history") / "history.json.gz"
    last: list[HistoryIndex] = []

    with program_on(request.getfixturevalue(request.param)) as program:
        where = ("--address", program.address, "-o", str(file), "--force")

        def is_reported() -> HistoryIndex | None:
            done = dstack("snapshot", *where, environment=program.environment)
            assert done.returncode == 0, done.stderr
            found = AnalysedSnapshot.of(load(file)).history
            if found is None or not found.attempts:
                return None
            last[:] = [found]
            hanging = [one for one in of(found, "Worker.hang") if one.state == "running"]
            to_end = [one for name in ("load", "outer", "fail") for one in of(found, name)]
            have_ended = all(one.started_at and one.ended_at for one in to_end)
            is_whole = {one.task.name for one in found.attempts} >= NAMES
            return found if is_whole and hanging and have_ended else None

        return wait_until(is_reported, deadline_s=REPORTED_S, what=lambda: f"reported: {last and last[0].attempts}")


@contextmanager
def program_on(place: SharedCluster | Example) -> Iterator[Example]:
    """The program, on a shared cluster or as it runs already on its own."""
    if isinstance(place, Example):
        yield place
        return
    with place.running(PROGRAM) as program:
        yield program


def of(history: HistoryIndex, name: str) -> list[Attempt]:
    """The attempts of a function in the newest job: earlier programs of the cluster are in its history too."""
    job = max(one.task.job_id for one in history.attempts)
    return [one for one in history.attempts if one.task.name == name and one.task.job_id == job]


def calls_of(history: HistoryIndex, attempt: Attempt) -> list[Attempt]:
    """The attempts that a task has submitted, by their first time."""
    return [one for one in history.attempts if one.task.parent_task_id == attempt.task.task_id]


def test_an_ended_task_has_all_its_times_in_order(history: HistoryIndex) -> None:
    for name in ("load", "outer"):
        for one in of(history, name):
            times = [one.submitted_at, one.ready_at, one.sent_at, one.started_at, one.ended_at]
            assert None not in times, one
            assert times == sorted(times, key=lambda time: time or 0.0), one
            assert one.task.pid
            assert one.task.node_id in history.index.nodes


def test_a_task_has_its_caller(history: HistoryIndex) -> None:
    (outer,) = of(history, "outer")

    assert [one.task.name for one in calls_of(history, outer)] == ["load"]
    driver = history.caller(outer)
    assert driver is not None
    assert driver.task.kind == "DRIVER_TASK"


def test_calls_of_an_actor_wait_for_their_argument_and_in_its_queue(history: HistoryIndex) -> None:
    first, second, third = of(history, "Worker.step")
    held = of(history, "load")[0]

    for one in (first, second):
        assert one.ready_at is not None
        assert held.ended_at is not None
        assert held.ended_at <= one.ready_at
    assert (third.state, third.sent_at is not None, third.started_at) == ("pending", True, None)


def test_a_failed_task_has_its_error_and_a_task_without_a_place_no_start(history: HistoryIndex) -> None:
    (failed,), (pending,) = of(history, "fail"), of(history, "never_placed")

    assert (failed.state, failed.task.error) == ("failed", "ValueError: no such batch")
    assert (pending.state, pending.sent_at, pending.started_at) == ("pending", None, None)
    assert pending.task.required_resources["nowhere"] == 1.0


def test_task_time_is_the_call_tree_by_run_time(history: HistoryIndex) -> None:
    time = TaskTime(history)
    stacks = {tuple(step.name for step in one.frames): one.weight / 1e6 for one in time.stacks(by="job").stacks}
    runs = {tuple(step.name for step in path[1:]): found for path, found in time.runs(by="job").items()}
    (driver,) = {path[:1] for path in stacks if path[-1] == "Worker.hang"}

    (outer,) = of(history, "outer")
    load = next(one for one in calls_of(history, outer) if one.started_at and one.ended_at)
    assert load.started_at
    assert load.ended_at
    here, inner = (*driver, "outer"), (*driver, "outer", "load")
    below = stacks[inner]
    assert below == pytest.approx(load.ended_at - load.started_at, abs=1e-5)
    assert below + stacks.get(here, 0.0) >= runs[here].run_us / 1e6 - 1e-5
    hang, fail = (*driver, "Worker.hang"), (*driver, "fail")
    assert runs[hang].running == 1
    assert runs[fail].failed == 1


def test_live_objects_have_their_sizes(history: HistoryIndex) -> None:
    held, _ = of(history, "load")

    assert BYTES <= history.history.object_bytes[held.task.task_id] <= BYTES + 1000


def test_a_snapshot_has_a_history_only_on_request(shared: SharedCluster, tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    with shared.in_use() as cluster:
        where = ("--address", cluster.address, "-o", str(file), "--force")
        without = dstack("snapshot", *where, "--no-history", environment=cluster.environment)
        assert (without.returncode, load(file).history) == (0, None)
        dstack("snapshot", *where, "--history", environment=cluster.environment)

    history = load(file).history
    assert history is not None
    assert history.kept >= len(history.attempts) > 0


@pytest.mark.libraries
@pytest.mark.skipif(not HAS_THEM, reason="this version of Ray has task events only in the GCS")
def test_a_lack_of_events_is_said(without_events_in_gcs: Example) -> None:
    """While the dashboard head, which has them, is stopped; the verdict is as right as before."""
    address, environment = without_events_in_gcs.address, without_events_in_gcs.environment
    (head,) = (
        one for one in carrying(("RAY_TMPDIR", environment["RAY_TMPDIR"])) if is_dashboard_head(command_line(one))
    )
    head.send_signal(signal.SIGSTOP)
    try:
        timeline = dstack("timeline", "--address", address, environment=environment)
        document = check(address, environment)
    finally:
        head.send_signal(signal.SIGCONT)

    assert timeline.returncode == 3
    assert "Ray has no events of the tasks that have run: the GCS has none" in timeline.stderr
    assert "Check the dashboard's processes" in timeline.stderr
    (failure,) = (one for one in document["coverage"]["failures"] if one["stage"] == "task events")
    assert failure["cause"] == "timeout"
    assert (document["verdict"], document["exit_code"]) == ("hang", 1)


def is_dashboard_head(words: list[str]) -> bool:
    return any(word.endswith("/dashboard/dashboard.py") for word in words)


def test_the_file_says_what_the_source_of_the_program_waits_for(history: HistoryIndex) -> None:
    job = max(one.task.job_id for one in history.attempts)
    (outline,) = (one for one in history.index.snapshot.outlines if one.job_id == job)
    steps = {one.name: one.steps for one in outline.functions}

    assert (outline.files, outline.why_partial) == ((str(PROGRAM),), "")
    assert steps.keys() >= {one.task.name for one in history.attempts if one.task.job_id == job} - {
        "Worker.__init__",
        "",
    }
    assert [(step.kind, step.name, step.of) for step in steps["outer"]] == [("call", "load", ()), ("wait", "", (0,))]
    *_, last = steps[""]
    assert (last.kind, [steps[""][at].name for at in last.of]) == ("wait", ["hang"])
