"""The reduction, compared with naive definitions on thousands of small random graphs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, pairwise

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.solve.reduction import (
    Digraph,
    Waits,
    behind,
    cores,
    dead_ends,
    residue,
    shortest_cycle,
    strong_components,
    stuck_graph,
    unique,
    weak_components,
)
from tests.fuzzing.effort import examples

Ahead = dict[int, list[int]]
many = examples(500)


@st.composite
def digraphs(draw: st.DrawFn) -> Ahead:
    count = draw(st.integers(0, 8))
    targets = st.lists(st.integers(0, max(0, count - 1)), max_size=3, unique=True)
    return {vertex: draw(targets) for vertex in range(count)}


@given(digraphs())
@many
def test_strong_components_come_after_all_they_point_to(ahead: Ahead) -> None:
    components = list(strong_components(Digraph(ahead)))

    expected = nx.strongly_connected_components(as_networkx(Digraph(ahead)))
    assert {frozenset(part) for part in components} == {frozenset(part) for part in expected}
    place = {vertex: number for number, part in enumerate(components) for vertex in part}
    assert all(place[target] <= place[vertex] for vertex in ahead for target in ahead[vertex])


@given(digraphs())
@many
def test_weak_components_are_the_connected_vertices(ahead: Ahead) -> None:
    number_of = weak_components(Digraph(ahead))

    expected = nx.weakly_connected_components(as_networkx(Digraph(ahead)))
    parts = {frozenset(v for v in number_of if number_of[v] == number) for number in number_of.values()}
    assert parts == {frozenset(part) for part in expected}


@given(digraphs())
@many
def test_predecessors_are_the_sources_of_incoming_edges(ahead: Ahead) -> None:
    graph, same = Digraph(ahead), as_networkx(Digraph(ahead))

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


GraphBuilder = dict[int, list[tuple[int, list[int]]]]

thousands = examples(1500)
hundreds = examples(250)


def graphs(vertices: int = 5, *, possible: bool = False) -> st.SearchStrategy[GraphBuilder]:
    """Waits of some of the vertices, with duplicate targets, self-loops, needs of zero, and needs above their targets.

    Where ``possible``, only vertices without other needs need more than their targets.
    """
    vertex = st.integers(0, vertices - 1)
    requirement = st.tuples(st.integers(0, 4), st.lists(vertex, max_size=3))
    requirements = st.lists(requirement, max_size=3)
    if possible:
        requirements = requirements.map(lambda them: [(min(needs, len(targets)), targets) for needs, targets in them])
        requirements = st.one_of(requirements, st.just([(1, [])]))
    return st.dictionaries(vertex, requirements, max_size=vertices)


def chains(vertices: int = 6) -> st.SearchStrategy[GraphBuilder]:
    """Graphs in which most vertices are stuck: each vertex needs all or most of a few targets."""

    def most_of(targets: list[int], spared: int) -> tuple[int, list[int]]:
        return max(1, len(targets) - spared), targets

    targets = st.lists(st.integers(0, vertices - 1), min_size=1, max_size=3)
    requirements = st.lists(st.builds(most_of, targets, st.integers(0, 1)), min_size=1, max_size=2)
    return st.fixed_dictionaries(dict.fromkeys(range(vertices), requirements))


def is_blocked_by(waits: GraphBuilder, vertex: int, by: set[int]) -> bool:
    """Whether a vertex cannot proceed as long as no vertex of ``by`` does, though all others have proceeded."""
    return any(sum(target not in by for target in targets) < needs for needs, targets in waits[vertex])


def subsets(vertices: set[int]) -> Iterator[set[int]]:
    sizes = range(len(vertices) + 1)
    return (set(subset) for subset in chain.from_iterable(combinations(sorted(vertices), size) for size in sizes))


def residues_of_all_orders(waits: GraphBuilder) -> set[frozenset[int]]:
    """The residue for each order in which the vertices that can proceed may do so, one at a time."""
    begin = frozenset(waits)
    visited, open_, ends = {begin}, [begin], set()
    while open_:
        left = open_.pop()
        following = [left - {vertex} for vertex in left if not is_blocked_by(waits, vertex, set(left))]
        if not following:
            ends.add(left)
        open_ += [after for after in following if after not in visited]
        visited.update(following)
    return ends


def stuck_graph_of(waits: GraphBuilder) -> Digraph[int]:
    return stuck_graph(waits, residue(waits))


def as_networkx(graph: Digraph[int]) -> nx.DiGraph[int]:
    same: nx.DiGraph[int] = nx.DiGraph()
    same.add_nodes_from(graph)
    same.add_edges_from((vertex, target) for vertex in graph for target in graph.successors(vertex))
    return same


# The residue


@given(graphs())
@thousands
def test_the_residue_is_left_when_no_further_vertex_can_proceed(waits: GraphBuilder) -> None:
    left = set(waits)
    while released := {vertex for vertex in left if not is_blocked_by(waits, vertex, left)}:
        left -= released

    assert residue(waits) == left


@given(graphs(vertices=6))
@hundreds
def test_the_residue_is_the_largest_set_that_blocks_itself(waits: GraphBuilder) -> None:
    holding = [those for those in subsets(set(waits)) if all(is_blocked_by(waits, vertex, those) for vertex in those)]

    assert residue(waits) == set().union(*holding)


@given(graphs(vertices=6))
@hundreds
def test_the_residue_does_not_depend_on_the_order(waits: GraphBuilder) -> None:
    assert residues_of_all_orders(waits) == {frozenset(residue(waits))}


@given(graphs(), st.integers(0, 6))
@hundreds
def test_a_removed_wait_makes_no_vertex_stuck(waits: GraphBuilder, ended: int) -> None:
    fewer = {vertex: requirements for vertex, requirements in waits.items() if vertex != ended}

    assert residue(fewer) <= residue(waits)


def test_a_cycle_with_an_alternative_target_outside_is_not_stuck() -> None:
    waits: Waits[str] = {"a": [(1, ["b"])], "b": [(1, ["a", "free"])]}

    assert residue(waits) == set()


def test_a_cycle_with_all_alternatives_inside_is_stuck() -> None:
    waits: Waits[str] = {"a": [(1, ["b"])], "b": [(1, ["a", "c"])], "c": [(1, ["a"])]}

    assert residue(waits) == {"a", "b", "c"}


def test_a_need_of_two_is_not_met_by_one() -> None:
    waits: Waits[str] = {"a": [(2, ["a", "free", "b"])], "b": [(1, ["a"])]}

    assert residue(waits) == {"a", "b"}


def test_a_target_named_twice_counts_twice() -> None:
    waits: Waits[str] = {"a": [(2, ["free", "free"])]}

    assert residue(waits) == set()


def test_a_need_above_the_number_of_targets_is_never_met() -> None:
    waits: Waits[str] = {"a": [(2, ["free"])], "b": [(1, [])], "c": [(0, [])]}

    assert residue(waits) == {"a", "b"}


# Cores


@given(st.one_of(graphs(), chains()))
@hundreds
def test_the_stuck_graph_has_the_edges_between_stuck_vertices(waits: GraphBuilder) -> None:
    stuck = residue(waits)

    graph = stuck_graph(waits, stuck)

    needed = {
        (waiter, target)
        for waiter in stuck
        for needs, targets in waits[waiter]
        if sum(t not in stuck for t in targets) < needs
        for target in targets
    }
    assert set(graph) == stuck
    assert set(as_networkx(graph).edges) == {(waiter, target) for waiter, target in needed if target in stuck}


@given(st.one_of(graphs(), chains()))
@hundreds
def test_a_core_is_stuck_and_strongly_connected(waits: GraphBuilder) -> None:
    graph = stuck_graph_of(waits)

    for core in cores(waits, graph):
        assert core <= residue(waits)
        assert nx.is_strongly_connected(as_networkx(graph).subgraph(core))
        assert nx.is_strongly_connected(as_networkx(stuck_graph(waits, core)))


@given(st.one_of(graphs(), chains()))
@hundreds
def test_a_core_stays_stuck_when_all_other_waits_end(waits: GraphBuilder) -> None:
    for core in cores(waits, stuck_graph_of(waits)):
        assert residue({vertex: waits[vertex] for vertex in core}) == core


@given(st.one_of(graphs(possible=True), chains()))
@hundreds
def test_a_core_proceeds_when_its_inner_dependencies_end(waits: GraphBuilder) -> None:
    for core in cores(waits, stuck_graph_of(waits)):
        remaining = {
            vertex: [(needs - sum(t in core for t in targets), targets) for needs, targets in waits[vertex]]
            for vertex in core
        }
        assert residue(remaining) == set()


@given(st.one_of(graphs(possible=True), chains()))
@hundreds
def test_one_member_that_stops_waiting_ends_a_whole_cycle(waits: GraphBuilder) -> None:
    for core in cores(waits, stuck_graph_of(waits)):
        own = {vertex: waits[vertex] for vertex in core}
        ring = stuck_graph(own, core)
        for member in core:
            left = residue({vertex: own[vertex] for vertex in core - {member}})
            assert member not in left
            assert ring.number_of_edges() > len(core) or not left


@given(graphs())
@hundreds
def test_cores_have_no_member_in_common(waits: GraphBuilder) -> None:
    found = cores(waits, stuck_graph_of(waits))

    assert sum(map(len, found)) == len(set().union(*found))
    assert [len(core) for core in found] == sorted(map(len, found), reverse=True)


@given(st.one_of(graphs(possible=True), chains()))
@hundreds
def test_all_vertices_proceed_if_the_cores_and_dead_ends_do(waits: GraphBuilder) -> None:
    graph = stuck_graph_of(waits)
    reported = set().union(dead_ends(graph), *cores(waits, graph))

    remaining = {vertex: requirements for vertex, requirements in waits.items() if vertex not in reported}

    assert residue(remaining) == set()


@given(graphs(possible=True))
@hundreds
def test_dead_ends_need_more_than_their_targets(waits: GraphBuilder) -> None:
    for vertex in dead_ends(stuck_graph_of(waits)):
        assert any(needs > len(targets) for needs, targets in waits[vertex])


def test_a_deadlock_that_also_waits_for_another_is_a_core_of_its_own() -> None:
    waits: Waits[str] = {
        "a": [(1, ["b"])],
        "b": [(1, ["a"]), (1, ["c"])],
        "c": [(1, ["c"])],
    }

    assert cores(waits, stuck_graph(waits, residue(waits))) == [{"a", "b"}, {"c"}]


def test_a_deadlock_inside_a_larger_component_is_a_core_of_its_own() -> None:
    waits: Waits[str] = {
        "a": [(1, ["b"]), (1, ["either"])],
        "b": [(1, ["a"])],
        "either": [(1, ["b", "c"])],
        "c": [(1, ["c"])],
    }

    assert cores(waits, stuck_graph(waits, residue(waits))) == [{"a", "b"}, {"c"}]


def test_a_waiter_of_a_cycle_is_not_in_its_core() -> None:
    waits: Waits[str] = {"a": [(1, ["b"])], "b": [(1, ["a"])], "late": [(1, ["a"])]}

    assert cores(waits, stuck_graph(waits, residue(waits))) == [{"a", "b"}]


# Shortest cycles


@given(st.one_of(graphs(), chains()))
@hundreds
def test_the_shortest_cycle_is_a_cycle_and_no_other_is_shorter(waits: GraphBuilder) -> None:
    for core in cores(waits, stuck_graph_of(waits)):
        own = stuck_graph(waits, core)
        graph = as_networkx(own)

        cycle = shortest_cycle(own)

        assert len(cycle) == len(set(cycle))
        assert all(graph.has_edge(waiter, target) for waiter, target in pairwise([*cycle, cycle[0]]))
        assert len(cycle) == min(map(len, nx.simple_cycles(graph)))


def test_the_shortest_cycle_is_in_the_order_of_waiting() -> None:
    waits: Waits[str] = {"a": [(1, ["b"])], "b": [(1, ["c"])], "c": [(1, ["a"])]}

    assert shortest_cycle(stuck_graph(waits, {"a", "b", "c"})) == ["a", "b", "c"]


def test_a_vertex_that_waits_for_itself_is_a_cycle() -> None:
    waits: Waits[str] = {"a": [(1, ["a"])]}

    assert shortest_cycle(stuck_graph(waits, {"a"})) == ["a"]


def test_a_cycle_of_thousands_is_found_whole() -> None:
    size = 10_000
    waits: Waits[int] = {i: [(1, [(i + 1) % size])] for i in range(size)}
    graph = stuck_graph(waits, residue(waits))

    (core,) = cores(waits, graph)

    assert len(core) == size
    assert len(shortest_cycle(graph)) == size


# Waiters behind a core


@given(st.one_of(graphs(), chains()), st.sets(st.integers(0, 5)))
@hundreds
def test_waiters_behind_a_core_are_all_vertices_with_a_path_to_it(waits: GraphBuilder, those: set[int]) -> None:
    graph = stuck_graph_of(waits)
    those &= set(graph)

    assert behind(graph, those) == set().union(*(nx.ancestors(as_networkx(graph), vertex) for vertex in those)) - those
