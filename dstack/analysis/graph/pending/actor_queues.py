"""Actor calls that were sent but do not run: the slots of their actor are occupied, or they have not arrived yet.

A sync actor has one slot, on its main thread. Threaded and async actors have several, in concurrency groups; Ray does
not report their number. It reports that a call has arrived with all its arguments: then its concurrency group is full,
and it waits for one of the calls that run there. The group is the one that its method declares, assuming that the
caller has not chosen another one.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dstack.analysis.graph.builder import GraphBuilder, waits_for
from dstack.analysis.index import task_assignment
from dstack.model.diagnosis import Target, Vertex, Wait
from dstack.model.snapshot import Actor
from dstack.model.vertex_facts import assumption, reason, subject
from dstack.observed.node import Task


def is_queued(vertex: Vertex) -> bool:
    """Whether it is an actor call that cannot start because the slots of its actor are occupied."""
    return vertex.kind == "task" and vertex.wait is not None and vertex.wait.kind == "actor slot"


class ActorQueues:
    """Why calls do not run that were sent to their actors."""

    def __init__(self, graph: GraphBuilder) -> None:
        self._graph = graph
        self._index = graph.index
        self._mates: dict[tuple[str, str], tuple[str, ...]] = {}

    def wait_for(self, task: Task) -> Wait | None:
        """The wait of a call that was sent to its actor, and that no worker reports as running."""
        actor = self._index.actors.get(task.actor_id or "")
        if actor is None or not actor.worker_id:
            owner = task.actor_id or task.owner_id
            return waits_for(
                "executor", self._graph.unknown("executor", owner, subject=subject("receiver"), unobserved=True)
            )
        worker = self._index.worker_samples.get(actor.worker_id)
        if worker is None or worker.running_task_ids is None:
            return self._wait_for_silent(actor, actor.worker_id)
        if not worker.running_task_ids:
            return None
        if task_assignment.has_one_slot(self._index, actor.worker_id):
            return self._wait_for_running(actor, worker.running_task_ids)
        if not self._index.has_arrived(task):
            slot = self._graph.unknown(
                "slot",
                actor.actor_id,
                subject=subject("free slot", actor),
                unobserved=True,
                at_most=(self._target(task_id).vertex for task_id in worker.running_task_ids),
                worker_id=actor.worker_id,
            )
            return waits_for("actor slot", slot)
        wait = self._wait_for_running(actor, worker.running_task_ids, self._index.calls_in_transit(task))
        return self._narrowed(actor, task, wait, worker.running_task_ids)

    def _wait_for_silent(self, actor: Actor, worker_id: str) -> Wait:
        """The wait for an actor whose core worker did not answer: for the call on its only thread, if that was read."""
        if task_assignment.has_one_slot(self._index, worker_id):
            threads = self._index.threads_with_role(worker_id, "task")
            running = (self._index.task_of_thread[worker_id, thread.os_thread_id] for thread in threads)
            return self._wait_for_running(actor, tuple(running))
        is_read = bool(self._index.threads(worker_id))
        unread = subject("silent" if is_read else "observed by nothing", actor)
        place = worker_id if is_read else None
        actors = self._graph.unknown("actor", actor.actor_id, subject=unread, unobserved=True, worker_id=place)
        return waits_for("actor slot", actors)

    def _wait_for_running(self, actor: Actor, running: tuple[str, ...], before_it: Sequence[str] = ()) -> Wait:
        """The wait for a running call of the actor, or for an earlier call of the same caller in transit."""
        return self._graph.one_of(
            "actor slot",
            lambda: map(self._target, (*running, *before_it)),
            reason("any running call", len(running)),
            actor.actor_id,
            *before_it[:1],
        )

    def _narrowed(self, actor: Actor, task: Task, wait: Wait, running: tuple[str, ...]) -> Wait:
        """The wait for the running calls of the call's own concurrency group only, if that is declared and has some."""
        process = self._index.process(actor.worker_id or "")
        group = (
            task_assignment.concurrency_group_of(self._index, task.task_id)
            if process and process.concurrency_groups
            else None
        )
        if group is None or self._index.calls_in_transit(task):
            return wait
        mates = self._mates_in(actor, group, running)
        if not mates or len(mates) == len(running):
            return wait
        narrow = self._graph.one_of(
            "actor slot",
            lambda: map(self._target, mates),
            reason("any running call of group", len(mates)),
            actor.actor_id,
            ("concurrency group", group),
        )
        return replace(narrow, assumed=(assumption("declared group", task.name, group),), proven_groups=wait.groups)

    def _target(self, task_id: str) -> Target:
        return Target(vertex=task_assignment.key_of_task(self._index, task_id))

    def _mates_in(self, actor: Actor, group: str, running: tuple[str, ...]) -> tuple[str, ...]:
        """The running calls of an actor that are, or may be, in a concurrency group."""
        key = (actor.actor_id, group)
        if key not in self._mates:
            self._mates[key] = tuple(
                task_id
                for task_id in running
                if task_assignment.concurrency_group_of(self._index, task_id) in (group, None)
            )
        return self._mates[key]
