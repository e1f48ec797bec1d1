"""Starved: waits for resources whose holders are alive and can proceed."""

from __future__ import annotations

from collections.abc import Sequence

from dstack import words
from dstack.analysis.findings.facts.draft import Draft
from dstack.analysis.findings.facts.finding_facts import FindingFacts
from dstack.analysis.findings.kinds.open_chain import draft_of, is_start, steps, summary, to_inspect
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording.fixes import RELEASE_RESOURCES, STORE
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.naming.descriptions import describe, operand_in_words
from dstack.analysis.solve.open_chains import OpenChain
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import FindingKind, Verdict, Vertex
from dstack.vertex_keys import AnyKey, UnknownKey

__all__ = ["KIND", "VERDICT", "advice", "find_in", "steps", "summary"]
KIND: FindingKind = "starved"
VERDICT: Verdict = "running"


def find_in(reduced: ReducedGraph, chain: OpenChain) -> Draft | None:
    """The finding about an open chain with a wait for resources."""
    return draft_of(reduced, KIND, chain) if reduced.resources(chain.waiters) else None


def advice(facts: FindingFacts, narrator: Narrator) -> str:
    """What would free the resources."""
    ends, resources = facts.ends, facts.draft.resources
    if ends and all(isinstance(end.key, UnknownKey) and end.key.is_scheduler for end in ends):
        return f"{to_inspect(facts, narrator)}."
    if ends and is_start(ends[0]):
        return f"{to_inspect(facts, narrator)}."
    holders = [one for one in _holders(facts) if not is_start(one) and one.kind != "unknown"]
    are_for_life = any(holder.kind == "lifetime" for holder in holders)
    if are_for_life and any(holder.kind in ("execution", "task") for holder in holders):
        scarce = words.listed(resources)
        return f"Wait until one of the running tasks that hold {scarce} ends. {RELEASE_RESOURCES}"
    if are_for_life:
        running = next((end for end in ends if end.kind == "execution"), None)
        otherwise = f" Otherwise wait for {describe(running)}{narrator.line(running)}." if running else ""
        return f"{_end_a_holder(narrator, holders, resources)}{otherwise}"
    return _inspect_or_cancel(facts, narrator, holders)


def _inspect_or_cancel(facts: FindingFacts, narrator: Narrator, holders: Sequence[Vertex]) -> str:
    """What to inspect, and how to do without it; holders that are not known cannot be cancelled."""
    known = words.shortly(sorted({describe(holder) for holder in holders}), " or ")
    if facts.ends and not known:
        return f"{to_inspect(facts, narrator)}."
    names, resources = known or "a holder", facts.draft.resources
    first = to_inspect(facts, narrator) if facts.ends else f"Wait until {names} ends"
    if resources == STORE:
        return f"{first}. Or cancel {names}, pass less data as arguments, or give the nodes a larger object store."
    return f"{first}. Or cancel {names}, let it ask for less, or add {words.listed(resources)}."


def _end_a_holder(narrator: Narrator, holders: Sequence[Vertex], resources: Sequence[str]) -> str:
    """Which actor or placement group to end, and how."""
    how_to_end = {operand_in_words(holder.holder): _how_to_end(narrator, holder) for holder in holders if holder.holder}
    if not how_to_end:
        return RELEASE_RESOURCES
    are_groups = all(_id(holder) in narrator.index.placement_groups for holder in holders)
    return (
        f"Free {words.listed(resources)}: {'remove' if are_groups else 'end'} "
        f"{words.shortly(sorted(how_to_end), ' or ')} "
        f"({words.listed(sorted(set(how_to_end.values())), ' or ')}), let it ask for less, or add resources."
    )


def _how_to_end(narrator: Narrator, holder: Vertex) -> str:
    """The call that ends an actor or removes a placement group."""
    actor = narrator.index.actors.get(_id(holder))
    if actor is None:
        return "ray.util.remove_placement_group"
    return "ray.kill, since it is detached" if actor.is_detached else "drop its last handle, or ray.kill"


def _id(holder: Vertex) -> str:
    """The id of the actor or placement group whose end or removal a vertex is."""
    return str(holder.key.ids[0]) if isinstance(holder.key, AnyKey) and holder.key.ids else ""


def _holders(facts: FindingFacts) -> list[Vertex]:
    """The vertices that hold the awaited resources, found through helpers too."""
    waits = facts.reduced.vertices_of((*facts.draft.members, *facts.draft.helpers))
    targets = {key for vertex in waits if vertex.wait and vertex.wait.resources for key in targets_of(vertex)}
    return [vertex for vertex in facts.reduced.vertices_of(targets) if vertex.kind != "room"]
