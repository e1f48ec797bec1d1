"""A task or actor waits for its environment, its worker or room for its arguments, and not for the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as dataclass_replace

import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.second_sample import plan_readings
from dstack.files.snapshot_file import load
from dstack.model.diagnosis import Diagnosis
from dstack.model.snapshot import Node, Snapshot, TaskTimes
from dstack.observed.node import EnvironmentSetup, RayletCount, RayletReport, Ref
from dstack.probes.node.core_worker_replies import environment_parts
from tests.examples.recorded import recorded
from tests.unit.scenes import TAKEN_AT, Call, Scene, SceneProcess

PIP = ("env_vars", "pip")


def pending(environment: tuple[str, ...] = PIP, *, is_actor: bool = False) -> tuple[Scene, Call]:
    """A task, or an actor's creation, without a node though a node has room, and a driver that waits for it."""
    scene = Scene()
    node = scene.node(CPU=2.0)
    driver = scene.driver(node)
    if is_actor:
        _, start = scene.pending_actor("Trainer", driver, CPU=1.0)
        start.becomes(state="PENDING_NODE_ASSIGNMENT", environment=environment)
    else:
        start = scene.task("train", driver, required_resources={"CPU": 1.0}, environment=environment)
        start.becomes(state="PENDING_NODE_ASSIGNMENT")
    driver.gets(start)
    return scene, start


def diagnosis_with_installations(scene: Scene, setups: int = 1) -> Diagnosis:
    snapshot = scene.sample().sample().snapshot()
    found = tuple(
        EnvironmentSetup(
            node_id=scene.nodes[0].node_id,
            pid=70 + number,
            command="pip install torch",
            started_at=TAKEN_AT - 40.0,
            output="Collecting torch",
        )
        for number in range(setups)
    )
    return diagnose(replace(snapshot, environment_setups=found))


def test_the_installation_is_named_with_its_command_age_and_output() -> None:
    for is_actor in (False, True):
        scene, _ = pending(is_actor=is_actor)

        diagnosis = diagnosis_with_installations(scene)

        (finding,) = diagnosis.findings
        assert (diagnosis.verdict, finding.kind) == ("running", "running")
        assert (
            "installation of a runtime environment by pip install torch (pid 70, node 10.0.0.1), "
            "which has run for 41 s; its last output: Collecting torch" in finding.summary
        )
        assert 'dstack logs "node ' in str(finding.advice)


def test_any_of_several_installations_may_be_the_dependency() -> None:
    scene, start = pending()

    diagnosis = diagnosis_with_installations(scene, setups=2)

    wait = diagnosis.vertices[start.key].wait
    assert wait is not None
    assert (wait.kind, wait.total, wait.evidence) == ("runtime environment", 2, "inferred")


def test_a_task_without_such_an_environment_or_without_an_installation_waits_for_the_scheduler() -> None:
    for environment, setups in (((), 1), (("env_vars", "config"), 1), (PIP, 0)):
        scene, start = pending(environment)

        wait = diagnosis_with_installations(scene, setups).vertices[start.key].wait

        assert wait is not None
        assert wait.kind == "resources"


def test_a_task_that_waits_for_resources_that_are_held_waits_for_their_holders() -> None:
    scene, start = pending()
    driver = scene.procs[0]
    _, holder = scene.run("hold", driver, scene.nodes[0], CPU=2.0)
    holder.computes()
    scene.available[scene.nodes[0].node_id] = {"CPU": 0.0}

    wait = diagnosis_with_installations(scene).vertices[start.key].wait

    assert wait is not None
    assert wait.resources == ("CPU",)


def test_installations_and_starts_are_searched_only_where_a_task_may_wait_for_them() -> None:
    for environment in (PIP, (), ("config",)):
        assert plan_readings(pending(environment)[0].snapshot()).waits_to_start

    scene, _ = pending(())
    scene.available[scene.nodes[0].node_id] = {"CPU": 0.0}
    _, holder = scene.run("hold", scene.procs[0], scene.nodes[0], CPU=2.0)
    holder.computes()
    assert not plan_readings(scene.snapshot()).waits_to_start


