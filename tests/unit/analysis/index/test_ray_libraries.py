"""Names of the parts of Ray's libraries; idle parts cause no findings."""

from __future__ import annotations

import pytest

from dstack.analysis.index.ray_libraries import data_operator, part
from dstack.observed.processes import Frame
from tests.unit.scenes import Scene, SceneProcess

ID = "5f8aed750000000000000000" + "01000000"


# Names


@pytest.mark.parametrize(
    ("class_name", "name", "called"),
    [
        (
            "ServeReplica:shop:Front",
            "SERVE_REPLICA::shop#Front#r6vh8w7t",
            "Serve deployment Front of app shop, replica r6vh8w7t",
        ),
        ("ServeController", "SERVE_CONTROLLER_ACTOR", "Serve's controller"),
        ("ProxyActor", "SERVE_PROXY_ACTOR-2056f72b", "Serve's proxy"),
        ("MapWorker(ReadRange->MapBatches(f))", "", "Data operator ReadRange->MapBatches(f), worker 5f8aed75"),
        ("_StatsActor", "datasets_stats_actor", "Data's statistics"),
        ("RayTrainWorker", "", "Train worker 5f8aed75"),
        ("ImplicitFunc", "", "Tune trial 5f8aed75"),
        ("JobSupervisor", "_ray_internal_job_actor_raysubmit_Ab1", "job raysubmit_Ab1"),
        ("_QueueActor", "", "ray.util.queue.Queue 5f8aed75"),
    ],
)
def test_a_library_actor_is_named_by_its_role(class_name: str, name: str, called: str) -> None:
    found = part(class_name, name, ID)

    assert found is not None
    assert f"{found.name}{found.which}" == called


@pytest.mark.parametrize("class_name", ["ProxyActor", "ServeController", "JobSupervisor", "Trainer", "MapWorker"])
def test_a_user_class_is_not_named_as_a_library_actor(class_name: str) -> None:
    assert part(class_name, "mine", ID) is None


@pytest.mark.parametrize(
    ("class_name", "name", "task", "called"),
    [
        (
            "ServeReplica:shop:Front",
            "SERVE_REPLICA::shop#Front#r6",
            "ServeReplica:shop:Front.handle_request_with_rejection",
            "request to Serve deployment Front of app shop",
        ),
        ("MapWorker(Map(f))", "", "MapWorker(Map(f)).submit", "task of Data operator Map(f)"),
        ("_MapWorker", "", "ReadRange->MapBatches(f).submit", "task of Data operator ReadRange->MapBatches(f)"),
        ("ImplicitFunc", "", "ImplicitFunc.train", "step of Tune trial"),
        ("RayTrainWorker", "", "RayTrainWorker.__init__", "start of Train worker"),
        ("_QueueActor", "", "_QueueActor.get", "get of ray.util.queue.Queue"),
    ],
)
def test_a_library_call_is_named_by_its_purpose(class_name: str, name: str, task: str, called: str) -> None:
    found = part(class_name, name, ID)

    assert found is not None
    assert found.call(task) == called


@pytest.mark.parametrize("name", ["ReadRange->MapBatches(f)", "Map(g.<locals>.<lambda>)", "ReadCSV->SplitBlocks(4)"])
def test_a_task_of_ray_data_is_named_by_its_operator(name: str) -> None:
    assert data_operator(name) == f"Data operator {name}"


@pytest.mark.parametrize("name", ["Map", "read", "Mapper.run", "train(3)", "ReadRange"])
def test_other_tasks_are_not_named_by_an_operator(name: str) -> None:
    assert data_operator(name) is None


# Library actors


EXECUTOR = Frame(function="run", file="/usr/lib/python3/site-packages/ray/data/executor.py", line=7, origin="ray")


def controller(scene: Scene) -> SceneProcess:
    """Serve's controller, an async actor whose coroutines are not read."""
    proc = scene.actor("ServeController", name="SERVE_CONTROLLER_ACTOR")
    proc.threads[0].role = "ray"
    proc.thread("AsyncIO Thread: default", "loop")
    return proc


def test_unawaited_calls_of_library_actors_are_no_findings() -> None:
    scene = Scene()
    driver, serve = scene.driver(), controller(scene)
    serve.runs(*(scene.call(serve, "listen_for_change", by=driver) for _ in range(5)))

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "running"
    assert not diagnosis.incomplete


def test_many_queued_calls_of_library_actors_are_no_findings() -> None:
    scene = Scene()
    driver = scene.driver()
    stats = scene.actor("_StatsActor", name="datasets_stats_actor")
    running, *_ = [scene.call(stats, "update", by=driver) for _ in range(100)]
    stats.runs(running)

    assert scene.diagnose().verdict == "running"


@pytest.mark.parametrize("leaf", [EXECUTOR, None])
def test_a_chain_in_which_only_machinery_waits_is_no_finding(leaf: Frame | None) -> None:
    scene = Scene()
    driver, stats = scene.driver(), scene.actor("_StatsActor", name="datasets_stats_actor")
    update = scene.call(stats, "update", by=driver)
    stats.runs(update).threads[0].leaf = EXECUTOR
    thread = driver.thread("StreamingExecutor", "user" if leaf is None else "ray").gets(update)
    thread.leaf = leaf

    findings = scene.diagnose().findings

    assert [one.members for one in findings] == ([] if leaf else [(thread.key,)])


def test_a_library_actor_with_a_user_waiter_is_reported_and_a_gap() -> None:
    scene = Scene()
    driver, serve = scene.driver(), controller(scene)
    deploy = scene.call(serve, "deploy", by=driver)
    serve.runs(deploy)
    driver.gets(deploy)

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "running"
    assert diagnosis.incomplete
    assert "deploy of Serve's controller" in diagnosis.findings[0].summary


def test_a_deadlock_of_user_actors_with_library_names_is_found() -> None:
    scene = Scene()
    driver = scene.driver()
    left, right = scene.actor("ProxyActor"), scene.actor("ProxyActor")
    first = scene.call(left, "forward", by=driver)
    second = scene.call(right, "forward", by=left)
    third = scene.call(left, "back", by=right)
    left.runs(first).gets(second)
    right.runs(second).gets(third)

    assert scene.diagnose().verdict == "deadlock"


def test_a_replica_that_can_never_start_is_found() -> None:
    scene = Scene()
    serve = controller(scene)
    _, creation = scene.pending_actor("ServeReplica:shop:Front", by=serve, GPU=1.0)
    creation.becomes(state="PENDING_NODE_ASSIGNMENT")

    assert [finding.kind for finding in scene.diagnose().findings] == ["infeasible"]
