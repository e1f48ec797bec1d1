"""Running: an open chain. Its waiters resume when the final blockers proceed."""

from __future__ import annotations

from dstack.analysis.findings.facts.draft import Draft
from dstack.analysis.findings.facts.finding_facts import FindingFacts
from dstack.analysis.findings.kinds.open_chain import draft_of, steps, summary, to_inspect
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.naming.sentences import is_cancelled
from dstack.analysis.solve.open_chains import OpenChain
from dstack.diagnosis import FindingKind, Verdict
from dstack.vertex_keys import UnknownKey

__all__ = ["KIND", "VERDICT", "advice", "find_in", "steps", "summary"]
KIND: FindingKind = "running"
VERDICT: Verdict = "running"
REPEATED = 2
"""Restarts or retries that are a reason to find their cause."""


def find_in(reduced: ReducedGraph, chain: OpenChain) -> Draft | None:
    """The finding about an open chain of no other kind."""
    return draft_of(reduced, KIND, chain)


def advice(facts: FindingFacts, narrator: Narrator) -> str:
    """What to inspect: the final blocker."""
    ends = [end.key for end in facts.ends]
    if ends and all(isinstance(end, UnknownKey) and end.is_setup for end in ends):
        return (
            "Check whether the node reaches the package index, or install the packages on the nodes or in their image "
            "beforehand. Limit the setup with config={'setup_timeout_seconds': ...} in runtime_env."
        )
    if _is_repeated(facts):
        return _limit_attempts(facts)
    if any(is_cancelled(narrator.index, end) for end in facts.ends):
        return (
            "To let the cancelled call end, do not catch asyncio.CancelledError, or raise it again (ray.cancel "
            "requests it once). ray.kill ends an actor at once."
        )
    return f"{to_inspect(facts, narrator)}."


def _is_repeated(facts: FindingFacts) -> bool:
    """Whether an actor was restarted or a call retried several times, or once and is not yet placed."""
    restarts = (actor.num_restarts for actor in facts.restarted)
    retries = (task.attempt for _, task in facts.retried)
    is_pending = all(isinstance(end.key, UnknownKey) and end.key.is_scheduler for end in facts.ends)
    return max((*restarts, *retries), default=0) >= (1 if is_pending else REPEATED)


def _limit_attempts(facts: FindingFacts) -> str:
    """How to find the cause of restarts or retries, and to limit them."""
    if facts.restarted:
        first = facts.restarted[0]
        return (
            f"Find out why {names.actor(first)} dies: read the end of its log (`ray logs actor --id "
            f"{first.actor_id}`). Limit max_restarts and max_task_retries, so that the caller gets the error."
        )
    label = next((describe(vertex) for vertex, _ in facts.retried), "the call")
    return (
        f"Find out why {label} fails: read the end of its worker's log. Limit max_retries or max_task_retries, so that "
        "the caller gets the error."
    )
