"""What produces the value of an ObjectRef, what can never produce it, and which refs an unread process may wait for.

Ray raises an error in each wait for something dead, mostly within a second and under load within a few (seen on Ray
2.46 and 2.60, for dead actors, owners and nodes). So a death only counts after a longer time: until then the error may
arrive. The removal of a placement group has no time. A task that had room in it fails at once, but a task whose group
was never placed, or that was submitted after the removal, waits for ever (seen on Ray 2.60). A retried task had room
before: it may yet fail (seen pending for 20 s under load on Ray 2.60), or wait for ever if it was retried after the
removal. So it only counts after a longer time.

A process creates the ref of ``PlacementGroup.ready()`` without a task and without a value. In Ray 2.60 such a ref has
an index like those of ``ray.put``, and names no owner, which is the process; its core worker sets the value once the
group is placed. (In Ray 2.46 ``ready()`` is a task in the group.) The ref does not name its group, but nothing else
creates such refs: so it waits for any pending group.

If the memory of a process could not be read, Ray does not say for which refs it waits. A blocked ``ray.get`` keeps its
refs alive, so they are among those that the process's own core worker counts as held. It waits for at least one of
these, so it is stuck if none of their producers can proceed. As long as it may wait for a ref that is not known to be
pending, that one counts as able to get a value.
"""

from __future__ import annotations

from msgspec.structs import replace

from dstack.analysis.graph.builder import GraphBuilder, call_beyond_kind, for_any, waits_for
from dstack.analysis.index import subjects
from dstack.analysis.index.refs import is_returned
from dstack.analysis.index.sample_index import SampleIndex, key_of_task
from dstack.call_sites import kind_of
from dstack.model.diagnosis import Target, Vertex, Wait
from dstack.model.snapshot import Actor, GoneWorker, PlacementGroup, is_at_hand, producer_task_id
from dstack.model.vertex_facts import Never, ProcessName, Subject, TaskName, assumption, never, reason, subject
from dstack.model.vertex_keys import AnyKey, CoroutineKey, DriverKey, GroupKey, Key, TaskKey, ThreadKey
from dstack.observed.calls import Call, HeldRefs
from dstack.observed.node import Task

RELEASED = ("OUT_OF_SCOPE", "REF_DELETED", "OWNER_DIED")
"""Reasons for which an actor ends that are no failure of its own (Ray 2.46 to 2.60)."""
ERROR_WITHIN_S = 30.0
"""Time within which Ray raises an error in waits for something dead."""
PENDING = ("PENDING", "RESCHEDULING", "PREPARED")
"""The states of a placement group that is not placed, or only in part."""
AMONG_HELD = assumption("among held refs")


# Dead actors, owners and placement groups


def why_never_runs(index: SampleIndex, task: Task) -> Never | None:
    """Why a pending task can never run, though its result may be needed: its actor or its placement group is gone."""
    if task.kind == "ACTOR_TASK":
        actor = index.actors.get(task.actor_id or "")
        is_gone = actor is not None and _is_unreachable(index, actor, task)
        return never("dead actor", actor, cause_of(actor)) if actor and is_gone else None
    if dead_actor_of(index, task) is not None:
        return None
    group = removed_group_of(index, task)
    if group is not None and not _may_yet_fail(index, task):
        return never("removed group", group)
    return None


def removed_group_of(index: SampleIndex, task: Task) -> PlacementGroup | None:
    """The placement group that a task must run in, if it was removed."""
    group = index.placement_groups.get(task.placement_group_id or "")
    return group if group and group.state == "REMOVED" and task.state == "PENDING_NODE_ASSIGNMENT" else None


def _may_yet_fail(index: SampleIndex, task: Task) -> bool:
    """Whether a retried task in a removed group is pending for so short that Ray may yet raise an error for it."""
    times = index.snapshot.task_times.get(task.task_id)
    since = times.states.get(task.state) if times and times.attempt == task.attempt else None
    return task.attempt > 0 and not is_long_ago(index, since)


