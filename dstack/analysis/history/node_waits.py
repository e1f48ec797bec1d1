"""The waits of a snapshot between the nodes of its call graph.

A vertex that belongs to no node, such as room on a machine, stands between its waiters and what it waits for itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dstack.analysis.history.call_nodes import CallNodes, NodeKey
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Diagnosis, Vertex
from dstack.vertex_keys import Key


@dataclass(frozen=True, slots=True)
class NodeWait:
    """The waits of one node for another, or for itself.

    ``waiters`` are vertices of the wait-for graph. Of these, ``deadlocked`` are in a deadlock with the other node, and
    ``blocked`` can never proceed for another reason: they are blocked behind a deadlock, or what they need never comes.
    ``kinds`` counts the waiters by the name of their call.
    """

    source: NodeKey
    target: NodeKey
    waiters: tuple[Key, ...]
    kinds: Mapping[str, int]
    deadlocked: int = 0
    blocked: int = 0

    @property
    def count(self) -> int:
        """The number of waiters."""
        return len(self.waiters)


@dataclass(slots=True)
class _Waits:
    waiters: dict[Key, None] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    deadlocked: set[Key] = field(default_factory=set)
    blocked: set[Key] = field(default_factory=set)


def node_waits(diagnosis: Diagnosis, nodes: CallNodes) -> tuple[NodeWait, ...]:
    """The waits between nodes, most waiters first."""
    found = _Search(diagnosis, nodes).waits()
    waits = [
        NodeWait(
            source, target, tuple(one.waiters), dict(one.kinds), len(one.deadlocked), len(one.blocked - one.deadlocked)
        )
        for (source, target), one in found.items()
    ]
    return tuple(sorted(waits, key=lambda wait: (-wait.deadlocked, -wait.count, str(wait.source), str(wait.target))))


class _Search:
    def __init__(self, diagnosis: Diagnosis, nodes: CallNodes) -> None:
        self._vertices = diagnosis.vertices
        self._node_of = {key: nodes.vertex(vertex) for key, vertex in diagnosis.vertices.items()}
        self._reached: dict[Key, frozenset[NodeKey]] = {}
        deadlocks = [finding for finding in diagnosis.findings if finding.kind == "deadlock"]
        self._members = {key for finding in deadlocks for key in finding.members}
        self._cores = self._members | {key for finding in deadlocks for key in finding.helpers}
        self._stuck = {key for finding in diagnosis.findings for key in finding.blocked_behind}
        self._stuck |= {
            key
            for finding in diagnosis.findings
            if finding.kind in ("orphaned", "infeasible")
            for key in finding.members
        }

    def waits(self) -> Mapping[tuple[NodeKey, NodeKey], _Waits]:
        """The waits by the nodes that they go from and to."""
        found: dict[tuple[NodeKey, NodeKey], _Waits] = defaultdict(_Waits)
        for key, vertex in self._vertices.items():
            source = self._node_of[key]
            if vertex.wait is None or source is None or not vertex.is_counted:
                continue
            for target in targets_of(vertex):
                is_in_core = key in self._members and target in self._cores
                for node in self._nodes_at(target):
                    self._add(found[source, node], vertex, is_in_core=is_in_core)
        return found

    def _add(self, waits: _Waits, vertex: Vertex, *, is_in_core: bool) -> None:
        assert vertex.wait is not None
        if vertex.key not in waits.waiters:
            waits.waiters[vertex.key] = None
            waits.kinds[vertex.wait.kind_name] += 1
        if is_in_core:
            waits.deadlocked.add(vertex.key)
        elif vertex.key in self._stuck or vertex.key in self._members:
            waits.blocked.add(vertex.key)

    def _nodes_at(self, target: Key) -> frozenset[NodeKey]:
        """The node of a target; for one between two nodes, those that it waits for."""
        node = self._node_of.get(target)
        if node is not None:
            return frozenset((node,))
        if target not in self._reached:
            self._reached[target] = frozenset(self._nodes_behind(target))
        return self._reached[target]

    def _nodes_behind(self, target: Key) -> Iterator[NodeKey]:
        seen, ahead = {target}, [target]
        while ahead:
            vertex = self._vertices.get(ahead.pop())
            for further in targets_of(vertex) if vertex and vertex.wait else ():
                node = self._node_of.get(further)
                if node is not None:
                    yield node
                elif further not in seen:
                    seen.add(further)
                    ahead.append(further)