def starting(scene: Scene, node: Node | None = None, job_id: str | None = None) -> SceneProcess:
    """A worker that takes no tasks yet, which has been starting for 30 s when the scene is sampled."""
    worker = scene.worker(node)
    worker.worker = replace(worker.worker, job_id=job_id, port=0)
    worker.started_at = TAKEN_AT - 30.0
    worker.known["starting"] = "setup hook"
    worker.threads[0].role = "user"
    return worker.computes()


def test_a_task_that_could_be_placed_waits_for_the_worker_that_is_starting() -> None:
    for is_actor in (False, True):
        scene, start = pending((), is_actor=is_actor)
        worker = starting(scene)

        diagnosis = scene.sample().sample().diagnose()

        (finding,) = diagnosis.findings
        wait = diagnosis.vertices[start.key].wait
        assert wait is not None
        assert [target.vertex for target in wait.targets] == [worker.threads[0].key]
        assert (diagnosis.verdict, finding.kind, diagnosis.incomplete) == ("running", "running", False)
        assert "worker process that has been starting for 30 s (in its worker_process_setup_hook)" in finding.summary
        assert str(finding.advice).startswith("Next: The worker process is still starting at ")


def test_what_no_known_holder_has_is_held_by_workers_that_are_starting() -> None:
    scene, start = pending(())
    scene.available[scene.nodes[0].node_id] = {"CPU": 0.0}
    for _ in range(2):
        starting(scene)

    diagnosis = scene.sample().sample().diagnose()

    (finding,) = diagnosis.findings
    wait = diagnosis.vertices[start.key].wait
    assert wait is not None
    assert (wait.kind, wait.total, wait.resources) == ("executor", 2, ())
    assert finding.kind == "running"
    assert "CPU" not in finding.summary + str(finding.advice)


def test_beside_a_known_holder_a_starting_worker_holds_the_rest() -> None:
    scene, start = pending(())
    _, holder = scene.run("hold", scene.procs[0], scene.nodes[0], CPU=1.0)
    holder.computes()
    scene.available[scene.nodes[0].node_id] = {"CPU": 0.0}
    worker = starting(scene)

    wait = scene.wait_of(start)

    assert {target.vertex for target in wait.targets} == {holder.threads[0].key, worker.threads[0].key}
    assert wait.resources == ("CPU",)


def test_a_task_that_was_sent_waits_for_a_worker_of_its_node_that_is_starting() -> None:
    scene = Scene()
    driver, other = scene.driver(scene.node(CPU=1.0)), scene.node(CPU=1.0)
    task = scene.task("train", driver, node_id=other.node_id)
    driver.gets(task)
    starting(scene)
    worker = starting(scene, other)

    assert [target.vertex for target in scene.wait_of(task).targets] == [worker.threads[0].key]


def test_workers_that_start_for_another_job_explain_nothing() -> None:
    scene, start = pending(())
    starting(scene, job_id="02000000")

    assert any(group.has_unknown("scheduler") for group in scene.wait_of(start).groups)


def test_a_starting_worker_that_waits_is_no_proof_of_a_deadlock() -> None:
    scene, start = pending(())
    driver = scene.procs[0]
    needed = scene.task("rates", driver, required_resources={"CPU": 1.0})
    needed.becomes(state="PENDING_NODE_ASSIGNMENT")
    worker = starting(scene)
    worker.gets(needed)

    diagnosis = scene.sample().sample().diagnose()

    wait = diagnosis.vertices[start.key].wait
    assert wait is not None
    assert any(group.has_unknown("other side") for group in wait.groups)
    assert diagnosis.verdict == "stalled"


def test_a_starting_worker_without_a_stack_is_unobserved() -> None:
    scene, _ = pending(())
    worker = starting(scene)
    worker.has_no_stacks = True

    diagnosis = scene.sample().sample().diagnose()

    assert diagnosis.incomplete
    assert "worker process that has been starting for 30 s" in diagnosis.findings[0].summary


