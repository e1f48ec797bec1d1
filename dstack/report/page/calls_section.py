"""The call graph, drawn from left to right with the waits over it, and its table of calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import log10
from typing import Literal

from dstack.analysis.history.call_nodes import NodeKey, NodeKind, NodeWait
from dstack.analysis.views.call_graph import CallEdge, CallFigures, CallGraph, CallNode, NodeTraffic
from dstack.model.vertex_keys import Key
from dstack.report import calls_text
from dstack.report.graph_svg import BoxStyle, Drawing, GraphBox, GraphLink, LinkStyle
from dstack.report.page.section import ReportData, Section, graph_body
from dstack.report.profile_text import passed
from dstack.words import plural, size

MAX_CALLERS, MAX_CALLED, MAX_METHODS = 60, 20, 8
HEADS: Mapping[str, str] = {"pend": "pending", "run": "running", "fail": "failed"}
Level = Literal["caller", "edge", "method"]
KEY = "calls"
MAX_NODES, MAX_EDGES, MAX_WAITS = 80, 120, 40
SHOWN_METHODS = 12
NODES: Mapping[NodeKind, tuple[str, BoxStyle]] = {
    "driver": ("driver", BoxStyle("info")),
    "actor": ("actors of a class", BoxStyle("dim")),
    "function": ("function", BoxStyle("good")),
    "unknown": ("unknown caller", BoxStyle("bare", is_dotted=True)),
}
DEADLOCKED = BoxStyle("bad", 2.5)
LABEL = BoxStyle("bare", 0.0)
LINKS: Mapping[str, LinkStyle] = {
    "calls": LinkStyle("dim"),
    "calls, some failed": LinkStyle("warn"),
    "calls at a high rate": LinkStyle("often"),
    "waits": LinkStyle("bad", 1.4, "9 5"),
    "waits in a deadlock": LinkStyle("bad", 3.2, "9 5"),
    "may wait": LinkStyle("bad", 1.4, "2 4"),
    "data that passed": LinkStyle("info", 1.4, "6 3"),
}


@dataclass(frozen=True, slots=True)
class CallTableRow:
    """A caller, an edge from it, or a method of the edge; a ``remark`` is shown instead of figures."""

    level: Level
    name: str
    cells: tuple[str, ...] = ()
    remark: str = ""
    anchor: str = ""
    is_failed: bool = False


@dataclass(frozen=True, slots=True)
class CallTable:
    """The rows and the heads of their figures; ``left_out`` callers have none."""

    heads: tuple[str, ...]
    rows: tuple[CallTableRow, ...]
    anchors: Mapping[NodeKey, str]
    left_out: int


def call_rows(graph: CallGraph) -> CallTable:
    """The table of a graph, in the order of the text."""
    callers = [node.key for node in graph.nodes if graph.edges_of.get(node.key)]
    anchors = {key: f"calls-{number}" for number, key in enumerate(callers[:MAX_CALLERS])}
    heads = tuple(HEADS.get(column.name, column.name) for column in calls_text.COLUMNS)
    rows = tuple(row for key, anchor in anchors.items() for row in _caller(graph, key, anchor))
    return CallTable(heads, rows, anchors, len(callers) - len(anchors))


def _caller(graph: CallGraph, key: NodeKey, anchor: str) -> Iterator[CallTableRow]:
    put = graph.node[key].put_bytes
    remark = f"{size(put)} alive by ray.put" if put else ""
    yield CallTableRow("caller", calls_text.node_title(graph, key), remark=remark, anchor=anchor)
    edges = graph.edges_of[key]
    for edge in edges[:MAX_CALLED]:
        yield from _edge(graph, edge)
    if rest := edges[MAX_CALLED:]:
        calls = sum(edge.figures.attempts for edge in rest)
        yield CallTableRow("edge", f"and {len(rest):,} more", remark=f"{calls:,} calls")


def _edge(graph: CallGraph, edge: CallEdge) -> Iterator[CallTableRow]:
    methods = edge.methods if edge.target.kind == "actor" and len(edge.methods) > 1 else ()
    figures = edge.figures
    yield CallTableRow("edge", calls_text.edge_title(graph, edge), _cells(figures), is_failed=figures.failed > 0)
    for one in methods[:MAX_METHODS]:
        yield CallTableRow("method", f".{one.method}", _cells(one.figures))
    if rest := methods[MAX_METHODS:]:
        calls = sum(one.figures.attempts for one in rest)
        yield CallTableRow("method", f"and {len(rest):,} more", remark=f"{calls:,} calls")


def _cells(figures: CallFigures) -> tuple[str, ...]:
    return tuple(column.text(figures) for column in calls_text.COLUMNS)


def section(data: ReportData) -> Section | None:
    """The graph by class; None without a history and without calls."""
    graph = CallGraph.of(data.analysed, job=data.analysed.diagnosis.job)
    if not graph.edges and not data.analysed.snapshot.history:
        return None
    table = call_rows(graph)
    body = graph_body(
        "calls.html",
        drawing(graph, table.anchors, data.stack_ids),
        summary=calls_text.summary(graph),
        waits=[(calls_text.wait_mark(wait)[0], calls_text.wait_in_words(graph, wait), calls_text.wait_outcome(wait))
               for wait in graph.waits[:calls_text.SHOWN_WAITS]],
        more_waits=len(graph.waits) - calls_text.SHOWN_WAITS,
        table=table,
        remarks=[*calls_text.legend(graph), *calls_text.remarks(graph)],
    )  # fmt: skip
    return Section(KEY, "Calls", body, script="graph.js")


def drawing(graph: CallGraph, anchors: Mapping[NodeKey, str] = {}, stacks: Mapping[Key, str] = {}) -> Drawing:
    """The calls and the waits; ``anchors`` and ``stacks`` are the ids of the elements that show more of them."""
    waits = [wait for wait in graph.waits if wait.source != wait.target][:MAX_WAITS]
    edges = sorted(graph.edges, key=lambda edge: -edge.figures.attempts)
    chosen: dict[NodeKey, None] = dict.fromkeys(key for wait in waits for key in (wait.source, wait.target))
    shown: list[CallEdge] = []
    for edge in edges:
        ends = {edge.source, edge.target}
        if len(shown) < MAX_EDGES and len(chosen.keys() | ends) <= MAX_NODES:
            chosen |= dict.fromkeys(ends)
            shown += [edge] if len(ends) > 1 else []
    nodes = [node for node in graph.nodes if node.key in chosen]
    order = {node.key: number for number, node in enumerate(nodes)}
    shown.sort(key=lambda edge: (order[edge.source], order[edge.target]))
    lines: list[tuple[CallEdge | NodeWait | NodeTraffic, GraphBox, LinkStyle]] = [
        *((edge, _edge_label(graph, edge, anchors.get(edge.source)), _edge_style(edge)) for edge in shown),
        *((wait, _wait_label(graph, wait, stacks), _wait_style(wait)) for wait in waits),
        *(
            (one, _traffic_label(graph, one), LINKS["data that passed"])
            for one in graph.traffic
            if {one.source, one.target} <= order.keys() and one.source != one.target
        ),
    ]
    boxes = [_node(graph, node, anchors.get(node.key)) for node in nodes]
    links: list[GraphLink] = []
    for number, (line, label, style) in enumerate(lines, start=len(boxes)):
        links += [
            GraphLink(order[line.source], number, style, label.tip, has_head=False),
            GraphLink(number, order[line.target], style, label.tip),
        ]
    kinds, styles = {node.key.kind for node in nodes}, {box.style for box in boxes}
    names = [(text, style) for kind, (text, style) in NODES.items() if kind in kinds and style in styles]
    drawn = {_sign(link.style) for link in links}
    return Drawing(
        KEY,
        [*boxes, *(label for _, label, _ in lines)],
        links,
        names + ([("✖ in a deadlock", DEADLOCKED)] if DEADLOCKED in styles else []),
        [(text, style) for text, style in LINKS.items() if _sign(style) in drawn],
        list(_left_out(graph, len(nodes), len(shown), len(waits))),
    )


def _sign(style: LinkStyle) -> tuple[str, str, float]:
    """What tells links apart; the width of calls is their number."""
    return style.tone, style.dashes, style.width if style.dashes else 0.0


def _left_out(graph: CallGraph, nodes: int, edges: int, waits: int) -> Iterator[str]:
    between = sum(edge.source != edge.target for edge in graph.edges) - edges
    waiting = sum(wait.source != wait.target for wait in graph.waits) - waits
    counts = ((len(graph.nodes) - nodes, "box", "boxes"), (between, "arrow", "arrows"), (waiting, "wait", "waits"))
    parts = [plural(count, one, many) for count, one, many in counts if count > 0]
    if parts:
        yield f"Not drawn: {', '.join(parts)}. The most frequent calls are drawn."


def _node(graph: CallGraph, node: CallNode, anchor: str | None) -> GraphBox:
    own_calls = [edge for edge in graph.edges_of.get(node.key, ()) if edge.target == node.key]
    own_waits = [wait for wait in graph.waits_of.get(node.key, ()) if wait.target == node.key]
    is_stuck = any(wait.deadlocked and node.key in (wait.source, wait.target) for wait in graph.waits)
    lines = [f"{size(node.put_bytes)} alive by ray.put"] if node.put_bytes else []
    lines += [f"calls itself: {', '.join(calls_text.edge_lines(edge)[:1])}" for edge in own_calls]
    lines += [
        f"{calls_text.waits_for(wait)} itself: {calls_text.wait_outcome(wait) or plural(wait.count, 'wait')}"
        for wait in own_waits
    ]
    title = calls_text.node_title(graph, node.key)
    made = graph.made.get(node.key)
    tip = [title, f"makes {plural(made.attempts, 'call')}" if made else "makes no calls"]
    tip += lines[:1] if node.put_bytes else []
    tip += [f"calls itself: {', '.join(calls_text.edge_lines(edge))}" for edge in own_calls]
    tip += [calls_text.own_wait(graph, wait) for wait in own_waits]
    tip += ["Click: its calls in the table"] if anchor else []
    mark = "✖ " if is_stuck else ""
    return GraphBox(
        f"{mark}{title}", tuple(lines), "\n".join(tip), DEADLOCKED if is_stuck else NODES[node.key.kind][1], anchor
    )


def _edge_label(graph: CallGraph, edge: CallEdge, anchor: str | None) -> GraphBox:
    first, *rest = calls_text.edge_lines(edge)
    tip = [
        f"{calls_text.node_title(graph, edge.source)} calls {calls_text.node_title(graph, edge.target)}",
        first,
        *rest[1:],
    ]
    for one in edge.methods[:SHOWN_METHODS]:
        states = {"failed": one.figures.failed, "running": one.figures.running, "pending": one.figures.pending}
        parts = [
            plural(one.figures.attempts, "call"),
            *(f"{count:,} {name}" for name, count in states.items() if count),
        ]
        tip.append(f"  {one.method}: {', '.join(parts)}")
    if more := edge.methods[SHOWN_METHODS:]:
        tip.append(f"  and {plural(len(more), 'more method')}")
    return GraphBox(first, tuple(rest), "\n".join(tip), LABEL, anchor)


def _edge_style(edge: CallEdge) -> LinkStyle:
    style = LINKS["calls, some failed" if edge.figures.failed else
                  "calls at a high rate" if edge.figures.is_frequent else "calls"]  # fmt: skip
    return replace(style, width=1.0 + 0.6 * log10(max(1, edge.figures.attempts)))


def _wait_label(graph: CallGraph, wait: NodeWait, stacks: Mapping[Key, str]) -> GraphBox:
    first, *rest = calls_text.wait_lines(wait)
    mark, _ = calls_text.wait_mark(wait)
    stack = next((stacks[key] for key in wait.waiters if key in stacks), None)
    tip = [calls_text.wait_in_words(graph, wait), *rest, "Click: the stack of a waiter" if stack else "No stack"]
    return GraphBox(f"{mark} {first}", tuple(rest), "\n".join(tip), LABEL, stack)


def _traffic_label(graph: CallGraph, traffic: NodeTraffic) -> GraphBox:
    data = passed(traffic.objects, traffic.bytes)
    tip = (
        f"{data} from {calls_text.node_title(graph, traffic.source)} to {calls_text.node_title(graph, traffic.target)}"
    )
    return GraphBox(data, (), tip, LABEL)


def _wait_style(wait: NodeWait) -> LinkStyle:
    if wait.is_inferred:
        return LINKS["may wait"]
    return LINKS["waits in a deadlock" if wait.deadlocked else "waits"]
