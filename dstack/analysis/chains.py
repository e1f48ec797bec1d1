"""Open chains: waits that may still end, and the executions at their ends on which all of it hangs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import networkx as nx

from dstack.diagnosis import FinalBlocker, Vertex

MAX_RANKED = 20
"""Final blockers counted exactly in each component; further ones are fewer waited for."""


def open_chains(vertices: Mapping[str, Vertex], stuck: set[str]) -> list[tuple[list[str], list[FinalBlocker]]]:
    """The separate knots of open waits: who waits in each, and its final blockers, most waited for first."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for vertex in vertices.values():
        if vertex.wait is None or vertex.key in stuck:
            continue
        for group in vertex.wait.groups:
            graph.add_edges_from((vertex.key, t.vertex) for t in group.targets if t.vertex not in stuck)
    knots = []
    for component in nx.weakly_connected_components(graph):
        inside = graph.subgraph(component)
        waiters = [key for key in component if inside.out_degree(key)]
        knots.append((sorted(waiters), _rank(inside)))
    return sorted(knots, key=lambda knot: len(knot[0]), reverse=True)


def _rank(graph: nx.DiGraph[str]) -> list[FinalBlocker]:
    """The vertices that wait for nothing, by how many wait on them in all, then directly."""
    ends = [key for key, degree in graph.out_degree() if not degree]
    if len(ends) > MAX_RANKED:
        share = _shares(graph)
        ends = sorted(ends, key=lambda key: share[key], reverse=True)[:MAX_RANKED]
    blockers = [
        FinalBlocker(vertex=key, waiters_direct=graph.in_degree(key), waiters_total=len(nx.ancestors(graph, key)))
        for key in ends
    ]
    return sorted(blockers, key=lambda b: (-b.waiters_total, -b.waiters_direct, b.vertex))


def _shares(graph: nx.DiGraph[str]) -> dict[str, float]:
    """Each end's share of all waiters, when every waiter gives its weight to its targets in equal parts.

    A cheap order by which to choose the ends worth counting exactly.
    """
    condensed = nx.condensation(graph)
    weight: dict[int, float] = defaultdict(float)
    shares: dict[str, float] = defaultdict(float)
    for component in nx.topological_sort(condensed):
        members = condensed.nodes[component]["members"]
        total = weight[component] + len(members)
        following = list(condensed[component])
        for target in following:
            weight[target] += total / len(following)
        for member in members:
            shares[member] = total
    return shares
