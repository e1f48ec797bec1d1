"""Running, starved and polling: open chains whose waits may end as soon as something proceeds or a timeout ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dstack import words
from dstack.analysis.findings.drafts import Draft
from dstack.analysis.findings.finding_facts import FindingFacts
from dstack.analysis.findings.kinds import open_chain
from dstack.analysis.findings.kinds.next_step import advice_at_end, log_of, tasks_named
from dstack.analysis.findings.kinds.open_chain import is_start
from dstack.analysis.findings.narration import Narrator
from dstack.analysis.findings.outside_waits import end_of_loop
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.resource_changes import is_of_library
from dstack.analysis.findings.vertex_roles import is_outside
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe, operand_in_words
from dstack.analysis.naming.sentences import is_cancelled, predicate, step_at, timer_of
from dstack.analysis.solve.open_chains import OpenChain
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Advice, Step, Vertex
from dstack.model.snapshot import Actor, PlacementGroup
from dstack.model.vertex_keys import UnknownKey

REPEATED = 2
"""Restarts or retries that are a reason to find their cause."""


def find_running(reduced: ReducedGraph, chain: OpenChain) -> Draft | None:
    """The finding about an open chain of no other kind."""
    return open_chain.draft_of(reduced, "running", chain)


def running_advice(facts: FindingFacts, narrator: Narrator) -> Advice:
    """What to inspect: why something is repeated, or the final blocker."""
    if _is_repeated(facts):
        return Advice(kind="next", text=_attempts(facts))
    if any(is_cancelled(narrator.index, end) for end in facts.ends):
        text = (
            "To let the cancelled call end, do not catch asyncio.CancelledError, or raise it again: ray.cancel "
            "requests it once."
        )
        return Advice(kind="fix", text=text)
    return advice_at_end(facts, narrator)


def _is_repeated(facts: FindingFacts) -> bool:
    """Whether an actor was restarted or a call retried several times, or once and is not yet placed."""
    restarts = (actor.num_restarts for actor in facts.restarted)
    retries = (task.attempt for _, task in facts.retried)
    is_pending = all(isinstance(end.key, UnknownKey) and end.key.is_scheduler for end in facts.ends)
    return max((*restarts, *retries), default=0) >= (1 if is_pending else REPEATED)


def _attempts(facts: FindingFacts) -> str:
    """What shows the cause of restarts or retries, and what limits them."""
    if facts.restarted:
        return (
            f"{log_of(facts.restarted[0])}, which dies again and again. Without max_restarts and max_task_retries the "
            "caller gets the error."
        )
    vertex, task = facts.retried[0]
    return (
        f"{tasks_named(task.name)} shows the errors of {describe(vertex)}, which fails again and again. Without "
        "max_retries or max_task_retries the caller gets the error."
    )


# Starved: waits for resources whose holders are alive and can proceed


def find_starved(reduced: ReducedGraph, chain: OpenChain) -> Draft | None:
    """The finding about an open chain with a wait for resources."""
    return open_chain.draft_of(reduced, "starved", chain) if reduced.resources(chain.waiters) else None


def starved_advice(facts: FindingFacts, narrator: Narrator) -> Advice:
    """What runs while it holds the resources; a change only if they are held by what does nothing."""
    holders = [one for one in _holders(facts) if not is_start(one) and one.kind != "unknown"]
    is_at_rest = bool(holders) and all(holder.kind == "lifetime" for holder in holders)
    if not is_at_rest or any(end.kind == "execution" for end in facts.ends):
        return advice_at_end(facts, narrator)
    return Advice(kind="fix", text=_end_a_holder(narrator, holders, facts.draft.resources))


def _end_a_holder(narrator: Narrator, holders: Sequence[Vertex], resources: Sequence[str]) -> str:
    """Which actor or placement group to end if it is not needed, and how; never one that a library made."""
    own = [one for one in holders if one.holder and not is_of_library(narrator.index, one.holder)]
    how_to_end = {operand_in_words(one.holder): _how_to_end(one.holder) for one in own if one.holder}
    what = words.listed(resources)
    if not how_to_end:
        return f"Let those that hold {what} ask for less, or let fewer of them run at a time."
    are_groups = all(isinstance(one.holder, PlacementGroup) for one in own)
    return (
        f"{'Remove' if are_groups else 'End'} {words.shortly(sorted(how_to_end), ' or ')} if nothing needs it any more "
        f"({words.listed(sorted(set(how_to_end.values())), ' or ')}), let it ask for less, or add {what}."
    )


def _how_to_end(holder: Actor | PlacementGroup) -> str:
    """The call that ends an actor or removes a placement group."""
    if isinstance(holder, PlacementGroup):
        return "ray.util.remove_placement_group"
    return "ray.kill, since it is detached" if holder.is_detached else "drop its last handle"


def _holders(facts: FindingFacts) -> list[Vertex]:
    """The vertices that hold the awaited resources, found through helpers too."""
    waits = facts.reduced.vertices_of((*facts.draft.members, *facts.draft.helpers))
    targets = {key for vertex in waits if vertex.wait and vertex.wait.resources for key in targets_of(vertex)}
    return [vertex for vertex in facts.reduced.vertices_of(targets) if vertex.kind != "room"]


# Polling: waits that have timeouts and are repeated


def find_polling(reduced: ReducedGraph, chain: OpenChain) -> Draft | None:
    """The finding about an open chain in which timeouts decide.

    These are chains whose first waits all have timeouts, chains that end in nothing but timeouts, and chains whose
    waits for an unknown waker all have timeouts, as at an empty queue.
    """
    awaited = {target for key in chain.waiters for target in targets_of(reduced.vertices[key])}
    first = [key for key in chain.waiters if key not in awaited]
    decisive = first if first and chain.blockers else ()
    is_timed = [_has_timeout(reduced.vertices[key]) for key in decisive or chain.waiters]
    is_polling = all(is_timed) if decisive else any(is_timed)
    return open_chain.draft_of(reduced, "polling", chain) if is_polling or _ends_in_timeouts(reduced, chain) else None


def polling_summary(facts: FindingFacts, narrator: Narrator) -> str:
    """The loop of the user's code that polls by calls which succeed; without one, what all wait for."""
    polling = (vertex for vertex in facts.members if vertex.wait and vertex.wait.timeout_s == 0.0)
    loop = next((vertex for vertex in polling if narrator.reduced.is_in_users_code(vertex.key)), None)
    if loop is None or loop.wait is None or loop.wait.polls is None:
        return open_chain.summary(facts, narrator)
    return f"{describe(loop)}{narrator.line(loop)} {loop.wait.kind_name}"


def polling_steps(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
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


def polling_advice(facts: FindingFacts, narrator: Narrator) -> Advice:
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
