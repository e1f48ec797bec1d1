"""Why a rank of a process group is lost or idle, in words."""

from __future__ import annotations

from collections.abc import Iterator

from dstack import words
from dstack.analysis.findings.draft import Draft
from dstack.analysis.findings.wording.failures import RAISED, SHOWN_ERROR
from dstack.analysis.findings.wording.group_ranks import failure_of, ranks_in
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.naming import names
from dstack.diagnosis import Step, Vertex


def absent_steps(draft: Draft, narrator: Narrator) -> Iterator[Step]:
    """The ranks that are lost or idle, and why."""
    for vertex in ranks_in(draft, narrator).absent:
        if text := why_lost(narrator, vertex) or why_idle(narrator, vertex):
            yield _step(narrator, vertex, text)


def why_lost(narrator: Narrator, vertex: Vertex) -> str | None:
    """``rank 1's execute_model raised RuntimeError: ..., and its result was never fetched``."""
    absent = vertex.absent
    if absent is None:
        return None
    if vertex.never:
        return f"{vertex.label} {vertex.never}"
    if absent.is_dead:
        actor = narrator.index.actors.get(absent.actor_id or "")
        cause = ((actor.death_cause if actor else None) or "").partition(". ")[0].removesuffix(".")
        name = f" ({names.actor(actor)})" if actor else ""
        return f"rank {absent.rank}{name} has died{f': {cause[:SHOWN_ERROR]}' if cause else ''}"
    failed = failure_of(narrator.reduced, vertex)
    if failed is None:
        return None
    verb = "raised" if failed.error_type == RAISED else "failed:"
    fetched = ", and its result was never fetched" if failed.is_held else ""
    return f"rank {absent.rank}'s {failed.name} {verb} {(failed.error or failed.error_type)[:SHOWN_ERROR]}{fetched}"


def why_idle(narrator: Narrator, vertex: Vertex) -> str | None:
    """``rank 2 (actor Rank "b") is idle, and all its possible callers wait for the other ranks``."""
    absent = vertex.absent
    if absent is None or not absent.is_idle:
        return None
    actor = narrator.index.actors.get(absent.actor_id or "")
    name = f" ({names.actor(actor)})" if actor else ""
    return f"rank {absent.rank}{name} is idle, and all its possible callers wait for the other ranks"


def _step(narrator: Narrator, vertex: Vertex, text: str) -> Step:
    failed = failure_of(narrator.reduced, vertex)
    return Step(
        text=words.capitalised(text),
        vertex=vertex.key,
        file=failed.file if failed else None,
        line=failed.line if failed else None,
        source=failed.source if failed else None,
    )
