"""Deadlock: some who wait only for each other. Its shortest cycle is described as a story, then every other member."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dstack import words
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording import collectives
from dstack.analysis.findings.wording.fixes import until, way_out
from dstack.analysis.findings.wording.narration import SHOWN_NAMES, Narrator, more
from dstack.analysis.graph.coroutines import EVENT_LOOP
from dstack.analysis.graph.in_process_links import BARRIER
from dstack.analysis.graph.pending.actor_queues import ACTOR_SLOT
from dstack.analysis.graph.serve_requests import SLOT
from dstack.analysis.solve import reduction
from dstack.analysis.solve.digraph import Digraph, lightest_cycle
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Finding, FindingKind, Step, Verdict, Vertex
from dstack.vertex_keys import Key

KIND: FindingKind = "deadlock"
VERDICT: Verdict = "deadlock"
SHOWN_CYCLE = 24
MAX_STARTS = 16
MAX_WEIGHED = 20_000
"""Edges of a core up to which its cycles are compared."""


def find(reduced: ReducedGraph) -> Iterator[Finding]:
    """One finding for each core, the largest first."""
    for core in reduction.cores(reduced.waits, reduced.graph):
        if collectives.has_lost_rank(reduced, core):
            continue  # those that wait for it are orphaned
        behind = reduced.behind(core)
        own = reduction.stuck_graph({key: reduced.waits[key] for key in sorted(core, key=str)}, core)
        cycle = _entered(_cycle(own, reduced), reduced, behind)
        yield Finding(
            kind=KIND,
            confirmed=core <= reduced.certain,
            assumed=() if core <= reduced.certain else reduced.assumed(core),
            members=(*cycle, *sorted(core - set(cycle), key=str)),
            cycle=cycle,
            blocked_behind=behind,
            resources=reduced.resources(core),
        )


def _cycle(core: Digraph[Key], reduced: ReducedGraph) -> list[Key]:
    """A cycle that explains a core: a shortest one, or where many could end a wait, one that shows the cause.

    The cause is a request for resources where there is one. Code of the user explains more than that of a library.
    """
    if core.number_of_edges() > MAX_WEIGHED:
        return reduction.shortest_cycle(core)
    weights = {key: reduced.weight(key) for key in core}
    own = _varied([key for key in core if reduced.is_in_users_code(key)], reduced)
    if not any(map(reduced.is_open_to_many, core)):
        shortest = reduction.shortest_cycle(core)
        is_users = not any(map(reduced.is_library_code, shortest))
        after_own = list(dict.fromkeys(after for key in own for after in core.successors(key)))[:MAX_STARTS]
        return shortest if is_users else lightest_cycle(core, own, after_own, weights) or shortest
    requests = _varied([key for key in core if reduced.is_counted(key) and reduced.resources([key])], reduced)
    found = lightest_cycle(core, requests, own, weights) if requests and own else []
    return found or reduction.shortest_cycle(core, requests or own)


def _varied(keys: Sequence[Key], reduced: ReducedGraph) -> list[Key]:
    """As many as are tried: the first of each name, so that no cycle is missed for many alike, then others."""
    first: dict[str, Key] = {}
    for key in keys:
        first.setdefault(reduced.vertices[key].label, key)
    return list(dict.fromkeys((*first.values(), *keys)))[:MAX_STARTS]


def _entered(cycle: list[Key], reduced: ReducedGraph, behind: Iterable[Key]) -> tuple[Key, ...]:
    """The same cycle, begun at an execution, if possible the one through which others came to wait for it."""
    outside = set(behind)
    executions = [key for key in cycle if reduced.vertices[key].kind == "execution"]
    entries = [key for key in executions if not outside.isdisjoint(reduced.graph.predecessors(key))]
    own = [key for key in executions if reduced.is_in_users_code(key)]
    entries_in_own = [key for key in entries if key in own] or _following(cycle, entries, own)
    start = cycle.index(min(entries_in_own or own or entries or executions or cycle, key=str))
    return (*cycle[start:], *cycle[:start])


def _following(cycle: Sequence[Key], entries: Sequence[Key], own: Sequence[Key]) -> list[Key]:
    """The first of the user's executions after each entry: code of a library may pass on what comes in."""
    found = []
    for entry in entries:
        at = cycle.index(entry)
        found += [next(key for key in (*cycle[at:], *cycle[:at]) if key in own)] if own else []
    return found


def summary(finding: Finding, narrator: Narrator) -> str:
    """Who waits for each other, across which jobs, and how many wait for them."""
    jobs = narrator.reduced.jobs_of(finding.members)
    across = f", across jobs {words.listed(jobs)}" if len(jobs) > 1 else ""
    return f"{_circle(finding, narrator)}{across}"


