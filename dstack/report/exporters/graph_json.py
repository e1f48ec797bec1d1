"""A call graph as JSON, schema ``dstack.graph/1``."""

from __future__ import annotations

import msgspec

from dstack.analysis.history.call_figures import Figures
from dstack.analysis.history.call_nodes import NodeWait
from dstack.analysis.views.call_graph import CallEdge, CallGraph, CallNode
from dstack.document_file import to_json
from dstack.report.graph_schema import (
    DocumentEdge,
    DocumentFigures,
    DocumentHistory,
    DocumentNode,
    DocumentNodeWait,
    GraphDocument,
)


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


def _figures(figures: Figures) -> DocumentFigures:
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
    }