def test_the_parts_of_an_environment_are_those_that_ray_serialises() -> None:
    assert environment_parts('{"_ray_commit": "b7f", "pip": {"packages": ["torch"]}, "env_vars": {}}') == PIP
    assert environment_parts("") == environment_parts("{") == environment_parts("[1]") == ()


def starting_actor(scene: Scene, driver: SceneProcess, node: Node) -> tuple[SceneProcess, Call]:
    """An actor that has got its worker, which holds the only CPU and runs a setup hook; its owner knows no node."""
    actor, start = scene.pending_actor("Trainer", driver, CPU=1.0)
    start.becomes(state="PENDING_NODE_ASSIGNMENT")
    worker = scene.worker(node)
    worker.known["starting"], worker.threads[0].role = "setup hook", "user"
    scene.becomes(actor, worker_id=worker.worker_id, node_id=node.node_id, held={"CPU": 1.0})
    return worker, start


def test_an_actor_that_has_its_worker_waits_for_its_start_and_not_for_what_it_holds_itself() -> None:
    scene = Scene()
    node = scene.node({"CPU": 0.0}, CPU=2.0)
    driver = scene.driver(node)
    workers, starts = zip(*(starting_actor(scene, driver, node) for _ in range(2)), strict=True)
    driver.gets(*starts)

    diagnosis = scene.sample().second_sample().diagnose()

    (finding,) = diagnosis.findings
    waits = [diagnosis.vertices[start.key].wait for start in starts]
    assert [[target.vertex for target in wait.targets] for wait in waits if wait] == [[one.key] for one in workers]
    assert (finding.kind, finding.resources) == ("running", ())
    steps = [step.text for step in finding.explanation]
    assert "Trainer: 0 of 2 actors are created; 2 wait for the start of a worker process" in steps
    assert not any("may end the wait" in step for step in steps)


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


def lost_argument(*, arguments: int = 1) -> tuple[Scene, Call, Call]:
    """A task that takes a value that was lost with a node, and that only such a node could make again."""
    scene = Scene()
    node = scene.joined(scene.node(CPU=2.0), 1_000.0, is_head=True)
    spot = scene.joined(scene.node(CPU=1.0, spot=1.0), 900.0)
    driver = scene.driver(node)
    load = scene.task("load", driver, required_resources={"spot": 1.0})
    load.becomes(state=ASSIGNED, attempt=1, node_id=spot.node_id)
    train = scene.task("train", driver, required_resources={"CPU": 1.0})
    train.becomes(state=ASSIGNED)
    driver.refs[load.ref] = Ref(
        ref=load.ref,
        holder_id=driver.worker_id,
        state=ASSIGNED,
        size_bytes=80 * MIB,
        argument_uses=arguments,
        attempt=1,
    )
    driver.gets(train)
    scene.lose(spot, 30.0)
    return scene, load, train


def with_requests(scene: Scene, call: Call, requests: int, *, settle_s: float = 10.0) -> Diagnosis:
    """With a raylet's report of so many requests that wait for arguments, of a task that was submitted 8 s ago."""
    snapshot = scene.sample().sample().snapshot()
    counts: dict[RayletCount, int] = {"waiting for arguments": requests, "queued pulls": 3} if requests else {}
    report = RayletReport(node_id=scene.nodes[0].node_id, written_at=TAKEN_AT - 5.0, counts=counts)
    times = {call.task.task_id: TaskTimes(states={ASSIGNED: TAKEN_AT - 8.0})}
    return diagnose(replace(snapshot, raylet_reports=(report,), task_times=times), nodes_settle_s=settle_s)


def test_a_task_waits_for_its_lost_argument_in_one_finding_with_what_that_lacks() -> None:
    scene, load, train = lost_argument()

    diagnosis = with_requests(scene, train, 1, settle_s=1.0)

    (finding,) = diagnosis.findings
    wait = diagnosis.vertices[train.key].wait
    assert wait is not None
    assert ([target.vertex for target in wait.targets], wait.kind, wait.is_suspected) == ([load.key], "arguments", True)
    assert (diagnosis.verdict, finding.members) == ("hang", (load.key,))
    assert train.key in finding.blocked_behind
    assert "asks for 1 spot, but no node has any spot" in finding.summary
    assert "its value was lost with node 10.0.0.2, which had 1 spot and ended at " in finding.summary


