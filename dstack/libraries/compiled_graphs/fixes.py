"""The fixes for deadlocks of compiled graphs."""

from __future__ import annotations

from dstack import words
from dstack.analysis.findings.facts.deadlocked_waits import DeadlockedWaits
from dstack.analysis.graph.pending_tasks import is_queued
from dstack.analysis.naming.descriptions import any_of, labels_of
from dstack.analysis.solve.requirements import targets_of


def kept_arrays(waits: DeadlockedWaits) -> str | None:
    """Copy arrays from a compiled graph, which occupy its channels while they are kept."""
    if "kept value" not in waits.kinds:
        return None
    held = {key for vertex in waits.in_cycle("kept value") for key in targets_of(vertex)}
    keeping = labels_of(vertex for vertex in waits.callers if vertex.key in held)
    where = f" in {words.listed(keeping)}" if keeping else ""
    return (
        f"Copy the arrays that you keep{where} from a compiled graph (array.copy(), copy.deepcopy), or drop them "
        "before the next execute: they take up room in its channels."
    )


def full_channels(waits: DeadlockedWaits) -> str | None:
    """An actor in two compiled graphs, a call behind a stage, or a stage that waits for its own graph."""
    if not waits.kinds & {"channel read", "channel write"}:
        return None
    if any(vertex.is_graph_loop for vertex in waits.members):
        return (
            "Give each compiled graph its own actors, or call teardown() of the first graph before compiling the "
            "second: an actor runs the loop of one graph at a time."
        )
    if queued := [vertex for vertex in waits.cycle if is_queued(vertex)]:
        return (
            f"Let {any_of(queued)} run while its actor waits for the compiled graph (max_concurrency=2 "
            "or a concurrency group), or pass the value into the graph as an input."
        )
    return (
        "Do not wait in a stage of a compiled graph for a value that the same graph produces later: pass it in as an "
        "input, and fetch results (ray.get) before the channels are full."
    )
