"""The rows of the table of calls: each caller, what it calls, and by which methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from dstack.analysis.history.call_figures import Figures
from dstack.analysis.history.call_nodes import NodeKey
from dstack.analysis.views.call_graph import CallEdge, CallGraph, is_frequent
from dstack.report.call_columns import COLUMNS, edge_title, node_title
from dstack.words import size

MAX_CALLERS, MAX_EDGES, MAX_METHODS = 60, 20, 8
HEADS: Mapping[str, str] = {"pend": "pending", "run": "running", "fail": "failed"}
Level = Literal["caller", "edge", "method"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure, with the head of its column."""

    head: str
    text: str


@dataclass(frozen=True, slots=True)
class CallRow:
    """A caller, an edge from it, or a method of the edge; a ``remark`` is shown instead of figures."""

    level: Level
    name: str
    cells: tuple[Cell, ...] = ()
    remark: str = ""
    anchor: str = ""
    is_failed: bool = False
    is_frequent: bool = False


@dataclass(frozen=True, slots=True)
class CallTable:
    """The rows and the heads of their figures; ``left_out`` callers have none."""

    heads: tuple[str, ...]
    rows: tuple[CallRow, ...]
    anchors: Mapping[NodeKey, str]
    left_out: int


def call_rows(graph: CallGraph) -> CallTable:
    """The table of a graph, in the order of the text."""
    callers = [node.key for node in graph.nodes if graph.edges_of.get(node.key)]
    anchors = {key: f"calls-{number}" for number, key in enumerate(callers[:MAX_CALLERS])}
    rows = tuple(row for key, anchor in anchors.items() for row in _caller(graph, key, anchor))
    return CallTable(tuple(map(_head, (column.name for column in COLUMNS))), rows, anchors, len(callers) - len(anchors))


def _head(name: str) -> str:
    return HEADS.get(name, name)


def _caller(graph: CallGraph, key: NodeKey, anchor: str) -> Iterator[CallRow]:
    put = graph.node[key].put_bytes
    remark = f"{size(put)} alive by ray.put" if put else ""
    yield CallRow("caller", node_title(graph, key), remark=remark, anchor=anchor)
    edges = graph.edges_of[key]
    for edge in edges[:MAX_EDGES]:
        yield from _edge(graph, edge)
    if rest := edges[MAX_EDGES:]:
        calls = sum(edge.figures.attempts for edge in rest)
        yield CallRow("edge", f"and {len(rest):,} more", remark=f"{calls:,} calls")


def _edge(graph: CallGraph, edge: CallEdge) -> Iterator[CallRow]:
    methods = edge.methods if edge.target.kind == "actor" and len(edge.methods) > 1 else ()
    figures = edge.figures
    yield CallRow(
        "edge",
        edge_title(graph, edge),
        _cells(figures),
        is_failed=figures.failed > 0,
        is_frequent=is_frequent(figures),
    )
    for one in methods[:MAX_METHODS]:
        yield CallRow("method", f".{one.method}", _cells(one.figures))
    if rest := methods[MAX_METHODS:]:
        calls = sum(one.figures.attempts for one in rest)
        yield CallRow("method", f"and {len(rest):,} more", remark=f"{calls:,} calls")


def _cells(figures: Figures) -> tuple[Cell, ...]:
    return tuple(Cell(_head(column.name), column.text(figures)) for column in COLUMNS)
