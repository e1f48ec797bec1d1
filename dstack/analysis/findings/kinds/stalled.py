"""Stalled: all chains end in calls that something unknown must end, and nothing that could end them is running."""

from __future__ import annotations

from collections.abc import Iterator

from dstack.analysis.findings.kinds.open_chain import Waiter, finding_of, to_inspect, waiter_of
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.stall_evidence import is_stalled, with_users_of_polled
from dstack.analysis.findings.wording import failures
from dstack.analysis.findings.wording.fixes import let_queued_run
from dstack.analysis.findings.wording.narration import SHOWN_NAMES, Narrator
from dstack.analysis.findings.wording.shared_calls import shared_call_in_words, shared_call_steps, shared_calls
from dstack.analysis.graph.pending.actor_queues import is_queued
from dstack.analysis.naming.names import waiting
from dstack.analysis.solve.open_chains import OpenChain
from dstack.diagnosis import Finding, FindingKind, Step, Verdict
from dstack.vertex_keys import Key
from dstack.words import duration, shortly, word

KIND: FindingKind = "stalled"
VERDICT: Verdict = "stalled"


def find_in(reduced: ReducedGraph, chain: OpenChain) -> Finding | None:
    """The finding of a knot that stands still."""
    if not is_stalled(reduced, chain):
        return None
    return finding_of(reduced, KIND, with_users_of_polled(reduced, chain))


def summary(finding: Finding, narrator: Narrator) -> str:
    """How many wait, and in which calls it ends."""
    failed = failures.headline(finding.failed_before)
    ends = _ends_in_words(finding, narrator)
    return f"{ends}, and nothing that could end the wait is running{failed}"


def _ends_in_words(finding: Finding, narrator: Narrator) -> str:
    """``3 of 4 Trainer.step wait in threading.Event.wait``: the largest group in such a call, or all by their calls."""
    first = next(iter(shared_calls(finding, narrator)), None)
    if first is None:
        return f"{waiting(finding.waiters_total)} in {shortly(_calls(finding, narrator), SHOWN_NAMES)}"
    if len(first.inside) + len(first.absent) > 1:
        return shared_call_in_words(first)
    ends = narrator.vertices_of(blocker.vertex for blocker in finding.final_blockers)
    waiter = next((found for end in ends if (found := waiter_of(finding, narrator, end))), None)
    shown = waiter or Waiter(first.inside[0], first.call)
    return f"{shown.vertex.label} waits in {shown.call}{narrator.spot(shown.vertex)}"


def steps(finding: Finding, narrator: Narrator) -> Iterator[Step]:
    """What is in those calls, what alike is not, what is queued behind them, and how certain the finding is."""
    yield from shared_call_steps(shared_calls(finding, narrator), narrator)
    yield from narrator.alike(_queued(finding, narrator), "")
    yield Step(
        text=f"Likely, not proven: none of them moved within {duration(finding.watched_s or 0.0)}, and nothing else of "
        f"the {word(len(finding.jobs), 'job')} is running. A message from outside of Ray could still end the wait"
    )


def advice(finding: Finding, narrator: Narrator) -> str:
    """What to inspect, by the shape of the standstill."""
    if failed := failures.advice(finding.failed_before):
        return failed
    odd = [group for group in shared_calls(finding, narrator) if group.is_most and (group.absent or group.idle)]
    if odd:
        return (
            f"Find out why not all {odd[0].name} are in {odd[0].call}: look for a branch, an early return, an error or "
            "a shorter loop in those that are missing."
        )
    if queued := _queued(finding, narrator):
        return let_queued_run(narrator.vertices[queued[0]].label)
    return f"{to_inspect(finding, narrator)}. A timeout there would turn the next hang into an error."


def _calls(finding: Finding, narrator: Narrator) -> list[str]:
    ends = (narrator.vertices[blocker.vertex].waker_of for blocker in finding.final_blockers)
    return list(dict.fromkeys(end for end in ends if end))


def _queued(finding: Finding, narrator: Narrator) -> list[Key]:
    """The actor calls that are sent and cannot begin."""
    members = narrator.vertices_of(finding.members)
    return [vertex.key for vertex in members if is_queued(vertex)]
