"""All kinds of findings, one module each: the rule that finds it, the sentences about it, and its advice.

A new kind is one file, its entry in one of the two lists here, and its name in ``FindingKind``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from dstack.analysis.evidence.wait_durations import of_all
from dstack.analysis.findings.diagrams.diagram import diagram
from dstack.analysis.findings.kinds import blocked, deadlock, infeasible, orphaned, polling, stalled, starved
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.stall_evidence import is_idle
from dstack.analysis.findings.wording import collectives
from dstack.analysis.findings.wording.failures import Failures
from dstack.analysis.findings.wording.failures import step as step_of_failure
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.naming import names
from dstack.analysis.solve.open_chains import OpenChain
from dstack.diagnosis import VERDICTS, Finding, FindingKind, Since, Step, Verdict


class Kind(Protocol):
    """What every module of a kind offers."""

    KIND: FindingKind
    VERDICT: Verdict

    def summary(self, finding: Finding, narrator: Narrator) -> str:
        """The finding in one sentence, without its full stop."""

    def steps(self, finding: Finding, narrator: Narrator) -> Iterator[Step]:
        """The story in the order of waiting, up to those who are behind."""

    def advice(self, finding: Finding, narrator: Narrator) -> str:
        """One way out that fits."""


class StuckKind(Kind, Protocol):
    """A kind about those who can never go on."""

    def find(self, reduced: ReducedGraph) -> Iterable[Finding]:
        """The findings of this kind, without words."""


class OpenKind(Kind, Protocol):
    """A kind about those who may go on."""

    def find_in(self, reduced: ReducedGraph, chain: OpenChain) -> Finding | None:
        """The finding about an open knot, without words, if it is of this kind."""


STUCK: tuple[StuckKind, ...] = (deadlock, orphaned, infeasible)
OPEN: tuple[OpenKind, ...] = (stalled, starved, polling, blocked)
"""The first that fits an open knot tells it."""

KIND_OF: dict[FindingKind, Kind] = {kind.KIND: kind for kind in (*STUCK, *OPEN)}


def find_all(reduced: ReducedGraph) -> Iterator[Finding]:
    """Everything that is wrong, worst verdict first, in words."""
    found = [*_stuck(reduced), *_open(reduced)]
    found.sort(key=lambda finding: (VERDICTS.index(verdict_of(finding)), _is_vague(finding, reduced)))
    narrator = Narrator(reduced)
    failures = Failures(reduced)
    return (_told(finding, narrator, failures) for finding in found)


def _is_vague(finding: Finding, reduced: ReducedGraph) -> bool:
    """Whether it is about a wait that nothing known ends, so that others are more useful to a reader."""
    first = reduced.vertices[finding.final_blockers[0].vertex] if finding.final_blockers else None
    return first is not None and bool(first.waker_of or (first.kind == "lifetime" and first.holder is None))


def verdict_of(finding: Finding) -> Verdict:
    """The verdict of a snapshot in which this is the worst finding."""
    return KIND_OF[finding.kind].VERDICT


def is_stuck(finding: Finding) -> bool:
    """Whether the finding claims that something never proceeds: a deadlock or a hang, though it be suspected."""
    return verdict_of(finding) in ("deadlock", "hang")


def _stuck(reduced: ReducedGraph) -> Iterator[Finding]:
    for kind in STUCK:
        for finding in kind.find(reduced):
            direct = reduced.directly_behind(finding.members)
            polled_by = reduced.pollers_of((*finding.members, *finding.blocked_behind))
            polled_directly = reduced.pollers_of(finding.members)
            yield msgspec.structs.replace(
                finding,
                polled_by=polled_by,
                waiters_direct=len(direct) + len(polled_directly),
                waiters_total=sum(map(reduced.is_counted, finding.blocked_behind)) + len(polled_by),
            )


def _open(reduced: ReducedGraph) -> Iterator[Finding]:
    for chain in reduced.chains:
        if any(map(reduced.is_counted, chain.waiters)) and not is_idle(reduced, chain):
            found = (kind.find_in(reduced, chain) for kind in OPEN)
            yield next(finding for finding in found if finding)


def _told(finding: Finding, narrator: Narrator, failures: Failures) -> Finding:
    reduced = narrator.reduced
    kind = KIND_OF[finding.kind]
    since = of_all([vertex.since or Since() for vertex in narrator.vertices_of(finding.members)])
    ends = (blocker.vertex for blocker in finding.final_blockers)
    jobs = reduced.jobs_of((*finding.members, *finding.blocked_behind, *finding.polled_by, *ends))
    progress = reduced.progress(jobs)
    finding = msgspec.structs.replace(finding, jobs=jobs, since=since, progress=progress)
    finding = msgspec.structs.replace(finding, failed_before=failures.beside(finding))
    advice = kind.advice(finding, narrator)
    drawn = diagram(finding, narrator)
    finding = _without_helpers(finding, reduced)
    return msgspec.structs.replace(
        finding,
        summary=kind.summary(finding, narrator),
        advice=advice,
        diagram=drawn,
        explanation=(
            *kind.steps(finding, narrator),
            *map(step_of_failure, finding.failed_before),
            *narrator.behind(collectives.without_described(finding, narrator)),
            *_progress(finding),
        ),
    )


def _progress(finding: Finding) -> Iterator[Step]:
    """What moved in the jobs of a finding that may yet end, or is suspected."""
    if finding.progress is not None and not finding.confirmed:
        yield Step(text=names.progress(finding.progress, finding.jobs))


def _without_helpers(finding: Finding, reduced: ReducedGraph) -> Finding:
    """The finding with helpers apart from its members and from what is behind it."""
    everything = (*finding.members, *finding.blocked_behind)
    return msgspec.structs.replace(
        finding,
        members=tuple(filter(reduced.is_counted, finding.members)) or finding.members,
        blocked_behind=tuple(filter(reduced.is_counted, finding.blocked_behind)),
        helpers=(*finding.helpers, *(key for key in everything if not reduced.is_counted(key))),
    )
