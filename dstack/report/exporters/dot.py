"""A call graph in Graphviz's DOT language.

Calls are solid edges and waits dashed red ones, bold in a deadlock, and dotted if they are only inferred.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log10

from graphviz import Digraph
from graphviz.quoting import NoHtml

from dstack.analysis.history.call_nodes import NodeKind, NodeWait
from dstack.analysis.views.call_graph import CallEdge, CallGraph, CallNode
from dstack.report.calls_text import edge_lines, node_title, remarks, summary, wait_lines
from dstack.words import size, visible

SHAPES: Mapping[NodeKind, Mapping[str, str]] = {
    "driver": {"shape": "box", "style": "filled", "fillcolor": "#e6eef7"},
    "actor": {"shape": "box", "style": "rounded"},
    "function": {"shape": "ellipse"},
    "unknown": {"shape": "ellipse", "style": "dotted"},
}
LONGEST_LINE, LONGEST_TITLE = 60, 200
WAIT_COLOUR, DEADLOCK_COLOUR, FAILED_COLOUR, FREQUENT_COLOUR = "#d9534f", "#c00000", "#b35900", "#7a4fb5"


def dot(graph: CallGraph) -> bytes:
    """The graph in DOT, for ``dot -Tsvg``; edges are the wider, the more calls they have."""
    drawing = Digraph(
        "calls",
        graph_attr={
            "rankdir": "LR",
            "label": _label([summary(graph), *remarks(graph)], longest_line=LONGEST_TITLE),
            "labelloc": "t",
            "fontname": "Helvetica",
        },
        node_attr={"fontname": "Helvetica"},
        edge_attr={"fontname": "Helvetica", "fontsize": "10", "color": "#555555"},
    )
    names = {node.key: f"n{number}" for number, node in enumerate(graph.nodes)}
    stuck = {key for wait in graph.waits if wait.deadlocked for key in (wait.source, wait.target)}
    for node in graph.nodes:
        drawing.node(names[node.key], **_node(graph, node, is_stuck=node.key in stuck))
    for edge in graph.edges:
        drawing.edge(names[edge.source], names[edge.target], **_edge(edge))
    called = {(edge.source, edge.target) for edge in graph.edges}
    for wait in graph.waits:
        is_call = (wait.source, wait.target) in called
        drawing.edge(names[wait.source], names[wait.target], **_wait(wait, constrains=is_call))
    return str(drawing.source).encode()


def _node(graph: CallGraph, node: CallNode, *, is_stuck: bool) -> dict[str, str]:
    lines = [node_title(graph, node.key)]
    if node.put_bytes:
        lines.append(f"{size(node.put_bytes)} alive by ray.put")
    attributes = {"label": _label(lines), **SHAPES[node.key.kind]}
    return attributes | ({"color": DEADLOCK_COLOUR, "penwidth": "2"} if is_stuck else {})


def _edge(edge: CallEdge) -> dict[str, str]:
    figures = edge.figures
    attributes = {"label": _label(edge_lines(edge)), "penwidth": f"{1 + log10(max(1, figures.attempts)):.1f}"}
    if figures.failed:
        attributes |= {"color": FAILED_COLOUR, "fontcolor": FAILED_COLOUR}
    elif figures.is_frequent:
        attributes |= {"color": FREQUENT_COLOUR, "fontcolor": FREQUENT_COLOUR}
    return attributes


def _wait(wait: NodeWait, *, constrains: bool) -> dict[str, str]:
    """The attributes of a wait; it ``constrains`` the order of the nodes if there are calls of the same direction."""
    is_deadlock = wait.deadlocked > 0
    colour = DEADLOCK_COLOUR if is_deadlock else WAIT_COLOUR
    return {
        "label": _label(wait_lines(wait)),
        "style": f"{'dotted' if wait.is_inferred else 'dashed'}{',bold' if is_deadlock else ''}",
        "penwidth": "3" if is_deadlock else "1.5",
        "color": colour,
        "fontcolor": colour,
        "constraint": "true" if constrains else "false",
    }


def _label(lines: list[str], longest_line: int = LONGEST_LINE) -> str:
    """A label of these lines; text from the cluster is neither an escape sequence nor HTML."""
    shown = [visible(line) for line in lines if line]
    cut = [line if len(line) <= longest_line else f"{line[: longest_line - 1]}…" for line in shown]
    label: str = NoHtml("\\n".join(line.replace("\\", "\\\\") for line in cut))
    return label
