"""Findings: what is wrong in a reduced graph, worst first, each with its words, fix and diagram.

A new kind is one module in ``kinds``, its entry in one of the lists here, and its name in ``FindingKind``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from dstack.analysis.findings.diagrams.diagram import diagram
from dstack.analysis.findings.draft import Draft
from dstack.analysis.findings.kinds import blocked, deadlock, failed, infeasible, orphaned, polling, stalled, starved
from dstack.analysis.findings.outside_waits import is_idle
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording.failures import step as step_of_failure
from dstack.analysis.findings.wording.group_ranks import ranks_in
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.naming import names
from dstack.analysis.solve.open_chains import OpenChain
from dstack.diagnosis import VERDICTS, Finding, FindingKind, Step, Verdict
from dstack.vertex_keys import UnknownKey


class Kind(Protocol):
    """What the module of every kind defines."""

    KIND: FindingKind
    VERDICT: Verdict

    def summary(self, draft: Draft, narrator: Narrator) -> str:
        """The finding in one sentence, without its full stop."""

    def steps(self, draft: Draft, narrator: Narrator) -> Iterator[Step]:
        """The sentences about the members, in the order of waiting."""

    def advice(self, draft: Draft, narrator: Narrator) -> str:
        """One fix that fits."""


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
OPEN: tuple[OpenKind, ...] = (stalled, starved, polling, blocked)
"""The first kind that fits an open chain is used."""

CAUSES: tuple[CauseKind, ...] = (failed,)

KIND_OF: dict[FindingKind, Kind] = {kind.KIND: kind for kind in (*STUCK, *OPEN, *CAUSES)}


def find_all(reduced: ReducedGraph) -> Iterator[Finding]:
    """All findings, worst verdict first."""
    drafts = [draft for kind in STUCK for draft in kind.find(reduced)]
    drafts += _open(reduced)
    drafts += [draft for cause in CAUSES for draft in cause.find(reduced, tuple(drafts))]
    drafts.sort(key=lambda draft: (VERDICTS.index(KIND_OF[draft.kind].VERDICT), _is_vague(draft)))
    narrator = Narrator(reduced, [draft.failure for draft in drafts if draft.failure])
    return (_finding(draft, narrator) for draft in drafts)


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
        if any(map(reduced.is_counted, chain.waiters)) and not is_idle(reduced, chain):
            drafts = (kind.find_in(reduced, chain) for kind in OPEN)
            yield next(draft for draft in drafts if draft)


def _is_vague(draft: Draft) -> bool:
    """Whether the first final blocker is unknown or concerns nothing, so that others are more useful."""
    first = draft.reduced.vertices[draft.ends[0]] if draft.ends else None
    if first is None:
        return False
    is_unneeded = isinstance(first.key, UnknownKey) and first.key.what == "removed group"
    return bool(first.waker_of) or is_unneeded or (first.kind == "lifetime" and first.holder is None)


def _finding(draft: Draft, narrator: Narrator) -> Finding:
    """The complete finding."""
    kind = KIND_OF[draft.kind]
    return Finding(
        kind=draft.kind,
        confirmed=draft.confirmed,
        summary=kind.summary(draft, narrator),
        advice=kind.advice(draft, narrator),
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
        progress=draft.progress,
        failed_before=narrator.failed_before(draft),
        explanation=tuple(_explanation(kind, draft, narrator)),
        diagram=diagram(draft, narrator),
    )


def _explanation(kind: Kind, draft: Draft, narrator: Narrator) -> Iterator[Step]:
    """The members, failures that may be the cause, what is blocked behind them, and what moved meanwhile."""
    yield from kind.steps(draft, narrator)
    yield from map(step_of_failure, narrator.failed_before(draft))
    described = ranks_in(draft, narrator).described
    yield from narrator.steps_behind([key for key in draft.blocked_behind if key not in described], draft.polled_by)
    if draft.progress is not None and not draft.confirmed:
        yield Step(text=names.progress(draft.progress, draft.jobs))
