"""Infeasible: asks for resources that no node has."""

from __future__ import annotations

from collections.abc import Iterator

from dstack.analysis.findings.never_given import find_alike, sentence, submissions
from dstack.analysis.findings.situation import Situation
from dstack.analysis.findings.telling import Teller
from dstack.analysis.sentences import reason
from dstack.diagnosis import Finding, FindingKind, Step, Verdict

KIND: FindingKind = "infeasible"
VERDICT: Verdict = "hang"


def find(situation: Situation) -> Iterator[Finding]:
    """One for each thing that is asked for in vain."""
    return find_alike(situation, KIND)


def summary(finding: Finding, teller: Teller) -> str:
    """Who asks for what."""
    each = "it" if len(finding.members) == 1 else "each"
    return sentence(finding, teller, f"{each} {reason(teller.vertices[finding.members[0]])}")


def steps(finding: Finding, teller: Teller) -> Iterator[Step]:
    """Who asked."""
    return submissions(finding, teller)


def advice(finding: Finding, teller: Teller) -> str:
    """Ask for less, or add more."""
    label = teller.vertices[finding.members[0]].label
    return f"Reduce what {label} asks for, or add a node that has it: no node of the cluster can run it now."
