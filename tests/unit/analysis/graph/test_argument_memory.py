"""A task whose arguments do not fit beside those of running tasks waits for these, as far as its raylet reports it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.model.diagnosis import Diagnosis
from dstack.model.snapshot import Snapshot, TaskTimes
from dstack.observed.node import RayletReport
from tests.unit.scenes import TAKEN_AT, Call, Scene

MIB = 2**20
ASSIGNED = "PENDING_NODE_ASSIGNMENT"


def merging() -> tuple[Scene, Call]:
    """A running task that waits for a task that has no worker, though CPUs are free."""
    scene = Scene()
    node = scene.node(CPU=4.0, object_store_memory=200.0 * MIB)
    driver = scene.driver(node)
    merge, merger = scene.run("merge", driver, node, CPU=1.0)
    driver.gets(merge)
    inner = scene.task("sort", merger, required_resources={"CPU": 1.0})
    inner.becomes(state=ASSIGNED)
    merger.gets(inner)
    return scene, inner


def diagnosed(scene: Scene, *waiting: Call, reported: int = 1, age_s: float = 5.0) -> Diagnosis:
    """With a raylet's report of so many requests, and tasks that were submitted 8 s ago."""
    snapshot = scene.sample().sample().snapshot()
    report = RayletReport(
        node_id=scene.nodes[0].node_id,
        written_at=TAKEN_AT - age_s,
        waiting_for_memory=reported,
        argument_bytes=80 * MIB if reported else 0,
    )
    times = {call.task.task_id: TaskTimes(states={ASSIGNED: TAKEN_AT - 8.0}) for call in waiting}
    return diagnose(with_arguments(replace(snapshot, raylet_reports=(report,), task_times=times)))


def with_arguments(snapshot: Snapshot) -> Snapshot:
    """Each process has submitted tasks with 80 MiB of arguments."""
    samples = tuple(
        replace(sample, workers=tuple(replace(worker, argument_bytes=80 * MIB) for worker in sample.workers))
        for sample in snapshot.samples
    )
    return replace(snapshot, samples=samples)


def test_the_reported_request_waits_for_the_running_task_that_waits_for_it() -> None:
    scene, inner = merging()

    diagnosis = diagnosed(scene, inner)

    (finding,) = diagnosis.findings
    wait = diagnosis.vertices[inner.key].wait
    assert (diagnosis.verdict, finding.kind) == ("deadlock", "deadlock")
    assert wait is not None
    assert (wait.resources, wait.is_suspected) == (("object_store_memory",), True)
    assert "object_store_memory" in finding.summary
    assert "larger object store" in str(finding.advice)
    assert "CPU" not in finding.summary + str(finding.advice)


def test_a_running_task_that_needs_nothing_ends_the_wait() -> None:
    scene, inner = merging()
    _, other = scene.run("train", scene.procs[0], CPU=1.0)
    other.computes()

    diagnosis = diagnosed(scene, inner)

    assert (diagnosis.verdict, diagnosis.findings[0].kind) == ("running", "starved")


def test_an_actor_may_hold_arguments_as_long_as_it_lives() -> None:
    scene, inner = merging()
    trainer = scene.actor("Trainer", name="t")
    train = scene.call(trainer, "train", by=scene.procs[0])
    trainer.runs(train).computes()

    assert diagnosed(scene, inner).verdict == "running"


def test_a_lease_that_no_known_task_has_may_hold_arguments() -> None:
    scene, inner = merging()
    scene.available[scene.nodes[0].node_id]["CPU"] = 3.0

    assert diagnosed(scene, inner).verdict == "running"


def test_without_a_report_about_exactly_this_request_nothing_is_certain() -> None:
    def other_task(scene: Scene) -> None:
        task = scene.task("other", scene.procs[0], required_resources={"CPU": 1.0})
        task.becomes(state=ASSIGNED)

    def other_node(scene: Scene) -> None:
        scene.node(CPU=1.0)

    def autoscaler(scene: Scene) -> None:
        scene.autoscaler = "autoscaler"

    changes: tuple[Callable[[Scene], None], ...] = (other_task, other_node, autoscaler)
    for change in changes:
        scene, inner = merging()
        change(scene)
        assert diagnosed(scene, inner).verdict == "running"

    for age_s, has_times in ((9.0, True), (7.8, True), (5.0, False)):
        scene, inner = merging()
        diagnosis = diagnosed(scene, *[inner] * has_times, age_s=age_s)
        (finding,) = diagnosis.findings
        assert diagnosis.verdict == "running"
        assert "room for up to 80 MiB of arguments beside 80 MiB of running tasks" in finding.summary
        assert "affinity" not in str(finding.advice)


def test_arguments_that_exceed_the_share_may_be_the_reason_until_the_raylet_reports() -> None:
    scene, inner = merging()

    (early,) = diagnosed(scene, inner, reported=0, age_s=9.0).findings

    assert "room for up to 80 MiB of arguments beside those of running tasks" in early.summary
    assert "affinity" not in str(early.advice)


def test_a_raylet_that_has_reported_no_such_request_leaves_the_scheduler() -> None:
    scene, inner = merging()

    (later,) = diagnosed(scene, inner, reported=0).findings

    assert "scheduler" in later.summary
