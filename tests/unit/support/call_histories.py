"""Scenes with a history: attempts of tasks, submitted by a driver, an actor or another task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.call_graph import CallEdge, CallGraph
from dstack.model.snapshot import ACTOR_HANDLE, Snapshot, TaskAttempt, TaskHistory
from dstack.observed.node import Task
from tests.unit.scenes import Scene
from tests.unit.scenes.calls import JOB, Call
from tests.unit.scenes.processes import SceneProcess
from tests.unit.scenes.scene import TAKEN_AT

NOW = TAKEN_AT + 1.0
DRIVER = "f" * 40 + JOB
Caller = Call | SceneProcess | str | None


def attempt(call: Call | Task, by: Caller, at: float = -10.0, *, attempt: int = 0, **times: float) -> TaskAttempt:
    """An attempt of a call; ``started``, ``ended`` and ``failed`` are times, as ``at``, relative to ``NOW``."""
    task = call.task if isinstance(call, Call) else call
    names = {"started": "RUNNING", "ended": "FINISHED", "failed": "FAILED"}
    states = {"PENDING_ARGS_AVAIL": at} | {names[name]: time for name, time in times.items()}
    return TaskAttempt(
        task_id=task.task_id,
        name=task.name,
        kind=task.kind,
        job_id=task.job_id,
        attempt=attempt,
        actor_id=task.actor_id,
        parent_task_id=parent_of(by),
        states={state: NOW + time for state, time in states.items()},
    )


def parent_of(by: Caller) -> str | None:
    """The id by which Ray names a caller: that of its task, or for a process of its main thread or creation."""
    if isinstance(by, Call):
        return by.task.task_id
    if isinstance(by, SceneProcess):
        return ACTOR_HANDLE + by.actor.actor_id if by.actor else "f" * 40 + (by.worker.job_id or JOB)
    return by


def with_history(scene: Scene | Snapshot, attempts: Iterable[TaskAttempt], **known: Any) -> Snapshot:
    snapshot = scene.snapshot() if isinstance(scene, Scene) else scene
    return replace(snapshot, history=TaskHistory(asked_at=NOW, attempts=tuple(attempts), **known))


def graph_of(snapshot: Snapshot | Scene, **options: Any) -> CallGraph:
    taken = snapshot.snapshot() if isinstance(snapshot, Scene) else snapshot
    return CallGraph.of(AnalysedSnapshot.of(taken), **options)


def edges(graph: CallGraph) -> dict[tuple[str, str], CallEdge]:
    """The edges by the titles of their nodes."""
    return {(graph.node[edge.source].title, graph.node[edge.target].title): edge for edge in graph.edges}


def ended(scene: Scene, call: Call) -> Call:
    """The call, which its owner and the samples no longer know."""
    for proc in scene.procs:
        if call in proc.submitted:
            proc.submitted.remove(call)
    return call