def test_a_lost_node_that_may_return_is_no_hang() -> None:
    scene, _, train = lost_argument()

    diagnosis = with_requests(scene, train, 1)

    (finding,) = diagnosis.findings
    assert (diagnosis.verdict, finding.kind) == ("stalled", "stalled")
    remarks = [step.text for step in finding.diagram.remarks]
    assert any(
        text.startswith("load runs again (attempt 2): its value was lost with node 10.0.0.2") for text in remarks
    )


def test_with_more_tasks_than_reported_requests_the_scheduler_may_be_the_reason() -> None:
    for arguments in (0, 1):
        scene, load, train = lost_argument(arguments=arguments)
        other = scene.task("other", scene.procs[0], required_resources={"CPU": 1.0})
        other.becomes(state=ASSIGNED)

        diagnosis = with_requests(scene, train, 1, settle_s=1.0)

        wait = diagnosis.vertices[train.key].wait
        assert wait is not None
        assert (wait.groups[0].has_unknown("scheduler"), wait.is_suspected) == (True, False)
        assert (load.key in {target.vertex for target in wait.targets}) == bool(arguments)
        assert not any(train.key in finding.blocked_behind for finding in diagnosis.findings)


def test_without_a_report_the_scheduler_may_place_a_task_beside_a_lost_argument() -> None:
    scene, load, train = lost_argument()

    wait = with_requests(scene, train, 0, settle_s=1.0).vertices[train.key].wait

    assert wait is not None
    assert next(iter(wait.targets)).vertex == load.key
    assert wait.groups[0].has_unknown("scheduler")


def test_a_value_that_is_made_again_elsewhere_is_awaited_as_any_running_task() -> None:
    scene, load, train = lost_argument()
    maker = scene.worker(scene.nodes[0])
    load.becomes(state="SUBMITTED_TO_WORKER")
    scene.procs[0].refs[load.ref] = dataclass_replace(scene.procs[0].refs[load.ref], state="SUBMITTED_TO_WORKER")
    maker.runs(load).computes()

    diagnosis = with_requests(scene, train, 1, settle_s=1.0)

    assert diagnosis.verdict == "running"


def test_arguments_that_are_not_lost_are_in_transit() -> None:
    scene, load, train = lost_argument(arguments=0)

    diagnosis = with_requests(scene, train, 2)

    wait = diagnosis.vertices[train.key].wait
    assert wait is not None
    (target,) = wait.targets
    assert load.key != target.vertex
    assert describe(diagnosis.vertices[target.vertex]) == (
        "transfer of arguments to node 10.0.0.1, where 2 requests wait for arguments: 3 objects waiting to be pulled"
    )


def test_a_stated_share_of_the_store_is_the_limit() -> None:
    scene, inner = merging()
    snapshot = scene.sample().sample().snapshot()
    report = RayletReport(
        node_id=scene.nodes[0].node_id,
        written_at=TAKEN_AT - 5.0,
        waiting_for_memory=1,
        argument_bytes=80 * MIB,
        argument_share=0.5,
    )
    times = {inner.task.task_id: TaskTimes(states={ASSIGNED: TAKEN_AT - 8.0})}

    diagnosis = diagnose(with_arguments(replace(snapshot, raylet_reports=(report,), task_times=times)))

    assert "they may take 50 % of the 200 MiB" in str(diagnosis.findings[0].explanation)


def test_pinned_arguments_on_a_node_without_tasks_may_be_those_of_an_ended_one() -> None:
    scene = Scene()
    node = scene.node(CPU=4.0, object_store_memory=200.0 * MIB)
    driver = scene.driver(node)
    train = scene.task("train", driver, required_resources={"CPU": 1.0})
    train.becomes(state=ASSIGNED)
    driver.gets(train)

    diagnosis = diagnosed(scene, train)

    (finding,) = diagnosis.findings
    assert "(none was seen to run there: Ray may have kept those of an ended one)" in str(finding.explanation)
    assert diagnosis.verdict == "running"


