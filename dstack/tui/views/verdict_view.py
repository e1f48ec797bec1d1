"""The Verdict view: the findings, the most severe first, each with its diagram, its fix and its details."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from rich.console import Console
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType

from dstack.analysis.findings.failures import step as step_of_failure
from dstack.analysis.findings.recorder_dumps import step as step_of_dumps
from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.snapshot_changes import SnapshotChanges
from dstack.model.diagnosis import Finding, Step
from dstack.model.vertex_keys import Key
from dstack.observed.node import LogTail
from dstack.report.finding import advice_rows, assumption_rows, kind_in_words, picture, remark_rows, status_sentence
from dstack.report.logs_text import tails_of_finding, tails_of_workers
from dstack.report.not_observed import gaps_in_words, other_failures
from dstack.report.rich_text import Row, SafeText
from dstack.report.summaries import SHOWN_FAILURES, STYLE_OF_VERDICT, headline
from dstack.tui.views.base import LOGS, STACK, WAITS, OutlineView, SourceLocation, marked, verdict_in_colour
from dstack.tui.views.overview import Overview
from dstack.tui.widgets.outline import Line, Outline
from dstack.words import plural

BULLET = "• "
HANG = 3
COPY_WIDTH = 100
OPENED_FINDINGS = 3


@dataclass(frozen=True, slots=True)
class FindingSubject:
    """The subject of a line."""

    finding: Finding | None = None
    vertex: Key | None = None
    location: SourceLocation | None = None


class VerdictView(OutlineView):
    """The findings, worst first. Each has a diagram of its waits, a fix, and details that unfold; l shows its logs.

    Enter on an entry goes to its stack, w to its waits, o opens its line of code; on a finding, x, w and o go to its
    first entry. Findings are marked as new or changed since the snapshot before; those that are gone are listed last.

    Deadlock: waits that depend only on each other. Hang: waits that nothing can end. Stalled: the job is at rest, and
    what would end its wait is not known. Running: calls run, or time may end the waits. Idle: no job has work. Blocked
    behind: depends on a finding without being part of it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [STACK, WAITS, LOGS]

    def compose_body(self) -> ComposeResult:
        yield Overview()
        yield Outline(empty="No findings.")

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Show the findings of the snapshot."""
        self._show_lines()

    def refresh_top(self) -> None:
        """Show the state of the cluster, too: that of the last poll unless an earlier snapshot is shown."""
        super().refresh_top()
        if self.analysed is not None and (panels := self.query(Overview)):
            live = None if self.host.status.is_frozen else self.host.activity.latest()
            panels.first().show(self.analysed, live, [one.recording for one in self.host.recordings])

    def on_resize(self) -> None:
        """Unfold the details where there is room, once the outline has its new size."""
        self.call_after_refresh(self._show_lines)

    def _show_lines(self) -> None:
        """Show the findings, with their details unfolded if all fits on the screen."""
        if self.analysed is None:
            return
        outline = self._outline
        for has_room in (True, False):
            outline.show(list(finding_lines(self.analysed, self.changes, has_room=has_room)))
            if outline.virtual_size.height <= outline.size.height:
                break

    def to_copy(self) -> str | None:
        """The whole finding."""
        return finding_text(self._about.finding, self.app.console) if self._about.finding else None

    def to_open(self) -> SourceLocation | None:
        """The line of code of the entry; of a finding, that of its first entry."""
        return self._entry.location

    @property
    def stack_vertex(self) -> Key | None:
        """The execution of the entry, unless it has no stack."""
        vertex = self.waits_vertex
        return vertex if vertex and self.analysed and self.analysed.stacks.pages.page(vertex) else None

    @property
    def waits_vertex(self) -> Key | None:
        """The vertex of the entry; of a finding, that of its first entry."""
        return self._entry.vertex

    @property
    def log_tails(self) -> Sequence[LogTail]:
        """The logs of the process of the entry, else of all processes of the finding."""
        if self.analysed is None:
            return ()
        vertex = self.analysed.diagnosis.vertices.get(self._about.vertex) if self._about.vertex else None
        if vertex is not None and vertex.worker_id and (own := tails_of_workers(self.analysed, [vertex.worker_id])):
            return own
        return tails_of_finding(self.analysed, self._about.finding) if self._about.finding else ()

    @property
    def _entry(self) -> FindingSubject:
        """The entry under the cursor, or the first one of the finding."""
        about = self._about
        if about.vertex is not None or about.finding is None:
            return about
        rows = (FindingSubject(about.finding, row.vertex, row.place) for row in _rows(about.finding) if row.vertex)
        return next(rows, about)

    @property
    def _about(self) -> FindingSubject:
        return self._data if isinstance(self._data, FindingSubject) else FindingSubject()


def finding_lines(
    analysed: AnalysedSnapshot, changes: SnapshotChanges | None = None, *, has_room: bool = False
) -> Iterator[Line]:
    """The findings, and those that are gone; without any, what rests or failed; then what could not be read."""
    diagnosis = analysed.diagnosis
    if diagnosis.dumped:
        yield from _lines(analysed, "dumped", None, _remarks([step_of_dumps(diagnosis.dumped)]))
    if not diagnosis.findings:
        yield Line("none", SafeText(f"No findings: {headline(diagnosis)}."), hanging_indent=0)
        yield from _lines(analysed, "rests", None, _remarks(diagnosis.explanation))
        yield from _lines(analysed, "failed", None, _remarks(map(step_of_failure, diagnosis.failed_before)))
    for number, finding in enumerate(diagnosis.findings, 1):
        line = _finding(analysed, number, finding, has_room=has_room)
        mark = changes.findings.get(number - 1) if changes else None
        yield replace(line, text=marked(mark, line.text, in_words=True))
    for number, finding in enumerate(changes.gone_findings if changes else ()):
        text = SafeText(f"{kind_in_words(finding.kind)}: {finding.summary}", "dim")
        yield Line(f"gone/{number}", marked("gone", text, in_words=True), hanging_indent=HANG)
    gaps = gaps_in_words(analysed)
    if gaps:
        could = "could change the verdict" if diagnosis.incomplete else "cannot change the verdict"
        title = SafeText(f"Not observed, {could}: {plural(len(gaps), 'reason')}", "bold yellow")
        yield Line("gaps", title, list(_reasons("gap", [gap.text for gap in gaps])), is_open=True)
    if failures := other_failures(analysed, gaps):
        title = SafeText(f"Not observed: {plural(len(failures), 'failure')}", "bold yellow")
        yield Line("failures", title, list(_reasons("failure", failures)), is_open=True)


def _reasons(key: str, reasons: Sequence[str]) -> Iterator[Line]:
    for at, text in enumerate(reasons[:SHOWN_FAILURES]):
        yield Line(f"{key}/{at}", SafeText(text), hanging_indent=0)
    if len(reasons) > SHOWN_FAILURES:
        yield Line(f"{key}/more", SafeText(f"{len(reasons) - SHOWN_FAILURES:,} more", "dim"))


def _finding(analysed: AnalysedSnapshot, number: int, finding: Finding, *, has_room: bool) -> Line:
    key = f"{finding.kind}/{number}"
    lead = f"{number}. {kind_in_words(finding.kind)}: "
    title = SafeText().append(lead, STYLE_OF_VERDICT[verdict_in_colour(finding.kind)]).append(finding.summary, "bold")
    children = [
        *_lines(analysed, f"{key}/row", finding, _rows(finding)),
        *_lines(analysed, f"{key}/fix", finding, advice_rows(finding), "bold green"),
        *_lines(analysed, f"{key}/assumed", finding, assumption_rows(finding)),
        *_lines(analysed, f"{key}/remark", finding, _remarks(finding.diagram.remarks)),
        _details(analysed, f"{key}/details", finding, is_open=has_room),
    ]
    is_open = number <= OPENED_FINDINGS
    return Line(key, title, children, is_open=is_open, data=FindingSubject(finding), hanging_indent=HANG)


def _rows(finding: Finding) -> Iterator[Row]:
    """The status of the finding, and its diagram, as in the report."""
    if status := status_sentence(finding):
        yield Row("", "", SafeText(status))
    yield from picture(finding)


def _remarks(steps: Iterable[Step]) -> Iterator[Row]:
    return (row for step in steps for row in remark_rows(step))


def _details(analysed: AnalysedSnapshot, key: str, finding: Finding, *, is_open: bool) -> Line:
    """All sentences about the finding."""

    def lines() -> list[Line]:
        rows = (row for step in finding.explanation for row in remark_rows(step, bullet=BULLET))
        return list(_lines(analysed, key, finding, rows))

    title = SafeText().append("Details", "bold").append(f"  {plural(len(finding.explanation), 'sentence')}", "dim")
    return Line(key, title, lines, is_open=is_open, data=FindingSubject(finding))


def _lines(
    analysed: AnalysedSnapshot, key: str, finding: Finding | None, rows: Iterable[Row], style: str = ""
) -> Iterator[Line]:
    for at, row in enumerate(rows):
        vertex = analysed.diagnosis.vertices.get(row.vertex) if row.vertex else None
        yield Line(
            f"{key}/{at}",
            _as_one_line(row),
            data=FindingSubject(finding, row.vertex, row.place),
            terms=details_of(analysed.merged_index, vertex).ranks.terms if vertex else frozenset(),
            layout=partial(_layout, row, style),
        )


def _as_one_line(row: Row) -> Text:
    """The text of a row in one line, for the filter."""
    parts = (f"{part} " for part in (row.title, row.location) if part)
    return SafeText(row.lead + "".join(parts)).append_text(row.body)


def _layout(row: Row, style: str, width: int, console: Console) -> list[Text]:
    """The lines of a row; the lead of the first has this style."""
    lines = row.lines(width, console)
    if style:
        lines[0].stylize(style, 0, len(row.lead))
    return lines


def finding_text(finding: Finding, console: Console) -> str:
    """A finding as plain text, for the clipboard."""
    rows = [
        Row("", "", SafeText(f"{kind_in_words(finding.kind)}: {finding.summary}")),
        *_rows(finding),
        *advice_rows(finding),
        *assumption_rows(finding),
    ]
    return "\n".join(line.plain for row in rows for line in row.lines(COPY_WIDTH, console))
