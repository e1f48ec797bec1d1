"""Refs of ``PlacementGroup.ready()``, which a process creates without a task and without a value.

In Ray 2.60 such a ref has an index like those of ``ray.put``, and names no owner, which is the process; its core worker
sets the value once the group is placed. (In Ray 2.46 ``ready()`` is a task in the group.) The ref does not name its
group, but nothing else creates such refs: so it waits for any pending group.
"""

from __future__ import annotations

from dstack.analysis.graph.builder import GraphBuilder, waits_for
from dstack.analysis.index.refs import is_returned
from dstack.analysis.index.sample_index import SampleIndex
from dstack.diagnosis import Target, Vertex
from dstack.vertex_facts import reason, subject
from dstack.vertex_keys import AnyKey, GroupKey

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
