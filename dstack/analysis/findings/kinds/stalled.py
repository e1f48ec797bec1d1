"""Stalled: an open chain that ends in calls with unknown wakers, while no possible waker runs."""

from __future__ import annotations

from collections.abc import Iterator

from dstack.analysis.findings.draft import Draft
from dstack.analysis.findings.kinds.open_chain import Waiter, draft_of, to_inspect, waiter_of
from dstack.analysis.findings.outside_waits import is_stalled, with_users_of_polled
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording import failures
from dstack.analysis.findings.wording.fixes import let_queued_run
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.findings.wording.shared_calls import shared_call_in_words, shared_call_steps, shared_calls
from dstack.analysis.graph.pending.actor_queues import is_queued
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.naming.names import waiting
from dstack.analysis.solve.open_chains import OpenChain
from dstack.diagnosis import FindingKind, Step, Verdict
from dstack.vertex_keys import Key
from dstack.words import duration, shortly, word

KIND: FindingKind = "stalled"
VERDICT: Verdict = "stalled"


def find_in(reduced: ReducedGraph, chain: OpenChain) -> Draft | None:
    """The finding about an open chain without progress."""
    return draft_of(reduced, KIND, with_users_of_polled(reduced, chain)) if is_stalled(reduced, chain) else None


def summary(draft: Draft, narrator: Narrator) -> str:
    """How many wait, and in which calls the chain ends."""
    failed = failures.headline(narrator.failed_before(draft))
    return f"{_ends_in_words(draft, narrator)}, and nothing that could end the wait is running{failed}"


def steps(draft: Draft, narrator: Narrator) -> Iterator[Step]:
    """The calls with unknown wakers, what is queued behind them, and how certain the finding is."""
    yield from shared_call_steps(shared_calls(draft, narrator), narrator)
    yield from narrator.similar_steps(_queued(draft, narrator), "")
    yield Step(
        text=f"Likely, not proven: none of them moved within {duration(draft.watched_s or 0.0)}, and nothing else of "
        f"the {word(len(draft.jobs), 'job')} is running. A message from outside of Ray could still end the wait"
    )


def advice(draft: Draft, narrator: Narrator) -> str:
    """What to inspect: a failure, executions outside of the call, a queued call, or the missing waker."""
    if failed := failures.advice(narrator.failed_before(draft)):
        return failed
    uneven = [call for call in shared_calls(draft, narrator) if call.is_most and (call.absent or call.idle)]
    if uneven:
        return (
            f"Find out why not all {uneven[0].name} are in {uneven[0].call}: look for a branch, an early return, an "
            "error or a shorter loop in those that are missing."
        )
    if queued := _queued(draft, narrator):
        return let_queued_run(describe(narrator.vertices[queued[0]]))
    return f"{to_inspect(draft, narrator)}. A timeout there would turn the next hang into an error."


def _ends_in_words(draft: Draft, narrator: Narrator) -> str:
    """``3 of 4 Trainer.step wait in threading.Event.wait``: the largest group in one call."""
    first = next(iter(shared_calls(draft, narrator)), None)
    if first is None:
        return f"{waiting(draft.waiters_total)} in {shortly(_calls(draft, narrator))}"
    if len(first.inside) + len(first.absent) > 1:
        return shared_call_in_words(first)
    ends = narrator.vertices_of(draft.ends)
    waiter = next((found for end in ends if (found := waiter_of(draft, narrator, end))), None)
    shown = waiter or Waiter(first.inside[0], first.call)
    return f"{describe(shown.vertex)} waits in {shown.call}{narrator.line_and_process(shown.vertex)}"


def _calls(draft: Draft, narrator: Narrator) -> list[str]:
    """The names of the calls with unknown wakers."""
    ends = (vertex.waker_of for vertex in narrator.vertices_of(draft.ends))
    return list(dict.fromkeys(end.text for end in ends if end))


def _queued(draft: Draft, narrator: Narrator) -> list[Key]:
    """The actor calls that are queued."""
    return [vertex.key for vertex in narrator.vertices_of(draft.members) if is_queued(vertex)]
