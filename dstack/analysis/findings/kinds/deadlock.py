"""Deadlock: waits that can end only through each other. A shortest cycle is described first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from dstack import words
from dstack.analysis.findings import collectives, meetings
from dstack.analysis.findings.cures import fix_of
from dstack.analysis.findings.drafts import Draft
from dstack.analysis.findings.finding_facts import FindingFacts, has_not_begun
from dstack.analysis.findings.group_ranks import has_lost_rank
from dstack.analysis.findings.narration import SHOWN_CYCLE, Narrator, more
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.graph.interruptions import holders_of
from dstack.analysis.naming.descriptions import describe, in_words, labels_of, operand_in_words
from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.solve import reduction
from dstack.analysis.solve.reduction import Digraph, lightest_cycle
from dstack.call_sites import BARRIER
from dstack.model.diagnosis import Advice, Step, Vertex
from dstack.model.vertex_facts import assumption
from dstack.model.vertex_keys import AnyKey, Key
from dstack.words import base_name

MAX_STARTS = 16
MAX_WEIGHED = 20_000
"""Edges of a core up to which cycles through many vertices are compared; in a larger one through fewer."""


def find(reduced: ReducedGraph) -> Iterator[Draft]:
    """One finding for each core, the largest first."""
    for core in reduction.cores(reduced.waits, reduced.graph):
        if has_lost_rank(reduced, core):
            continue  # its waits are orphaned
        behind = reduced.behind(core)
        own = reduction.stuck_graph({key: reduced.waits[key] for key in sorted(core, key=str)}, core)
        cycle = _from_entry(_cycle(own, reduced), reduced, behind)
        might_stop = _what_might_stop(reduced, core)
        yield Draft(
            reduced,
            "deadlock",
            (*cycle, *sorted(core - set(cycle), key=str)),
            confirmed=core <= reduced.certain and not might_stop,
            assumed=(*reduced.assumed(core), *might_stop),
            cycle=cycle,
            behind=behind,
            resources=reduced.resources(core),
        )


def _what_might_stop(reduced: ReducedGraph, core: Set[Key]) -> tuple[str, ...]:
    """The assumption that nothing stops a member of a core, or what it gets, if code that goes on may do so."""
    if not core <= reduced.confirmed:
        return ()
    failing = {one.vertex for vertex in reduced.vertices_of(core) if vertex.wait for one in vertex.wait.failing}
    holders = holders_of(reduced.index, reduced.vertices_of(core | failing))
    possible = (key for worker in holders for key in reduced.executions_of.get(worker, ()) if reduced.may_act(key))
    if (first := min(possible, key=str, default=None)) is None:
        return ()
    vertex = reduced.vertices[first]
    details = details_of(reduced.index, vertex)
    place = f" at {base_name(details.file)}:{details.line}" if details.file else ""
    return (in_words(assumption("nothing stops", f"{describe(vertex)}{place}")),)


def _cycle(core: Digraph[Key], reduced: ReducedGraph) -> list[Key]:
    """A cycle that explains a core: a shortest one, or if many could end a wait, one with the cause.

    The cause is a request for resources where there is one, else a call that is queued behind its own waiter. Code of
    the user explains more than that of a library.
    """
    most = max(1, min(MAX_STARTS, MAX_STARTS * MAX_WEIGHED // max(1, core.number_of_edges())))
    weights = {key: reduced.weight(key) for key in core}
    own = _starts([key for key in core if reduced.is_in_users_code(key)], reduced)[:most]
    if not any(map(reduced.is_open_to_many, core)):
        shortest = reduction.shortest_cycle(core)
        is_users = not any(map(reduced.is_library_code, shortest))
        after_own = list(dict.fromkeys(after for key in own for after in core.successors(key)))[:most]
        return shortest if is_users else lightest_cycle(core, own, after_own, weights) or shortest
    counted = [key for key in core if reduced.is_counted(key)]
    requests = _starts([key for key in counted if reduced.resources([key])], reduced)[:most]
    found = lightest_cycle(core, requests, own, weights) if requests and own else []
    if found or requests:
        return found or reduction.shortest_cycle(core, requests)
    shortest = reduction.shortest_cycle(core, own)
    if sum(map(reduced.is_counted, shortest)) > 1:
        return shortest
    queued = _starts([key for key in counted if has_not_begun(reduced.vertices[key])], reduced)[:most]
    behind = lightest_cycle(core, queued, own, weights)  # begins at the queued call
    is_direct = sum(map(reduced.is_counted, behind)) == 2 and reduced.is_counted(behind[-1])
    return behind if is_direct else shortest


def _starts(keys: Sequence[Key], reduced: ReducedGraph) -> list[Key]:
    """The vertices from which cycles are tried: the first of each name, then others."""
    first: dict[str, Key] = {}
    for key in keys:
        first.setdefault(describe(reduced.vertices[key]), key)
    return list(dict.fromkeys((*first.values(), *keys)))[:MAX_STARTS]


def _from_entry(cycle: list[Key], reduced: ReducedGraph, behind: Iterable[Key]) -> tuple[Key, ...]:
    """The cycle, begun at an execution; best at one of the user's that others outside of it wait for."""
    outside = set(behind)
    executions = [key for key in cycle if reduced.vertices[key].kind == "execution"]
    entries = [key for key in executions if not outside.isdisjoint(reduced.graph.predecessors(key))]
    own = [key for key in executions if reduced.is_in_users_code(key)]
    entries_in_own = [key for key in entries if key in own] or _following(cycle, entries, own)
    start = cycle.index(min(entries_in_own or own or entries or executions or cycle, key=str))
    return (*cycle[start:], *cycle[:start])


