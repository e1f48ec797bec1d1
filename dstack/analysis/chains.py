"""Open chains: waits that may still end, and the executions at their ends on which all of it hangs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import networkx as nx

from dstack.diagnosis import FinalBlocker, Vertex

MAX_RANKED = 20
"""Final blockers counted exactly in each knot; further ones are fewer waited for."""

Parts = Sequence[set[str]]
"""Strongly connected components, those waited for before those who wait for them."""


def open_chains(vertices: Mapping[str, Vertex], stuck: set[str]) -> list[tuple[list[str], list[FinalBlocker]]]:
    """The separate knots of open waits: who waits in each, and its final blockers, most waited for first."""
    graph = _open_graph(vertices, stuck)
    number_of = {key: number for number, knot in enumerate(nx.weakly_connected_components(graph)) for key in knot}
    knots: dict[int, list[set[str]]] = defaultdict(list)
    for part in nx.strongly_connected_components(graph):  # found depth first, so that targets come first
        knots[number_of[next(iter(part))]].append(part)
    chains = [
        (sorted(key for part in parts for key in part if graph.out_degree(key)), _rank(graph, parts))
        for parts in knots.values()
    ]
    return sorted(chains, key=lambda chain: len(chain[0]), reverse=True)


def _open_graph(vertices: Mapping[str, Vertex], stuck: set[str]) -> nx.DiGraph[str]:
    graph: nx.DiGraph[str] = nx.DiGraph()
    for vertex in vertices.values():
        if vertex.wait is None or vertex.key in stuck:
            continue
        for group in vertex.wait.groups:
            graph.add_edges_from((vertex.key, t.vertex) for t in group.targets if t.vertex not in stuck)
    return graph


def _rank(graph: nx.DiGraph[str], parts: Parts) -> list[FinalBlocker]:
    """The vertices that wait for nothing, by how many wait on them in all, then directly."""
    ends = [key for part in parts for key in part if not graph.out_degree(key)]
    if len(ends) > MAX_RANKED:
        shares = _shares(graph, parts)
        ends = sorted(ends, key=lambda key: (-shares[key], key))[:MAX_RANKED]
    blockers = [
        FinalBlocker(vertex=key, waiters_direct=graph.in_degree(key), waiters_total=total)
        for key, total in zip(ends, _waiters(graph, parts, ends), strict=True)
    ]
    return sorted(blockers, key=lambda b: (-b.waiters_total, -b.waiters_direct, b.vertex))


def _waiters(graph: nx.DiGraph[str], parts: Parts, ends: Sequence[str]) -> list[int]:
    """How many wait for each end in all, in one pass: every vertex carries the set of ends it leads to as bits."""
    leads_to = {key: 1 << bit for bit, key in enumerate(ends)}
    waiters: Counter[int] = Counter()
    for part in parts:
        reached = 0
        for key in part:
            for target in graph.successors(key):
                reached |= leads_to.get(target, 0)
        if reached:
            leads_to.update(dict.fromkeys(part, reached))
            waiters[reached] += len(part)
    return [sum(count for reached, count in waiters.items() if reached >> bit & 1) for bit in range(len(ends))]


def _shares(graph: nx.DiGraph[str], parts: Parts) -> dict[str, float]:
    """Each end's share of all waiters, when every waiter gives its weight to its targets in equal parts.

    A cheap order by which to choose the ends worth counting exactly.
    """
    shares: dict[str, float] = defaultdict(float)
    for part in reversed(parts):
        weight = len(part) + sum(shares[key] for key in part)
        targets = [target for key in part for target in graph.successors(key) if target not in part]
        for target in targets:
            shares[target] += weight / len(targets)
    return shares
