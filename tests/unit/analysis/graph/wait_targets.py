"""The targets of waits in small scenes."""

from __future__ import annotations

from dstack.analysis.naming.descriptions import describe
from dstack.model.diagnosis import Target, Vertex, Wait
from dstack.model.vertex_keys import Key
from tests.unit.scenes import Scene, SceneProcess


def unobserved_targets(scene: Scene, wait: Wait) -> list[Vertex]:
    """The targets of a wait, all of which must be unknown because they were not observed."""
    graph = scene.graph()
    targets = [graph[target.vertex] for group in wait.groups for target in group.targets]
    assert all(target.kind == "unknown" and target.unobserved for target in targets), targets
    return targets


def target_of(graph: dict[Key, Vertex], key: Key) -> tuple[Target, ...]:
    """The targets of a vertex that needs one of them."""
    wait = graph[key].wait
    assert wait is not None
    (group,) = wait.groups
    return group.targets


def unknown_labels(scene: Scene, wait: Wait) -> list[str]:
    """The labels of a wait's targets, all of which must be unknown though everything was observed."""
    graph = scene.graph()
    targets = [graph[target.vertex] for group in wait.groups for target in group.targets]
    assert all(target.kind == "unknown" and not target.unobserved for target in targets), targets
    return [describe(target) for target in targets]


def busy_actor(scene: Scene, by: SceneProcess, count: int = 1) -> SceneProcess:
    """An actor that runs ``count`` calls; several calls run on threads of their own."""
    actor = scene.actor() if count == 1 else scene.threaded_actor(count)
    return actor.runs(*(scene.call(actor, "work", by=by) for _ in range(count)))
