"""What produces the value of an ObjectRef.

A process creates the ref of ``PlacementGroup.ready()`` without a task and without a value. In Ray 2.60 such a ref has
an index like those of ``ray.put``, and names no owner, which is the process; its core worker sets the value once the
group is placed. (In Ray 2.46 ``ready()`` is a task in the group.) The ref does not name its group, but nothing else
creates such refs: so it waits for any pending group.
"""

from __future__ import annotations

from dstack.analysis.graph.builder import GraphBuilder, waits_for
from dstack.analysis.graph.refs.dead_producers import dead_owner, is_long_ago
from dstack.analysis.index import subjects, task_assignment
from dstack.analysis.index.refs import is_returned
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.diagnosis import Target, Vertex
from dstack.model.snapshot import GoneWorker, producer_task_id
from dstack.model.vertex_facts import Subject, never, reason, subject
from dstack.model.vertex_keys import AnyKey, GroupKey, Key, TaskKey

PENDING = ("PENDING", "RESCHEDULING", "PREPARED")
"""The states of a placement group that is not placed, or only in part."""


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
    return Target(vertex=_vertex(graph, ref), ref=ref)


def available_value(graph: GraphBuilder, what: str | Key) -> Target:
    """A value that is available already, by its ref or by its waiter."""
    return graph.unknown("fetched value", what, subject=subject("available value"))


def _vertex(graph: GraphBuilder, ref: str) -> Key:
    index = graph.index
    if index.refs.has_value(ref):
        return available_value(graph, ref).vertex
    if is_ready_ref(index, ref):
        return ready_vertex(graph, ref)
    task_id = producer_task_id(ref)
    if is_returned(ref) and (task_id in index.worker_of_task or task_id in index.tasks):
        return task_assignment.key_of_task(index, task_id)
    if owner := dead_owner(index, ref):
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