def _following(cycle: Sequence[Key], entries: Sequence[Key], own: Sequence[Key]) -> list[Key]:
    """The first of the user's executions after each entry, as a library may pass on a call."""
    found = []
    for entry in entries:
        at = cycle.index(entry)
        found += [next(key for key in (*cycle[at:], *cycle[:at]) if key in own)] if own else []
    return found


def summary(facts: FindingFacts, narrator: Narrator) -> str:
    """The waits of the cycle, and the jobs that it crosses."""
    jobs = facts.reduced.jobs_of(facts.draft.members)
    across = f", across jobs {words.listed(jobs)}" if len(jobs) > 1 else ""
    return f"{_cycle_in_words(facts, narrator)}{across}"


def _cycle_in_words(facts: FindingFacts, narrator: Narrator) -> str:
    cycle = facts.deadlock.shown_cycle
    executions = [vertex for vertex in cycle if vertex.kind == "execution"]
    if ranks := collectives.headline(facts) or meetings.store_headline(facts):
        return ranks
    if cause := _cause(facts, narrator):
        return cause
    if not executions:
        return f"{words.shortly([describe(vertex) for vertex in cycle])} wait for each other"
    if len(executions) == 1:
        return _of_one_execution(facts, narrator, executions[0])
    if queued := next((vertex for vertex in cycle if vertex.wait and vertex.wait.kind == "Serve slot"), None):
        executions = [vertex for vertex in executions if facts.reduced.is_in_users_code(vertex.key)] or executions
        if len(executions) == 1:
            first = describe(executions[0])
            return f"{first} waits for {describe(queued)}, which is queued behind {first}"
    return _of_many_executions(narrator, executions)


def _of_one_execution(facts: FindingFacts, narrator: Narrator, only: Vertex) -> str:
    first = describe(only)
    assert only.wait is not None, "members of a cycle wait"
    queued = next((vertex for vertex in facts.deadlock.shown_cycle if vertex.kind != "execution"), None)
    alike = len(facts.deadlock.alike(only))
    if queued and alike > 1 and has_not_begun(queued):
        return _of_many_alike(facts, narrator, only, queued)
    wanted = describe(queued) if queued else None
    if wanted is None and only.wait.site is BARRIER:
        labels = list(dict.fromkeys(describe(vertex) for vertex in facts.not_at_barrier))
        others = words.listed(labels[: words.SHOWN]) if labels else "nothing"
        return f"{first} waits in {BARRIER.name}, which {others} can{'not' * bool(labels)} reach any more"
    if wanted is None and alike > 1:
        where = f"{narrator.line(only)} wait in {only.wait.call}"
        return f"{words.times_of(first, alike)}{where}, which only they could end"
    if wanted is None:
        return f"{first} waits in {only.wait.call}, which only its own thread could end"
    if facts.draft.resources:
        return f"{first} waits for {wanted}, which needs {words.listed(facts.draft.resources)} held by {first}"
    return f"{first} waits for {wanted}, {_why_queued(first, facts.deadlock.shown_cycle)}"


def _of_many_alike(facts: FindingFacts, narrator: Narrator, only: Vertex, queued: Vertex) -> str:
    """``20 x S.acquire at s.py:24 wait for 2 x S.release, which are queued behind them on the same actor``."""
    waiting, behind = len(facts.deadlock.alike(only)), len(facts.deadlock.alike(queued))
    waiters = f"{words.times_of(describe(only), waiting)}{narrator.line(only)}"
    what = f"{words.times_of(describe(queued), behind)}, which {words.word(behind, 'is', 'are')}"
    on_same = " on the same actor" if queued.wait and queued.wait.kind == "actor slot" else ""
    return f"{waiters} wait for {what} queued behind them{on_same}"


