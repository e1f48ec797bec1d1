"""From a snapshot to its diagnosis: build the graph of each sample, keep what stands, reduce, and tell what is left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import networkx as nx

from dstack.analysis import explain, reduction
from dstack.analysis.chains import open_chains
from dstack.analysis.confirm import completed, confirm
from dstack.analysis.coverage import coverage_of, has_holes
from dstack.analysis.observed import Observed
from dstack.analysis.waits import wait_for_graph
from dstack.diagnosis import VERDICTS, Diagnosis, Finding, FindingKind, Verdict, Vertex
from dstack.model import Snapshot, actor_of_task

VERDICT_OF: dict[FindingKind, Verdict] = {
    "deadlock": "deadlock",
    "orphaned": "hang",
    "infeasible": "hang",
    "stalled": "stalled",
    "starved": "blocked",
    "blocked": "blocked",
    "polling": "blocked",
}
Waits = dict[str, list[tuple[int, list[str]]]]


def diagnose(snapshot: Snapshot) -> Diagnosis:
    """What is wrong in a snapshot. Pure: the same snapshot gives the same diagnosis."""
    if not snapshot.samples:
        return Diagnosis(verdict="clear", incomplete=True, findings=(), vertices={}, coverage=coverage_of(snapshot))
    first = Observed(snapshot, snapshot.samples[0])
    vertices = _graph(snapshot, first)
    waits = _waits(vertices.values())
    stuck = reduction.residue(waits)
    findings = [*_stuck_findings(first, vertices, waits, stuck), *_open_findings(vertices, stuck)]
    findings.sort(key=lambda finding: VERDICTS.index(VERDICT_OF[finding.kind]))
    verdict = VERDICT_OF[findings[0].kind] if findings else "clear"
    return Diagnosis(
        verdict=verdict,
        incomplete=verdict != "deadlock" and has_holes(snapshot, vertices),
        findings=tuple(explain.told(first, vertices, findings)),
        vertices=vertices,
        coverage=coverage_of(snapshot),
    )


def suspects(snapshot: Snapshot) -> set[str]:
    """The workers to look at again: all that take part in what seems stuck in the first sample, or unresolved.

    Unresolved is a wait for something nobody could see, which a moment later may be seen: a task on its way.
    """
    if not snapshot.samples:
        return set()
    first = Observed(snapshot, snapshot.samples[0])
    vertices = wait_for_graph(first)
    workers: set[str] = set()
    stuck = reduction.residue(_waits(vertices.values()))
    for vertex in vertices.values():
        if vertex.key in stuck or _is_unresolved(vertex, vertices):
            workers |= _workers_of(vertex, first)
    return workers


def _is_unresolved(vertex: Vertex, vertices: Mapping[str, Vertex]) -> bool:
    """Whether it waits for something unobserved; a coroutine stays so, however often one looks."""
    if vertex.wait is None or vertex.wait.kind == "coroutine":
        return False
    return any(vertices[target.vertex].unobserved for group in vertex.wait.groups for target in group.targets)


def _graph(snapshot: Snapshot, first: Observed) -> dict[str, Vertex]:
    before = wait_for_graph(first)
    if len(snapshot.samples) == 1:
        return before
    second = Observed(snapshot, snapshot.samples[1])
    after = wait_for_graph(Observed(snapshot, completed(first.sample, second.sample)))
    return confirm(first, before, second, after)


def _waits(vertices: Iterable[Vertex]) -> Waits:
    """The reduction's view: a wait with a timeout is none, and what can never be given waits for nobody."""
    waits: Waits = {}
    for vertex in vertices:
        if vertex.never is not None:
            waits[vertex.key] = [(1, [])]
        elif vertex.wait is not None and not vertex.wait.is_timed:
            waits[vertex.key] = [(group.needs, [t.vertex for t in group.targets]) for group in vertex.wait.groups]
    return waits


