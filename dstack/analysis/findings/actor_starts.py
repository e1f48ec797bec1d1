"""The classes of actors that are starting: how many of each are created, and what the others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.index.ray_libraries import part
from dstack.analysis.index.sample_index import key_of_task
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Vertex, WaitKind
from dstack.model.snapshot import Actor
from dstack.model.vertex_keys import Key
from dstack.words import grouped


@dataclass(frozen=True, slots=True)
class ActorStarts:
    """The actors of one class and job: how many there are and how many of them are created.

    ``waits`` counts the others by the kind of their wait, and the resources; None for those that run their
    constructors. The ``described`` vertices are their creations, and the workers that start for them.
    """

    name: str
    total: int
    created: int
    waits: Counter[tuple[WaitKind, tuple[str, ...]] | None]
    described: frozenset[Key]


def actor_starts(reduced: ReducedGraph, keys: Iterable[Key]) -> Iterator[ActorStarts]:
    """The classes with several actors of which some of these vertices are the creation, or the start of the worker."""
    index = reduced.index
    by_worker = {actor.worker_id: actor for actor in index.actors.values() if actor.worker_id and _is_pending(actor)}
    created = (_created(reduced, reduced.vertices[key], by_worker) for key in keys)
    starting = {_class_of(actor) for actor in created if actor}
    if not starting:
        return
    by_class = grouped((_class_of(actor), actor) for actor in index.actors.values() if actor.state != "DEAD")
    for of_class in sorted(starting):
        actors = by_class.get(of_class, [])
        others = (index.creations.get(one.actor_id) for one in actors if _is_pending(one))
        keys_of = (key_of_task(index, task.task_id) for task in others if task)
        pending = [key for key in keys_of if key in reduced.vertices]
        if len(actors) > 1:
            waits = Counter(_wait_of(reduced.vertices[key]) for key in pending)
            workers = (target for key in pending for target in targets_of(reduced.vertices[key]))
            starts = (key for key in workers if reduced.vertices[key].subject.what == "starting worker")
            alive = sum(actor.state == "ALIVE" for actor in actors)
            yield ActorStarts(of_class[1], len(actors), alive, waits, frozenset((*pending, *starts)))


def _created(reduced: ReducedGraph, vertex: Vertex, by_worker: Mapping[str, Actor]) -> Actor | None:
    """The actor that a vertex creates, or whose worker it starts."""
    if vertex.subject.what == "starting worker":
        return by_worker.get(vertex.worker_id or "")
    task = reduced.index.tasks.get(vertex.task_id or "")
    if task is None or task.kind != "ACTOR_CREATION_TASK":
        return None
    return reduced.index.actors.get(task.actor_id or "")


def _is_pending(actor: Actor) -> bool:
    return actor.state not in ("ALIVE", "DEAD")


def _class_of(actor: Actor) -> tuple[str, str]:
    found = part(actor.class_name, actor.name, actor.actor_id)
    return actor.job_id, found.name if found else actor.class_name


def _wait_of(vertex: Vertex) -> tuple[WaitKind, tuple[str, ...]] | None:
    return (vertex.wait.kind, vertex.wait.resources) if vertex.kind != "execution" and vertex.wait else None