def dead_actor_of(index: SampleIndex, task: Task) -> Actor | None:
    """The actor that a task would create, if it is dead.

    Its calls fail, but its owner may list the creation as pending for another 45 s (seen on Ray 2.60 under load).
    """
    actor = index.actors.get(task.actor_id or "") if task.kind == "ACTOR_CREATION_TASK" else None
    return actor if actor is not None and actor.state == "DEAD" else None


def is_long_ago(index: SampleIndex, ended_at: float | None) -> bool:
    """Whether something ended so long ago that Ray would have raised errors in the waits for it.

    The clock that gave the time may be the one that is furthest behind.
    """
    behind_s = max((-(node.clock_ahead_s or 0.0) for node in index.snapshot.nodes), default=0.0)
    return ended_at is not None and ended_at + max(0.0, behind_s) + ERROR_WITHIN_S < index.began_at


def _is_unreachable(index: SampleIndex, actor: Actor, call: Task) -> bool:
    """Whether a call can no longer reach its actor; an exiting actor still ends the calls that it has."""
    is_there = actor.worker_id in index.workers
    is_waiting = call.state in ("PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER")
    return actor.state == "DEAD" and is_waiting and not is_there and is_long_ago(index, actor.ended_at)


def cause_of(actor: Actor) -> str:
    """Ray's reason why an actor died."""
    return actor.death_cause or "no cause given"


# Producers


def is_ready_ref(index: SampleIndex, ref: str) -> bool:
    """Whether a ref may be that of ``ready()`` of a pending placement group."""
    return ref in index.refs.without_owner and not is_returned(ref) and bool(_pending_groups(index))


def ready_vertex(graph: GraphBuilder, ref: str) -> AnyKey:
    """The vertex of such a ref, which is added to the graph."""
    key = AnyKey("ready", (ref,))
    targets = tuple(Target(vertex=group) for group in _pending_groups(graph.index))
    wait = graph.shared(AnyKey("ready", ()), waits_for("placement group", *targets, inferred=reason("ready ref")))
    graph.add(Vertex(key=key, kind="task", subject=subject("ready ref"), wait=wait))
    return key


def _pending_groups(index: SampleIndex) -> list[GroupKey]:
    return [GroupKey(id_) for id_, group in index.placement_groups.items() if group.state in PENDING]


def producer_of(graph: GraphBuilder, ref: str) -> Target:
    """The vertex that produces a ref; an available value is an unknown target, which only has to be fetched."""
    return Target(vertex=_producing_vertex(graph, ref), ref=ref)


def available_value(graph: GraphBuilder, what: str | Key) -> Target:
    """A value that is available already, by its ref or by its waiter."""
    return graph.unknown("fetched value", what, subject=subject("available value"))


def _producing_vertex(graph: GraphBuilder, ref: str) -> Key:
    index = graph.index
    if index.refs.has_value(ref):
        return available_value(graph, ref).vertex
    if is_ready_ref(index, ref):
        return ready_vertex(graph, ref)
    task_id = producer_task_id(ref)
    if is_returned(ref) and (task_id in index.worker_of_task or task_id in index.tasks):
        return key_of_task(index, task_id)
    if owner := index.dead_workers.get(index.refs.owner_of.get(ref, "")):  # nothing else knows the value's state
        return _value_of_dead_owner(graph, ref, owner)
    made_by = task_id if is_returned(ref) else ref
    return graph.unknown("value", made_by, subject=_unknown_producer(index, ref), unobserved=True).vertex


def _value_of_dead_owner(graph: GraphBuilder, ref: str, owner: GoneWorker) -> Key:
    """The value of a ref whose owner is dead: Ray still has to raise an error, or has failed to."""
    place, cause = subjects.place(graph.index, owner), owner.cause or "no cause given"
    if not is_long_ago(graph.index, owner.ended_at):
        return graph.unknown("value", ref, subject=subject("value of dead owner", ref, place, cause)).vertex
    vertex = Vertex(
        key=TaskKey(producer_task_id(ref)),
        kind="task",
        subject=subject("value", ref),
        task_id=producer_task_id(ref),
        never=never("dead owner", place, cause),
    )
    graph.add(vertex)
    return vertex.key


