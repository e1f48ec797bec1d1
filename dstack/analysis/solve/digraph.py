"""Directed graphs of plain lists, and their components, which rustworkx finds.

networkx can do the same, but on graphs of a million edges its dictionaries of attributes dominate time and memory. The
tests compare both.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
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
