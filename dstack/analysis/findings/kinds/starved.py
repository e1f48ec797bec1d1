"""Starved: waits for resources that are held by others, which are alive and can proceed."""

from __future__ import annotations

from collections.abc import Sequence

from dstack import words
from dstack.analysis.findings.kinds.open_chain import finding_of, steps, summary, to_inspect
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording.fixes import LET_GO, SHOWN_HOLDERS
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.solve.open_chains import OpenChain
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Finding, FindingKind, Verdict, Vertex
from dstack.vertex_keys import AnyKey, UnknownKey

__all__ = ["KIND", "VERDICT", "advice", "find_in", "steps", "summary"]
KIND: FindingKind = "starved"
VERDICT: Verdict = "blocked"


def find_in(reduced: ReducedGraph, chain: OpenChain) -> Finding | None:
    """The finding of an open knot in which somebody waits for resources."""
    return finding_of(reduced, KIND, chain) if reduced.resources(chain.waiters) else None


def advice(finding: Finding, narrator: Narrator) -> str:
    """What would free the resources."""
    ends = narrator.vertices_of(blocker.vertex for blocker in finding.final_blockers)
    if ends and all(isinstance(end.key, UnknownKey) and end.key.is_scheduler for end in ends):
        return f"{to_inspect(finding, narrator)}."
    holders = _holders(finding, narrator)
    are_for_life = any(holder.kind == "lifetime" for holder in holders)
    if are_for_life and any(holder.kind in ("execution", "task") for holder in holders):
        return f"Wait until one of the running tasks that hold {words.listed(finding.resources)} ends. {LET_GO}"
    if are_for_life:
        running = next((end for end in ends if end.kind == "execution"), None)
        rest = f" Otherwise wait for {running.label}{narrator.line(running)}." if running else ""
        return f"{_end_one(narrator, holders, finding.resources)}{rest}"
    names = words.shortly(sorted({holder.label for holder in holders}), SHOWN_HOLDERS, " or ") or "a holder"
    scarce = words.listed(finding.resources)
    first = f"{to_inspect(finding, narrator)}" if ends else f"Wait until {names} ends"
    return f"{first}. Or cancel {names}, let it ask for less, or add {scarce}."


def _end_one(narrator: Narrator, holders: Sequence[Vertex], resources: Sequence[str]) -> str:
    """Which actor or placement group to end."""
    named = {holder.holder: _how_to_end(narrator, holder) for holder in holders if holder.holder}
    if not named:
        return LET_GO
    end = "end" if any(narrator.index.placement_groups.get(_id(holder)) is None for holder in holders) else "remove"
    return (
        f"Free {words.listed(resources)}: {end} {words.shortly(sorted(named), SHOWN_HOLDERS, ' or ')} "
        f"({words.listed(sorted(set(named.values())), ' or ')}), let it ask for less, or add resources."
    )


def _how_to_end(narrator: Narrator, holder: Vertex) -> str:
    """``ray.kill`` or what else ends an actor, or removes a placement group."""
    actor = narrator.index.actors.get(_id(holder))
    if actor is None:
        return "ray.util.remove_placement_group"
    return "ray.kill, since it is detached" if actor.is_detached else "drop its last handle, or ray.kill"


def _id(holder: Vertex) -> str:
    """The id of the actor or placement group whose end or removal a vertex is."""
    return str(holder.key.ids[0]) if isinstance(holder.key, AnyKey) and holder.key.ids else ""


def _holders(finding: Finding, narrator: Narrator) -> list[Vertex]:
    """What holds the resources that are waited for, also behind vertices that only stand for several."""
    waits = narrator.vertices_of((*finding.members, *finding.helpers))
    targets = {key for vertex in waits if vertex.wait and vertex.wait.resources for key in targets_of(vertex)}
    return [vertex for vertex in narrator.vertices_of(targets) if vertex.kind != "room"]