def _unknown_producer(index: SampleIndex, ref: str) -> Subject:
    owner = index.workers.get(index.refs.owner_of.get(ref, ""))
    if owner is not None and index.is_unresponsive(owner.worker_id):
        return subject("value of silent owner", ref, subjects.place(index, owner))
    return subject("value of no owner", ref)


# Processes that were not read


def wait_for_held(graph: GraphBuilder, waiter: ThreadKey | CoroutineKey, call: Call, held: HeldRefs) -> Wait:
    """The wait of a thread in a call for refs, if the refs could not be read."""
    worker_id = waiter.worker_id
    targets = _pending_held(graph, worker_id)
    unknown = graph.unknown("target", waiter, subject=subject("refs", kind_of(call)), unobserved=True)
    is_only = len(targets) == 1
    inferred = reason("only pending ref") if is_only else reason("any pending ref", len(targets))
    wait = waits_for(
        kind_of(call),
        *(targets or (unknown,)),
        inferred=inferred,
        timeout_s=call.timeout_s,
        called=call_beyond_kind(call),
    )
    if not targets or _may_hold_others(graph, worker_id):
        return replace(wait, groups=for_any(*targets, unknown)) if targets else wait
    wait = graph.shared(AnyKey("held", (worker_id,)), wait)
    return replace(
        wait,
        assumed=(assumption("reported", held.assumed) if held.assumed else AMONG_HELD,),
        proven_groups=for_any(unknown),
    )


def add_unread_driver(graph: GraphBuilder, worker_id: str) -> None:
    """Add a driver whose stacks could not be read, if it holds pending refs; Ray does not report what drivers run."""
    worker = graph.index.workers.get(worker_id)
    if worker is None or not worker.is_driver or graph.index.threads(worker_id):
        return
    driver = subjects.worker(graph.index, worker)
    wait = wait_of_unread(graph, worker_id, driver)
    if wait.kind == "perhaps ray.get":
        key = DriverKey(worker_id)
        graph.add(Vertex(key=key, kind="task", subject=subject("process", driver), worker_id=worker_id, wait=wait))


def wait_of_unread(
    graph: GraphBuilder, worker_id: str, name: TaskName | ProcessName, task_id: str | None = None
) -> Wait:
    """The wait of running code whose stack could not be read: for any ref that its process holds, or for none."""
    stack = graph.unknown("stack", task_id or worker_id, subject=subject("stack", name), unobserved=True)
    targets = _pending_held(graph, worker_id)
    if not targets:
        return waits_for("thread", stack)
    wait = waits_for("perhaps ray.get", *targets, inferred=reason("unread stack"))
    shared = graph.shared(AnyKey("held", (worker_id,)), wait)
    return replace(shared, groups=for_any(*shared.groups[0].targets, stack))


def _pending_held(graph: GraphBuilder, worker_id: str) -> tuple[Target, ...]:
    """The producers of the pending refs that a worker holds."""
    refs = (held.ref for held in graph.index.refs.held_by.get(worker_id, ()))
    return tuple(dict.fromkeys(producer_of(graph, ref) for ref in refs if not graph.index.refs.has_value(ref)))


def _may_hold_others(graph: GraphBuilder, worker_id: str) -> bool:
    """Whether it may wait for an available value that must be transferred, or for a ref that it did not report."""
    index = graph.index
    available = (held for held in index.refs.held_by.get(worker_id, ()) if index.refs.has_value(held.ref))
    return (
        index.is_unresponsive(worker_id) or worker_id in index.incomplete_workers or not all(map(is_at_hand, available))
    )
