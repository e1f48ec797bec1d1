"""Starved: waits for resources that are held by others who are still alive and can go on."""

from __future__ import annotations

from dstack.analysis.chains import Knot
from dstack.analysis.findings.open_chain import finding_of, steps, summary
from dstack.analysis.findings.situation import Situation
from dstack.analysis.findings.telling import Teller
from dstack.analysis.findings.ways_out import LET_GO
from dstack.diagnosis import Finding, FindingKind, Verdict
from dstack.vertex_keys import UnknownKey

__all__ = ["KIND", "VERDICT", "advice", "find_in", "steps", "summary"]
KIND: FindingKind = "starved"
VERDICT: Verdict = "blocked"


def find_in(situation: Situation, knot: Knot) -> Finding | None:
    """The finding of an open knot in which somebody waits for resources."""
    return finding_of(situation, KIND, knot) if situation.resources(knot.waiters) else None


def advice(finding: Finding, teller: Teller) -> str:
    """Have something let go."""
    ends = teller.vertices_of(blocker.vertex for blocker in finding.final_blockers)
    if ends and all(isinstance(end.key, UnknownKey) and end.key.is_scheduler for end in ends):
        return (
            "There is room, yet it is not placed: look at its node affinity and label selector, which Ray does not "
            "tell of tasks, at its runtime environment, which may be being set up, and into the raylet's log."
        )
    if ends and all(end.kind == "lifetime" for end in ends):
        return f"{LET_GO}, or add resources."
    return "Wait for one of the holders, end or shrink it, or add resources."
