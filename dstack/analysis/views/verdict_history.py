"""Verdicts and findings over a series of snapshots: what is kept of each, and from when to when a finding stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.snapshot_changes import SnapshotChanges
from dstack.diagnosis import Diagnosis, FindingKind, Verdict
from dstack.words import plural


@dataclass(frozen=True, slots=True)
class FindingSummary:
    """A finding in a few words; ``before`` is its number in the snapshot before, None if it was not there."""

    kind: FindingKind
    summary: str
    before: int | None = None


@dataclass(frozen=True, slots=True)
class SnapshotSummary:
    """What is kept of a snapshot that need not stay in memory; ``coverage`` and ``changes`` are words."""

    verdict: Verdict
    coverage: str
    findings: tuple[FindingSummary, ...] = ()
    changes: str = ""

    @classmethod
    def of(cls, analysed: AnalysedSnapshot, changes: SnapshotChanges | None) -> SnapshotSummary:
        """Summarise a snapshot and its changes since the one before."""
        diagnosis = analysed.diagnosis
        found = diagnosis.findings
        before = changes.continued if changes else (None,) * len(found)
        findings = (FindingSummary(one.kind, one.summary, at) for one, at in zip(found, before, strict=True))
        return cls(diagnosis.verdict, _coverage(diagnosis), tuple(findings), changes.in_words if changes else "")


@dataclass(frozen=True, slots=True)
class FindingSpan:
    """A finding that stands in all snapshots from ``first`` to ``last``, which are indices; words are the latest."""

    kind: FindingKind
    summary: str
    first: int
    last: int


def finding_spans(summaries: Sequence[SnapshotSummary | None]) -> list[FindingSpan]:
    """All findings of a series, by their first snapshot; None stands for a snapshot that is not known."""
    spans: list[FindingSpan] = []
    standing: dict[int, int] = {}
    for at, summary in enumerate(summaries):
        if summary is None:
            standing = {}
            continue
        following: dict[int, int] = {}
        for number, finding in enumerate(summary.findings):
            place = standing.get(finding.before) if finding.before is not None else None
            if place is None:
                place = len(spans)
                spans.append(FindingSpan(finding.kind, finding.summary, at, at))
            else:
                spans[place] = FindingSpan(finding.kind, finding.summary, spans[place].first, at)
            following[number] = place
        standing = following
    return spans


def _coverage(diagnosis: Diagnosis) -> str:
    """``2 findings, 9/10 workers, incomplete``."""
    return ", ".join(_coverage_parts(diagnosis))


def _coverage_parts(diagnosis: Diagnosis) -> Iterator[str]:
    workers = diagnosis.coverage.workers
    yield plural(len(diagnosis.findings), "finding")
    yield f"{workers.observed}/{workers.total} workers"
    if diagnosis.incomplete:
        yield "incomplete"