def _of_many_executions(narrator: Narrator, executions: Sequence[Vertex]) -> str:
    """``A.go, B.go and C.go wait for each other``; a longer cycle by its first names."""
    labels = [describe(vertex) for vertex in executions]
    different = len(set(labels))
    if len(executions) <= words.SHOWN:
        named = labels if different == len(labels) else [narrator.name(vertex) for vertex in executions]
        return f"{words.listed(named)} wait for each other"
    actors = {narrator.details(vertex).actor_id for vertex in executions}
    count = f"{len(executions)} executions" if None in actors else f"{len(actors)} actors"
    chain = f"each in {labels[0]}" if different == 1 else " -> ".join((*labels[: words.SHOWN], "..."))
    return f"{count} wait for each other in a cycle: {chain}"


def _why_queued(first: str, cycle: Sequence[Vertex]) -> str:
    """Why what is waited for cannot start before ``first`` ends."""
    if any(vertex.wait and vertex.wait.kind == "actor slot" for vertex in cycle):
        return f"which is queued behind {first} on the same actor"
    if any(vertex.wait and vertex.wait.kind == "event loop" for vertex in cycle):
        return f"which needs the event loop that {first} blocks"
    return f"which cannot start before {first} ends"


def _cause(facts: FindingFacts, narrator: Narrator) -> str | None:
    """The request that needs what its own cycle holds, if many could release it; None for other cycles."""
    reduced, cycle = facts.reduced, facts.deadlock.shown_cycle
    wanted = next((at for at, vertex in enumerate(cycle) if vertex.wait and vertex.wait.resources), None)
    if wanted is None or not any(reduced.is_open_to_many(vertex.key) for vertex in cycle):
        return None
    holder, request = cycle[(wanted + 1) % len(cycle)], cycle[wanted]
    held_by = f"{operand_in_words(holder.holder)} {_until_released(holder)}" if holder.holder else narrator.name(holder)
    needed = f"needs {words.listed(facts.draft.resources)} held by {held_by}"
    waiter = next((vertex for vertex in cycle if reduced.is_in_users_code(vertex.key)), request)
    if waiter is request:
        return f"{describe(request)} {needed}"
    name = describe(waiter) if waiter.task_id else narrator.details(waiter).function or describe(waiter)
    return f"{name}{narrator.line(waiter)} waits for {describe(request)}, which {needed}"


def _until_released(lifetime: Vertex) -> str:
    is_removed = isinstance(lifetime.key, AnyKey) and lifetime.key.what == "removal"
    return "until it is removed" if is_removed else "until it ends"


def steps(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
    """The ranks of groups, the cycle in order, what has not entered its calls, then the other members."""
    yield from collectives.steps(facts, narrator)
    following, inside = facts.deadlock.following, {*facts.draft.cycle, *facts.ranks.described}
    in_order = [vertex for vertex in facts.deadlock.shown_cycle if vertex.key not in facts.ranks.described]
    shown = (narrator.in_cycle(vertex, following[vertex.key]) for vertex in in_order[:SHOWN_CYCLE])
    yield from collectives.with_ranks(facts, map(narrator.step, shown))
    yield from more(len(in_order) - SHOWN_CYCLE, "in the same cycle")
    alike = [one for vertex in in_order for one in facts.deadlock.alike(vertex)[1:]]
    yield from more(len(alike), f"like {words.shortly(labels_of(alike))}")
    not_in_call = (*(vertex for vertex, _ in facts.ranks.elsewhere), *facts.not_at_barrier)
    missing = {vertex.key: vertex for vertex in not_in_call if vertex.key not in inside}
    shown_missing = list(missing.values())[:SHOWN_CYCLE]
    yield from collectives.with_ranks(facts, map(narrator.step, shown_missing))
    others = facts.others(vertex.key for vertex in (*shown_missing, *alike))
    own = [vertex for vertex in others if not facts.reduced.is_library_code(vertex.key)]
    yield from narrator.similar_steps(own, "Also in the deadlock: ")
    yield from more(len(others) - len(own), "library threads in the same state")


def advice(facts: FindingFacts, narrator: Narrator) -> Advice:
    """Where to break the cycle."""
    return Advice(
        kind="fix",
        text=collectives.fix(facts) or meetings.store_fix(facts) or fix_of(facts.cures) or _without_cure(facts),
    )


def _without_cure(facts: FindingFacts) -> str:
    """Where no change is known that frees anything, as in a deadlock of libraries."""
    names = words.shortly(labels_of(facts.deadlock.shown_cycle))
    return f"Leave out one of the waits of {names}, or give it a timeout."
