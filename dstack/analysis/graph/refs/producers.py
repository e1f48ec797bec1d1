"""Who makes the value of an ObjectRef."""

from __future__ import annotations

from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.graph.refs.dead_producers import dead_owner, is_long_ago
from dstack.analysis.graph.refs.placement_group_refs import is_promise, is_returned, promise
from dstack.analysis.index import task_assignment
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.diagnosis import Target, Vertex
from dstack.model import GoneWorker, producer_task_id
from dstack.vertex_keys import Key, TaskKey


def maker(graph: GraphBuilder, ref: str) -> Target:
    """The vertex that gives a ref; a value that is there is an unknown target, since somebody need only fetch it."""
    return Target(vertex=_vertex(graph, ref), ref=ref)


def fetched(graph: GraphBuilder, what: str | Key) -> Target:
    """A value that is there already, by its ref or by who waits for it."""
    return graph.unknown("fetched value", what, label="value that is already available and being fetched")


def _vertex(graph: GraphBuilder, ref: str) -> Key:
    index = graph.index
    if index.has_value(ref):
        return fetched(graph, ref).vertex
    if is_promise(index, ref):
        return promise(graph, ref)
    task_id = producer_task_id(ref)
    if is_returned(ref) and (task_id in index.worker_of_task or task_id in index.tasks):
        return task_assignment.key_of_task(index, task_id)
    if owner := dead_owner(index, ref):
        return _never_told(graph, ref, owner)
    made_by = task_id if is_returned(ref) else ref
    return graph.unknown("value", made_by, label=_untold(index, ref), unobserved=True).vertex


def _never_told(graph: GraphBuilder, ref: str, owner: GoneWorker) -> Key:
    """The value of a ref whose owner is dead: Ray owes an error in its place, or has failed to give it."""
    place, cause = names.place(graph.index, owner), owner.cause or "no cause given"
    if not is_long_ago(graph.index, owner.ended_at):
        what = f"value of {names.short(ref)}, or an error, because its owner, {place}, has just died: {cause}"
        return graph.unknown("value", ref, label=what).vertex
    vertex = Vertex(
        key=TaskKey(producer_task_id(ref)),
        kind="task",
        label=f"value of {names.short(ref)}",
        task_id=producer_task_id(ref),
        never=f"its owner, {place}, died: {cause}",
        never_kind="orphaned",
    )
    graph.add(vertex)
    return vertex.key


def _untold(index: SampleIndex, ref: str) -> str:
    """Why nobody knows who makes a ref."""
    owner = index.workers.get(index.owner_of.get(ref, ""))
    if owner is not None and index.is_unresponsive(owner.worker_id):
        return f"value of {names.short(ref)}, whose owner, {names.place(index, owner)}, did not answer"
    return f"value of {names.short(ref)}, which no reachable process reports as pending"
