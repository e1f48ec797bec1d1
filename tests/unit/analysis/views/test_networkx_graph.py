"""The public form of the wait-for graph: networkx finds in it what the diagnosis reports."""

from __future__ import annotations

import io

import networkx as nx
import pytest

import dstack
from dstack.analysis.diagnose import diagnose
from dstack.model.diagnosis import Diagnosis
from tests.examples.recorded import NAMES, recorded


def diagnosis_of(name: str) -> Diagnosis:
    return diagnose(dstack.load(recorded(name)))


def test_a_deadlock_of_two_actors_is_a_cycle_of_the_graph() -> None:
    diagnosis = diagnosis_of("two_actors")
    graph = dstack.to_networkx(diagnosis)

    (cycle,) = nx.simple_cycles(graph)

    (finding,) = diagnosis.findings
    assert set(cycle) == set(map(str, finding.cycle))
    assert {graph.nodes[key]["label"] for key in cycle} == {"Cashier.order", "Kitchen.cook", "Cashier.is_paid"}


def test_groups_say_how_many_of_their_targets_a_wait_needs() -> None:
    graph = dstack.to_networkx(diagnosis_of("look_alikes/first_of_two_awaited"))

    needed = {(key, data["group"], data["needs"]) for key, _, data in graph.edges(data=True)}

    assert any(sum(1 for _, _, edge in graph.out_edges(key, data=True)) > needs for key, _, needs in needed)


@pytest.mark.parametrize("name", NAMES[::10])
def test_each_dependency_is_an_edge_and_the_graph_can_be_exported(name: str) -> None:
    diagnosis = diagnosis_of(name)
    graph = dstack.to_networkx(diagnosis)

    waits = [vertex.wait for vertex in diagnosis.vertices.values() if vertex.wait]
    assert graph.number_of_edges() == sum(len(group.targets) for wait in waits for group in wait.groups)
    assert set(graph) == set(map(str, diagnosis.vertices))
    assert nx.read_graphml(graphml(graph), force_multigraph=True).nodes.keys() == graph.nodes.keys()


def graphml(graph: nx.MultiDiGraph[str]) -> io.BytesIO:
    file = io.BytesIO()
    nx.write_graphml_xml(graph, file)
    file.seek(0)
    return file
