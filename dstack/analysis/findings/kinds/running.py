"""Running: an open chain. Its waiters resume when the final blockers proceed."""

from __future__ import annotations

from dstack.analysis.findings.facts.draft import Draft
from dstack.analysis.findings.facts.finding_facts import FindingFacts
from dstack.analysis.findings.kinds.next_step import advice_at_end, log_of, tasks_named
from dstack.analysis.findings.kinds.open_chain import draft_of, steps, summary
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.naming.sentences import is_cancelled
from dstack.analysis.solve.open_chains import OpenChain
from dstack.model.diagnosis import Advice, FindingKind, Verdict
from dstack.model.vertex_keys import UnknownKey

__all__ = ["KIND", "VERDICT", "advice", "find_in", "steps", "summary"]
KIND: FindingKind = "running"
VERDICT: Verdict = "running"
REPEATED = 2
"""Restarts or retries that are a reason to find their cause."""


def find_in(reduced: ReducedGraph, chain: OpenChain) -> Draft | None:
    """The finding about an open chain of no other kind."""
    return draft_of(reduced, KIND, chain)


def advice(facts: FindingFacts, narrator: Narrator) -> Advice:
    """What to inspect: why something is repeated, or the final blocker."""
    if _is_repeated(facts):
        return Advice(kind="next", text=_attempts(facts))
    if any(is_cancelled(narrator.index, end) for end in facts.ends):
        text = (
            "To let the cancelled call end, do not catch asyncio.CancelledError, or raise it again: ray.cancel "
            "requests it once."
        )
        return Advice(kind="fix", text=text)
    return advice_at_end(facts, narrator)


def _is_repeated(facts: FindingFacts) -> bool:
    """Whether an actor was restarted or a call retried several times, or once and is not yet placed."""
    restarts = (actor.num_restarts for actor in facts.restarted)
    retries = (task.attempt for _, task in facts.retried)
    is_pending = all(isinstance(end.key, UnknownKey) and end.key.is_scheduler for end in facts.ends)
    return max((*restarts, *retries), default=0) >= (1 if is_pending else REPEATED)


def _attempts(facts: FindingFacts) -> str:
    """What shows the cause of restarts or retries, and what limits them."""
    if facts.restarted:
        return (
            f"{log_of(facts.restarted[0])}, which dies again and again. Without max_restarts and max_task_retries the "
            "caller gets the error."
        )
    vertex, task = facts.retried[0]
    return (
        f"{tasks_named(task.name)} shows the errors of {describe(vertex)}, which fails again and again. Without "
        "max_retries or max_task_retries the caller gets the error."
    )
