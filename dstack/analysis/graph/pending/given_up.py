"""Tasks in removed placement groups whose results no running code needs.

Ray keeps such a task pending until its owner ends, also if the program has given it up and goes on (ray#18572). It is
no hang as long as no running code needs its result. A ref to it may still exist, as in a variable or in the traceback
of an error. A wait with a timeout counts, as it may be one of many polls.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from dstack.analysis.graph.builder import GraphBuilder, waits_for
from dstack.analysis.graph.refs.dead_producers import removed_group_of
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.solve import reduction
from dstack.analysis.solve.requirements import waits_of
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import PlacementGroup
from dstack.model.vertex_facts import subject
from dstack.model.vertex_keys import Key


def release_given_up(graph: GraphBuilder) -> None:
    """Let tasks in removed groups wait for something unknown, unless running code needs their results."""
    lost = {key: group for key, vertex in graph.vertices.items() if (group := _removed_group(graph.index, vertex))}
    for key in lost.keys() - _needed(graph.vertices) if lost else ():
        removed = subject("removed group", lost[key])
        target = graph.unknown("removed group", lost[key].placement_group_id, subject=removed)
        wait = waits_for("placement group", target)
        graph.vertices[key] = replace(graph.vertices[key], wait=wait, never=None)


def _removed_group(index: SampleIndex, vertex: Vertex) -> PlacementGroup | None:
    """The removed group that a task would need to run."""
    task = index.tasks.get(vertex.task_id or "") if vertex.never else None
    return removed_group_of(index, task) if task else None


def _needed(vertices: Mapping[Key, Vertex]) -> set[Key]:
    """All without which running code cannot proceed, directly or through others."""
    waits = waits_of(vertices.values(), with_timed=True)
    stuck = reduction.stuck_graph(waits, reduction.residue(waits))
    return reduction.ahead(stuck, (key for key in stuck if _runs(vertices[key])))


def _runs(vertex: Vertex) -> bool:
    return vertex.is_counted and vertex.worker_id is not None
