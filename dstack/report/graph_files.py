"""A call graph for other programs: JSON, and Graphviz's DOT language.

The JSON is what ``dstack graph --format json`` prints, schema ``dstack.graph/1``. Fields are only ever added to it:
readers must ignore fields that they do not know. In DOT, calls are solid edges and waits dashed red ones, bold in a
deadlock, and dotted if they are only inferred. Data that passed while a profile ran is blue.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import log10
from typing import Annotated, Literal, TypedDict

import msgspec
from msgspec import Meta

from dstack.analysis.history.call_nodes import By, NodeKind, NodeWait
from dstack.analysis.views.call_graph import CallEdge, CallFigures, CallGraph, CallNode, NodeTraffic
from dstack.files.document_file import to_json
from dstack.report.calls_text import edge_lines, node_title, remarks, summary, wait_lines
from dstack.report.check_schema import Json
from dstack.report.profile_text import passed
from dstack.words import size, visible

SHAPES: Mapping[NodeKind, Mapping[str, str]] = {
    "driver": {"shape": "box", "style": "filled", "fillcolor": "#e6eef7"},
    "actor": {"shape": "box", "style": "rounded"},
    "function": {"shape": "ellipse"},
    "unknown": {"shape": "ellipse", "style": "dotted"},
}
DOT_ID = re.compile(r"(?!(?:node|edge|graph|digraph|subgraph|strict)$)[a-z_]\w*|-?(?:\.\d+|\d+(?:\.\d*)?)", re.A | re.I)
"""What DOT reads without quotes."""
LONGEST_LINE, LONGEST_TITLE = 60, 200
WAIT_COLOUR, DEADLOCK_COLOUR, FAILED_COLOUR, FREQUENT_COLOUR = "#d9534f", "#c00000", "#b35900", "#7a4fb5"
DATA_COLOUR = "#0b57b0"


class DocumentFigures(TypedDict):
    """Counts and durations of calls."""

    attempts: Annotated[int, Meta(description="Number of calls, with retries")]
    tasks: Annotated[int, Meta(description="Number of calls, without retries")]
    pending: int
    running: int
    finished: int
    failed: Annotated[int, Meta(description="Number of failed attempts")]
    mean_s: Annotated[float | None, Meta(description="Mean duration of the attempts that ended; null if unknown")]
    max_s: Annotated[float | None, Meta(description="Longest duration; null if unknown")]
    max_is_open: Annotated[bool, Meta(description="The attempt with the longest duration still runs")]
    per_s: Annotated[
        float | None, Meta(description="Calls per second between the first and the last, of the most frequent method")
    ]
    first_at: Annotated[float | None, Meta(description="When the first known call was submitted, in Unix seconds")]
    last_at: Annotated[float | None, Meta(description="When the last known call was submitted, in Unix seconds")]
    live_bytes: Annotated[int, Meta(description="Size of the live objects that the tasks have made")]


class DocumentMethod(DocumentFigures):
    """The calls of one method on an edge; a function is its own method."""

    name: str


class DocumentEdge(DocumentFigures):
    """All calls from one node to another."""

    source: Annotated[str, Meta(description="Id of the node that calls")]
    target: Annotated[str, Meta(description="Id of the called node")]
    methods: Annotated[list[DocumentMethod], Meta(description="Most calls first")]


class DocumentNode(TypedDict):
    """What calls or is called: a driver, a function, an actor class or an actor."""

    id: Annotated[str, Meta(description="The same in all graphs of one cluster")]
    kind: NodeKind
    title: Annotated[str, Meta(description="Text for people; the wording may change")]
    name: Annotated[str, Meta(description="Name of the class or function; empty for others")]
    job_id: str | None
    actor_id: Annotated[str | None, Meta(description="Id of an actor, with --by instance")]
    instances: Annotated[int, Meta(description="Number of actors of the class in this graph")]
    level: Annotated[int, Meta(description="Length of the longest way to it from a node that is not called")]
    put_bytes: Annotated[int, Meta(description="Size of the live objects that it has made by ray.put")]


class DocumentNodeWait(TypedDict):
    """The waits of one node for another or for itself, when the snapshot was taken."""

    source: Annotated[str, Meta(description="Id of the node that waits")]
    target: Annotated[str, Meta(description="Id of the node that it waits for")]
    count: Annotated[int, Meta(description="Number of waiters")]
    deadlocked: Annotated[int, Meta(description="Waiters in a deadlock with the target")]
    blocked: Annotated[int, Meta(description="Other waiters that can never proceed")]
    kinds: Annotated[dict[str, int], Meta(description="Number of waiters by call")]
    inferred: Annotated[bool, Meta(description="The target is only one of several that they may wait for")]


class DocumentTraffic(TypedDict):
    """The objects that one node got from another one while a profile ran."""

    source: Annotated[str, Meta(description="Id of the node that made them")]
    target: Annotated[str, Meta(description="Id of the node that got them")]
    objects: Annotated[int, Meta(description="Number of objects, a lower bound")]
    bytes: Annotated[int, Meta(description="Their size together, a lower bound")]


class DocumentHistory(TypedDict):
    """The extent of the history of tasks."""

    began_at: Annotated[float, Meta(description="The first time in it, in Unix seconds")]
    requested_at: Annotated[float, Meta(description="When it was requested, in Unix seconds")]
    left_out: Annotated[int, Meta(description="Older attempts that Ray keeps, but were not requested")]
    dropped: Annotated[int, Meta(description="Attempts whose events Ray has dropped")]


class GraphDocument(TypedDict):
    """What ``dstack graph --format json`` prints."""

    schema: Literal["dstack.graph/1"]
    taken_at: Annotated[float, Meta(description="When the snapshot was taken, in Unix seconds")]
    by: By
    job: Annotated[str | None, Meta(description="Id of the only job, with --job")]
    history: Annotated[DocumentHistory | None, Meta(description="null if only unfinished calls are known")]
    nodes: Annotated[list[DocumentNode], Meta(description="Callers before what they call, as far as possible")]
    edges: list[DocumentEdge]
    waits: Annotated[list[DocumentNodeWait], Meta(description="Deadlocks first")]
    traffic: Annotated[list[DocumentTraffic], Meta(description="Most bytes first; empty without --profile")]
    other_bytes: Annotated[int, Meta(description="Live objects of tasks that are not in the graph")]


def graph_schema() -> Json:
    """The JSON Schema of ``dstack.graph/1``."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(GraphDocument)}


