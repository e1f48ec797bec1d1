"""Starved: waits for resources whose holders are alive and can proceed."""

from __future__ import annotations

from collections.abc import Sequence

from dstack import words
from dstack.analysis.findings.facts.draft import Draft
from dstack.analysis.findings.facts.finding_facts import FindingFacts
from dstack.analysis.findings.kinds.next_step import advice_at_end
from dstack.analysis.findings.kinds.open_chain import draft_of, is_start, steps, summary
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.findings.wording.resource_fixes import is_of_library
from dstack.analysis.naming.descriptions import operand_in_words
from dstack.analysis.solve.open_chains import OpenChain
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Advice, FindingKind, Verdict, Vertex
from dstack.model.snapshot import Actor, PlacementGroup

__all__ = ["KIND", "VERDICT", "advice", "find_in", "steps", "summary"]
KIND: FindingKind = "starved"
VERDICT: Verdict = "running"


def find_in(reduced: ReducedGraph, chain: OpenChain) -> Draft | None:
    """The finding about an open chain with a wait for resources."""
    return draft_of(reduced, KIND, chain) if reduced.resources(chain.waiters) else None


def advice(facts: FindingFacts, narrator: Narrator) -> Advice:
    """What runs while it holds the resources; a change only if they are held by what does nothing."""
    holders = [one for one in _holders(facts) if not is_start(one) and one.kind != "unknown"]
    is_at_rest = bool(holders) and all(holder.kind == "lifetime" for holder in holders)
    if not is_at_rest or any(end.kind == "execution" for end in facts.ends):
        return advice_at_end(facts, narrator)
    return Advice(kind="fix", text=_end_a_holder(narrator, holders, facts.draft.resources))


def _end_a_holder(narrator: Narrator, holders: Sequence[Vertex], resources: Sequence[str]) -> str:
    """Which actor or placement group to end if it is not needed, and how; never one that a library made."""
    own = [one for one in holders if one.holder and not is_of_library(narrator.index, one.holder)]
    how_to_end = {operand_in_words(one.holder): _how_to_end(one.holder) for one in own if one.holder}
    what = words.listed(resources)
    if not how_to_end:
        return f"Let those that hold {what} ask for less, or let fewer of them run at a time."
    are_groups = all(isinstance(one.holder, PlacementGroup) for one in own)
    return (
        f"{'Remove' if are_groups else 'End'} {words.shortly(sorted(how_to_end), ' or ')} if nothing needs it any more "
        f"({words.listed(sorted(set(how_to_end.values())), ' or ')}), let it ask for less, or add {what}."
    )


def _how_to_end(holder: Actor | PlacementGroup) -> str:
    """The call that ends an actor or removes a placement group."""
    if isinstance(holder, PlacementGroup):
        return "ray.util.remove_placement_group"
    return "ray.kill, since it is detached" if holder.is_detached else "drop its last handle"


def _holders(facts: FindingFacts) -> list[Vertex]:
    """The vertices that hold the awaited resources, found through helpers too."""
    waits = facts.reduced.vertices_of((*facts.draft.members, *facts.draft.helpers))
    targets = {key for vertex in waits if vertex.wait and vertex.wait.resources for key in targets_of(vertex)}
    return [vertex for vertex in facts.reduced.vertices_of(targets) if vertex.kind != "room"]