def _circle(finding: Finding, narrator: Narrator) -> str:
    cycle = [vertex for vertex in narrator.vertices_of(finding.cycle) if not narrator.reduced.is_helper(vertex.key)]
    executions = _executions(cycle)
    if ranks := collectives.headline(finding, narrator):
        return ranks
    if cause := _cause(finding, narrator, cycle):
        return cause
    if not executions:
        return f"{words.shortly([vertex.label for vertex in cycle], SHOWN_NAMES)} wait for each other"
    if len(executions) == 1:
        first = executions[0].label
        wanted = next((vertex.label for vertex in cycle if vertex.kind != "execution"), None)
        if wanted is None and executions[0].wait and executions[0].wait.kind == BARRIER:
            labels = list(dict.fromkeys(vertex.label for vertex in late_for_barrier(finding, narrator)))
            who = words.listed(labels[:SHOWN_NAMES], " and ") if labels else "nothing"
            return f"{first} waits in {BARRIER}, which {who} can{'not' * bool(labels)} reach any more"
        if wanted is None:
            return f"{first} waits in {_call(executions[0])}, which only its own thread could end"
        if finding.resources:
            needed = words.listed(finding.resources)
            return f"{first} waits for {wanted}, which needs {needed} held by {first}"
        return f"{first} waits for {wanted}, {_why_queued(first, cycle)}"
    if queued := next((vertex for vertex in cycle if vertex.wait and vertex.wait.kind == SLOT), None):
        executions = [vertex for vertex in executions if narrator.reduced.is_in_users_code(vertex.key)] or executions
        if len(executions) == 1:
            first = executions[0].label
            return f"{first} waits for {queued.label}, which is queued behind {first}"
    if len(executions) <= SHOWN_NAMES:
        labels = [vertex.label for vertex in executions]
        alike = len(set(labels)) < len(labels)
        return f"{words.listed([narrator.name(v) for v in executions] if alike else labels)} wait for each other"
    actors = {narrator.member(vertex).actor_id for vertex in executions}
    who = f"{len(executions)} executions" if None in actors else f"{len(actors)} actors"
    return f"{who} wait for each other in a cycle: {_chain(executions)}"


def _chain(executions: Sequence[Vertex]) -> str:
    """``A.go -> B.go -> C.go -> ...``; ``each in A.go`` where all have one name."""
    labels = [vertex.label for vertex in executions]
    if len(set(labels)) == 1:
        return f"each in {labels[0]}"
    return " -> ".join((*labels[:SHOWN_NAMES], "..."))


def _call(vertex: Vertex) -> str:
    """The call that a vertex waits in."""
    assert vertex.wait is not None, "members of a cycle wait"
    return vertex.wait.what or vertex.wait.kind


def _why_queued(first: str, cycle: Sequence[Vertex]) -> str:
    """Why what is waited for cannot start before ``first`` ends."""
    if any(vertex.wait and vertex.wait.kind == ACTOR_SLOT for vertex in cycle):
        return f"which is queued behind {first} on the same actor"
    if any(vertex.wait and vertex.wait.kind == EVENT_LOOP for vertex in cycle):
        return f"which needs the event loop that {first} blocks"
    return f"which cannot start before {first} ends"


def _cause(finding: Finding, narrator: Narrator, cycle: Sequence[Vertex]) -> str | None:
    """Which request waits for what the cycle itself holds, where many could release it; None for other cycles."""
    reduced = narrator.reduced
    wanted = next((at for at, vertex in enumerate(cycle) if vertex.wait and vertex.wait.resources), None)
    if wanted is None or not any(reduced.is_open_to_many(vertex.key) for vertex in cycle):
        return None
    holder, request = cycle[(wanted + 1) % len(cycle)], cycle[wanted]
    held = f"held by {holder.holder} {until([holder])}" if holder.holder else f"held by {narrator.name(holder)}"
    needed = f"needs {words.listed(finding.resources)} {held}"
    waiter = next((vertex for vertex in cycle if reduced.is_in_users_code(vertex.key)), request)
    if waiter is request:
        return f"{request.label} {needed}"
    name = waiter.label if waiter.task_id else narrator.member(waiter).function or waiter.label
    return f"{name}{narrator.spot(waiter)} waits for {request.label}, which {needed}"


def steps(finding: Finding, narrator: Narrator) -> Iterator[Step]:
    """Once round the cycle, then the other members; the ranks of process groups first."""
    reduced, inside = narrator.reduced, set(finding.cycle)
    cycle = [key for key in finding.cycle if not reduced.is_helper(key)]
    yield from collectives.steps(finding, narrator)
    described = collectives.described(finding, narrator)
    following = dict(zip(cycle, (*cycle[1:], *cycle[:1]), strict=True))
    rest = [key for key in cycle if key not in described]
    in_order = (narrator.step_towards(key, following[key]) for key in rest[:SHOWN_CYCLE])
    yield from collectives.with_ranks(finding, narrator, in_order)
    yield from more(len(rest) - SHOWN_CYCLE, "in the same cycle")
    not_there = [*collectives.late_executions(finding, narrator), *(v.key for v in late_for_barrier(finding, narrator))]
    late = [key for key in dict.fromkeys(not_there) if key not in inside | described][:SHOWN_CYCLE]
    yield from collectives.with_ranks(finding, narrator, map(narrator.step, late))
    others = [key for key in finding.members if key not in inside.union(described, late)]
    own = [key for key in others if not reduced.is_library_code(key)]
    yield from narrator.alike(own, "Also in the deadlock: ")
    yield from more(len(others) - len(own), "library threads in the same state")


def advice(finding: Finding, narrator: Narrator) -> str:
    """Where to break the cycle."""
    return collectives.advice(finding, narrator) or way_out(
        narrator.vertices_of(finding.cycle), narrator.vertices_of(finding.members)
    )


def late_for_barrier(finding: Finding, narrator: Narrator) -> list[Vertex]:
    """The members in the user's code that have not come to a barrier in the cycle, nor wait for who has."""
    at_barrier = {key for key in finding.cycle if (wait := narrator.vertices[key].wait) and wait.kind == BARRIER}
    if not at_barrier:
        return []
    members = [vertex for vertex in narrator.vertices_of(finding.members) if vertex.kind == "execution" and vertex.wait]
    there = {vertex.key for vertex in members if vertex.wait and vertex.wait.kind == BARRIER}
    callers = {vertex.key for vertex in members if not there.isdisjoint(targets_of(vertex))}
    come = there | callers
    late = [one for one in members if one.key not in come and come.isdisjoint(targets_of(one))]
    return [vertex for vertex in late if narrator.reduced.is_in_users_code(vertex.key)]


def _executions(cycle: Sequence[Vertex]) -> list[Vertex]:
    return [vertex for vertex in cycle if vertex.kind == "execution"]
