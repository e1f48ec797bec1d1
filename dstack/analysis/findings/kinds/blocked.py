"""Blocked: an open chain. Its waiters resume when the final blockers proceed."""

from __future__ import annotations

from dstack.analysis.findings.draft import Draft
from dstack.analysis.findings.kinds.open_chain import draft_of, steps, summary, to_inspect
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording import restarts
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.naming.sentences import is_cancelled
from dstack.analysis.solve.open_chains import OpenChain
from dstack.diagnosis import FindingKind, Verdict
from dstack.vertex_keys import UnknownKey

__all__ = ["KIND", "VERDICT", "advice", "find_in", "steps", "summary"]
KIND: FindingKind = "blocked"
VERDICT: Verdict = "blocked"


def find_in(reduced: ReducedGraph, chain: OpenChain) -> Draft | None:
    """The finding about an open chain of no other kind."""
    return draft_of(reduced, KIND, chain)


def advice(draft: Draft, narrator: Narrator) -> str:
    """What to inspect: the final blocker."""
    ends = narrator.vertices_of(draft.ends)
    if ends and all(isinstance(end.key, UnknownKey) and end.key.is_setup for end in ends):
        return (
            "Check whether the node reaches the package index, or install the packages on the nodes or in their image "
            "beforehand. Limit the setup with config={'setup_timeout_seconds': ...} in runtime_env."
        )
    if restarts.is_repeated(draft, narrator):
        return restarts.advice(draft, narrator)
    if any(is_cancelled(narrator.index, end) for end in ends):
        return (
            "To let the cancelled call end, do not catch asyncio.CancelledError, or raise it again (ray.cancel "
            "requests it once). ray.kill ends an actor at once."
        )
    return f"{to_inspect(draft, narrator)}."
