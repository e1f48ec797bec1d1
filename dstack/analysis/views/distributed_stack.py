"""The distributed stack: an execution, the executions that it waits for, and so on, across processes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.shown_frames import fold_imports, own_frames
from dstack.analysis.naming.descriptions import describe, in_words
from dstack.analysis.naming.vertex_details import VertexDetails, details_of
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import Actor
from dstack.model.vertex_facts import Fact, Operand, ProcessName, RankList, Subject, TaskName
from dstack.model.vertex_keys import Key
from dstack.observed.processes import Frame
from dstack.words import grouped

MAX_NODES = 2000
MAX_CHILDREN = 200
MAX_DEPTH = 16
"""Deeper than this a stack does not fit on a page; the findings name the end of a chain however long it is."""


@dataclass(frozen=True, slots=True)
class StackNode:
    """One execution or pending thing in a distributed stack, with what it waits for below it.

    ``frames`` are the user's own, outermost first (or the leaf, if there are none). ``count`` says how many
    similar branches this one represents. ``repeats`` marks a vertex that is further up: a cycle.
    ``left_out`` counts branches not followed; ``goes_on`` is true if it is too deep to be followed.
    Similar branches have the same ``shape``; ``ranks`` are the known ranks of all of them.
    """

    vertex: Key
    details: VertexDetails
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


def stitch(
    index: SampleIndex, vertices: Mapping[Key, Vertex], beginnings: Iterable[Sequence[Key]]
) -> tuple[StackNode, ...]:
    """The distributed stacks that begin at similar vertices, equal ones folded like branches."""
    stitcher = _Stitcher(index, vertices)
    return _folded([replace(stitcher.stack(first), count=1 + len(more)) for first, *more in beginnings])


def vertices_in(node: StackNode) -> set[Key]:
    """All vertices of a distributed stack."""
    found: set[Key] = set()
    ahead = [node]
    while ahead:
        one = ahead.pop()
        if one.vertex not in found:
            found.add(one.vertex)
            ahead += one.children
    return found


def roots(vertices: Mapping[Key, Vertex], members: set[Key]) -> list[Key]:
    """The waiting members that no other waits for, or one if all are in a cycle; preferably executions."""
    awaited = {
        target.vertex
        for key in members
        if (wait := vertices[key].wait)
        for group in wait.groups
        for target in group.targets
    }
    ordered = sorted(members, key=str)
    tops = [key for key in ordered if key not in awaited and vertices[key].wait]
    executions = [key for key in tops or ordered if vertices[key].kind == "execution"]
    return (executions or tops) if tops else (executions or ordered)[:1]


def group_similar(vertices: Mapping[Key, Vertex], keys: Sequence[Key]) -> list[list[Key]]:
    """Group pending vertices by name and dependencies; each running execution is a group of its own."""
    groups = grouped((similarity_key(vertices[key]), key) for key in keys)
    return list(groups.values())


def similarity_key(vertex: Vertex) -> object:
    """Equal for similar pending vertices; the key itself of running ones."""
    if vertex.worker_id is not None or vertex.kind != "task":
        return vertex.key
    never = vertex.never and in_words(vertex.never)
    return describe(vertex), never, vertex.is_confirmed, vertex.wait and (vertex.wait.kind_name, vertex.wait.groups)


def similar_subject(fact: Fact) -> object:
    """Equal for what differs only in its actor, of the same class, in its ranks or its process."""
    what = fact.what if isinstance(fact, Subject) else type(fact)
    return what, *map(_similar_operand, fact.of)


def _similar_operand(value: Operand) -> object:
    match value:
        case Fact():
            return similar_subject(value)
        case Actor():
            return value.class_name
        case TaskName(name=str()):
            return value.name, value.actor and value.actor.class_name
        case ProcessName():
            return value.sort, value.entrypoint, value.actor and value.actor.class_name
        case RankList():
            return value.group
    return repr(value)


class _Stitcher:
    """Follow every vertex once and refer to it afterwards."""

    def __init__(self, index: SampleIndex, vertices: Mapping[Key, Vertex]) -> None:
        self._index = index
        self._vertices = vertices
        self._built: dict[Key, StackNode] = {}
        self._shapes: dict[object, int] = {}
        self._most = 0

    def stack(self, root: Key) -> StackNode:
        """The distributed stack that begins here."""
        self._most = len(self._built) + MAX_NODES
        return self.node(root, frozenset())

    def node(self, key: Key, above: frozenset[Key]) -> StackNode:
        if key in self._built:
            return self._built[key]
        vertex = self._vertices[key]
        details = details_of(self._index, vertex)
        node = StackNode(
            vertex=key,
            details=details,
            wait_kind=vertex.wait.kind_name if vertex.wait else None,
            never=in_words(vertex.never) if vertex.never else None,
            frames=_shown(details.frames),
            ranks=() if details.ranks.rank is None else (details.ranks.rank,),
        )
        if key in above:
            return self._shaped(replace(node, repeats=True, frames=()))
        targets, left_out = self._targets(vertex)
        if len(above) >= MAX_DEPTH or len(self._built) > self._most:
            return self._shaped(replace(node, goes_on=bool(targets)))
        within = above | {key}
        nodes = [replace(self.node(first, within), count=1 + len(more)) for first, *more in targets]
        children = _folded(nodes)
        self._built[key] = self._shaped(replace(node, children=children, left_out=left_out))
        return self._built[key]

    def _shaped(self, node: StackNode) -> StackNode:
        """The node with its shape: equal for branches with the same names and lines all the way down.

        The names are those of classes and functions: actors of one class are alike, whatever they are called.
        """
        children = tuple((child.shape, child.count) for child in node.children)
        what = (
            similar_subject(self._vertices[node.vertex].subject),
            node.wait_kind,
            node.never,
            node.frames,
            node.repeats,
            node.goes_on,
            node.left_out,
            children,
        )
        return replace(node, shape=self._shapes.setdefault(what, len(self._shapes)))

    def _targets(self, vertex: Vertex) -> tuple[list[list[Key]], int]:
        """The vertices to follow, similar ones grouped, and the number of those left out.

        Of inferred targets, those that wait for inferred targets in the same way are left out.
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
    return tuple(replace(first[shape], count=count, ranks=tuple(ranks[shape])) for shape, count in counts.items())


def _shown(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    shown = list(fold_imports(frames))
    return tuple(one.frame for one in reversed(own_frames(shown) or shown[:1]))
