"""The classes of actors that are starting: how many of each are created, and what the others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.index.ray_libraries import part
from dstack.analysis.index.task_assignment import key_of_task
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Vertex, WaitKind
from dstack.grouping import grouped
from dstack.model import Actor
from dstack.vertex_keys import Key

CREATED = "ALIVE"


@dataclass(frozen=True, slots=True)
class ActorStarts:
    """The actors of one class and job: how many there are, and the creations of those that are ``pending``.

    ``waits`` counts the latter by the kind of their wait, and the resources; None for those that run their
    constructors. The ``described`` ones are these, and the workers that start for them.
    """

    name: str
    total: int
    pending: tuple[Key, ...]
    waits: Counter[tuple[WaitKind, tuple[str, ...]] | None]
    described: frozenset[Key]

    @property
    def created(self) -> int:
        """How many are created."""
        return self.total - len(self.pending)


def actor_starts(reduced: ReducedGraph, keys: Iterable[Key]) -> Iterator[ActorStarts]:
    """The classes with several actors of which some of these vertices are the creation, or the start of the worker."""
    index = reduced.index
    starting = {_class_of(actor) for key in keys if (actor := _created(reduced, reduced.vertices[key]))}
    if not starting:
        return
    by_class = grouped((_class_of(actor), actor) for actor in index.actors.values() if actor.state != "DEAD")
    for of_class in sorted(starting):
        actors = by_class.get(of_class, [])
        others = (index.creations.get(one.actor_id) for one in actors if one.state != CREATED)
        keys_of = (key_of_task(index, task.task_id) for task in others if task)
        pending = [key for key in keys_of if key in reduced.vertices]
        if len(actors) > 1:
            waits = Counter(_wait_of(reduced.vertices[key]) for key in pending)
            workers = (target for key in pending for target in targets_of(reduced.vertices[key]))
            starts = (key for key in workers if reduced.vertices[key].subject.what == "starting worker")
            yield ActorStarts(of_class[1], len(actors), tuple(pending), waits, frozenset((*pending, *starts)))


def _created(reduced: ReducedGraph, vertex: Vertex) -> Actor | None:
    """The actor that a vertex creates, or whose worker it starts."""
    index = reduced.index
    actors = index.actors.values() if vertex.subject.what == "starting worker" else ()
    of_worker = next((one for one in actors if one.worker_id == vertex.worker_id and one.state != CREATED), None)
    task = index.tasks.get(vertex.task_id or "")
    is_creation = task is not None and task.kind == "ACTOR_CREATION_TASK"
    return index.actors.get((task.actor_id if task and is_creation else None) or "") or of_worker


def _class_of(actor: Actor) -> tuple[str, str]:
    found = part(actor.class_name, actor.name, actor.actor_id)
    return actor.job_id, found.name if found else actor.class_name


def _wait_of(vertex: Vertex) -> tuple[WaitKind, tuple[str, ...]] | None:
    return (vertex.wait.kind, vertex.wait.resources) if vertex.kind != "execution" and vertex.wait else None
