"""What a second sample should read again: loops that may only poll, and waits outside of Ray."""

from __future__ import annotations

from collections.abc import Collection

from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.vertex_roles import is_outside
from dstack.analysis.naming.vertex_details import execution_of
from dstack.analysis.solve import reduction
from dstack.analysis.solve.requirements import Waits, targets_of, waits_of
from dstack.diagnosis import Vertex
from dstack.model import Thread


def waits_outside(reduced: ReducedGraph) -> list[Vertex]:
    """The tasks, drivers and awaited executions that wait only for what is outside of Ray."""
    found = [
        vertex
        for vertex in reduced.vertices.values()
        if vertex.wait and vertex.kind == "execution" and _ends_outside(reduced, vertex)
    ]
    awaited = {target for vertex in reduced.vertices.values() for target in targets_of(vertex)} if found else set()
    return [vertex for vertex in found if vertex.task_id or vertex.key in awaited or reduced.is_driver(vertex)]


def possible_polls(reduced: ReducedGraph, repeating: Collection[str] = ()) -> tuple[list[Vertex], list[Vertex]]:
    """The loops that may only poll, and all that could never proceed if they did.

    Such loops are waits with a timeout, tasks of library code that sleep, and sleeping executions in the ``repeating``
    workers, which call an actor repeatedly.
    """
    sleeping: Waits = {
        key: [(1, [])]
        for key, vertex in reduced.vertices.items()
        if _may_sleep(reduced, vertex)
        and (vertex.worker_id in repeating or (vertex.task_id is not None and not reduced.is_in_users_code(key)))
    }
    unlinked: Waits = {key: [(1, [])] for key, vertex in reduced.vertices.items() if vertex.waker_of}
    timed = {key for key, vertex in reduced.vertices.items() if vertex.wait is not None and vertex.wait.is_timed}
    candidates = timed | sleeping.keys()
    if not candidates:
        return [], []
    waits = waits_of(reduced.vertices.values(), with_timed=True)
    at_worst = reduction.residue({**waits, **sleeping, **unlinked}) - unlinked.keys()
    more = at_worst - reduced.stuck
    if more <= sleeping.keys() and not repeating:
        return [], []
    return [reduced.vertices[key] for key in more & candidates], [reduced.vertices[key] for key in at_worst]


def _ends_outside(reduced: ReducedGraph, vertex: Vertex) -> bool:
    targets = [reduced.vertices[target] for target in targets_of(vertex)]
    return bool(targets) and all(map(is_outside, targets))


def _may_sleep(reduced: ReducedGraph, vertex: Vertex) -> bool:
    execution = execution_of(reduced.index, vertex)
    is_running = isinstance(execution, Thread) and execution.on_cpu
    return vertex.kind == "execution" and vertex.wait is None and execution is not None and not is_running
