"""What can be cancelled or killed from outside to break a deadlock, and what that frees.

The owner of a task cancels it on request. That ends a pending task and a coroutine, and on Ray 2.60 also what is in
``ray.get``, which it does not on 2.46. It does not end an actor call that is queued behind running ones, nor one that
blocks its event loop or waits for a lock: there the actor can only be killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from dstack.analysis.index.ray_libraries import is_library_actor
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.solve.reduction import residue
from dstack.analysis.solve.requirements import waits_of
from dstack.errors import UsageError
from dstack.model.diagnosis import Diagnosis, Finding, Vertex
from dstack.model.snapshot import Actor, Worker, actor_of_task
from dstack.model.vertex_keys import Key
from dstack.observed.calls import REF_CALLS
from dstack.version import release_of

INTERRUPTED_GET = (2, 60)
"""The first Ray on which ``ray.get`` was seen to end when the task that waits in it is cancelled."""


@dataclass(frozen=True)
class Break:
    """A task that can be cancelled or an actor that can be killed, which ends some waits of a finding with an error.

    ``known_as`` are the names that a user may give. ``ended`` are the waits that end, ``freed`` others that can then
    proceed, ``left`` those that remain. A task has an ``owner``, which cancels it.
    """

    action: Literal["cancel", "kill"]
    name: str
    known_as: tuple[str, ...]
    id: str
    owner: Worker | None = None
    ended: tuple[Key, ...] = ()
    freed: tuple[Key, ...] = ()
    left: tuple[Key, ...] = ()


class Breaks:
    """The ways to break one deadlock from outside, those that free the most and end the least first."""

    def __init__(self, index: SampleIndex, diagnosis: Diagnosis, finding: Finding) -> None:
        self._index = index
        keys = (*finding.members, *finding.helpers, *finding.blocked_behind)
        self._vertices = {key: diagnosis.vertices[key] for key in dict.fromkeys(keys)}
        self._counted = [key for key in (*finding.members, *finding.blocked_behind) if key in self._vertices]
        self._waits = waits_of(self._vertices.values())

    @cached_property
    def all(self) -> list[Break]:
        """All of them; those that free nothing are left out."""
        found = [one for one in (*self._cancels(), *self._kills()) if one.freed or not one.left]
        return sorted(found, key=lambda one: (len(one.left), len(one.ended), one.action, one.name))

    def _cancels(self) -> Iterator[Break]:
        for vertex in self._vertices.values():
            task = self._index.tasks.get(vertex.task_id or "")
            owner = self._index.workers.get(task.owner_id) if task else None
            if task is None or owner is None or not owner.port or not self._ends_when_cancelled(vertex):
                continue
            known_as = (describe(vertex), task.name, task.task_id)
            yield self._break("cancel", describe(vertex), known_as, task.task_id, {vertex.key}, owner)

    def _ends_when_cancelled(self, vertex: Vertex) -> bool:
        task = self._index.tasks[vertex.task_id or ""]
        wait = vertex.wait
        if wait is None or task.kind == "ACTOR_CREATION_TASK" or vertex.is_graph_loop:
            return False
        if vertex.kind == "task":
            return task.kind == "NORMAL_TASK"
        if any(vertex.key in _loops(one) for one in self._vertices.values()):
            return False
        if vertex.coroutine_id:
            return wait.kind == "await"
        return wait.kind in REF_CALLS and (release_of(self._index.snapshot.ray_version) or (0, 0)) >= INTERRUPTED_GET

    def _kills(self) -> Iterator[Break]:
        actors = {actor.actor_id: actor for one in self._vertices.values() if (actor := self._actor_of(one))}
        for actor in actors.values():
            ended = {key for key, one in self._vertices.items() if self._actor_of(one) == actor}
            ended |= {
                key for key, one in self._vertices.items() if one.subject.what == "end of actor" and one.holder == actor
            }
            known_as = (names.actor(actor), actor.name, names.short(actor.actor_id), actor.actor_id, actor.class_name)
            yield self._break("kill", names.actor(actor), known_as, actor.actor_id, ended)

    def _actor_of(self, vertex: Vertex) -> Actor | None:
        """The live actor of the user that a vertex is a call of, or part of whose process it is."""
        call = actor_of_task(vertex.task_id) if vertex.task_id else None
        actor = self._index.actors.get(call or "") or self._index.actor_of_worker(vertex.worker_id)
        return actor if actor and actor.state == "ALIVE" and not is_library_actor(actor) else None

    def _break(
        self,
        action: Literal["cancel", "kill"],
        name: str,
        known_as: tuple[str, ...],
        id_: str,
        ended: set[Key],
        owner: Worker | None = None,
    ) -> Break:
        stuck = residue({**self._waits, **{key: [] for key in ended}})
        return Break(
            action=action,
            name=name,
            known_as=tuple(dict.fromkeys(filter(None, known_as))),
            id=id_,
            owner=owner,
            ended=tuple(key for key in self._counted if key in ended),
            freed=tuple(key for key in self._counted if key not in ended and key not in stuck),
            left=tuple(key for key in self._counted if key in stuck),
        )


def _loops(vertex: Vertex) -> tuple[Key, ...]:
    """The threads whose event loop a vertex needs."""
    if vertex.wait is None:
        return ()
    blocked = [target.vertex for target in vertex.wait.targets] if vertex.wait.kind == "event loop" else []
    return (*blocked, *([vertex.wait.loop] if vertex.wait.loop else []))


def shortest_name(way: Break, ways: Iterable[Break]) -> str:
    """The first name of a way that no other one has, without spaces if there is one; else its id."""
    others = {name for one in ways if one is not way for name in one.known_as}
    own = [name for name in way.known_as if name not in others]
    return next((name for name in own if name.replace(".", "").replace("_", "").isalnum()), way.id)


def breaks_of(index: SampleIndex, diagnosis: Diagnosis) -> Mapping[int, list[Break]]:
    """The ways to break each deadlock, by its position among the findings."""
    deadlocks = ((at, one) for at, one in enumerate(diagnosis.findings) if one.kind == "deadlock")
    return {at: Breaks(index, diagnosis, one).all for at, one in deadlocks}


def find_break(found: Mapping[int, list[Break]], what: str) -> tuple[int, Break]:
    """The one way to break a deadlock that a user names, with the position of its finding.

    Raises :class:`UsageError` if nothing, or more than one task or actor, has this name.
    """
    named = [(at, one) for at, ways in found.items() for one in ways if what in one.known_as]
    if not named:
        known = sorted({one.name for ways in found.values() for one in ways})
        remedy = f"Give one of: {', '.join(known)}." if known else "Change the program: dstack cure shows how."
        raise UsageError(f"No task or actor {what!r} can be ended to break a deadlock.", remedy)
    if len(named) > 1:
        ids = ", ".join(one.id for _, one in named)
        raise UsageError(f"{len(named)} tasks or actors of deadlocks are called {what!r}.", f"Give an id: {ids}.")
    return named[0]
