"""Stalled: an open chain that ends in calls with unknown wakers, while no possible waker runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dstack.analysis.findings import collectives, failures
from dstack.analysis.findings.deadlock_fixes import let_queued_run
from dstack.analysis.findings.drafts import Draft
from dstack.analysis.findings.finding_facts import FindingFacts
from dstack.analysis.findings.kinds.next_step import advice_at_end, log_of_worker
from dstack.analysis.findings.kinds.open_chain import (
    Waiter,
    blocker_steps,
    draft_of,
    other_side_steps,
    shared_call_in_words,
    shared_call_steps,
    waiter_of,
)
from dstack.analysis.findings.kinds.open_chain import summary as open_chain_summary
from dstack.analysis.findings.narration import Narrator
from dstack.analysis.findings.outside_waits import is_stalled, with_users_of_polled
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.graph.call_waits import reach_of
from dstack.analysis.graph.pending_tasks import is_queued
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.naming.ends import ended_children, ended_in_words
from dstack.analysis.naming.names import waiting
from dstack.analysis.solve.open_chains import OpenChain
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Advice, Step, Vertex
from dstack.model.vertex_keys import Key, UnknownKey
from dstack.observed.processes import EndedChild
from dstack.words import duration, shortly, word

NOT_PROVEN = "likely, not proven: a message from outside could still end it"
NODE_MAY_JOIN = "no hang yet: such a node may still join"


def find_in(reduced: ReducedGraph, chain: OpenChain) -> Draft | None:
    """The finding about an open chain without progress: it ends in unknown wakers, as far as there are any."""
    if not is_stalled(reduced, chain):
        return None
    draft = draft_of(reduced, "stalled", with_users_of_polled(reduced, chain))
    ends = ((one, reduced.vertices[one.vertex]) for one in draft.final_blockers)
    wakers = [one for one, end in ends if end.waker_of or _is_new_node(end)]
    explained = _of_ended_tasks(draft)
    wakers.sort(key=lambda one: one.vertex not in explained)
    return replace(draft, final_blockers=tuple(wakers)) if wakers else draft


def _of_ended_tasks(draft: Draft) -> set[Key]:
    """The targets of waits for objects that asyncio tasks held which have ended: these explain most."""
    index = draft.reduced.index
    held = {(*place, one) for place, tasks in index.ended_tasks.items() for task in tasks for one in task.held}
    found: set[Key] = set()
    for vertex in draft.reduced.vertices_of(draft.members) if held else ():
        if (vertex.worker_id, vertex.child_pid, reach_of(index.call_of_vertex(vertex)).object_id) in held:
            found.update(targets_of(vertex))
    return found


def summary(facts: FindingFacts, narrator: Narrator) -> str:
    """How many wait, and in which calls the chain ends."""
    failed = failures.headline(facts.failed_before)
    if _is_for_nodes(facts):
        return f"{open_chain_summary(facts, narrator)}{failed}"
    if apart := collectives.disagreement(facts):
        return f"{_ends_in_words(facts, narrator)}, and {apart}{failed}"
    ended = "".join(f"; {ended_in_words(children)}" for children in _failed_children(facts, narrator)[:1])
    other = "" if _calls(facts) or not facts.ends else "else "  # than the handler of a signal
    return f"{_ends_in_words(facts, narrator)}, and nothing {other}that could end it runs{ended}{failed}"


def doubt(facts: FindingFacts) -> str:
    """What could still end the waits, in every form of the report."""
    return NODE_MAY_JOIN if _is_for_nodes(facts) else NOT_PROVEN


def steps(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
    """The calls with unknown wakers, what is queued behind them, and how certain the finding is."""
    yield from shared_call_steps(facts.shared_calls, narrator)
    yield from blocker_steps(
        [one for one in facts.draft.final_blockers if _is_new_node(narrator.vertices[one.vertex])], narrator
    )
    yield from other_side_steps(facts, narrator, facts.draft.members)
    if not facts.ends:
        yield from narrator.similar_steps(facts.members, "")
    yield from narrator.similar_steps(_queued(facts), "")
    if _is_for_nodes(facts):
        yield Step(text="No hang yet: nodes joined or left a short time ago, and such a node may still join")
        return
    watched, jobs = duration(facts.draft.watched_s or 0.0), word(len(facts.draft.jobs), "job")
    yield Step(
        text=f"Likely, not proven: none of them moved within {watched}, and nothing else of the {jobs} is running. A "
        "message from outside of Ray could still end the wait"
    )


def advice(facts: FindingFacts, narrator: Narrator) -> Advice:
    """What to change about a failure or a queued call; else what to inspect: those that are missing, or the end."""
    if failed := failures.fix(facts.failed_before):
        return Advice(kind="fix", text=failed)
    if _is_for_nodes(facts):
        return advice_at_end(facts, narrator)
    if collectives.disagreement(facts):
        return Advice(kind="fix", text=collectives.SAME_ADDRESS)
    if ended := _failed_children(facts, narrator):
        parent = narrator.index.workers.get(facts.members[0].worker_id or "")
        of_parent = "" if parent is None or parent.is_driver else f": {log_of_worker(parent.pid)}"
        text = f"The output of its parent process shows why {ended_in_words(ended[0], 'the ')}{of_parent}."
        return Advice(kind="next", text=text)
    uneven = [call for call in facts.shared_calls if call.is_most and (call.absent or call.idle)]
    if uneven:
        text = f"`dstack stacks` shows where those {uneven[0].name} are that are not in {uneven[0].call}."
        return Advice(kind="next", text=text)
    if queued := _queued(facts):
        return Advice(kind="fix", text=let_queued_run(describe(queued[0])))
    return advice_at_end(facts, narrator)


def _ends_in_words(facts: FindingFacts, narrator: Narrator) -> str:
    """``3 of 4 Trainer.step wait in threading.Event.wait``: the largest group in one call."""
    first = next(iter(facts.shared_calls), None)
    if not _calls(facts):
        return open_chain_summary(facts, narrator)
    if first is None:
        return f"{waiting(facts.draft.waiters_total)} in {shortly(_calls(facts))}"
    if len(first.inside) + len(first.absent) > 1:
        return shared_call_in_words(first)
    waiter = next((found for end in facts.ends if (found := waiter_of(facts, end))), None)
    shown = waiter or Waiter(first.inside[0], first.call)
    return f"{describe(shown.vertex)} waits in {shown.call}{narrator.line(shown.vertex)}"


def _failed_children(facts: FindingFacts, narrator: Narrator) -> list[list[EndedChild]]:
    """The child processes of the waiters at the end of the chains that have failed."""
    ends = {end.key for end in facts.ends}
    last = (vertex for vertex in facts.waits if not ends.isdisjoint(targets_of(vertex)))
    return [alike for vertex in last for alike in ended_children(narrator.index, vertex) if alike[0].exit_code]


def _is_for_nodes(facts: FindingFacts) -> bool:
    """Whether the chain ends only in nodes that may still join."""
    return bool(facts.ends) and all(map(_is_new_node, facts.ends))


def _is_new_node(end: Vertex) -> bool:
    return isinstance(end.key, UnknownKey) and end.key.is_new_node


def _calls(facts: FindingFacts) -> list[str]:
    """The names of the calls with unknown wakers."""
    ends = (vertex.waker_of for vertex in facts.ends)
    return list(dict.fromkeys(end.text for end in ends if end))


def _queued(facts: FindingFacts) -> list[Vertex]:
    """The actor calls that are queued."""
    return [vertex for vertex in facts.members if is_queued(vertex)]
