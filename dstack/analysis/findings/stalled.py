"""Stalled: all chains end in calls that somebody else must end, nothing moved, and nobody was seen who might."""

from __future__ import annotations

from collections.abc import Iterator

from dstack.analysis.chains import Knot
from dstack.analysis.findings import failures
from dstack.analysis.findings.alike import gatherings, memberships
from dstack.analysis.findings.open_chain import finding_of
from dstack.analysis.findings.situation import Situation
from dstack.analysis.findings.standstill import stands_still, with_users_of_polled
from dstack.analysis.findings.telling import SHOWN_NAMES, Teller
from dstack.analysis.names import waiting
from dstack.diagnosis import Finding, FindingKind, Step, Verdict
from dstack.vertex_keys import Key
from dstack.words import duration, listed

KIND: FindingKind = "stalled"
VERDICT: Verdict = "stalled"


def find_in(situation: Situation, knot: Knot) -> Finding | None:
    """The finding of a knot that stands still."""
    if not stands_still(situation, knot):
        return None
    return finding_of(situation, KIND, with_users_of_polled(situation, knot))


def summary(finding: Finding, teller: Teller) -> str:
    """How many wait, and in which calls it ends."""
    calls = _calls(finding, teller)
    rest = f" and {len(calls) - SHOWN_NAMES} more" if len(calls) > SHOWN_NAMES else ""
    who = waiting(finding.waiters_total)
    failed = failures.headline(finding.failed_before)
    return f"{who}, in the end in {listed(calls[:SHOWN_NAMES])}{rest}, and nobody is left to end it{failed}"


def steps(finding: Finding, teller: Teller) -> Iterator[Step]:
    """Who is in those calls, who of their like is not, who is queued behind them, and how sure it is."""
    yield from memberships(gatherings(finding, teller.situation), teller)
    yield from teller.alike(_queued(finding, teller), "")
    watched = f" in the {duration(finding.watched_s or 0.0)} between two looks"
    yield Step(
        text=f"Strongly suggestive, not proven: none of them moved{watched}, and nobody else of the "
        f"job{'s' * (len(finding.jobs) > 1)} runs. A message from outside of Ray could still end it"
    )


def advice(finding: Finding, teller: Teller) -> str:
    """Why the other side does not come, by the shape of the standstill."""
    if failed := failures.advice(finding.failed_before):
        return failed
    odd = [group for group in gatherings(finding, teller.situation) if group.is_most and (group.absent or group.idle)]
    if odd:
        return (
            f"Find out why not all came to {odd[0].call}: all must make the same calls in the same order, so look "
            "for a branch, an early return, an error or a shorter loop in those that are not in it."
        )
    if queued := _queued(finding, teller):
        label = teller.vertices[queued[0]].label
        return (
            f"Let the call run that would end it: if that is {label}, which is queued, give its actor one more slot "
            "(a higher max_concurrency, or a concurrency group for it)."
        )
    calls = listed(_calls(finding, teller)[:SHOWN_NAMES], " or ")
    return f"Find out who should end {calls}, and why it does not; a timeout there would show the next hang by itself."


def _calls(finding: Finding, teller: Teller) -> list[str]:
    ends = (teller.vertices[blocker.vertex].other_side_of for blocker in finding.final_blockers)
    return list(dict.fromkeys(end for end in ends if end))


def _queued(finding: Finding, teller: Teller) -> list[Key]:
    """The actor calls that are sent and cannot begin."""
    members = teller.vertices_of(finding.members)
    return [v.key for v in members if v.worker_id is None and v.wait and v.wait.kind == "actor slot"]
