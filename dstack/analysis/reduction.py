"""Reduction of a wait-for graph with and, or and k-of-n waits: who can never go on, and which cores hold them.

The graph is abstract: vertices are any hashable values, and a waiting vertex has requirements ``(needs, targets)``, all
of which must be met. A requirement is met once ``needs`` of its targets are released; a target named twice counts
twice. What does not wait is released from the start; a vertex all of whose requirements are met is released in turn.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

import networkx as nx

V = TypeVar("V", bound=Hashable)
Requirement = tuple[int, Sequence[V]]
Waits = Mapping[V, Sequence[Requirement[V]]]

MAX_CYCLE_STEPS = 1_000_000
"""The shortest cycle is looked for from as many vertices as this allows: from all, in a core of a few hundred."""


def residue(waits: Waits[V]) -> set[V]:
    """The vertices that can never go on. Linear in the number of edges."""
    missing: list[int] = []
    waiter_of: list[V] = []
    unmet: dict[V, int] = {}
    requirements_on: dict[V, list[int]] = defaultdict(list)
    for waiter, requirements in waits.items():
        unmet[waiter] = 0
        for needs, targets in requirements:
            if needs <= 0:
                continue
            for target in targets:
                requirements_on[target].append(len(missing))
            missing.append(needs)
            waiter_of.append(waiter)
            unmet[waiter] += 1
    released = deque(target for target in requirements_on if target not in unmet)
    released.extend(waiter for waiter, count in unmet.items() if not count)
    stuck = {waiter for waiter, count in unmet.items() if count}
    while released:
        for index in requirements_on.get(released.popleft(), ()):
            missing[index] -= 1
            if missing[index] == 0:
                waiter = waiter_of[index]
                unmet[waiter] -= 1
                if not unmet[waiter]:
                    stuck.discard(waiter)
                    released.append(waiter)
    return stuck


def stuck_graph(waits: Waits[V], stuck: set[V]) -> nx.DiGraph[V]:
    """The residue as a graph: an edge from each stuck waiter to each stuck target it needs.

    Of a core, with what it waits for outside of it taken as released. In the order of ``waits``.
    """
    graph: nx.DiGraph[V] = nx.DiGraph()
    graph.add_nodes_from(waiter for waiter in waits if waiter in stuck)
    graph.add_edges_from(_stuck_edges(waits, stuck))
    return graph


def _stuck_edges(waits: Waits[V], stuck: set[V]) -> Iterator[tuple[V, V]]:
    for waiter, requirements in waits.items():
        if waiter in stuck:
            for needs, targets in requirements:
                held = [target for target in targets if target in stuck]
                if len(targets) - len(held) < needs:
                    yield from ((waiter, target) for target in held)


def cores(waits: Waits[V], graph: nx.DiGraph[V]) -> list[set[V]]:
    """The sets of vertices that wait only for each other, largest first.

    These are the strongly connected components of the stuck graph without an edge out; and, were those and the dead
    ends released, such components of what then is still stuck: deadlocks that only happen to wait for others besides.
    """
    found: list[set[V]] = []
    while knots := _knots(graph):
        closed = [knot for knot in knots if _is_closed(graph, knot)]
        found += closed
        if len(closed) == len(knots):
            break
        released = set(dead_ends(graph)).union(*closed)
        rest = {vertex: waits[vertex] for vertex in graph if vertex not in released}
        graph = stuck_graph(rest, residue(rest))
    return sorted(found, key=len, reverse=True)


def dead_ends(graph: nx.DiGraph[V]) -> list[V]:
    """The stuck vertices that wait for nothing stuck: what they need can never be given by anyone."""
    return [vertex for vertex, degree in graph.out_degree() if not degree]


def behind(graph: nx.DiGraph[V], those: Iterable[V]) -> set[V]:
    """All who wait for any of those, directly or through others, but not those themselves."""
    begin = level = set(those)
    reached = set(begin)
    while level:
        level = {waiter for vertex in level for waiter in graph.predecessors(vertex)} - reached
        reached |= level
    return reached - begin


def shortest_cycle(graph: nx.DiGraph[V]) -> list[V]:
    """A shortest cycle in the stuck graph of a core, in the order of waiting."""
    edges = graph.number_of_edges()
    starts = 1 if edges == len(graph) else 1 + MAX_CYCLE_STEPS // edges  # one edge a vertex: a plain ring
    best: list[V] = []
    for start in islice(graph, starts):
        cycle = _cycle_through(graph, start, len(best))
        if cycle and (not best or len(cycle) < len(best)):
            best = cycle
    return best


def _cycle_through(graph: nx.DiGraph[V], start: V, limit: int) -> list[V]:
    """The shortest cycle through ``start``, or nothing when there is none shorter than ``limit`` (0: no limit)."""
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


def _is_closed(graph: nx.DiGraph[V], component: set[V]) -> bool:
    return all(target in component for vertex in component for target in graph[vertex])


def _knots(graph: nx.DiGraph[V]) -> list[set[V]]:
    """The strongly connected components with a cycle in them."""
    components = nx.strongly_connected_components(graph)
    return [part for part in components if len(part) > 1 or any(graph.has_edge(vertex, vertex) for vertex in part)]
