"""Polling: an open chain whose waits have timeouts and are repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dstack import words
from dstack.analysis.findings.facts.draft import Draft
from dstack.analysis.findings.facts.finding_facts import FindingFacts
from dstack.analysis.findings.kinds import open_chain
from dstack.analysis.findings.kinds.next_step import advice_at_end
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.resting import end_of_loop
from dstack.analysis.findings.vertex_roles import is_outside
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.naming.sentences import predicate, step_at, timer_of
from dstack.analysis.solve.open_chains import OpenChain
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Advice, FindingKind, Step, Verdict, Vertex

KIND: FindingKind = "polling"
VERDICT: Verdict = "running"


def find_in(reduced: ReducedGraph, chain: OpenChain) -> Draft | None:
    """The finding about an open chain in which timeouts decide.

    These are chains whose first waits all have timeouts, chains that end in nothing but timeouts, and chains whose
    waits for an unknown waker all have timeouts, as at an empty queue.
    """
    awaited = {target for key in chain.waiters for target in targets_of(reduced.vertices[key])}
    first = [key for key in chain.waiters if key not in awaited]
    decisive = first if first and chain.blockers else ()
    is_timed = [_has_timeout(reduced.vertices[key]) for key in decisive or chain.waiters]
    is_polling = all(is_timed) if decisive else any(is_timed)
    return open_chain.draft_of(reduced, KIND, chain) if is_polling or _ends_in_timeouts(reduced, chain) else None


def summary(facts: FindingFacts, narrator: Narrator) -> str:
    """The loop of the user's code that polls by calls which succeed; without one, what all wait for."""
    polling = (vertex for vertex in facts.members if vertex.wait and vertex.wait.timeout_s == 0.0)
    loop = next((vertex for vertex in polling if narrator.reduced.is_in_users_code(vertex.key)), None)
    if loop is None or loop.wait is None or loop.wait.polls is None:
        return open_chain.summary(facts, narrator)
    return f"{describe(loop)}{narrator.line(loop)} {loop.wait.kind_name}"


def steps(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
    """The pollers, how many of them both samples show in the same wait, and what they wait for."""
    pollers = [vertex for vertex in facts.members if _has_timeout(vertex)]
    pollers.sort(key=lambda vertex: not narrator.reduced.is_in_users_code(vertex.key))
    yield from narrator.similar_steps(pollers, "")
    yield from _ends_of_loops(pollers, narrator)
    if (watched_s := facts.draft.watched_s) is not None:
        confirmed = sum(vertex.is_confirmed for vertex in pollers)
        subject = "It was" if len(pollers) == 1 else f"{confirmed} of these {words.word(confirmed, 'was', 'were')}"
        later = f", {words.duration(watched_s)} later" if watched_s >= names.SHORTEST_S else ""
        if confirmed:
            yield Step(text=f"{subject} observed in the same wait again{later}")
    yield from open_chain.steps(facts, narrator)


def _ends_of_loops(pollers: Sequence[Vertex], narrator: Narrator) -> Iterator[Step]:
    """What may end the loops around these waits, other than what they poll for."""
    ends: dict[str, Step] = {}
    for vertex in pollers:
        details = narrator.details(vertex)
        if end := end_of_loop(vertex, details):
            step = step_at(f"The loop of {describe(vertex)} {end}", details, vertex)
            ends.setdefault(step.text, step)
    yield from list(ends.values())[: words.SHOWN]


def advice(facts: FindingFacts, narrator: Narrator) -> Advice:
    """What to inspect: the target of the polling, or the code that runs after a timeout."""
    first = facts.ends[0] if facts.ends else None
    after = None if first and not first.waker_of else _after_timeout(facts, narrator, first)
    return Advice(kind="next", text=after) if after else advice_at_end(facts, narrator)


def _after_timeout(facts: FindingFacts, narrator: Narrator, first: Vertex | None) -> str | None:
    """The timeout that ends the wait, where nothing else is known to."""
    timed = [one for one in facts.members if _has_timeout(one) and (first is None or first.key in targets_of(one))]
    waiter = min(timed, key=lambda one: not narrator.reduced.is_in_users_code(one.key), default=None)
    if waiter is None or waiter.wait is None:
        return None
    if timer_of(narrator.index, waiter):
        does = predicate(narrator.index, narrator.reduced.vertices, waiter, narrator.details(waiter))
        return f"{describe(waiter)} {does}: search the code for what this ends."
    return (
        f"See what {describe(waiter)} does{narrator.line(waiter)} when its timeout of {waiter.wait.timeout_s:g} s in "
        f"{waiter.wait.call} ends."
    )


def _ends_in_timeouts(reduced: ReducedGraph, chain: OpenChain) -> bool:
    """Whether all ends are outside of Ray, and all waits for them have timeouts."""
    waiters = set(chain.waiters)
    last = [v for v in map(reduced.vertices.__getitem__, chain.waiters) if not waiters.issuperset(targets_of(v))]
    ends = {target for vertex in last for target in targets_of(vertex)} - waiters
    return bool(ends) and all(is_outside(reduced.vertices[end]) for end in ends) and all(map(_has_timeout, last))


def _has_timeout(vertex: Vertex) -> bool:
    return vertex.wait is not None and vertex.wait.timeout_s is not None
