"""A snapshot beside earlier ones: what has changed since the one before, and verdicts and findings over a series."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.snapshot_diff import SnapshotDiff, WaitChange, compare
from dstack.analysis.views.stack_pages import worker_name
from dstack.errors import DstackError, UsageError
from dstack.model.diagnosis import Diagnosis, Finding, FindingKind, Verdict
from dstack.model.snapshot import Snapshot
from dstack.model.vertex_keys import Key
from dstack.words import plural, word

Mark = Literal["new", "changed", "gone"]
SIGNS: dict[Mark, str] = {"new": "+", "gone": "-", "changed": "~"}


@dataclass(frozen=True, slots=True)
class SnapshotChanges:
    """The difference from the snapshot before, by what each mark is drawn on.

    ``waits`` are vertices that wait now: new ones, and those that wait for something else or in another call than
    before. ``executions`` are threads and coroutines that are new or at another place in their code. ``findings`` are
    numbers of findings. What is gone has no place of its own any more, so it is listed.
    """

    diff: SnapshotDiff
    findings: Mapping[int, Mark]
    gone_findings: tuple[Finding, ...]
    waits: Mapping[Key, Mark]
    gone_waits: tuple[WaitChange, ...]
    executions: Mapping[Key, Mark]
    new_workers: frozenset[str]
    gone_workers: tuple[str, ...]

    @classmethod
    def between(cls, before: AnalysedSnapshot | None, after: AnalysedSnapshot) -> SnapshotChanges | None:
        """Compare a snapshot with the one before; None without one, or of another cluster or a later time."""
        if before is None or before.snapshot.taken_at > after.snapshot.taken_at:
            return None
        try:
            diff = compare(before, after)
        except UsageError:
            return None
        waits, gone_waits = _waits(diff)
        workers = {worker.worker_id: worker for worker in before.snapshot.workers}
        was = before.diagnosis.findings
        gone = (one.before for one in diff.findings if one.change == "gone")
        return cls(
            diff=diff,
            findings=dict(_findings(diff, was, after.diagnosis.findings)),
            gone_findings=tuple(was[number] for number in gone if number is not None),
            waits=waits,
            gone_waits=gone_waits,
            executions=dict(_executions(diff)),
            new_workers=frozenset(diff.new_workers),
            gone_workers=tuple(worker_name(before.first_index, workers[one]) for one in diff.gone_workers),
        )

    @property
    def continued(self) -> tuple[int | None, ...]:
        """For each finding its number in the snapshot before, None if it was not there."""
        found = [(one.after, one.before) for one in self.diff.findings if one.after is not None]
        return tuple(before for _, before in sorted(found, key=lambda pair: pair[0]))

    @property
    def in_words(self) -> str:
        """``+1 finding, +2 -1 waits``; ``no changes`` if nothing is new, gone or changed."""
        counts = (
            ("finding", (*self.findings.values(), *["gone"] * len(self.gone_findings))),
            ("wait", (*self.waits.values(), *["gone"] * len(self.gone_waits))),
            ("worker", (*["new"] * len(self.new_workers), *["gone"] * len(self.gone_workers))),
        )
        return ", ".join(filter(None, (_counted(noun, marks) for noun, marks in counts))) or "no changes"


def mark_of(keys: Collection[Key], marks: Mapping[Key, Mark]) -> Mark | None:
    """The mark of several vertices that share a line: of all if they have the same, else changed if any has one."""
    found = {marks.get(key) for key in keys}
    if len(found) == 1:
        return found.pop()
    return "changed" if found else None


def _counted(noun: str, marks: Collection[str]) -> str:
    counts = [(sign, count) for mark, sign in SIGNS.items() if (count := sum(one == mark for one in marks))]
    signed = " ".join(f"{sign}{count:,}" for sign, count in counts)
    return f"{signed} {word(sum(count for _, count in counts), noun)}" if counts else ""


def _findings(diff: SnapshotDiff, was: tuple[Finding, ...], now: tuple[Finding, ...]) -> Iterable[tuple[int, Mark]]:
    for one in diff.findings:
        if one.after is None:
            continue
        if one.change == "new":
            yield one.after, "new"
        elif one.before is not None and _involved(was[one.before]) != _involved(now[one.after]):
            yield one.after, "changed"


def _involved(finding: Finding) -> object:
    """The vertices that a finding names, in no order: others make it a changed finding."""
    blockers = (blocker.vertex for blocker in finding.final_blockers)
    return frozenset((*finding.members, *blockers)), frozenset(finding.blocked_behind)


def _waits(diff: SnapshotDiff) -> tuple[dict[Key, Mark], tuple[WaitChange, ...]]:
    """A vertex whose wait is both new and gone waits for something else."""
    gone = {one.vertex: one for one in diff.waits if one.change == "gone"}
    new = [one.vertex for one in diff.waits if one.change == "new"]
    marks: dict[Key, Mark] = {key: "changed" if key in gone else "new" for key in new}
    return marks, tuple(one for key, one in gone.items() if key not in marks)


def _executions(diff: SnapshotDiff) -> Iterable[tuple[Key, Mark]]:
    for one in diff.executions:
        if one.change == "new":
            yield one.vertex, "new"
        elif one.change == "moved":
            yield one.vertex, "changed"


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
    workers = diagnosis.coverage.workers
    found = f"{plural(len(diagnosis.findings), 'finding')}, {workers.observed}/{workers.total} workers"
    return found + ", incomplete" * diagnosis.incomplete


class LoadableSnapshot(Protocol):
    """A snapshot that can be read at any time, from any thread."""

    def load(self) -> Snapshot:
        """Read it. Raises :class:`dstack.DstackError`."""
        ...


class EarlierSnapshots:
    """Saved snapshots in the order of their time, which each pass reads and diagnoses again.

    With a ``job``, the id of one, only those in which it is known. ``skipped`` are the errors of those that the last
    pass could not read.
    """

    def __init__(self, files: Sequence[LoadableSnapshot], job: str | None = None) -> None:
        self._files = files
        self._job = job
        self.skipped: list[DstackError] = []

    def __iter__(self) -> Iterator[AnalysedSnapshot]:
        self.skipped = []
        for file in self._files:
            try:
                snapshot = file.load()
            except DstackError as error:
                self.skipped.append(error)
                continue
            if self._job is None or any(job.job_id == self._job for job in snapshot.jobs):
                yield AnalysedSnapshot.of(snapshot, job=self._job)
