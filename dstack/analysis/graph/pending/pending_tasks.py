"""Pending tasks, actor calls, creations of actors, and placement groups."""

from __future__ import annotations

from dstack.analysis.graph.builder import MANY, GraphBuilder, waits_for
from dstack.analysis.graph.pending.actor_queues import ActorQueues
from dstack.analysis.graph.pending.argument_memory import ArgumentMemory
from dstack.analysis.graph.refs.dead_producers import cause_of, dead_actor_of, removed_group_of, why_never_runs
from dstack.analysis.graph.refs.producers import PENDING, producer_of
from dstack.analysis.graph.resources.placement_groups import wait_of_group
from dstack.analysis.graph.resources.requests import Resources, WaitOrNever
from dstack.analysis.graph.users import Users
from dstack.analysis.graph.worker_starts import wait_for_setup, wait_for_worker
from dstack.analysis.index import subjects, task_assignment
from dstack.model.diagnosis import Target, Vertex, Wait
from dstack.model.snapshot import Actor, PlacementGroup, producer_task_id
from dstack.model.vertex_facts import Subject, reason, subject
from dstack.model.vertex_keys import GroupKey, TaskKey
from dstack.observed.node import Task


class Pending:
    """Adds pending tasks and placement groups to the graph of one sample."""

    def __init__(self, graph: GraphBuilder, users: Users) -> None:
        self._graph = graph
        self._index = graph.index
        self._resources = Resources(graph, users)
        self._memory = ArgumentMemory(graph, self._resources)
        self._slots = ActorQueues(graph)

    def add_task(self, task: Task) -> None:
        """Add a task or actor call that no worker reports as running."""
        orphaned = why_never_runs(self._index, task)
        wait, why = (None, orphaned) if orphaned else self._why_pending(task)
        vertex = Vertex(
            key=TaskKey(task.task_id),
            kind="task",
            subject=subjects.of_task(self._index, task.task_id),
            task_id=task.task_id,
            is_graph_loop=task_assignment.is_graph_loop(task),
            wait=wait,
            never=why,
        )
        self._graph.add(vertex)

    def add_group(self, group: PlacementGroup) -> None:
        """Add a placement group that is not placed yet."""
        if group.state not in PENDING:
            return
        wait, never = wait_of_group(self._resources, group)
        vertex = Vertex(
            key=GroupKey(group.placement_group_id),
            kind="placement group",
            subject=subject("placement group", group),
            placement_group_id=group.placement_group_id,
            wait=wait,
            never=never,
        )
        self._graph.add(vertex)

    def _why_pending(self, task: Task) -> WaitOrNever:
        if task.state == "PENDING_ARGS_AVAIL":
            return self._wait_for_arguments(task), None
        if task.state == "SUBMITTED_TO_WORKER" or self._has_worker(task):
            return self._wait_of_sent(task), None
        if task.state != "PENDING_NODE_ASSIGNMENT":
            state = self._graph.unknown("scheduler state", task.state, subject=subject("scheduler state", task.state))
            return waits_for("scheduler", state), None
        if task.kind == "ACTOR_TASK":
            return self._wait_for_actor(task)
        if (dead := dead_actor_of(self._index, task)) is not None:
            return self._wait_for_error(dead), None
        if (removed := removed_group_of(self._index, task)) is not None:
            error = subject("error of removed group", removed)
            return waits_for("placement group", self._error(removed.placement_group_id, error)), None
        wait, never = self._resources.wait_of_task(task)
        wait = wait_for_setup(self._graph, task, wait)
        wait = wait_for_worker(self._graph, task, wait) if wait else None
        return (self._memory.wait_for(task, wait) if wait else None), never

    def _has_worker(self, task: Task) -> bool:
        """Whether it is the creation of an actor that has got its worker: the owner may not know it (Ray 2.60)."""
        actor = self._index.actors.get(task.actor_id or "")
        is_creation = task.kind == "ACTOR_CREATION_TASK" and task.state == "PENDING_NODE_ASSIGNMENT"
        return is_creation and actor is not None and actor.worker_id in self._index.workers

    def _wait_of_sent(self, task: Task) -> Wait | None:
        """The wait of a call that was sent to a worker, which may not have come to its loop yet."""
        wait = self._slots.wait_for(task)
        if task.kind == "ACTOR_TASK":
            return wait
        actor = self._index.actors.get(task.actor_id or "")
        return wait_for_worker(self._graph, task, wait, task.node_id or (actor.node_id if actor else None), actor)

    def _wait_for_arguments(self, task: Task) -> Wait:
        """The wait for one of the pending argument refs of its owner: Ray does not say for which."""
        if task.attempt > 0:
            return self._wait_for_attempt(task)
        refs = self._index.refs.pending_arguments_of.get(task.owner_id, ())
        if len(refs) <= MANY:
            refs = [ref for ref in refs if producer_task_id(ref) != task.task_id]
        if not refs:
            argument = self._graph.unknown("argument", task.owner_id, subject=subject("argument"), unobserved=True)
            return waits_for("arguments", argument)
        return self._graph.one_of(
            "arguments",
            lambda: (producer_of(self._graph, ref) for ref in refs),
            reason("any pending argument", len(refs)),
            task.owner_id,
        )

    def _wait_for_attempt(self, task: Task) -> Wait:
        """The wait for the next attempt of a failed task: it has this state on Ray 2.60. Its actor restarts first.

        Its arguments were there for an attempt before; whether one was lost since then is unknown.
        """
        actor = self._index.actors.get(task.actor_id or "")
        if actor is not None and actor.state == "RESTARTING":
            return self._wait_for_creation(actor)
        attempt = subject("attempt", subjects.task(self._index, task.task_id))
        return waits_for("retry", self._graph.unknown("retry", task.task_id, subject=attempt))

    # Actor calls

    def _wait_for_actor(self, task: Task) -> WaitOrNever:
        """The wait of an unsent call: for its actor, or for an earlier call of the same caller."""
        actor = self._index.actors.get(task.actor_id or "")
        if actor is None:
            actor_subject = subject("actor in no list")
            unlisted = self._graph.unknown("actor", task.actor_id, subject=actor_subject, unobserved=True)
            return waits_for("actor creation", unlisted), None
        if actor.state == "DEAD":
            return self._wait_for_error(actor), None
        if actor.state != "ALIVE":
            return self._wait_for_creation(actor), None
        return self._wait_for_order(task, actor), None

    def _wait_for_error(self, actor: Actor) -> Wait:
        error = self._error(actor.actor_id, subject("error of dead actor", actor, cause_of(actor)))
        return waits_for("actor creation", error)

    def _error(self, id: str, error: Subject) -> Target:
        """The error that Ray may yet raise in the caller."""
        return self._graph.unknown("error", id, subject=error)

    def _wait_for_order(self, task: Task, actor: Actor) -> Wait:
        earlier = self._index.calls_without_arguments.get((task.owner_id, actor.actor_id), ())
        if not earlier:
            caller = self._graph.unknown("caller", task.owner_id, subject=subject("caller"))
            return waits_for("order", caller)
        return self._graph.one_of(
            "order",
            lambda: (Target(vertex=TaskKey(call.task_id)) for call in earlier),
            reason("any earlier call", len(earlier)),
            task.owner_id,
            actor.actor_id,
        )

    def _wait_for_creation(self, actor: Actor) -> Wait:
        creation = self._index.creations.get(actor.actor_id)
        if creation is None:
            unseen = subject("creation", actor, actor.state)
            return waits_for("actor creation", self._graph.unknown("creation", actor.actor_id, subject=unseen))
        return waits_for("actor creation", Target(vertex=task_assignment.key_of_task(self._index, creation.task_id)))
