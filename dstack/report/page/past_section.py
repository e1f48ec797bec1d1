"""The snapshots before this one: their verdicts over time, and what changed from each to the next."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from time import localtime, strftime

from bokeh.models import ColumnDataSource, DatetimeAxis, HoverTool, Plot, Range1d, TapTool

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
from dstack.report.page.section import ReportData, Section, new_chart, render, theme_colour
from dstack.report.rich_text import location
from dstack.report.summaries import headline
from dstack.words import duration, visible

MAX_SPANS = 12
"""The most findings in the chart; those that last longest are shown."""
ROW_PX = 36
AROUND_PX = 80
MARGIN = 0.03
"""The space at both ends, as a part of the time shown."""
STYLES: dict[Verdict, tuple[str, str]] = {
    "deadlock": ("hex", "#d9364c"),
    "hang": ("square", "#d9364c"),
    "stalled": ("triangle", "#c77d00"),
    "unknown": ("x", "#8e44ad"),
    "running": ("diamond", "#3a7fd5"),
    "idle": ("star", "#2e9d55"),
}
"""The marker and the colour of each verdict."""
MAX_COMPARED = 20
"""The last changes are shown in detail."""
MAX_LINES = 12
"""The most lines for the findings, waits, executions or workers of one change."""


def past_chart(name: str, taken_at: Sequence[float], verdicts: Sequence[Verdict], spans: Sequence[FindingSpan]) -> Plot:
    """A row of verdicts, one for each snapshot, and a row for each finding from its first to its last snapshot."""
    times = [_local_ms(one) for one in taken_at]
    longest = sorted(spans, key=lambda span: span.first - span.last)[:MAX_SPANS]
    shown = [span for span in spans if span in longest]
    late = [(span, times[span.first] > (times[0] + times[-1]) / 2) for span in shown]
    margin = max(1000.0, MARGIN * (times[-1] - times[0]))
    x_range = Range1d(start=times[0] - margin, end=times[-1] + margin)
    y_range = Range1d(start=len(shown) + 0.8, end=-0.6)
    chart = new_chart(name, AROUND_PX + ROW_PX * (1 + len(shown)), x_range, y_range, zoom="width")
    chart.add_layout(DatetimeAxis(), "below")
    bars = chart.hbar(
        left="first",
        right="last",
        y="row",
        height=0.24,
        fill_color="colour",
        line_color="colour",
        line_width=4,
        source=ColumnDataSource(
            {
                "first": [times[span.first] for span in shown],
                "last": [times[span.last] for span in shown],
                "row": [float(row) for row in range(1, len(shown) + 1)],
                "colour": [STYLES[verdict_of(span.kind)][1] for span in shown],
                "text": [visible(f"{span.kind}: {span.summary}") for span in shown],
                "label_at": [times[span.last if is_late else span.first] for span, is_late in late],
                "align": ["right" if is_late else "left" for _, is_late in late],
            }
        ),
    )
    labels = chart.text(
        x="label_at",
        y="row",
        text="text",
        text_align="align",
        y_offset=-8,
        text_font_size="12px",
        source=bars.data_source,
    )
    labels.tags = [theme_colour("text_color", "--text")]
    marks = chart.scatter(
        x="time",
        y=0.0,
        size=16,
        marker="marker",
        fill_color="colour",
        line_color="colour",
        nonselection_fill_alpha=1.0,
        source=ColumnDataSource(
            {
                "time": times,
                "marker": [STYLES[verdict][0] for verdict in verdicts],
                "colour": [STYLES[verdict][1] for verdict in verdicts],
                "text": [f"{number}: {verdict}" for number, verdict in enumerate(verdicts, 1)],
            }
        ),
    )
    chart.add_tools(HoverTool(renderers=[bars, marks], tooltips=[("", "@text")]), TapTool(renderers=[marks]))
    return chart


def _local_ms(unix_s: float) -> float:
    """What Bokeh shows as the local time of this machine, since it knows no time zones."""
    return (unix_s + time.localtime(unix_s).tm_gmtoff) * 1000


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
    chart = past_chart("past-chart", [one.taken_at for one in series], [one.verdict for one in series], spans)
    changed = [one for one in series if one.groups]
    compared = changed[-MAX_COMPARED:]
    body = render(
        "past.html",
        series=series,
        compared=compared[::-1],
        linked={one.number for one in compared},
        left_out=len(changed) - len(compared),
    )
    return Section("past", "Snapshots", body, {"past-chart": chart}, "past.js")


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
        yield mark, f"{finding.kind}: {finding.summary}"
    for finding in changes.gone_findings:
        yield "gone", f"{finding.kind}: {finding.summary}"


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
