"""A task or actor waits for its environment to be installed, or its worker to start, and not for the scheduler."""

from __future__ import annotations

from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.second_sample import plan_readings
from dstack.model.diagnosis import Diagnosis
from dstack.model.snapshot import Node
from dstack.observed.node import EnvironmentSetup
from dstack.probes.node.core_worker_replies import environment_parts
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
        assert "runtime_env_setup" in str(finding.advice)


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
