"""The classes of actors that are starting: how many of each are created, and what the others wait for, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dstack import words
from dstack.analysis.findings.narration import more
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.index.ray_libraries import part_of
from dstack.analysis.index.sample_index import key_of_task
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Step, Vertex, WaitKind
from dstack.model.snapshot import Actor
from dstack.model.vertex_keys import Key
from dstack.words import grouped

AWAITED_BY_STARTS: dict[WaitKind, str] = {
    "executor": "the start of a worker process",
    "placement group": "a placement group",
    "runtime environment": "the installation of a runtime environment",
    "scheduler": "the scheduler",
}
"""What actors wait for that are not created yet, besides resources."""


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
    found = part_of(actor)
    return actor.job_id, found.name if found else actor.class_name


def _wait_of(vertex: Vertex) -> tuple[WaitKind, tuple[str, ...]] | None:
    return (vertex.wait.kind, vertex.wait.resources) if vertex.kind != "execution" and vertex.wait else None


# Words


def start_steps(classes: Sequence[ActorStarts]) -> Iterator[Step]:
    """``Rollout: 12 of 40 actors are created; 3 run their constructors, and 25 wait for GPU``, for each class."""
    for starts in classes[: words.SHOWN]:
        others = [f"{count:,} {_start_in_words(wait, count)}" for wait, count in starts.waits.most_common()]
        created = f"{starts.created:,} of {starts.total:,} actors {words.word(starts.created, 'is', 'are')} created"
        yield Step(text=f"{starts.name}: {created}; {words.listed(others)}")
    yield from more(len(classes) - words.SHOWN, "classes of actors that start")


def _start_in_words(wait: tuple[WaitKind, tuple[str, ...]] | None, count: int) -> str:
    """``run their constructors``, ``wait for GPU``."""
    if wait is None:
        return words.word(count, "runs its constructor", "run their constructors")
    kind, resources = wait
    what = words.listed(resources) or AWAITED_BY_STARTS.get(kind, "their creation")
    return f"{words.word(count, 'waits', 'wait')} for {what}"
