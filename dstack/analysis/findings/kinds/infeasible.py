"""Infeasible: waits for resources that no node has."""

from __future__ import annotations

from collections.abc import Iterator

from dstack.analysis.findings.facts.draft import Draft
from dstack.analysis.findings.facts.finding_facts import FindingFacts
from dstack.analysis.findings.kinds.unsatisfiable import find_by_request, sentence, submissions
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.naming.sentences import reason
from dstack.model.diagnosis import Advice, FindingKind, Step, Verdict, Vertex
from dstack.words import listed

KIND: FindingKind = "infeasible"
VERDICT: Verdict = "hang"
OTHER_STRATEGIES = {"STRICT_PACK": "PACK", "STRICT_SPREAD": "SPREAD"}


def find(reduced: ReducedGraph) -> Iterator[Draft]:
    """One finding for each different request that no node can satisfy."""
    return find_by_request(reduced, KIND)


def summary(facts: FindingFacts, narrator: Narrator) -> str:
    """What cannot run, and which request is the reason."""
    each = "it" if len(facts.members) == 1 else "each"
    return sentence(facts, f"{each} {reason(facts.members[0])}")


def steps(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
    """The owners of the requests."""
    return submissions(facts, narrator)


def advice(facts: FindingFacts, narrator: Narrator) -> Advice:
    """Change the request, or add a node."""
    first = facts.members[0]
    if change := _change_of_strategy(narrator, first) or _change_of_selector(narrator, first):
        return Advice(kind="fix", text=f"{change}, reduce what it asks for, or add a node that has it.")
    text = f"Reduce what {describe(first)} asks for, or add a node that has it: no node of the cluster can run it now."
    return Advice(kind="fix", text=text)


def _change_of_strategy(narrator: Narrator, vertex: Vertex) -> str | None:
    """Another strategy that a placement group might fit in."""
    if vertex.task_id is not None:
        return None
    group = narrator.index.placement_groups.get(vertex.placement_group_id or "")
    other = OTHER_STRATEGIES.get(group.strategy) if group and len(group.bundles) > 1 else None
    return f"For {describe(vertex)} use the strategy {other} instead of {group.strategy}" if group and other else None


def _change_of_selector(narrator: Narrator, vertex: Vertex) -> str | None:
    """The label selector of a task or actor, if it has one."""
    task = narrator.index.tasks.get(vertex.task_id or "")
    actor = narrator.index.actors.get(task.actor_id or "") if task else None
    asked = {**(task.label_selector if task else {}), **(actor.label_selector if actor else {})}
    labels = listed([f"{name}: {value}" for name, value in asked.items()])
    return f"Change the label selector of {describe(vertex)} ({labels})" if asked else None