def graph_json(graph: CallGraph, taken_at: float) -> bytes:
    """The graph as JSON, indented, with a newline at its end."""
    document: GraphDocument = {
        "schema": "dstack.graph/1",
        "taken_at": taken_at,
        "by": graph.by,
        "job": graph.job,
        "history": _history(graph),
        "nodes": [_node(node) for node in graph.nodes],
        "edges": [_edge(edge) for edge in graph.edges],
        "waits": [_wait(wait) for wait in graph.waits],
        "traffic": [_traffic(one) for one in graph.traffic],
        "other_bytes": graph.other_bytes,
    }
    return msgspec.json.format(to_json(document), indent=2) + b"\n"


def _history(graph: CallGraph) -> DocumentHistory | None:
    if graph.began_at is None or graph.ended_at is None:
        return None
    return {
        "began_at": graph.began_at,
        "requested_at": graph.ended_at,
        "left_out": graph.left_out,
        "dropped": graph.dropped,
    }


def _node(node: CallNode) -> DocumentNode:
    key = node.key
    return {
        "id": str(key),
        "kind": key.kind,
        "title": node.title,
        "name": key.name,
        "job_id": key.job_id or None,
        "actor_id": key.actor_id or None,
        "instances": node.instances,
        "level": node.level,
        "put_bytes": node.put_bytes,
    }


def _edge(edge: CallEdge) -> DocumentEdge:
    return {
        "source": str(edge.source),
        "target": str(edge.target),
        **_figures(edge.figures),
        "methods": [{"name": one.method, **_figures(one.figures)} for one in edge.methods],
    }


