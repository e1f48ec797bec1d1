"""Infeasible: asks for resources that no node has."""

from __future__ import annotations

from collections.abc import Iterator

from dstack.analysis.findings.kinds.unsatisfiable import find_by_request, sentence, submissions
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.naming.sentences import reason
from dstack.diagnosis import Finding, FindingKind, Step, Verdict, Vertex
from dstack.words import listed

KIND: FindingKind = "infeasible"
VERDICT: Verdict = "hang"
OTHER_STRATEGIES = {"STRICT_PACK": "PACK", "STRICT_SPREAD": "SPREAD"}


def find(reduced: ReducedGraph) -> Iterator[Finding]:
    """One for each thing that is asked for in vain."""
    return find_by_request(reduced, KIND)


def summary(finding: Finding, narrator: Narrator) -> str:
    """Who asks for what."""
    each = "it" if len(finding.members) == 1 else "each"
    return sentence(finding, narrator, f"{each} {reason(narrator.vertices[finding.members[0]])}")


def steps(finding: Finding, narrator: Narrator) -> Iterator[Step]:
    """Who asked."""
    return submissions(finding, narrator)


def advice(finding: Finding, narrator: Narrator) -> str:
    """Ask for less, or add more."""
    first = narrator.vertices[finding.members[0]]
    if change := _of_strategy(narrator, first) or _of_selector(narrator, first):
        return f"{change}, reduce what it asks for, or add a node that has it."
    return f"Reduce what {first.label} asks for, or add a node that has it: no node of the cluster can run it now."


def _of_strategy(narrator: Narrator, vertex: Vertex) -> str | None:
    """Which other strategy a placement group might fit in."""
    group = narrator.index.placement_groups.get(vertex.placement_group_id or "") if vertex.task_id is None else None
    other = OTHER_STRATEGIES.get(group.strategy) if group and len(group.bundles) > 1 else None
    return f"For {vertex.label} use the strategy {other} instead of {group.strategy}" if group and other else None


def _of_selector(narrator: Narrator, vertex: Vertex) -> str | None:
    """Which labels something asks for."""
    task = narrator.index.tasks.get(vertex.task_id or "")
    actor = narrator.index.actors.get(task.actor_id or "") if task else None
    asked = {**(task.label_selector if task else {}), **(actor.label_selector if actor else {})}
    labels = listed([f"{name}: {value}" for name, value in asked.items()])
    return f"Change the label selector of {vertex.label} ({labels})" if asked else None
