"""The chain of waits that a diagram draws, compared with networkx."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.findings.finding_facts import longest_chain
from dstack.model.diagnosis import Group, Target, Vertex, Wait
from dstack.model.vertex_facts import subject
from dstack.model.vertex_keys import Key, TaskKey
from tests.fuzzing.effort import examples

END = 0
SIZE = 8


def key_of(number: int) -> Key:
    return TaskKey(f"{number:048x}")


def vertices_of(edges: set[tuple[int, int]]) -> dict[Key, Vertex]:
    found: dict[Key, Vertex] = {}
    for number in range(SIZE):
        targets = tuple(Target(vertex=key_of(to)) for one, to in sorted(edges) if one == number)
        wait = Wait(kind="ray.get", groups=(Group(needs=1, targets=targets),)) if targets else None
        found[key_of(number)] = Vertex(
            key=key_of(number), kind="task", subject=subject("named", str(number)), wait=wait
        )
    return found


def numbers_of(path: Iterable[Key]) -> list[int]:
    return [next(number for number in range(SIZE) if key_of(number) == key) for key in path]


number = st.integers(0, SIZE - 1)
edges_of = st.sets(st.tuples(number.filter(bool), number).filter(lambda edge: edge[0] != edge[1]), max_size=20)


@given(edges_of, st.sets(number))
@examples(300)
def test_the_path_leads_from_the_farthest_waiter_in_user_code_by_the_fewest_waits(
    edges: set[tuple[int, int]], users: set[int]
) -> None:
    vertices = vertices_of(edges)
    graph = nx.DiGraph(edges)
    graph.add_node(END)
    distance = nx.single_source_shortest_path_length(graph.reverse(), END)

    path = longest_chain(vertices, vertices, key_of(END), {key_of(one) for one in users}.__contains__)

    numbers = numbers_of(path)
    assert numbers[-1] == END
    assert edges.issuperset(pairwise(numbers))
    assert len(numbers) - 1 == distance[numbers[0]]
    own = [distance[one] for one in distance if one in users and one != END]
    assert distance[numbers[0]] == max(own or distance.values())
    assert numbers[0] in users or not own


def test_the_path_avoids_machinery_of_libraries() -> None:
    vertices = vertices_of({(1, 2), (2, END), (1, 3), (3, 4), (4, 5), (5, END)})

    path = longest_chain(vertices, vertices, key_of(END), {key_of(1)}.__contains__, {key_of(2)}.__contains__)

    assert numbers_of(path) == [1, 3, 4, 5, END]
