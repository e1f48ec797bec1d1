"""Refs that a process makes without a task and without a value: those of ``PlacementGroup.ready()``.

In Ray 2.60 such a ref has an index as those of ``ray.put`` have, and names no owner, which is the process; its core
worker gives it the group once that is placed. (In Ray 2.46 ``ready()`` is a task in the group.) Nobody tells which
group it is for, but nothing else makes such refs: so it waits for any of those that are pending.
"""

from __future__ import annotations

from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.index.sample_index import SampleIndex
from dstack.diagnosis import Group, Target, Vertex, Wait
from dstack.vertex_keys import AnyKey, GroupKey

FIRST_PUT = 100_000_001
"""The index of the first ref that a task makes itself; those before are of what it returns (Ray 2.46 to 2.60)."""

PENDING = ("PENDING", "RESCHEDULING", "PREPARED")
"""The states of a placement group that has no place, or not all of it."""


def is_promise(index: SampleIndex, ref: str) -> bool:
    """Whether a ref is as ``ready()`` makes it, and there are groups that it may be for."""
    return ref in index.refs_without_owner and _index(ref) >= FIRST_PUT and bool(_pending_groups(index))


def promise(graph: GraphBuilder, ref: str) -> AnyKey:
    """The vertex of such a ref."""
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
    """Whether the end of its task gives a ref; what the task makes itself, it may wait for itself."""
    return _index(ref) < FIRST_PUT


def _index(ref: str) -> int:
    try:
        return int.from_bytes(bytes.fromhex(ref[48:]), "little")
    except ValueError:  # in a file from a stranger
        return 0


def _pending_groups(index: SampleIndex) -> list[GroupKey]:
    return [GroupKey(id_) for id_, group in index.placement_groups.items() if group.state in PENDING]
