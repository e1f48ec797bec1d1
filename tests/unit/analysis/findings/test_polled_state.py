"""What Ray knows of what a loop polls for is said where the loop is shown."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from dstack.observed.processes import ActorName, Frame, LoopBody
from tests.unit.scenes import Scene, SceneProcess
from tests.unit.scenes.calls import APP

ANONYMOUS = str(UUID(int=7))
BOSS = ActorName(name="boss")


def remarks(scene: Scene, driver: SceneProcess, texts: dict[str, str] | None = None, **loop: Any) -> list[str]:
    """What is said of a loop of a driver that sleeps in it."""
    thread = driver.threads[0]
    body = LoopBody(first_line=1, last_line=2, sleeps=True, **loop)
    thread.sleeps = thread.is_asleep = True
    thread.leaf, thread.outer = Frame(function="poll", file=APP, line=2, body=body), ()
    thread.texts = texts or {}
    return [step.text for step in scene.sample().second_sample().diagnose().remarks]


@pytest.mark.parametrize(
    ("states", "text"),
    [
        ((), 'finds no actor: Ray lists none of this name in namespace "default", nor in any other'),
        (("DEAD",), 'finds no actor: actor Coordinator "boss" is DEAD: it was killed'),
        (("DEAD", "ALIVE"), None),
    ],
)
def test_an_actor_that_a_loop_asks_for_is_named_if_it_has_died(states: tuple[str, ...], text: str | None) -> None:
    scene = Scene()
    for state in states:
        cause = "it was killed" if state == "DEAD" else None
        scene.actor("Coordinator", name="boss", namespace="default", state=state, death_cause=cause)

    found = remarks(scene, scene.driver(), asks_for=(BOSS,))

    assert found == ([f'ray.get_actor("boss") {text}'] if text else [])


def test_the_restarts_of_a_dead_actor_are_counted() -> None:
    scene = Scene()
    known: dict[str, Any] = {
        "num_restarts": 2,
        "max_restarts": 2,
        "death_cause": "it crashed",
        "last_error": "exit code 1",
    }
    scene.actor("Coordinator", name="boss", namespace="default", state="DEAD", **known)

    (text,) = remarks(scene, scene.driver(), asks_for=(BOSS,))

    assert text.endswith(
        "is DEAD: it crashed; it has been restarted 2 times (at most 2 times); its last process ended with: exit code 1"
    )


@pytest.mark.parametrize(
    ("namespace", "named"), [("default", 'namespace "default"'), (ANONYMOUS, "the anonymous namespace")]
)
def test_an_actor_in_another_namespace_is_found_there(namespace: str, named: str) -> None:
    scene = Scene()
    scene.jobs = [replace(scene.jobs[0], namespace=namespace)]
    scene.actor("Coordinator", name="boss", namespace="prod")
    scene.actor("Coordinator", name="other", namespace="stage")

    (text,) = remarks(scene, scene.driver(), asks_for=(BOSS,))

    assert named in text
    assert text.endswith('; actor Coordinator "boss" is in namespace "prod"')


def test_the_namespace_that_the_code_names_is_searched() -> None:
    scene = Scene()
    scene.actor("Coordinator", name="boss", namespace="prod")

    asked = ActorName(name="boss", namespace="prod")

    assert remarks(scene, scene.driver(), asks_for=(asked,)) == []


@pytest.mark.parametrize(("texts", "count"), [({"name": "boss"}, 1), ({}, 0)])
def test_a_name_in_a_variable_is_known_if_that_was_read(texts: dict[str, str], count: int) -> None:
    scene = Scene()

    found = remarks(scene, scene.driver(), texts, asks_for=(ActorName(name="name", is_variable=True),))

    assert len(found) == count
    assert all(text.startswith('ray.get_actor("boss") finds no actor') for text in found)


def test_an_actor_that_has_not_started_says_what_it_lacks() -> None:
    scene = Scene()
    scene.node(CPU=1.0)
    driver = scene.driver()
    actor, _ = scene.pending_actor("Coordinator", driver, licence=1.0)
    scene.actors[scene.actors.index(actor)] = replace(actor, name="boss", namespace="default")

    (text,) = remarks(scene, driver, asks_for=(BOSS,))

    assert text.startswith('ray.get_actor("boss") finds actor Coordinator "boss", which has not started')


def test_the_nodes_that_a_loop_counts_are_counted() -> None:
    scene = Scene()
    head = scene.joined(scene.node(CPU=1.0), 7_200.0)
    scene.lose(scene.joined(scene.node(CPU=1.0, alive=True), 600.0), 60.0)

    found = remarks(scene, scene.driver(head), calls=("ray.nodes",))

    assert found == ["ray.nodes() lists 1 node that is alive and 1 dead; the last one joined 10 min ago"]


def test_a_cluster_of_one_driver_gets_no_other_node() -> None:
    scene = Scene()
    head = scene.joined(scene.node(CPU=1.0), 7_200.0)
    scene.is_of_one_driver = True

    (text,) = remarks(scene, scene.driver(head), calls=("ray.nodes",))

    assert "a driver made this cluster by ray.init()" in text


def test_the_resources_that_a_loop_compares_are_summed() -> None:
    scene = Scene()
    first, second = scene.node(CPU=2.0, GPU=1.0), scene.node(CPU=1.0)
    scene.total = {
        first.node_id: {"CPU": 2.0, "GPU": 1.0, "node:10.0.0.1": 1.0, f"CPU_group_0_{'1f' * 18}": 1.0},
        second.node_id: {"CPU": 1.0},
    }

    found = remarks(scene, scene.driver(first), calls=("ray.cluster_resources",))

    assert found == ["ray.cluster_resources() returns 3 CPU and 1 GPU"]


def test_the_calls_in_a_full_queue_are_counted() -> None:
    scene = Scene()
    driver = scene.driver()
    writer = scene.actor("Writer")
    running, _, _ = (scene.call(writer, "write", by=driver) for _ in range(3))
    scene.call(writer, "flush", by=driver)
    writer.runs(running)

    (text,) = remarks(scene, driver, calls=("writer.write.remote",), catches_full_queue=True)

    assert "it has 3 calls to actor Writer" in text
    assert "of which 1 run" in text
