"""Pending tasks, actor calls, creations of actors, and placement groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from dstack.analysis.graph.builder import MANY, GraphBuilder, waits_for
from dstack.analysis.graph.producers import (
    PENDING,
    cause_of,
    dead_actor_of,
    producer_of,
    removed_group_of,
    why_never_runs,
)
from dstack.analysis.graph.resource_requests import Resources, WaitOrNever, wait_of_group
from dstack.analysis.graph.task_starts import (
    ArgumentMemory,
    Delays,
    MissingArguments,
    RayletReports,
    wait_for_setup,
    wait_for_worker,
)
from dstack.analysis.graph.users import Users
from dstack.analysis.index import subjects
from dstack.analysis.index.sample_index import SampleIndex, concurrency_group_of, has_one_slot, is_graph_loop
from dstack.analysis.solve import reduction
from dstack.analysis.solve.requirements import waits_of
from dstack.model.diagnosis import Target, Vertex, Wait
from dstack.model.snapshot import Actor, PlacementGroup, producer_task_id
from dstack.model.vertex_facts import Subject, assumption, reason, subject
from dstack.model.vertex_keys import GroupKey, Key, TaskKey
from dstack.observed.node import Task


class Pending:
    """Adds pending tasks and placement groups to the graph of one sample."""

    def __init__(self, graph: GraphBuilder, users: Users) -> None:
        self._graph = graph
        self._index = graph.index
        self._resources = Resources(graph, users)
        reports = RayletReports(graph.index, self._resources)
        self._memory = ArgumentMemory(graph, self._resources, reports)
        self._arguments = MissingArguments(graph, reports)
        self._delays = Delays(graph, self._resources, reports)
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
            is_graph_loop=is_graph_loop(task),
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
            subject=subject(
                "placement group", group, self._resources.holders.of_libraries.get(group.placement_group_id)
            ),
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
        for reasons in (self._memory, self._arguments, self._delays):
            wait = reasons.wait_for(task, wait) if wait else None
        return wait, never

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
        return waits_for("actor creation", self._graph.task(creation.task_id))


def is_queued(vertex: Vertex) -> bool:
    """Whether it is an actor call that cannot start because the slots of its actor are occupied."""
    return vertex.kind == "task" and vertex.wait is not None and vertex.wait.kind == "actor slot"


class ActorQueues:
    """Why actor calls do not run that were sent: the slots of their actor are occupied, or they have not arrived yet.

    A sync actor has one slot, on its main thread. Threaded and async actors have several, in concurrency groups; Ray
    does not report their number. It reports that a call has arrived with all its arguments: then its concurrency group
    is full, and it waits for one of the calls that run there. The group is the one that its method declares, assuming
    that the caller has not chosen another one.
    """

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
        if has_one_slot(self._index, actor.worker_id):
            return self._wait_for_running(actor, worker.running_task_ids)
        if not self._index.has_arrived(task):
            slot = self._graph.unknown(
                "slot",
                actor.actor_id,
                subject=subject("free slot", actor),
                unobserved=True,
                at_most=(self._graph.task(task_id).vertex for task_id in worker.running_task_ids),
                worker_id=actor.worker_id,
            )
            return waits_for("actor slot", slot)
        wait = self._wait_for_running(actor, worker.running_task_ids, self._index.calls_in_transit(task))
        return self._narrowed(actor, task, wait, worker.running_task_ids)

    def _wait_for_silent(self, actor: Actor, worker_id: str) -> Wait:
        """The wait for an actor whose core worker did not answer: for the call on its only thread, if that was read."""
        if has_one_slot(self._index, worker_id):
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
            lambda: map(self._graph.task, (*running, *before_it)),
            reason("any running call", len(running)),
            actor.actor_id,
            *before_it[:1],
        )

    def _narrowed(self, actor: Actor, task: Task, wait: Wait, running: tuple[str, ...]) -> Wait:
        """The wait for the running calls of the call's own concurrency group only, if that is declared and has some."""
        process = self._index.process(actor.worker_id or "")
        group = concurrency_group_of(self._index, task.task_id) if process and process.concurrency_groups else None
        if group is None or self._index.calls_in_transit(task):
            return wait
        mates = self._mates_in(actor, group, running)
        if not mates or len(mates) == len(running):
            return wait
        narrow = self._graph.one_of(
            "actor slot",
            lambda: map(self._graph.task, mates),
            reason("any running call of group", len(mates)),
            actor.actor_id,
            ("concurrency group", group),
        )
        return replace(narrow, assumed=(assumption("declared group", task.name, group),), proven_groups=wait.groups)

    def _mates_in(self, actor: Actor, group: str, running: tuple[str, ...]) -> tuple[str, ...]:
        """The running calls of an actor that are, or may be, in a concurrency group."""
        key = (actor.actor_id, group)
        if key not in self._mates:
            self._mates[key] = tuple(
                task_id for task_id in running if concurrency_group_of(self._index, task_id) in (group, None)
            )
        return self._mates[key]


def release_given_up(graph: GraphBuilder) -> None:
    """Let tasks in removed groups wait for something unknown, unless running code needs their results.

    Ray keeps such a task pending until its owner ends, also if the program has given it up and goes on (ray#18572). It
    is no hang as long as no running code needs its result. A ref to it may still exist, as in a variable or in the
    traceback of an error. A wait with a timeout counts, as it may be one of many polls.
    """
    lost = {key: group for key, vertex in graph.vertices.items() if (group := _removed_group(graph.index, vertex))}
    for key in lost.keys() - _needed_by_running(graph.vertices) if lost else ():
        removed = subject("removed group", lost[key])
        target = graph.unknown("removed group", lost[key].placement_group_id, subject=removed)
        wait = waits_for("placement group", target)
        graph.vertices[key] = replace(graph.vertices[key], wait=wait, never=None)


def _removed_group(index: SampleIndex, vertex: Vertex) -> PlacementGroup | None:
    """The removed group that a task would need to run."""
    task = index.tasks.get(vertex.task_id or "") if vertex.never else None
    return removed_group_of(index, task) if task else None


def _needed_by_running(vertices: Mapping[Key, Vertex]) -> set[Key]:
    """All without which running code cannot proceed, directly or through others."""
    waits = waits_of(vertices.values(), with_timed=True)
    stuck = reduction.stuck_graph(waits, reduction.residue(waits))
    running = (key for key in stuck if vertices[key].is_counted and vertices[key].worker_id is not None)
    return reduction.ahead(stuck, running)
