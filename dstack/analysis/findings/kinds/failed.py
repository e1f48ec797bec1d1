"""Failed: a call failed and its result is held, but no wait is for it, and its caller waits for something else.

Ray does not tell whether a result was fetched before, so this claims only what was observed. Healthy programs hold
failed results too: the finding needs a job that stands still, and changes no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dstack.analysis.findings.draft import Draft
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.unfetched_failures import UnfetchedFailures
from dstack.analysis.findings.wording.failures import Failures, folded, in_words, what_happened
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.naming.descriptions import describe
from dstack.diagnosis import FailedBefore, FindingKind, Step, Verdict, Vertex
from dstack.words import SHOWN, alike, duration

KIND: FindingKind = "failed"
VERDICT: Verdict = "blocked"


def find(reduced: ReducedGraph, others: Sequence[Draft]) -> Iterator[Draft]:
    """One draft for similar failures in jobs that stand still, or that are stuck by the ``others``."""
    stuck = {job for draft in others if not draft.is_open or draft.kind == "stalled" for job in draft.jobs}
    found = UnfetchedFailures(reduced, stuck).waits_by_task()
    failures = (one for one in Failures(reduced).held() if one.task_id in found)
    for failure in list(folded(failures))[:SHOWN]:
        yield Draft(reduced, KIND, found[failure.task_id or ""], is_open=True, failure=failure)


def summary(draft: Draft, narrator: Narrator) -> str:
    """What failed and when, and what its caller waits in meanwhile."""
    failure = _failure(draft)
    first = narrator.vertices[draft.waits[0]]
    return (
        f"{in_words(failure)}{alike(failure.count)}; its result is still held, but nothing waits for it: "
        f"{describe(first)} waits in {_call(first)}{narrator.line(first)}"
    )


def steps(draft: Draft, narrator: Narrator) -> Iterator[Step]:
    """The callers with their waits, and what is known of the result."""
    yield from narrator.similar_steps(draft.waits, "")
    first = narrator.vertices[draft.waits[0]]
    if has_waited_since(first, _failure(draft)):
        yield Step(
            text=f"{describe(first)} has been in this wait since before the failure, so it has not fetched the error"
        )
    else:
        yield Step(text="Ray does not tell whether the result was fetched before, so this is likely, not proven")


def advice(draft: Draft, narrator: Narrator) -> str:
    """To correct the error, and to fetch it early."""
    return (
        f"Correct the error of {_failure(draft).name}. Fetch its result together with those of the other calls "
        "(ray.wait returns the first that is ready), so that its error is raised at once."
    )


def has_waited_since(vertex: Vertex, failure: FailedBefore) -> bool:
    """Whether a vertex is known to be in its wait since before the failure."""
    at_least_s = vertex.since.at_least_s if vertex.since else None
    return failure.ago_s is not None and at_least_s is not None and at_least_s >= failure.ago_s


def entry_text(failure: FailedBefore) -> str:
    """``raised RuntimeError: out of memory, 40 s ago``: what the call did, for its entry of the diagram."""
    ago = f", {duration(failure.ago_s)} ago" if failure.ago_s is not None else ""
    return f"{what_happened(failure)}{ago}{alike(failure.count)}"


def _failure(draft: Draft) -> FailedBefore:
    assert draft.failure is not None, "drafts of this kind have a failure"
    return draft.failure


def _call(vertex: Vertex) -> str:
    return vertex.wait.call if vertex.wait else "a wait"
