"""Starved: waits for resources that are held by others who are still alive and can go on."""

from __future__ import annotations

from dstack.analysis.chains import Knot
from dstack.analysis.findings.open_chain import finding_of, steps, summary
from dstack.analysis.findings.situation import Situation
from dstack.analysis.findings.telling import Teller
from dstack.analysis.findings.ways_out import LET_GO
from dstack.analysis.requirements import targets_of
from dstack.diagnosis import Finding, FindingKind, Verdict, Vertex
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
    holders = _holders(finding, teller)
    are_for_life = any(holder.kind == "lifetime" for holder in holders)
    if are_for_life and any(holder.kind in ("execution", "task") for holder in holders):
        return f"Wait for one of the running tasks that hold some of it, or {LET_GO[0].lower()}{LET_GO[1:]}."
    if are_for_life:
        return f"{LET_GO}, or add resources."
    return "Wait for one of the holders, end or shrink it, or add resources."


def _holders(finding: Finding, teller: Teller) -> list[Vertex]:
    """What holds the resources that are waited for, also behind vertices that only stand for several."""
    waits = teller.vertices_of((*finding.members, *finding.helpers))
    targets = {key for vertex in waits if vertex.wait and vertex.wait.resources for key in targets_of(vertex)}
    return [vertex for vertex in teller.vertices_of(targets) if vertex.kind != "room"]
