"""Orphaned: waits for something that died and that nobody will make."""

from __future__ import annotations

from collections.abc import Iterator

from dstack.analysis.findings.never_given import find_alike, sentence, submissions
from dstack.analysis.findings.situation import Situation
from dstack.analysis.findings.telling import Teller
from dstack.diagnosis import Finding, FindingKind, Step, Verdict

KIND: FindingKind = "orphaned"
VERDICT: Verdict = "hang"


def find(situation: Situation) -> Iterator[Finding]:
    """One for each thing that is gone."""
    return find_alike(situation, KIND)


def summary(finding: Finding, teller: Teller) -> str:
    """What is gone, and why."""
    return sentence(finding, teller, teller.vertices[finding.members[0]].never or "its producer is gone")


def steps(finding: Finding, teller: Teller) -> Iterator[Step]:
    """Who asked for it."""
    return submissions(finding, teller)


def advice(finding: Finding, teller: Teller) -> str:
    """Make it again, or do without."""
    members = teller.vertices_of(finding.members)
    if any(vertex.child_pid is not None for vertex in members):
        return (
            "Start child processes with the spawn method (multiprocessing.get_context('spawn'); of a DataLoader, "
            "multiprocessing_context='spawn'), or call Ray in the parent process and pass plain data to the child."
        )
    return "Start the producer again, or let its caller handle the error."
