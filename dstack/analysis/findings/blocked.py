"""Blocked: an open chain. All of it goes on when the executions at its ends do."""

from __future__ import annotations

from dstack.analysis.chains import Knot
from dstack.analysis.findings.open_chain import finding_of, steps, summary
from dstack.analysis.findings.situation import Situation
from dstack.analysis.findings.telling import Teller
from dstack.diagnosis import Finding, FindingKind, Verdict

__all__ = ["KIND", "VERDICT", "advice", "find_in", "steps", "summary"]
KIND: FindingKind = "blocked"
VERDICT: Verdict = "blocked"


def find_in(situation: Situation, knot: Knot) -> Finding | None:
    """The finding of an open knot that is nothing else."""
    return finding_of(situation, KIND, knot)


def advice(finding: Finding, teller: Teller) -> str:
    """Look at the ends."""
    return "Look at the lines above: all of it goes on when they do."
