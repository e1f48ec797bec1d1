"""Components of small graphs, compared with networkx."""

from __future__ import annotations

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.solve.digraph import Digraph, strong_components, unique, weak_components
from tests.fuzzing.effort import examples

Ahead = dict[int, list[int]]
many = examples(500)


@st.composite
def graphs(draw: st.DrawFn) -> Ahead:
    count = draw(st.integers(0, 8))
    targets = st.lists(st.integers(0, max(0, count - 1)), max_size=3, unique=True)
    return {vertex: draw(targets) for vertex in range(count)}


def as_networkx(ahead: Ahead) -> nx.DiGraph[int]:
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(ahead)
    graph.add_edges_from((vertex, target) for vertex, targets in ahead.items() for target in targets)
    return graph


@given(graphs())
@many
def test_strong_components_come_after_all_they_point_to(ahead: Ahead) -> None:
    components = list(strong_components(Digraph(ahead)))

    expected = nx.strongly_connected_components(as_networkx(ahead))
    assert {frozenset(part) for part in components} == {frozenset(part) for part in expected}
    place = {vertex: number for number, part in enumerate(components) for vertex in part}
    assert all(place[target] <= place[vertex] for vertex in ahead for target in ahead[vertex])


@given(graphs())
@many
def test_weak_components_are_the_connected_vertices(ahead: Ahead) -> None:
    number_of = weak_components(Digraph(ahead))

    expected = nx.weakly_connected_components(as_networkx(ahead))
    parts = {frozenset(v for v in number_of if number_of[v] == number) for number in number_of.values()}
    assert parts == {frozenset(part) for part in expected}


@given(graphs())
@many
def test_predecessors_are_the_sources_of_incoming_edges(ahead: Ahead) -> None:
    graph, same = Digraph(ahead), as_networkx(ahead)

    assert all(set(graph.predecessors(vertex)) == set(same.predecessors(vertex)) for vertex in ahead)
    assert (len(graph), graph.number_of_edges()) == (len(same), same.number_of_edges())
    assert graph.predecessors(-1) == []


def test_a_long_path_needs_no_deep_stack() -> None:
    size = 100_000

    components = list(strong_components(Digraph({number: [number + 1][: number < size] for number in range(size + 1)})))

    assert components[0] == [size]
    assert len(components) == size + 1


def test_unique_keeps_the_order() -> None:
    assert unique("abca") == ["a", "b", "c"]
