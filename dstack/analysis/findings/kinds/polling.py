"""Polling: a chain that is waited for with timeouts, again and again."""

from __future__ import annotations

from collections.abc import Iterator

from dstack import words
from dstack.analysis.findings.kinds import open_chain
from dstack.analysis.findings.kinds.open_chain import finding_of
from dstack.analysis.findings.reduced_graph import ReducedGraph, is_outside
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.naming import names
from dstack.analysis.solve.open_chains import OpenChain
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Finding, FindingKind, Step, Verdict, Vertex

__all__ = ["KIND", "VERDICT", "advice", "find_in", "steps", "summary"]
KIND: FindingKind = "polling"
VERDICT: Verdict = "blocked"


def find_in(reduced: ReducedGraph, chain: OpenChain) -> Finding | None:
    """The finding of an open knot whose beginnings all have timeouts, or which ends in nothing but timeouts.

    It does also where all who wait for an unknown other side do so with a timeout, as at an empty queue.
    """
    awaited = {target for key in chain.waiters for target in targets_of(reduced.vertices[key])}
    tops = [key for key in chain.waiters if key not in awaited]
    decisive = tops if tops and chain.blockers else ()
    is_timed = [_is_timed(reduced.vertices[key]) for key in decisive or chain.waiters]
    is_polling = all(is_timed) if decisive else any(is_timed)
    return finding_of(reduced, KIND, chain) if is_polling or _ends_in_polls(reduced, chain) else None


def summary(finding: Finding, narrator: Narrator) -> str:
    """The loop of the user's that polls by calls which succeed, if there is one; else for what all wait in the end."""
    polling = (
        vertex for vertex in narrator.vertices_of(finding.members) if vertex.wait and vertex.wait.timeout_s == 0.0
    )
    loop = next((vertex for vertex in polling if narrator.reduced.is_in_users_code(vertex.key)), None)
    if loop is None or loop.wait is None or loop.wait.polls is None:
        return open_chain.summary(finding, narrator)
    return f"{loop.label}{narrator.spot(loop)} {loop.wait.kind}"


def steps(finding: Finding, narrator: Narrator) -> Iterator[Step]:
    """Who polls, whether they came back to it, and for what in the end."""
    pollers = [vertex for vertex in narrator.vertices_of(finding.members) if _is_timed(vertex)]
    pollers.sort(key=lambda vertex: not narrator.reduced.is_in_users_code(vertex.key))
    yield from narrator.alike([vertex.key for vertex in pollers], "")
    if finding.watched_s is not None:
        again = sum(vertex.is_confirmed for vertex in pollers)
        who = "It was" if len(pollers) == 1 else f"{again} of these {words.word(again, 'was', 'were')}"
        later = f", {words.duration(finding.watched_s)} later" if finding.watched_s >= names.SHORTEST_S else ""
        if again:
            yield Step(text=f"{who} observed in the same wait again{later}")
    yield from open_chain.steps(finding, narrator)


def advice(finding: Finding, narrator: Narrator) -> str:
    """What to inspect: what is polled for, or what happens when a timeout ends."""
    first = narrator.vertices[finding.final_blockers[0].vertex] if finding.final_blockers else None
    if first and not first.waker_of:
        return f"{open_chain.to_inspect(finding, narrator)}. The polling continues without a result until then."
    members = narrator.vertices_of(finding.members)
    timed = [one for one in members if _is_timed(one) and (first is None or first.key in targets_of(one))]
    waiter = min(timed, key=lambda one: not narrator.reduced.is_in_users_code(one.key), default=None)
    if waiter is None or waiter.wait is None:
        return f"{open_chain.to_inspect(finding, narrator)}."
    return (
        f"{waiter.label} waits at most {waiter.wait.timeout_s:g} s in "
        f"{waiter.wait.what or waiter.wait.kind}{narrator.line(waiter)}. Inspect what it does when this timeout ends."
    )


def _ends_in_polls(reduced: ReducedGraph, chain: OpenChain) -> bool:
    waiters = set(chain.waiters)
    last = [v for v in map(reduced.vertices.__getitem__, chain.waiters) if not waiters.issuperset(targets_of(v))]
    ends = {target for vertex in last for target in targets_of(vertex)} - waiters
    return bool(ends) and all(is_outside(reduced.vertices[end]) for end in ends) and all(map(_is_timed, last))


def _is_timed(vertex: Vertex) -> bool:
    return vertex.wait is not None and vertex.wait.timeout_s is not None
