"""Scenes of async actors whose calls are suspended coroutines."""

from __future__ import annotations

from dstack.analysis.naming.descriptions import describe
from dstack.model.diagnosis import Diagnosis, Wait
from tests.unit.scenes import Call, Scene, SceneCoroutine, SceneProcess


def async_call(
    scene: Scene, by: SceneProcess, method: str = "work", actor: SceneProcess | None = None
) -> tuple[SceneProcess, SceneCoroutine, Call]:
    """An actor that runs a call as a coroutine, which sleeps."""
    actor = actor or scene.async_actor("Office")
    call = scene.call(actor, method, by=by)
    return actor, actor.begins(call), call


def labels(scene: Scene, wait: Wait) -> list[str]:
    graph = scene.graph()
    return [describe(graph[target.vertex]) for group in wait.groups for target in group.targets]


def twice(scene: Scene) -> Diagnosis:
    return scene.sample().second_sample().diagnose()


def texts(diagnosis: Diagnosis) -> str:
    return "\n".join(step.text for finding in diagnosis.findings for step in finding.explanation)
