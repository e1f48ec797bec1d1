"""The distributed stack: from an execution, through the ref it waits for, into the stack of who makes it, and on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming.vertex_details import VertexDetails, details_of
from dstack.diagnosis import Vertex
from dstack.model import Frame, Model
from dstack.vertex_keys import Key

MAX_NODES = 2000
MAX_CHILDREN = 200
MAX_DEPTH = 16
"""Deeper than this a stack does not fit on a page; the findings name the end of a chain however long it is."""


class StackNode(Model, frozen=True):
    """One execution or pending thing in a distributed stack, with what it waits for below it.

    ``frames`` are the user's own, outermost first (and the leaf, where all is others' code). ``count`` says how many
    alike branches this one stands for. ``repeats`` marks a vertex that stands further up already: a cycle.
    ``left_out`` counts branches not followed; ``goes_on`` says that it is too deep to be followed here.
    Alike branches have the same ``shape``; ``ranks`` are those of all that it stands for, as far as known.
    """

    vertex: Key
    who: VertexDetails
    wait_kind: str | None = None
    never: str | None = None
    frames: tuple[Frame, ...] = ()
    children: tuple[StackNode, ...] = ()
    count: int = 1
    repeats: bool = False
    left_out: int = 0
    goes_on: bool = False
    shape: int = 0
    ranks: tuple[int, ...] = ()


def stitch(index: SampleIndex, vertices: Mapping[Key, Vertex], root: Key) -> StackNode:
    """The distributed stack that begins at ``root``, equal branches folded."""
    return _Stitcher(index, vertices).node(root, frozenset())


def vertices_in(node: StackNode) -> set[Key]:
    """All vertices that stand in a distributed stack."""
    found: set[Key] = set()
    ahead = [node]
    while ahead:
        one = ahead.pop()
        if one.vertex not in found:
            found.add(one.vertex)
            ahead += one.children
    return found


def roots(vertices: Mapping[Key, Vertex], members: set[Key]) -> list[Key]:
    """The waiting members that no other waits for, or one where all are in a cycle; executions, if there are any."""
    awaited = {
        target.vertex
        for key in members
        if (wait := vertices[key].wait)
        for group in wait.groups
        for target in group.targets
    }
    everybody = sorted(members, key=str)
    tops = [key for key in everybody if key not in awaited and vertices[key].wait]
    executions = [key for key in tops or everybody if vertices[key].kind == "execution"]
    return (executions or tops) if tops else (executions or everybody)[:1]


def group_similar(vertices: Mapping[Key, Vertex], keys: Sequence[Key]) -> list[list[Key]]:
    """The keys in groups of pending things that are called alike and wait for the same; who runs is one of a kind."""
    groups: dict[object, list[Key]] = {}
    for key in keys:
        groups.setdefault(similarity_key(vertices[key]), []).append(key)
    return list(groups.values())


def similarity_key(vertex: Vertex) -> object:
    """What makes pending things alike; the key itself of what runs."""
    if vertex.worker_id is not None or vertex.kind != "task":
        return vertex.key
    return vertex.label, vertex.never, vertex.is_confirmed, vertex.wait and (vertex.wait.kind_name, vertex.wait.groups)


class _Stitcher:
    """Follows every vertex once; where it is met again, it only refers to that place."""

    def __init__(self, index: SampleIndex, vertices: Mapping[Key, Vertex]) -> None:
        self._index = index
        self._vertices = vertices
        self._built: dict[Key, StackNode] = {}
        self._shapes: dict[object, int] = {}

    def node(self, key: Key, above: frozenset[Key]) -> StackNode:
        if key in self._built:
            return self._built[key]
        vertex = self._vertices[key]
        who = details_of(self._index, vertex)
        node = StackNode(
            vertex=key,
            who=who,
            wait_kind=vertex.wait.kind_name if vertex.wait else None,
            never=vertex.never,
            frames=_shown(who.frames),
            ranks=() if who.ranks.rank is None else (who.ranks.rank,),
        )
        if key in above:
            return self._shaped(msgspec.structs.replace(node, repeats=True, frames=()))
        targets, left_out = self._targets(vertex)
        if len(above) >= MAX_DEPTH or len(self._built) > MAX_NODES:
            return self._shaped(msgspec.structs.replace(node, goes_on=bool(targets)))
        within = above | {key}
        nodes = [msgspec.structs.replace(self.node(first, within), count=1 + len(more)) for first, *more in targets]
        children = _folded(nodes)
        self._built[key] = self._shaped(msgspec.structs.replace(node, children=children, left_out=left_out))
        return self._built[key]

    def _shaped(self, node: StackNode) -> StackNode:
        """The node with a number for what makes branches alike: names and lines all the way down, not who exactly."""
        children = tuple((child.shape, child.count) for child in node.children)
        what = (node.who.execution, node.wait_kind, node.frames, node.repeats, node.goes_on, node.left_out, children)
        return msgspec.structs.replace(node, shape=self._shapes.setdefault(what, len(self._shapes)))

    def _targets(self, vertex: Vertex) -> tuple[list[list[Key]], int]:
        """The vertices to follow, alike ones together, and how many are left out.

        Of targets that are only inferred, those are left out which are in the same case themselves.
        """
        wait = vertex.wait
        if wait is None:
            return [], 0
        targets = list(dict.fromkeys(target.vertex for group in wait.groups for target in group.targets))
        followed = targets
        if wait.evidence == "inferred":
            firm = [key for key in targets if not self._is_inferred(key, wait.kind)]
            followed = firm or targets[:1]
        groups = group_similar(self._vertices, followed)[:MAX_CHILDREN]
        return groups, len(targets) - sum(map(len, groups))

    def _is_inferred(self, key: Key, kind: str) -> bool:
        wait = self._vertices[key].wait
        return wait is not None and wait.kind == kind and wait.evidence == "inferred"


def _folded(nodes: list[StackNode]) -> tuple[StackNode, ...]:
    """Equal branches as one with a count, in the order of their first."""
    first = {node.shape: node for node in reversed(nodes)}
    counts: Counter[int] = Counter()
    ranks: dict[int, list[int]] = defaultdict(list)
    for node in nodes:
        counts[node.shape] += node.count
        ranks[node.shape] += node.ranks
    return tuple(
        msgspec.structs.replace(first[shape], count=count, ranks=tuple(ranks[shape])) for shape, count in counts.items()
    )


def _shown(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    own = tuple(frame for frame in reversed(frames) if frame.origin == "user")
    return own or frames[:1]