def _workers_of(vertex: Vertex, observed: Observed) -> set[str]:
    """Who can tell about a vertex: where it runs, who owns the task, and the actor it is for."""
    workers = {vertex.worker_id}
    if vertex.task_id:
        task = observed.tasks.get(vertex.task_id)
        actor = observed.actors.get(actor_of_task(vertex.task_id) or "")
        workers |= {task.owner_id if task else None, actor.worker_id if actor else None}
    return {worker for worker in workers if worker is not None}


def _stuck_findings(observed: Observed, vertices: Mapping[str, Vertex], waits: Waits, stuck: set[str]) -> list[Finding]:
    certain = reduction.residue(_waits(vertex for vertex in vertices.values() if vertex.stands))
    graph = reduction.stuck_graph(waits, stuck)
    findings = []
    for core in reduction.cores(waits, graph):
        own = reduction.stuck_graph({key: waits[key] for key in sorted(core)}, core)
        findings.append(_deadlock(vertices, graph, own, confirmed=core <= certain))
    alike: dict[tuple[str, str | None, bool], list[str]] = defaultdict(list)
    for key in reduction.dead_ends(graph):
        alike[vertices[key].label, vertices[key].never, key in certain].append(key)
    for (_, _, confirmed), keys in alike.items():
        findings.append(_never_given(observed, vertices, graph, keys, confirmed=confirmed))
    return findings


def _deadlock(
    vertices: Mapping[str, Vertex],
    graph: nx.DiGraph[str],
    own: nx.DiGraph[str],
    *,
    confirmed: bool,
) -> Finding:
    """The finding of a core, which is given as its ``own`` part of the stuck graph."""
    core = set(own)
    behind = tuple(sorted(reduction.behind(graph, core)))
    cycle = _entered(reduction.shortest_cycle(own), vertices, graph, behind)
    members = (*cycle, *sorted(core - set(cycle)))
    resources = {r for key in core if (wait := vertices[key].wait) for r in wait.resources}
    return Finding(
        kind="deadlock",
        confirmed=confirmed,
        summary="",
        advice="",
        members=members,
        cycle=cycle,
        blocked_behind=behind,
        resources=tuple(sorted(resources)),
    )


def _never_given(
    observed: Observed,
    vertices: Mapping[str, Vertex],
    graph: nx.DiGraph[str],
    keys: list[str],
    *,
    confirmed: bool,
) -> Finding:
    """The finding of those that ask in vain for the same, by the same name."""
    task = observed.tasks.get(vertices[keys[0]].task_id or "")
    is_call = task is not None and task.kind == "ACTOR_TASK"  # nothing but its actor's death makes a call impossible
    return Finding(
        kind="orphaned" if is_call else "infeasible",
        confirmed=confirmed,
        summary="",
        advice="",
        members=tuple(keys),
        blocked_behind=tuple(sorted(reduction.behind(graph, keys))),
    )


def _open_findings(vertices: Mapping[str, Vertex], stuck: set[str]) -> list[Finding]:
    findings = []
    for waiters, blockers in open_chains(vertices, stuck):
        waits = [wait for key in waiters if (wait := vertices[key].wait)]
        resources = sorted({name for wait in waits for name in wait.resources})
        kind: FindingKind = "blocked"
        if resources:
            kind = "starved"
        elif any(wait.is_timed for wait in waits):
            kind = "polling"
        finding = Finding(
            kind=kind,
            confirmed=False,
            summary="",
            advice="",
            members=tuple(waiters),
            final_blockers=tuple(blockers),
            resources=tuple(resources),
        )
        findings.append(finding)
    return findings


def _entered(
    cycle: list[str], vertices: Mapping[str, Vertex], graph: nx.DiGraph[str], behind: Iterable[str]
) -> tuple[str, ...]:
    """The same cycle, begun at an execution, if possible the one through which others came to wait for it."""
    outside = set(behind)
    executions = [key for key in cycle if vertices[key].kind == "execution"]
    entries = [key for key in executions if not outside.isdisjoint(graph.predecessors(key))]
    start = cycle.index(min(entries or executions or cycle))
    return (*cycle[start:], *cycle[:start])
