"""Waits that are in no finding because they do not depend on Ray: for an event, a queue, a child."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from msgspec.structs import replace

from dstack.analysis.evidence.wait_durations import of_any
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.naming import names
from dstack.analysis.naming.vertex_details import details_of
from dstack.diagnosis import Finding, OutsideWait, Since, Vertex


def outside_waits(
    reduced: ReducedGraph, findings: Iterable[Finding], job_id: str | None = None
) -> tuple[OutsideWait, ...]:
    """The open waits in none of the findings, of one job if given; grouped by call and line."""
    in_findings = {key for finding in findings if finding.kind != "failed" for key in finding.members}
    waiters = (reduced.vertices[key] for chain in reduced.chains for key in chain.waiters if key not in in_findings)
    groups: dict[OutsideWait, list[Since]] = defaultdict(list)
    for vertex in waiters:
        is_own = vertex.is_counted and not reduced.is_library_code(vertex.key)
        if is_own and (job_id is None or reduced.job_of(vertex) == job_id):
            groups[_outside_wait(reduced, vertex)].append(vertex.since or Since())
    found = (replace(one, count=len(several), since=of_any(several)) for one, several in groups.items())
    return tuple(sorted(found, key=lambda one: -one.count))


def _outside_wait(reduced: ReducedGraph, vertex: Vertex) -> OutsideWait:
    assert vertex.wait is not None, "the waiters of a chain wait"
    frame = names.user_frame(details_of(reduced.index, vertex).frames)
    kind: Literal["driver", "asyncio task", "thread"] = (
        "driver" if reduced.is_driver(vertex) else "asyncio task" if vertex.coroutine_id else "thread"
    )
    return OutsideWait(
        call=vertex.wait.call,
        kind="task" if vertex.task_id else kind,
        count=1,
        file=frame.file if frame else None,
        line=frame.line if frame else None,
    )
