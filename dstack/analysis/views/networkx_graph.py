"""The wait-for graph of a diagnosis as a networkx graph, for programs that search, draw or export it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstack.analysis.naming.descriptions import describe
from dstack.model.diagnosis import Diagnosis, Vertex

if TYPE_CHECKING:
    import networkx as nx


def to_networkx(diagnosis: Diagnosis) -> nx.MultiDiGraph[str]:
    """The wait-for graph: an edge from each waiter to each of its dependencies.

    Nodes are the stable text of vertex keys, as in ``check --json``. Their attributes are ``label`` and ``kind``, and
    of waiters ``wait`` (the kind of wait), ``evidence`` and ``timeout_s`` if there is one. Edges have ``group``, the
    number of the group of dependencies, and ``needs``: how many of that group the wait needs. A cycle alone is no
    deadlock if a group needs fewer than all; the deadlocks are in ``diagnosis.findings``.
    """
    import networkx as nx  # takes 0.1 s

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    for key, vertex in diagnosis.vertices.items():
        graph.add_node(str(key), **_attributes(vertex))
    for key, vertex in diagnosis.vertices.items():
        for number, group in enumerate(vertex.wait.groups if vertex.wait else ()):
            targets = [str(target.vertex) for target in group.targets]
            graph.add_edges_from((str(key), target, {"group": number, "needs": group.needs}) for target in targets)
    return graph


def _attributes(vertex: Vertex) -> dict[str, str | float]:
    """Only values that formats such as GraphML can hold: no None."""
    attributes: dict[str, str | float] = {"label": describe(vertex), "kind": vertex.kind}
    if vertex.wait is not None:
        attributes |= {"wait": vertex.wait.kind, "evidence": vertex.wait.evidence}
        if vertex.wait.timeout_s is not None:
            attributes["timeout_s"] = vertex.wait.timeout_s
    return attributes
