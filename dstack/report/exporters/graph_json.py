"""A call graph as JSON, schema ``dstack.graph/1``: what ``dstack graph --format json`` prints, and its JSON Schema.

Fields are only ever added to ``dstack.graph/1``: readers must ignore fields that they do not know.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

import msgspec
from msgspec import Meta

from dstack.analysis.history.call_nodes import By, NodeKind, NodeWait
from dstack.analysis.views.call_graph import CallEdge, CallFigures, CallGraph, CallNode
from dstack.files.document_file import to_json
from dstack.report.check_schema import Json


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
