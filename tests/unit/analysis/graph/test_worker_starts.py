"""A task or actor whose runtime environment is being installed waits for that, and not for the scheduler."""

from __future__ import annotations

from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.second_sample import plan_readings
from dstack.diagnosis import Diagnosis
from dstack.observed_node import EnvironmentSetup
from dstack.probes.node.core_workers.replies import environment_parts
from tests.unit.scenes import TAKEN_AT, Call, Scene

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
        assert (diagnosis.verdict, finding.kind) == ("blocked", "blocked")
        assert (
            "installation of a runtime environment by pip install torch (pid 70, node 10.0.0.1), "
            "which has run for 41 s; its last output: Collecting torch" in finding.summary
        )
        assert "package index" in finding.advice


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


def test_installations_are_read_only_where_a_task_may_wait_for_them() -> None:
    asked = [plan_readings(pending(environment)[0].snapshot()).waits_to_start for environment in (PIP, (), ("config",))]

    assert asked == [True, False, False]


def test_the_parts_of_an_environment_are_those_that_ray_serialises() -> None:
    assert environment_parts('{"_ray_commit": "b7f", "pip": {"packages": ["torch"]}, "env_vars": {}}') == PIP
    assert environment_parts("") == environment_parts("{") == environment_parts("[1]") == ()