# What raylets report of the start of worker processes


def delayed(
    counts: dict[RayletCount, int],
    *,
    environment: tuple[str, ...] = (),
    reported_s: float = 5.0,
    starting: int = 0,
) -> tuple[Diagnosis, str]:
    """A task without a worker by a raylet's counts, ``reported_s`` ago, and what it waits for."""
    scene, call = pending(environment)
    snapshot = scene.sample().sample().snapshot()
    report = RayletReport(
        node_id=scene.nodes[0].node_id, written_at=TAKEN_AT - reported_s, counts=counts, starting=starting
    )
    times = {call.task.task_id: TaskTimes(states={ASSIGNED: TAKEN_AT - 8.0})}
    diagnosis = diagnose(replace(snapshot, raylet_reports=(report,), task_times=times))
    wait = diagnosis.vertices[call.key].wait
    assert wait is not None
    return diagnosis, describe(diagnosis.vertices[next(iter(wait.targets)).vertex])


WAITING: dict[RayletCount, int] = {"waiting for workers": 1}
NODE = "node 10.0.0.1"


@pytest.mark.parametrize(
    ("counts", "starting", "reasons"),
    [
        (
            {"pending registrations": 2, "pending starts": 3},
            2,
            f"{NODE} is starting 2 worker processes, its most at a time, and 3 wait",
        ),
        (
            {"pending registrations": 1, "late registrations": 4},
            0,
            f"{NODE} expects 1 worker process to connect, but none is starting there; since its raylet started, 4 "
            f"worker processes of {NODE} died, or took too long, before connecting",
        ),
        ({"pending registrations": 1}, 1, f"1 worker process of {NODE} has not connected yet"),
        ({}, 0, f"1 request on {NODE} waits for a worker process, and none has been started"),
    ],
)
def test_the_counts_of_a_raylet_say_what_delays_the_start_of_a_worker(
    counts: dict[RayletCount, int], starting: int, reasons: str
) -> None:
    diagnosis, awaited = delayed({**WAITING, **counts}, starting=starting)

    assert awaited == f"start of a worker: {reasons} (6.2 s ago)"
    assert diagnosis.verdict == "running"
    assert '`dstack logs "node 10.0.0.1"` shows why' in str(diagnosis.findings[0].advice)


def test_an_environment_is_prepared_before_a_worker_starts() -> None:
    _, awaited = delayed(WAITING, environment=("env_vars", "working_dir"))

    assert f"{NODE} prepares its runtime environment (working_dir) first" in awaited


def test_requests_that_no_node_satisfies_are_named() -> None:
    _, awaited = delayed({"infeasible requests": 1})

    assert awaited.startswith(f"scheduler, which has not placed 1 CPU: {NODE} counts 1 request that no node of the")


def test_a_report_from_before_the_request_says_nothing_of_it() -> None:
    _, awaited = delayed(WAITING, reported_s=7.9)

    assert awaited == f"scheduler, which has not placed 1 CPU: it is free on {NODE}, and Ray does not say why"


def test_a_request_that_waits_on_a_node_without_room_is_named() -> None:
    scene, call = pending(())
    full = scene.node(free={}, CPU=2.0)
    report = RayletReport(node_id=full.node_id, written_at=TAKEN_AT, counts={"waiting for other nodes": 1})
    times = {call.task.task_id: TaskTimes(states={ASSIGNED: TAKEN_AT - 8.0})}
    snapshot = replace(scene.sample().sample().snapshot(), raylet_reports=(report,), task_times=times)

    (finding,) = diagnose(snapshot).findings

    lacks = f"1 request waits on node {full.ip}, which lacks 1 CPU; an affinity to a node would explain that"
    assert lacks in finding.summary
    assert finding.kind == "running"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hangs/workers_die_at_start", "expects 1 worker process to connect, but none is starting there"),
        (
            "look_alikes/start_limit",
            "2 worker processes, its most at a time, and 3",
        ),
    ],
)
def test_what_real_raylets_report_of_starts(name: str, reason: str) -> None:
    (finding,) = diagnose(load(recorded(name))).findings

    assert reason in finding.summary
