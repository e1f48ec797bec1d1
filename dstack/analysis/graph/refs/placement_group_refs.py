"""Refs of ``PlacementGroup.ready()``, which a process creates without a task and without a value.

In Ray 2.60 such a ref has an index like those of ``ray.put``, and names no owner, which is the process; its core worker
sets the value once the group is placed. (In Ray 2.46 ``ready()`` is a task in the group.) The ref does not name its
group, but nothing else creates such refs: so it waits for any pending group.
"""

from __future__ import annotations

from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.index.sample_index import SampleIndex
from dstack.diagnosis import Group, Target, Vertex, Wait
from dstack.vertex_keys import AnyKey, GroupKey

FIRST_PUT = 100_000_001
"""The index of the first ref that a task creates itself; smaller ones are its return values (Ray 2.46 to 2.60)."""

PENDING = ("PENDING", "RESCHEDULING", "PREPARED")
"""The states of a placement group that is not placed, or only in part."""


def is_ready_ref(index: SampleIndex, ref: str) -> bool:
    """Whether a ref may be that of ``ready()`` of a pending placement group."""
    return ref in index.refs.without_owner and _index(ref) >= FIRST_PUT and bool(_pending_groups(index))


def ready_vertex(graph: GraphBuilder, ref: str) -> AnyKey:
    """The vertex of such a ref, which is added to the graph."""
    key = AnyKey("ready", (ref,))
    targets = tuple(Target(vertex=group) for group in _pending_groups(graph.index))
    wait = Wait(
        kind="placement group",
        groups=(Group(needs=1, targets=targets),),
        inferred="a ref without a task is one of PlacementGroup.ready(), of any pending group",
        total=len(targets),
    )
    graph.add(
        Vertex(key=key, kind="task", label="PlacementGroup.ready()", wait=graph.shared(AnyKey("ready", ()), wait))
    )
    return key


def is_returned(ref: str) -> bool:
    """Whether a ref is a return value of its task; for a ref that it creates itself, the task may wait itself."""
    return _index(ref) < FIRST_PUT


def _index(ref: str) -> int:
    try:
        return int.from_bytes(bytes.fromhex(ref[48:]), "little")
    except ValueError:  # in a malformed file
        return 0


def _pending_groups(index: SampleIndex) -> list[GroupKey]:
    return [GroupKey(id_) for id_, group in index.placement_groups.items() if group.state in PENDING]
