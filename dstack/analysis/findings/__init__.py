"""Findings: what is wrong in a reduced graph, worst first, each with its words, fix and diagram.

A new kind is its functions in a module of ``kinds``, their rows in the tables here, and its name in ``FindingKind``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dstack.analysis.findings.diagram import diagram
from dstack.analysis.findings.drafts import Draft, absorbed, by_cause, joined
from dstack.analysis.findings.failures import Failures, identity
from dstack.analysis.findings.failures import step as step_of_failure
from dstack.analysis.findings.finding_facts import FindingFacts
from dstack.analysis.findings.kinds import deadlock, failed, open_chain, running, stalled, unsatisfiable
from dstack.analysis.findings.kinds.open_chain import library_steps, memory_kills
from dstack.analysis.findings.last_words import Logs, next_step
from dstack.analysis.findings.last_words import headline as in_headline
from dstack.analysis.findings.last_words import steps as steps_of_logs
from dstack.analysis.findings.narration import Narrator, more
from dstack.analysis.findings.node_room import room_steps
from dstack.analysis.findings.rank_gpus import RankGpus
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.naming import names
from dstack.analysis.solve.open_chains import OpenChain
from dstack.model.diagnosis import VERDICTS, Advice, Finding, FindingKind, Step, Verdict
from dstack.model.vertex_keys import UnknownKey


@dataclass(frozen=True, slots=True)
class Kind:
    """The verdict that a kind of finding leads to, and its words.

    ``summary`` is one sentence without its full stop, ``steps`` are the sentences about the members in the order of
    waiting, and ``advice`` is one fix that fits, or the next thing to inspect.
    """

    verdict: Verdict
    summary: Callable[[FindingFacts, Narrator], str]
    steps: Callable[[FindingFacts, Narrator], Iterator[Step]]
    advice: Callable[[FindingFacts, Narrator], Advice]


KINDS: Mapping[FindingKind, Kind] = {
    "deadlock": Kind("deadlock", deadlock.summary, deadlock.steps, deadlock.advice),
    "orphaned": Kind(
        "hang", unsatisfiable.orphaned_summary, unsatisfiable.orphaned_steps, unsatisfiable.orphaned_advice
    ),
    "infeasible": Kind(
        "hang", unsatisfiable.infeasible_summary, unsatisfiable.submissions, unsatisfiable.infeasible_advice
    ),
    "stalled": Kind("stalled", stalled.summary, stalled.steps, stalled.advice),
    "starved": Kind("running", open_chain.summary, open_chain.steps, running.starved_advice),
    "polling": Kind("running", running.polling_summary, running.polling_steps, running.polling_advice),
    "running": Kind("running", open_chain.summary, open_chain.steps, running.running_advice),
    "failed": Kind("running", failed.summary, failed.steps, failed.advice),
}

STUCK: Sequence[Callable[[ReducedGraph], Iterable[Draft]]] = (
    deadlock.find,
    unsatisfiable.find_orphaned,
    unsatisfiable.find_infeasible,
)
"""What finds waits that can never end."""

OPEN: Mapping[FindingKind, Callable[[ReducedGraph, OpenChain], Draft | None]] = {
    "stalled": stalled.find_in,
    "starved": running.find_starved,
    "polling": running.find_polling,
    "running": running.find_running,
}
"""What finds waits that may end: the first kind that fits an open chain is used."""


def find_all(reduced: ReducedGraph) -> Iterator[Finding]:
    """All findings, worst verdict first."""
    stuck = [draft for find in STUCK for draft in find(reduced)]
    stuck, opened = absorbed(reduced, stuck, list(_open(reduced)))
    drafts = [*stuck, *_of_each_cause(reduced, opened)]
    drafts += failed.find(reduced, tuple(drafts))
    drafts.sort(key=lambda draft: (VERDICTS.index(verdict_of(draft.kind)), _is_vague(draft)))
    narrator, failures = Narrator(reduced), Failures(reduced)
    logs, gpus = Logs(reduced.index), RankGpus(reduced.index)
    reported = {identity(draft.failure) for draft in drafts if draft.failure}
    return (_finding(FindingFacts(draft, failures, reported), narrator, logs, gpus) for draft in drafts)


def verdict_of(kind: FindingKind) -> Verdict:
    """The verdict of a snapshot in which the worst finding is of this kind."""
    return KINDS[kind].verdict


def is_stuck(finding: Finding) -> bool:
    """Whether the finding is a deadlock or a hang, confirmed or suspected: something never proceeds."""
    return verdict_of(finding.kind) in ("deadlock", "hang")


def _open(reduced: ReducedGraph) -> Iterator[Draft]:
    for chain in reduced.chains:
        if _concerns_application(reduced, chain) and not stalled.StallCheck(reduced, chain).is_idle:
            drafts = (find(reduced, chain) for find in OPEN.values())
            yield next(draft for draft in drafts if draft)


def _concerns_application(reduced: ReducedGraph, chain: OpenChain) -> bool:
    """Whether the application waits in a chain, or a library waits for its code."""
    ends = (blocker.vertex for blocker in chain.blockers)
    return any(map(reduced.is_of_application, chain.waiters)) or any(map(reduced.is_in_users_code, ends))


def _of_each_cause(reduced: ReducedGraph, drafts: Sequence[Draft]) -> Iterator[Draft]:
    """One draft for the open chains of each cause."""
    for alike in by_cause(reduced, drafts):
        one = OPEN[alike[0].kind](reduced, joined(alike)) if len(alike) > 1 else None
        yield from [one] if one else alike


def _is_vague(draft: Draft) -> bool:
    """Whether the first final blocker is unknown or concerns nothing, so that others are more useful."""
    first = draft.reduced.vertices[draft.ends[0]] if draft.ends else None
    if first is None:
        return False
    is_unneeded = isinstance(first.key, UnknownKey) and first.key.what == "removed group"
    return bool(first.waker_of) or is_unneeded or draft.reduced.is_any_code(first.key)


def _finding(facts: FindingFacts, narrator: Narrator, logs: Logs, gpus: RankGpus) -> Finding:
    """The complete finding."""
    draft, kind, last_words = facts.draft, KINDS[facts.draft.kind], logs.beside(facts)
    advice = kind.advice(facts, narrator)
    differs = f"{facts.difference.text}: " if facts.difference else ""
    drawn = diagram(facts, narrator)
    of_gpus, printed = gpus.steps(facts), tuple(steps_of_logs(last_words, draft.kind))
    blockers = tuple(open_chain.brief(facts, narrator)) if draft.is_open else ()
    return Finding(
        kind=draft.kind,
        confirmed=draft.confirmed,
        summary=f"{differs}{kind.summary(facts, narrator)}{in_headline(last_words, facts)}",
        advice=next_step(last_words, advice) if draft.kind == "stalled" else advice,
        cures=facts.cures,
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
        doubt=stalled.doubt(facts) if draft.kind == "stalled" else "",
        difference=facts.difference,
        progress=draft.progress,
        failed_before=facts.failed_before,
        last_words=last_words,
        explanation=(*_explanation(facts, narrator), *of_gpus, *printed),
        diagram=replace(drawn, remarks=(*drawn.remarks, *of_gpus, *printed)),
        brief=(*blockers[:1], *(of_gpus if facts.is_slow else ()), *blockers[1:], *printed) if draft.is_open else (),
        is_slow=facts.is_slow,
    )


def _explanation(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
    """The members, failures that may be the cause, what is blocked behind them, and what moved meanwhile."""
    draft = facts.draft
    yield from KINDS[draft.kind].steps(facts, narrator)
    yield from facts.differences.counts()
    yield from room_steps(facts)
    yield from map(step_of_failure, facts.failed_before)
    yield from memory_kills(facts)
    yield from library_steps(facts)
    executions = [vertex for vertex in facts.behind if vertex.kind == "execution"]
    yield from narrator.similar_steps(executions, "Blocked behind it: ")
    yield from more(len(facts.behind) - len(executions), "pending behind it")
    yield from narrator.similar_steps(facts.reduced.vertices_of(draft.polled_by), "Polling it: ")
    if draft.progress is not None and not draft.confirmed:
        yield Step(text=names.progress(draft.progress, draft.jobs))
