"""The waiters and the final blockers of each open chain, compared with the plain definition."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.solve.open_chains import MAX_RANKED, open_chains
from dstack.model.diagnosis import FinalBlocker, Group, Target, Vertex, Wait
from dstack.model.vertex_facts import subject
from dstack.model.vertex_keys import Key, TaskKey
from tests.fuzzing.effort import examples

GraphBuilder = dict[Key, list[Key]]

keys: st.SearchStrategy[Key] = st.sampled_from([TaskKey(name) for name in "abcdefgh"])
graphs = st.dictionaries(keys, st.lists(keys, min_size=1, max_size=3), max_size=8)


def vertices_of(graph: GraphBuilder) -> dict[Key, Vertex]:
    names = {*graph, *(target for targets in graph.values() for target in targets)}
    return {
        name: Vertex(
            key=name,
            kind="task",
            subject=subject("named", str(name)),
            wait=wait_for(graph[name]) if name in graph else None,
        )
        for name in sorted(names, key=str)
    }


def wait_for(targets: list[Key]) -> Wait:
    return Wait(kind="ray.get", groups=(Group(needs=1, targets=tuple(Target(vertex=target) for target in targets)),))


@given(graphs, st.sets(keys))
@examples(300)
def test_chains_are_connected_vertices_and_their_ends_have_no_wait(graph: GraphBuilder, stuck: set[Key]) -> None:
    edges = [(key, target) for key in graph.keys() - stuck for target in graph[key] if target not in stuck]
    waits_for: nx.DiGraph[Key] = nx.DiGraph(edges)

    chains = open_chains(vertices_of(graph), stuck)

    expected = []
    for chain in nx.weakly_connected_components(waits_for):
        blockers = {
            FinalBlocker(
                vertex=end,
                waiters_direct=waits_for.in_degree(end),
                waiters_total=len(nx.ancestors(waits_for, end)),
            )
            for end in chain
            if not waits_for.out_degree(end)
        }
        expected.append((sorted((key for key in chain if waits_for.out_degree(key)), key=str), blockers))
    assert {tuple(chain.waiters) for chain in chains} == {tuple(waiters) for waiters, _ in expected}
    assert all((chain.waiters, set(chain.blockers)) in expected for chain in chains)


@given(graphs)
@examples(100)
def test_the_longest_chain_and_the_most_waited_for_come_first(graph: GraphBuilder) -> None:
    chains = open_chains(vertices_of(graph), set())

    lengths = [len(chain.waiters) for chain in chains]
    assert lengths == sorted(lengths, reverse=True)
    for chain in chains:
        ranks = [(blocker.waiters_total, blocker.waiters_direct) for blocker in chain.blockers]
        assert ranks == sorted(ranks, reverse=True)


def test_of_very_many_ends_the_most_waited_for_are_ranked() -> None:
    ends: list[Key] = [TaskKey(f"end{number:02}") for number in range(3 * MAX_RANKED)]
    graph: GraphBuilder = {TaskKey("all"): ends, TaskKey("other"): [ends[-2]]}
    graph |= {TaskKey(f"fan{number}"): [ends[-1]] for number in range(4)}

    (chain,) = open_chains(vertices_of(graph), set())

    assert len(chain.blockers) == MAX_RANKED
    assert [(blocker.vertex, blocker.waiters_total) for blocker in chain.blockers[:3]] == [
        (ends[-1], 5),
        (ends[-2], 2),
        (ends[0], 1),
    ]


def test_layers_that_all_wait_for_all_are_ranked_at_once() -> None:
    layers: list[list[Key]] = [[TaskKey(f"{layer}/{number}") for number in range(100)] for layer in range(50)]
    graph = {key: below for above, below in pairwise(layers) for key in above}

    (chain,) = open_chains(vertices_of(graph), set())

    assert len(chain.waiters) == 4900
    assert {blocker.waiters_total for blocker in chain.blockers} == {4900}
