"""Open chains: connected waits that may still end, and their final blockers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from dstack.analysis.solve.reduction import Digraph, strong_components, unique, weak_components
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import FinalBlocker, Vertex
from dstack.model.vertex_keys import Key
from dstack.words import grouped

MAX_RANKED = 20
"""The most final blockers that are counted exactly in each chain; others have fewer waiters."""

Parts = Sequence[set[Key]]
"""Strongly connected components, each after its dependencies."""


@dataclass(frozen=True, slots=True)
class OpenChain:
    """Connected open waits: the waiters, and the final blockers, those with most waiters first."""

    waiters: list[Key]
    blockers: list[FinalBlocker]


def open_chains(
    vertices: Mapping[Key, Vertex], stuck: set[Key], links: Mapping[Key, Sequence[Key]] | None = None
) -> list[OpenChain]:
    """The open chains, the one with most waiters first; ``links`` also connect waits of one chain."""
    graph = _open_graph(vertices, stuck)
    counted = {key for key in graph if vertices[key].is_counted}
    number_of = weak_components(_linked(graph, links) if links else graph)
    chains = grouped((number_of[part[0]], set(part)) for part in strong_components(graph))
    found = [
        OpenChain(
            sorted((k for part in parts for k in part if graph.successors(k)), key=str), _rank(graph, parts, counted)
        )
        for _, parts in sorted(chains.items())
    ]
    return sorted(found, key=lambda chain: len(chain.waiters), reverse=True)


def _open_graph(vertices: Mapping[Key, Vertex], stuck: set[Key]) -> Digraph[Key]:
    """The waits that may still end, with their targets outside of the stuck vertices."""
    successors: dict[Key, list[Key]] = {}
    for vertex in vertices.values():
        if vertex.wait is None or vertex.key in stuck or vertex.kind == "lifetime":
            continue  # a lifetime may end in many ways: it is a final blocker itself
        targets = [target for target in targets_of(vertex) if target not in stuck]
        if targets:
            successors[vertex.key] = unique(targets)
    for target in unique(target for targets in successors.values() for target in targets):
        successors.setdefault(target, [])
    return Digraph(successors)


def _linked(graph: Digraph[Key], links: Mapping[Key, Sequence[Key]]) -> Digraph[Key]:
    known = set(graph)
    return Digraph({key: unique([*graph.successors(key), *known.intersection(links.get(key, ()))]) for key in graph})


def _rank(graph: Digraph[Key], parts: Parts, counted: Set[Key]) -> list[FinalBlocker]:
    """The vertices that do not wait, by their number of counted waiters in all, then direct ones."""
    ends = [key for part in parts for key in part if not graph.successors(key)]
    if len(ends) > MAX_RANKED:
        shares = _shares(graph, parts)
        ends = sorted(ends, key=lambda key: (-shares[key], str(key)))[:MAX_RANKED]
    blockers = [
        FinalBlocker(vertex=key, waiters_direct=_direct(graph, key, counted), waiters_total=total)
        for key, total in zip(ends, _waiters(graph, parts, ends, counted), strict=True)
    ]
    return sorted(blockers, key=lambda b: (-b.waiters_total, -b.waiters_direct, str(b.vertex)))


def _direct(graph: Digraph[Key], end: Key, counted: Set[Key]) -> int:
    """The number of counted vertices that wait for an end, or for a helper that does."""
    found: set[Key] = set()
    ahead = [end]
    while ahead:
        new = set(graph.predecessors(ahead.pop())) - found
        found |= new
        ahead += new - counted
    return len(found & counted)


def _waiters(graph: Digraph[Key], parts: Parts, ends: Sequence[Key], counted: Set[Key]) -> list[int]:
    """The number of waiters for each end, in one pass: each vertex has the set of ends that it leads to as bits."""
    leads_to = {key: 1 << bit for bit, key in enumerate(ends)}
    waiters: Counter[int] = Counter()
    for part in parts:
        reached = 0
        for key in part:
            for target in graph.successors(key):
                reached |= leads_to.get(target, 0)
        if reached:
            leads_to.update(dict.fromkeys(part, reached))
            waiters[reached] += sum(key in counted for key in part)
    return [sum(count for reached, count in waiters.items() if reached >> bit & 1) for bit in range(len(ends))]


def _shares(graph: Digraph[Key], parts: Parts) -> dict[Key, float]:
    """Each end's share of all waiters, when every waiter gives its weight to its targets in equal parts.

    A cheap order that selects the ends to count exactly.
    """
    shares: dict[Key, float] = defaultdict(float)
    for part in reversed(parts):
        weight = len(part) + sum(shares[key] for key in part)
        targets = [target for key in part for target in graph.successors(key) if target not in part]
        for target in targets:
            shares[target] += weight / len(targets)
    return shares
