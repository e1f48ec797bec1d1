"""Reduction of a wait-for graph with and, or and k-of-n waits: the vertices that can never proceed, and their cores.

The graph is abstract: vertices are any hashable values, and a waiting vertex has requirements ``(needs, targets)``, all
of which must be met. A requirement is met once ``needs`` of its targets are released; a target named twice counts
twice. A vertex without a wait is released from the start; any other one when all of its requirements are met.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Generic, TypeVar

import rustworkx as rx

V = TypeVar("V", bound=Hashable)


class Digraph(Generic[V]):
    """Vertices in a fixed order, each with its successors; each edge occurs once."""

    def __init__(self, successors: Mapping[V, list[V]]) -> None:
        self._successors = successors
        self._predecessors: dict[V, list[V]] | None = None

    def __iter__(self) -> Iterator[V]:
        return iter(self._successors)

    def __len__(self) -> int:
        return len(self._successors)

    def successors(self, vertex: V) -> list[V]:
        """The vertices that it points to."""
        return self._successors[vertex]

    def predecessors(self, vertex: V) -> list[V]:
        """The vertices that point to it; empty for an unknown vertex."""
        if self._predecessors is None:
            self._predecessors = {vertex: [] for vertex in self._successors}
            for source, targets in self._successors.items():
                for target in targets:
                    self._predecessors[target].append(source)
        return self._predecessors.get(vertex, [])

    def number_of_edges(self) -> int:
        """The number of edges."""
        return sum(map(len, self._successors.values()))


def strong_components(graph: Digraph[V]) -> Iterator[list[V]]:
    """The strongly connected components, each after all components that it points to."""
    vertices = list(graph)
    for part in rx.strongly_connected_components(_numbered(graph, vertices)):  # in postorder
        yield [vertices[number] for number in part]


def weak_components(graph: Digraph[V]) -> dict[V, int]:
    """By vertex: the number of its weakly connected component."""
    vertices = list(graph)
    parts = rx.weakly_connected_components(_numbered(graph, vertices))
    return {vertices[number]: count for count, part in enumerate(parts) for number in part}


def lightest_cycle(graph: Digraph[V], starts: Sequence[V], through: Sequence[V], weight: Mapping[V, float]) -> list[V]:
    """The cycle of the least weight through one of ``starts`` and one of ``through``, in order; empty without any."""
    vertices = list(graph)
    number_of = {vertex: number for number, vertex in enumerate(vertices)}
    weighted: rx.PyDiGraph[None, float] = rx.PyDiGraph()
    weighted.add_nodes_from([None] * len(vertices))
    weighted.add_edges_from([(number_of[v], number_of[to], weight[to]) for v in vertices for to in graph.successors(v)])

    def paths(source: V) -> dict[V, list[V]]:
        found = rx.dijkstra_shortest_paths(weighted, number_of[source], weight_fn=float)
        return {vertices[target]: [vertices[number] for number in path] for target, path in found.items()}

    there = {start: paths(start) for start in starts}
    back = {middle: paths(middle) for middle in through}
    cycles = (
        [*there[start][middle][:-1], *back[middle][start][:-1]]
        for start in starts
        for middle in through
        if middle in there[start] and start in back[middle]
    )
    simple = (cycle for cycle in cycles if len(set(cycle)) == len(cycle))
    return min(simple, key=lambda cycle: sum(weight[key] for key in cycle), default=[])


def _numbered(graph: Digraph[V], vertices: Sequence[V]) -> rx.PyDiGraph[None, None]:
    number_of = {vertex: number for number, vertex in enumerate(vertices)}
    numbered: rx.PyDiGraph[None, None] = rx.PyDiGraph()
    numbered.add_nodes_from([None] * len(vertices))
    numbered.extend_from_edge_list([(number_of[v], number_of[to]) for v in vertices for to in graph.successors(v)])
    return numbered


def unique(vertices: Iterable[V]) -> list[V]:
    """The vertices without repetitions, in order."""
    return list(dict.fromkeys(vertices))


Requirement = tuple[int, Sequence[V]]
Waits = Mapping[V, Sequence[Requirement[V]]]

MAX_CYCLE_STEPS = 300_000
"""Bounds the search for the shortest cycle: it starts at all vertices of a core of a few hundred."""


def residue(waits: Waits[V]) -> set[V]:
    """The vertices that can never proceed. Linear in the number of edges."""
    missing: list[int] = []
    waiter_of: list[V] = []
    unmet: dict[V, int] = {}
    requirements_on: dict[V, list[int]] = {waiter: [] for waiter in waits}
    for waiter, requirements in waits.items():
        before = len(missing)
        for needs, targets in requirements:
            held = [requirements_on[target] for target in targets if target in requirements_on]
            lacks = needs - (len(targets) - len(held))
            if lacks > 0:
                for on_target in held:
                    on_target.append(len(missing))
                missing.append(lacks)
                waiter_of.append(waiter)
        unmet[waiter] = len(missing) - before
    released = deque(waiter for waiter, count in unmet.items() if not count)
    stuck = {waiter for waiter, count in unmet.items() if count}
    while released:
        for index in requirements_on[released.popleft()]:
            missing[index] -= 1
            if missing[index] == 0:
                waiter = waiter_of[index]
                unmet[waiter] -= 1
                if not unmet[waiter]:
                    stuck.discard(waiter)
                    released.append(waiter)
    return stuck


def stuck_graph(waits: Waits[V], stuck: set[V]) -> Digraph[V]:
    """The residue as a graph: an edge from each stuck waiter to each stuck target that it needs.

    With ``waits`` of a component only, all targets outside of it count as released. In the order of ``waits``.
    """
    successors: dict[V, list[V]] = {}
    for waiter, requirements in waits.items():
        if waiter in stuck:
            needed: list[V] = []
            for needs, targets in requirements:
                held = [target for target in targets if target in stuck]
                if len(targets) - len(held) < needs:
                    needed += held
            successors[waiter] = unique(needed) if len(needed) > 1 else needed
    return Digraph(successors)


def cores(waits: Waits[V], graph: Digraph[V]) -> list[set[V]]:
    """The deadlocked sets: vertices that wait only for each other, largest set first.

    These are the strongly connected components of the stuck graph without an edge out. If these and the dead ends were
    released, such components of the remaining residue are deadlocked sets, too: they also wait for others. A component
    comes after all that it waits for, so it is enough to reduce it with all of that released.
    """
    found: list[set[V]] = []
    graphs = [graph]
    while graphs:
        graph = graphs.pop()
        for component in strong_components(graph):
            core = set(component)
            if len(core) == 1 and component[0] not in graph.successors(component[0]):
                continue
            if all(core.issuperset(graph.successors(vertex)) for vertex in core):
                found.append(core)
            else:
                own = {vertex: waits[vertex] for vertex in component}
                graphs.append(stuck_graph(own, residue(own)))
    return sorted(found, key=len, reverse=True)


def dead_ends(graph: Digraph[V]) -> list[V]:
    """The stuck vertices that wait for no stuck vertex: their requirements can never be met."""
    return [vertex for vertex in graph if not graph.successors(vertex)]


def behind(graph: Digraph[V], vertices: Iterable[V]) -> set[V]:
    """All vertices that wait for these, directly or through others, without these."""
    begin = set(vertices)
    return _closure(begin, graph.predecessors) - begin


def ahead(graph: Digraph[V], vertices: Iterable[V]) -> set[V]:
    """All vertices that these wait for, directly or through others, and these."""
    return _closure(set(vertices), graph.successors)


def _closure(begin: set[V], following: Callable[[V], Iterable[V]]) -> set[V]:
    """All that can be reached from these, and these."""
    reached, level = set(begin), begin
    while level:
        level = {one for vertex in level for one in following(vertex)} - reached
        reached |= level
    return reached


def shortest_cycle(graph: Digraph[V], through: Iterable[V] = ()) -> list[V]:
    """A shortest cycle in the stuck graph of a core, in the order of waiting; ``through`` one of these, if given."""
    edges = graph.number_of_edges()
    starts = 1 if edges == len(graph) else 1 + MAX_CYCLE_STEPS // edges  # one edge for each vertex: a simple cycle
    best: list[V] = []
    for start in islice(list(through) or graph, starts):
        cycle = _cycle_through(graph, start, len(best))
        if cycle and (not best or len(cycle) < len(best)):
            best = cycle
    return best


def _cycle_through(graph: Digraph[V], start: V, limit: int) -> list[V]:
    """The shortest cycle through ``start``, empty if none is shorter than ``limit`` (0: no limit)."""
    came_from: dict[V, V] = {}
    level = [start]
    length = 1
    while level and (not limit or length < limit):
        following = []
        for vertex in level:
            for target in graph.successors(vertex):
                if target == start:
                    return _path(came_from, start, vertex)
                if target not in came_from:
                    came_from[target] = vertex
                    following.append(target)
        level, length = following, length + 1
    return []


def _path(came_from: Mapping[V, V], start: V, end: V) -> list[V]:
    path = [end]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return path[::-1]
