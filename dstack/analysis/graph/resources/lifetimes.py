"""What must happen before an actor ends or a placement group is removed.

An actor ends when the last handle of it is dropped, when a process with a handle kills it, when it exits by itself, and
with its owner or the driver of its job. A detached actor ends with none of these processes. A named actor can be ended
by all code that can look it up. So an actor ends only if one of its users can proceed, or the driver of its job. A
placement group is an id that all code of the job that created it may have.
"""

from __future__ import annotations

from collections.abc import Iterator

from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.graph.resources.amounts import plain
from dstack.analysis.graph.users import Users
from dstack.diagnosis import Target, Vertex
from dstack.model import Actor, PlacementGroup
from dstack.vertex_facts import Bundles, Request, subject
from dstack.vertex_keys import AnyKey


class Lifetimes:
    """Adds a vertex for the end of each actor, and the removal of each placement group, that a wait depends on."""

    def __init__(self, graph: GraphBuilder, users: Users) -> None:
        self._index = graph.index
        self._users = users

    def end_of(self, actor: Actor) -> Target:
        """The end of an actor that holds resources."""
        threads = self._index.threads_with_role(actor.worker_id, "task") if actor.worker_id else []
        held = Request(amounts=dict(sorted(plain(actor.held or actor.required_resources).items())))
        vertex = Vertex(
            key=AnyKey("end of actor", (actor.actor_id,)),
            kind="lifetime",
            subject=subject("end of actor", actor, held),
            worker_id=actor.worker_id,
            os_thread_id=threads[0].os_thread_id if len(threads) == 1 else None,
        )
        return self._users.alternatives.add(vertex, lambda: self._enders(actor))

    def removal_of(self, group: PlacementGroup) -> Target:
        """The removal of a placement group that holds resources."""
        vertex = Vertex(
            key=AnyKey("removal", (group.placement_group_id,)),
            kind="lifetime",
            subject=subject("removal", group, Bundles(group=group)),
        )
        return self._users.alternatives.add(vertex, lambda: self._removers(group))

    def _enders(self, actor: Actor) -> Iterator[Target]:
        yield from self._users.each_of_actor(actor)
        if actor.is_detached:
            yield from self._users.of_namespace(actor.namespace, actor.actor_id, actor)
        else:
            yield from self._users.driver_of(actor.job_id)

    def _removers(self, group: PlacementGroup) -> Iterator[Target]:
        creator = self._index.actors.get(group.creator_actor_id or "")
        if creator and not group.is_detached:
            yield self._users.of_actor(creator)
        if group.job_id and not (group.is_detached and self._is_over(group.job_id)):
            yield self._users.of_job(group.job_id)
        if group.is_detached or group.name or not group.job_id:
            yield from self._users.of_namespace(group.namespace, group.placement_group_id, group)

    def _is_over(self, job_id: str) -> bool:
        job = self._index.jobs.get(job_id)
        return job is None or job.is_dead
