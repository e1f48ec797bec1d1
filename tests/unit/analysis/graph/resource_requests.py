"""Pending tasks, and the holders of the resources that they need."""

from __future__ import annotations

from collections.abc import Mapping

from dstack.analysis.naming.descriptions import describe, in_words
from dstack.model.diagnosis import Vertex, Wait
from dstack.model.vertex_keys import Key
from tests.unit.scenes import Call, Scene, SceneProcess

NOTHING: Mapping[str, float] = {}


def pending(scene: Scene, by: SceneProcess, **needs: float) -> Call:
    """A task that is not placed yet."""
    return scene.task("wanting", by=by, state="PENDING_NODE_ASSIGNMENT", required_resources=needs)


def holders(scene: Scene, wait: Wait) -> list[Vertex]:
    graph = scene.graph()
    return [graph[target.vertex] for group in wait.groups for target in group.targets]


def labels(scene: Scene, wait: Wait) -> list[str]:
    return [describe(vertex) for vertex in holders(scene, wait)]


def never(scene: Scene, key: Key) -> str | None:
    vertex = scene.graph()[key]
    assert vertex.wait is None
    return in_words(vertex.never) if vertex.never else None
