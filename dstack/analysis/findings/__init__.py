"""Findings: what is wrong in a reduced graph, worst first, each with its words, fix and diagram.

A new kind is one module in ``kinds``, its entry in one of the lists here, and its name in ``FindingKind``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from dstack.analysis.findings import merging
from dstack.analysis.findings.diagram import diagram
from dstack.analysis.findings.facts.draft import Draft
from dstack.analysis.findings.facts.failures import Failures, identity
from dstack.analysis.findings.facts.finding_facts import FindingFacts
from dstack.analysis.findings.kinds import (
    deadlock,
    failed,
    infeasible,
    open_chain,
    orphaned,
    polling,
    running,
    stalled,
    starved,
)
from dstack.analysis.findings.outside_waits import is_idle
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording.failures import step as step_of_failure
from dstack.analysis.findings.wording.narration import Narrator, more
from dstack.analysis.naming import names
from dstack.analysis.solve.open_chains import OpenChain
from dstack.model.diagnosis import VERDICTS, Advice, Finding, FindingKind, Step, Verdict
from dstack.model.vertex_keys import UnknownKey


class Kind(Protocol):
    """What the module of every kind defines."""

    KIND: FindingKind
    VERDICT: Verdict

    def summary(self, facts: FindingFacts, narrator: Narrator) -> str:
        """The finding in one sentence, without its full stop."""

    def steps(self, facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
        """The sentences about the members, in the order of waiting."""

    def advice(self, facts: FindingFacts, narrator: Narrator) -> Advice | None:
        """One fix that fits, or the next thing to inspect."""


class StuckKind(Kind, Protocol):
    """A kind about waits that can never end."""

    def find(self, reduced: ReducedGraph) -> Iterable[Draft]:
        """The findings of this kind."""


class OpenKind(Kind, Protocol):
    """A kind about waits that may end."""

    def find_in(self, reduced: ReducedGraph, chain: OpenChain) -> Draft | None:
        """The finding about an open chain, if it is of this kind."""


class CauseKind(Kind, Protocol):
    """A kind about what may have caused the waits of other findings, or waits in none."""

    def find(self, reduced: ReducedGraph, others: Sequence[Draft]) -> Iterable[Draft]:
        """The findings of this kind, beside the other drafts."""


STUCK: tuple[StuckKind, ...] = (deadlock, orphaned, infeasible)
OPEN: tuple[OpenKind, ...] = (stalled, starved, polling, running)
"""The first kind that fits an open chain is used."""

CAUSES: tuple[CauseKind, ...] = (failed,)

KIND_OF: dict[FindingKind, Kind] = {kind.KIND: kind for kind in (*STUCK, *OPEN, *CAUSES)}


def find_all(reduced: ReducedGraph) -> Iterator[Finding]:
    """All findings, worst verdict first."""
    stuck = [draft for kind in STUCK for draft in kind.find(reduced)]
    stuck, opened = merging.absorbed(reduced, stuck, list(_open(reduced)))
    drafts = [*stuck, *_of_each_cause(reduced, opened)]
    drafts += [draft for cause in CAUSES for draft in cause.find(reduced, tuple(drafts))]
    drafts.sort(key=lambda draft: (VERDICTS.index(KIND_OF[draft.kind].VERDICT), _is_vague(draft)))
    narrator, failures = Narrator(reduced), Failures(reduced)
    reported = {identity(draft.failure) for draft in drafts if draft.failure}
    return (_finding(FindingFacts(draft, failures, reported), narrator) for draft in drafts)


def verdict_of(finding: Finding) -> Verdict:
    """The verdict of a snapshot in which this is the worst finding."""
    return verdict_of_kind(finding.kind)


def verdict_of_kind(kind: FindingKind) -> Verdict:
    """The verdict that findings of a kind lead to."""
    return KIND_OF[kind].VERDICT


def is_stuck(finding: Finding) -> bool:
    """Whether the finding is a deadlock or a hang, confirmed or suspected: something never proceeds."""
    return verdict_of(finding) in ("deadlock", "hang")


def _open(reduced: ReducedGraph) -> Iterator[Draft]:
    for chain in reduced.chains:
        if _concerns_application(reduced, chain) and not is_idle(reduced, chain):
            drafts = (kind.find_in(reduced, chain) for kind in OPEN)
            yield next(draft for draft in drafts if draft)


def _concerns_application(reduced: ReducedGraph, chain: OpenChain) -> bool:
    """Whether the application waits in a chain, or a library waits for its code."""
    ends = (blocker.vertex for blocker in chain.blockers)
    return any(map(reduced.is_of_application, chain.waiters)) or any(map(reduced.is_in_users_code, ends))


def _of_each_cause(reduced: ReducedGraph, drafts: Sequence[Draft]) -> Iterator[Draft]:
    """One draft for the open chains of each cause."""
    for alike in merging.by_cause(reduced, drafts):
        kind = next(kind for kind in OPEN if alike[0].kind == kind.KIND)
        one = kind.find_in(reduced, merging.joined(alike)) if len(alike) > 1 else None
        yield from [one] if one else alike


def _is_vague(draft: Draft) -> bool:
    """Whether the first final blocker is unknown or concerns nothing, so that others are more useful."""
    first = draft.reduced.vertices[draft.ends[0]] if draft.ends else None
    if first is None:
        return False
    is_unneeded = isinstance(first.key, UnknownKey) and first.key.what == "removed group"
    return bool(first.waker_of) or is_unneeded or (first.kind == "lifetime" and first.holder is None)


def _finding(facts: FindingFacts, narrator: Narrator) -> Finding:
    """The complete finding."""
    draft, kind = facts.draft, KIND_OF[facts.draft.kind]
    return Finding(
        kind=draft.kind,
        confirmed=draft.confirmed,
        summary=kind.summary(facts, narrator),
        advice=kind.advice(facts, narrator),
        members=draft.members,
        cycle=draft.cycle,
        blocked_behind=draft.blocked_behind,
        helpers=draft.helpers,
        polled_by=draft.polled_by,
        waiters_direct=draft.waiters_direct,
        waiters_total=draft.waiters_total,
        jobs=draft.jobs,
        watched_s=draft.watched_s,
        since=draft.since,
        final_blockers=draft.final_blockers,
        resources=draft.resources,
        assumed=draft.assumed,
        doubt=stalled.doubt(facts) if kind is stalled else "",
        progress=draft.progress,
        failed_before=facts.failed_before,
        explanation=tuple(_explanation(facts, narrator)),
        diagram=diagram(facts, narrator),
        brief=tuple(open_chain.brief(facts, narrator)) if draft.is_open else (),
        is_slow=facts.is_slow,
    )


def _explanation(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
    """The members, failures that may be the cause, what is blocked behind them, and what moved meanwhile."""
    draft = facts.draft
    yield from KIND_OF[draft.kind].steps(facts, narrator)
    yield from map(step_of_failure, facts.failed_before)
    executions = [vertex for vertex in facts.behind if vertex.kind == "execution"]
    yield from narrator.similar_steps(executions, "Blocked behind it: ")
    yield from more(len(facts.behind) - len(executions), "pending behind it")
    yield from narrator.similar_steps(facts.reduced.vertices_of(draft.polled_by), "Polling it: ")
    if draft.progress is not None and not draft.confirmed:
        yield Step(text=names.progress(draft.progress, draft.jobs))
