"""The snapshots before this one: their verdicts over time, and what changed from each to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from time import localtime, strftime

from dstack.analysis.findings import verdict_of
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.snapshot_changes import (
    SIGNS,
    FindingSpan,
    Mark,
    SnapshotChanges,
    SnapshotSummary,
    finding_spans,
)
from dstack.analysis.views.snapshot_diff import require_same_cluster
from dstack.model.diagnosis import Verdict
from dstack.observed.processes import Frame
from dstack.report.finding import kind_in_words
from dstack.report.page.section import ReportData, Section, render
from dstack.report.rich_text import location
from dstack.report.summaries import headline
from dstack.words import duration

MAX_SPANS = 12
"""The most findings in the chart; those that last longest are shown."""
ROW_PX = 36
TICKS = 4
FIRST, LAST = 3.0, 97.0
"""Where the first and the last snapshot are, in percent of the width."""
SIGN_OF_VERDICT: Mapping[Verdict, str] = {
    "idle": "★",
    "running": "◆",
    "unknown": "✕",
    "stalled": "▲",
    "hang": "■",
    "deadlock": "⬢",
}
DAY_S = 86_400
MAX_COMPARED = 20
"""The last changes are shown in detail."""
MAX_LINES = 12
"""The most lines for the findings, waits, executions or workers of one change."""


@dataclass(frozen=True, slots=True)
class PastSpan:
    """A finding as a bar of the chart: from where to where, in percent of the width."""

    verdict: Verdict
    text: str
    first: float
    last: float


class PastChart:
    """A row of verdicts, one for each snapshot, and a row for each finding from its first to its last snapshot."""

    def __init__(self, taken_at: Sequence[float], spans: Sequence[FindingSpan]) -> None:
        self._began_at, self._lasts_s = taken_at[0], max(1e-3, taken_at[-1] - taken_at[0])
        self.places = [FIRST + (LAST - FIRST) * (at - self._began_at) / self._lasts_s for at in taken_at]
        longest = sorted(spans, key=lambda span: span.first - span.last)[:MAX_SPANS]
        self.spans = [
            PastSpan(verdict_of(span.kind), f"{kind_in_words(span.kind)}: {span.summary}", *self._ends(span))
            for span in spans
            if span in longest
        ]

    def _ends(self, span: FindingSpan) -> tuple[float, float]:
        return self.places[span.first], self.places[span.last]

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Where some times are, and their texts."""
        form = "%H:%M:%S" if self._lasts_s < DAY_S else "%d %b %H:%M"
        parts = [number / (TICKS - 1) for number in range(TICKS)]
        times = [strftime(form, localtime(self._began_at + part * self._lasts_s)) for part in parts]
        return [(FIRST + (LAST - FIRST) * part, text) for part, text in zip(parts, times, strict=True)]


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """One line: what is new, changed or gone, and how often."""

    sign: str
    mark: Mark
    text: str
    count: int


@dataclass(frozen=True, slots=True)
class ChangeGroup:
    """The changed findings, waits, executions or workers, and how many lines are left out."""

    title: str
    lines: Sequence[ChangeLine]
    left_out: int


@dataclass(frozen=True, slots=True)
class PastSnapshot:
    """A snapshot of the series, and what has changed since the one before it."""

    number: int
    taken_at: float
    verdict: Verdict
    headline: str
    waits: int
    summary: SnapshotSummary
    after: str = ""
    groups: Sequence[ChangeGroup] = field(default=(), compare=False)

    @property
    def time(self) -> str:
        """The time of the snapshot, in the time zone of the machine that makes the page."""
        return strftime("%Y-%m-%d %H:%M:%S", localtime(self.taken_at))


def section(data: ReportData) -> Section | None:
    """The verdicts over time and the last changes; None without earlier snapshots.

    Raises :class:`dstack.UsageError` for snapshots of different clusters.
    """
    series = list(_series(chain(data.before, [data.analysed])))
    if len(series) < 2:
        return None
    spans = finding_spans([one.summary for one in series])
    changed = [one for one in series if one.groups]
    compared = changed[-MAX_COMPARED:]
    body = render(
        "past.html",
        chart=PastChart([one.taken_at for one in series], spans),
        row_px=ROW_PX,
        signs=SIGN_OF_VERDICT,
        series=series,
        compared=compared[::-1],
        linked={one.number for one in compared},
        left_out=len(changed) - len(compared),
    )
    return Section("past", "Snapshots", body)


def _series(snapshots: Iterator[AnalysedSnapshot]) -> Iterator[PastSnapshot]:
    """All snapshots, of which only two have to be in memory."""
    before: AnalysedSnapshot | None = None
    for number, analysed in enumerate(snapshots, 1):
        if before is not None:
            require_same_cluster(before.snapshot, analysed.snapshot)
        changes = SnapshotChanges.between(before, analysed)
        diagnosis = analysed.diagnosis
        yield PastSnapshot(
            number,
            analysed.snapshot.taken_at,
            diagnosis.verdict,
            headline(diagnosis),
            sum(vertex.is_counted and vertex.wait is not None for vertex in diagnosis.vertices.values()),
            SnapshotSummary.of(analysed, changes),
            duration(changes.diff.between_s) if changes else "",
            tuple(_groups(changes, analysed)) if changes else (),
        )
        before = analysed


def _groups(changes: SnapshotChanges, after: AnalysedSnapshot) -> Iterator[ChangeGroup]:
    """What is new, changed and gone, without empty groups."""
    for title, found in (
        ("Findings", _findings(changes, after)),
        ("Waits", _waits(changes)),
        ("Threads and coroutines", _executions(changes)),
        ("Workers and nodes", _workers(changes)),
    ):
        counted = Counter(found)
        lines = [ChangeLine(SIGNS[mark], mark, text, count) for (mark, text), count in counted.most_common(MAX_LINES)]
        if lines:
            yield ChangeGroup(title, lines, len(counted) - len(lines))


def _findings(changes: SnapshotChanges, after: AnalysedSnapshot) -> Iterator[tuple[Mark, str]]:
    for number, mark in changes.findings.items():
        finding = after.diagnosis.findings[number]
        yield mark, f"{kind_in_words(finding.kind)}: {finding.summary}"
    for finding in changes.gone_findings:
        yield "gone", f"{kind_in_words(finding.kind)}: {finding.summary}"


def _waits(changes: SnapshotChanges) -> Iterator[tuple[Mark, str]]:
    for wait in changes.diff.waits:
        if wait.change == "new":
            yield changes.waits[wait.vertex], f"{wait.label} in {wait.kind}"
    for wait in changes.gone_waits:
        yield "gone", f"{wait.label} in {wait.kind}"


def _executions(changes: SnapshotChanges) -> Iterator[tuple[Mark, str]]:
    for one in changes.diff.executions:
        if one.change == "moved":
            yield "changed", f"{one.label}: {_place(one.before)} → {_place(one.after)}"
        elif one.change in ("new", "gone"):
            yield "new" if one.change == "new" else "gone", f"{one.label} at {_place(one.after or one.before)}"


def _place(frame: Frame | None) -> str:
    return location(frame.file, frame.line) if frame else "an unknown place"


def _workers(changes: SnapshotChanges) -> Iterator[tuple[Mark, str]]:
    yield from (("new", "worker or driver") for _ in changes.new_workers)
    yield from (("gone", worker) for worker in changes.gone_workers)
    yield from (("new", f"node {node}") for node in changes.diff.new_nodes)
    yield from (("gone", f"node {node}") for node in changes.diff.gone_nodes)