def _figures(figures: CallFigures) -> DocumentFigures:
    return {
        "attempts": figures.attempts,
        "tasks": figures.tasks,
        "pending": figures.pending,
        "running": figures.running,
        "finished": figures.finished,
        "failed": figures.failed,
        "mean_s": figures.mean_s,
        "max_s": figures.max_s,
        "max_is_open": figures.is_max_open,
        "per_s": figures.per_s,
        "first_at": figures.first_at,
        "last_at": figures.last_at,
        "live_bytes": figures.live_bytes,
    }


def _wait(wait: NodeWait) -> DocumentNodeWait:
    return {
        "source": str(wait.source),
        "target": str(wait.target),
        "count": wait.count,
        "deadlocked": wait.deadlocked,
        "blocked": wait.blocked,
        "kinds": dict(wait.kinds),
        "inferred": wait.is_inferred,
    }


def _traffic(one: NodeTraffic) -> DocumentTraffic:
    return {"source": str(one.source), "target": str(one.target), "objects": one.objects, "bytes": one.bytes}


def dot(graph: CallGraph) -> bytes:
    """The graph in DOT, for ``dot -Tsvg``; edges are the wider, the more calls they have."""
    names = {node.key: f"n{number}" for number, node in enumerate(graph.nodes)}
    title = _label([summary(graph), *remarks(graph)], longest_line=LONGEST_TITLE)
    stuck = {key for wait in graph.waits if wait.deadlocked for key in (wait.source, wait.target)}
    called = {(edge.source, edge.target) for edge in graph.edges}
    head = [
        f"graph [fontname=Helvetica label={_quoted(title)} labelloc=t rankdir=LR]",
        "node [fontname=Helvetica]",
        'edge [color="#555555" fontname=Helvetica fontsize=10]',
    ]
    statements = [
        *((names[node.key], _dot_node(graph, node, is_stuck=node.key in stuck)) for node in graph.nodes),
        *((f"{names[edge.source]} -> {names[edge.target]}", _dot_edge(edge)) for edge in graph.edges),
    ]
    for wait in graph.waits:
        is_call = (wait.source, wait.target) in called
        statements.append((f"{names[wait.source]} -> {names[wait.target]}", _dot_wait(wait, constrains=is_call)))
    for one in graph.traffic:
        statements.append((f"{names[one.source]} -> {names[one.target]}", _dot_traffic(one)))
    body = [f"{subject} [{_attributes(attributes)}]" for subject, attributes in statements]
    return "\n".join(["digraph calls {", *(f"\t{line}" for line in (*head, *body)), "}\n"]).encode()


def _attributes(attributes: Mapping[str, str]) -> str:
    in_order = sorted(attributes.items(), key=lambda item: (item[0] != "label", item[0]))
    return " ".join(f"{name}={_quoted(value)}" for name, value in in_order)


def _quoted(value: str) -> str:
    escaped = value.replace('"', '\\"')
    return value if DOT_ID.fullmatch(value) else f'"{escaped}"'


def _dot_node(graph: CallGraph, node: CallNode, *, is_stuck: bool) -> dict[str, str]:
    lines = [node_title(graph, node.key)]
    if node.put_bytes:
        lines.append(f"{size(node.put_bytes)} alive by ray.put")
    attributes = {"label": _label(lines), **SHAPES[node.key.kind]}
    return attributes | ({"color": DEADLOCK_COLOUR, "penwidth": "2"} if is_stuck else {})


def _dot_edge(edge: CallEdge) -> dict[str, str]:
    figures = edge.figures
    attributes = {"label": _label(edge_lines(edge)), "penwidth": f"{1 + log10(max(1, figures.attempts)):.1f}"}
    if figures.failed:
        attributes |= {"color": FAILED_COLOUR, "fontcolor": FAILED_COLOUR}
    elif figures.is_frequent:
        attributes |= {"color": FREQUENT_COLOUR, "fontcolor": FREQUENT_COLOUR}
    return attributes


def _dot_traffic(one: NodeTraffic) -> dict[str, str]:
    return {
        "label": _label([passed(one.objects, one.bytes)]),
        "color": DATA_COLOUR,
        "fontcolor": DATA_COLOUR,
        "constraint": "false",
    }


def _dot_wait(wait: NodeWait, *, constrains: bool) -> dict[str, str]:
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
    return "\\n".join(line.replace("\\", "\\\\") for line in cut)
