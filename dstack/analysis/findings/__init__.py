"""All kinds of findings, one module each: the rule that finds it, the sentences about it, and its advice.

A new kind is one file, its entry in one of the two lists here, and its name in ``FindingKind``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from dstack.analysis.evidence.wait_durations import of_all
from dstack.analysis.findings import blocked, deadlock, infeasible, orphaned, polling, stalled, starved
from dstack.analysis.findings.diagrams.diagram import diagram
from dstack.analysis.findings.reduced_graph import Situation
from dstack.analysis.findings.standstill import is_idle
from dstack.analysis.findings.wording import collectives
from dstack.analysis.findings.wording.failures import Failures
from dstack.analysis.findings.wording.failures import step as step_of_failure
from dstack.analysis.findings.wording.narration import Teller
from dstack.analysis.naming import names
from dstack.analysis.solve.open_chains import Knot
from dstack.diagnosis import VERDICTS, Finding, FindingKind, Since, Step, Verdict


class Kind(Protocol):
    """What every module of a kind offers."""

    KIND: FindingKind
    VERDICT: Verdict

    def summary(self, finding: Finding, teller: Teller) -> str:
        """The finding in one sentence, without its full stop."""

    def steps(self, finding: Finding, teller: Teller) -> Iterator[Step]:
        """The story in the order of waiting, up to those who are behind."""

    def advice(self, finding: Finding, teller: Teller) -> str:
        """One way out that fits."""


class StuckKind(Kind, Protocol):
    """A kind about those who can never go on."""

    def find(self, situation: Situation) -> Iterable[Finding]:
        """The findings of this kind, without words."""


class OpenKind(Kind, Protocol):
    """A kind about those who may go on."""

    def find_in(self, situation: Situation, knot: Knot) -> Finding | None:
        """The finding about an open knot, without words, if it is of this kind."""


STUCK: tuple[StuckKind, ...] = (deadlock, orphaned, infeasible)
OPEN: tuple[OpenKind, ...] = (stalled, starved, polling, blocked)
"""The first that fits an open knot tells it."""

KIND_OF: dict[FindingKind, Kind] = {kind.KIND: kind for kind in (*STUCK, *OPEN)}


def find_all(situation: Situation) -> Iterator[Finding]:
    """Everything that is wrong, worst verdict first, in words."""
    found = [*_stuck(situation), *_open(situation)]
    found.sort(key=lambda finding: (VERDICTS.index(verdict_of(finding)), _is_vague(finding, situation)))
    teller = Teller(situation)
    failures = Failures(situation)
    return (_told(finding, teller, failures) for finding in found)


def _is_vague(finding: Finding, situation: Situation) -> bool:
    """Whether it is about a wait that nothing known ends, so that others are more useful to a reader."""
    first = situation.vertices[finding.final_blockers[0].vertex] if finding.final_blockers else None
    return first is not None and bool(first.other_side_of or (first.kind == "lifetime" and first.holder is None))


def verdict_of(finding: Finding) -> Verdict:
    """The verdict of a snapshot in which this is the worst finding."""
    return KIND_OF[finding.kind].VERDICT


def is_stuck(finding: Finding) -> bool:
    """Whether the finding claims that something never proceeds: a deadlock or a hang, though it be suspected."""
    return verdict_of(finding) in ("deadlock", "hang")


def _stuck(situation: Situation) -> Iterator[Finding]:
    for kind in STUCK:
        for finding in kind.find(situation):
            direct = situation.directly_behind(finding.members)
            polled_by = situation.pollers_of((*finding.members, *finding.blocked_behind))
            polled_directly = situation.pollers_of(finding.members)
            yield msgspec.structs.replace(
                finding,
                polled_by=polled_by,
                waiters_direct=len(direct) + len(polled_directly),
                waiters_total=sum(map(situation.is_counted, finding.blocked_behind)) + len(polled_by),
            )


def _open(situation: Situation) -> Iterator[Finding]:
    for knot in situation.knots:
        if any(map(situation.is_counted, knot.waiters)) and not is_idle(situation, knot):
            found = (kind.find_in(situation, knot) for kind in OPEN)
            yield next(finding for finding in found if finding)


def _told(finding: Finding, teller: Teller, failures: Failures) -> Finding:
    situation = teller.situation
    kind = KIND_OF[finding.kind]
    since = of_all([vertex.since or Since() for vertex in teller.vertices_of(finding.members)])
    ends = (blocker.vertex for blocker in finding.final_blockers)
    jobs = situation.jobs_of((*finding.members, *finding.blocked_behind, *finding.polled_by, *ends))
    progress = situation.progress(jobs)
    finding = msgspec.structs.replace(finding, jobs=jobs, since=since, progress=progress)
    finding = msgspec.structs.replace(finding, failed_before=failures.beside(finding))
    advice = kind.advice(finding, teller)
    drawn = diagram(finding, teller)
    finding = _without_helpers(finding, situation)
    return msgspec.structs.replace(
        finding,
        summary=kind.summary(finding, teller),
        advice=advice,
        diagram=drawn,
        explanation=(
            *kind.steps(finding, teller),
            *map(step_of_failure, finding.failed_before),
            *teller.behind(collectives.without_described(finding, teller)),
            *_progress(finding),
        ),
    )


def _progress(finding: Finding) -> Iterator[Step]:
    """What moved in the jobs of a finding that may yet end, or is suspected."""
    if finding.progress is not None and not finding.confirmed:
        yield Step(text=names.progress(finding.progress, finding.jobs))


def _without_helpers(finding: Finding, situation: Situation) -> Finding:
    """The finding with helpers apart from its members and from what is behind it."""
    everything = (*finding.members, *finding.blocked_behind)
    return msgspec.structs.replace(
        finding,
        members=tuple(filter(situation.is_counted, finding.members)) or finding.members,
        blocked_behind=tuple(filter(situation.is_counted, finding.blocked_behind)),
        helpers=(*finding.helpers, *(key for key in everything if not situation.is_counted(key))),
    )
