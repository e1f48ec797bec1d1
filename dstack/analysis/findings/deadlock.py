"""Deadlock: some who wait only for each other. Its shortest cycle is told as a story, then every other member."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dstack.analysis import names, reduction
from dstack.analysis.findings.situation import Situation
from dstack.analysis.findings.telling import SHOWN_NAMES, Teller, more, waiting
from dstack.analysis.findings.ways_out import way_out
from dstack.diagnosis import Finding, FindingKind, Step, Verdict, Vertex
from dstack.vertex_keys import Key

KIND: FindingKind = "deadlock"
VERDICT: Verdict = "deadlock"
SHOWN_CYCLE = 24


def find(situation: Situation) -> Iterator[Finding]:
    """One finding for each core, the largest first."""
    for core in reduction.cores(situation.waits, situation.graph):
        behind = situation.behind(core)
        own = reduction.stuck_graph({key: situation.waits[key] for key in sorted(core, key=str)}, core)
        cycle = _entered(reduction.shortest_cycle(own, _with_lines(own, situation)), situation, behind)
        yield Finding(
            kind=KIND,
            confirmed=core <= situation.certain,
            assumed=() if core <= situation.certain else situation.assumed(core),
            members=(*cycle, *sorted(core - set(cycle), key=str)),
            cycle=cycle,
            blocked_behind=behind,
            resources=situation.resources(core),
        )


def _with_lines(core: Iterable[Key], situation: Situation) -> list[Key]:
    """Where an end of an actor or the like takes part, the circle is told of those who are at some line of code."""
    kinds = {key: situation.vertices[key].kind for key in core}
    return [key for key, kind in kinds.items() if kind == "execution"] if "lifetime" in kinds.values() else []


def _entered(cycle: list[Key], situation: Situation, behind: Iterable[Key]) -> tuple[Key, ...]:
    """The same cycle, begun at an execution, if possible the one through which others came to wait for it."""
    outside = set(behind)
    executions = [key for key in cycle if situation.vertices[key].kind == "execution"]
    entries = [key for key in executions if not outside.isdisjoint(situation.graph.predecessors(key))]
    start = cycle.index(min(entries or executions or cycle, key=str))
    return (*cycle[start:], *cycle[:start])


def summary(finding: Finding, teller: Teller) -> str:
    """Who waits for each other, across which jobs, and how many wait for them."""
    jobs = teller.situation.jobs_of(finding.members)
    across = f", across jobs {names.listed(jobs)}" if len(jobs) > 1 else ""
    return f"{_circle(finding, teller)}{across}{waiting(finding, 'behind them')}"


def _circle(finding: Finding, teller: Teller) -> str:
    cycle = teller.vertices_of(finding.cycle)
    executions = _executions(cycle)
    if not executions:
        return f"{names.listed([vertex.label for vertex in cycle[:SHOWN_NAMES]])} wait for each other"
    if len(executions) == 1:
        first = executions[0].label
        wanted = next((vertex.label for vertex in cycle if vertex.kind != "execution"), None)
        if wanted is None:
            return f"{first} waits for what only its own thread can bring about"
        if finding.resources:
            needed = names.listed(finding.resources)
            return f"{first} waits for {wanted}, which needs {needed} that comes free only when {first} goes on"
        return f"{first} waits for {wanted}, which cannot start before {first} ends"
    if len(executions) <= SHOWN_NAMES:
        labels = [vertex.label for vertex in executions]
        alike = len(set(labels)) < len(labels)
        return f"{names.listed([teller.name(v) for v in executions] if alike else labels)} wait for each other"
    actors = {teller.member(vertex).actor_id for vertex in executions}
    who = f"{len(executions)} executions" if None in actors else f"{len(actors)} actors"
    return f"{who} wait for each other in a ring"


def steps(finding: Finding, teller: Teller) -> Iterator[Step]:
    """Once round the circle, then the other members."""
    cycle, inside = finding.cycle, set(finding.cycle)
    yield from map(teller.step, cycle[:SHOWN_CYCLE])
    yield from more(len(cycle) - SHOWN_CYCLE, "round the same circle")
    yield from teller.alike([key for key in finding.members if key not in inside], "Also ")


def advice(finding: Finding, teller: Teller) -> str:
    """Where to break the circle."""
    return way_out(teller.vertices_of(finding.cycle), teller.vertices_of(finding.members))


def _executions(cycle: Sequence[Vertex]) -> list[Vertex]:
    return [vertex for vertex in cycle if vertex.kind == "execution"]
