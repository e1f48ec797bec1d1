"""The findings, worst first: each with the diagram of the report, its fix, and its details folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.text import Text
from textual.app import ComposeResult

from dstack.analysis.findings.wording.failures import step as step_of_failure
from dstack.analysis.naming.vertex_details import details_of
from dstack.diagnosis import Finding, Step
from dstack.report.failures import failures_in_words
from dstack.report.finding import assumption_rows, fix_row, picture, remark_rows, status_sentence
from dstack.report.headline import STYLES, headline
from dstack.report.rows import Row
from dstack.report.safe_text import SafeText
from dstack.tui.source import Look
from dstack.tui.views.base import Place
from dstack.tui.views.outline_view import OutlineView
from dstack.tui.widgets.outline import Outline
from dstack.tui.widgets.outline_line import Line
from dstack.vertex_keys import Key
from dstack.words import plural

BULLET = "• "
HANG = 3
COPY_WIDTH = 100
OPENED_FINDINGS = 3
SHOWN_FAILURES = 100
STYLE_OF_KIND: dict[str, str] = {
    **{str(kind): style for kind, style in STYLES.items()},
    "orphaned": "bold red",
    "infeasible": "bold red",
    "starved": "bold yellow",
}


class VerdictView(OutlineView):
    """The findings, worst first. Each has a diagram of its waits, a fix, and details that unfold.

    Enter on an entry goes to it in the Waits view; o opens its line of code.
    """

    def compose_body(self) -> ComposeResult:
        """One outline."""
        yield Outline(empty="No findings.")

    def show(self, look: Look) -> None:
        """Shows the findings of the snapshot."""
        self._outline.show(list(lines_of(look)))

    def on_outline_chosen(self, event: Outline.Chosen) -> None:
        """Goes to the vertex that the line is about, or folds the finding."""
        if self._about.vertex:
            self.host.go_to("waits", self._about.vertex)
        else:
            event.outline.toggle(event.line)

    def to_copy(self) -> str | None:
        """The whole finding."""
        return finding_text(self._about.finding, self.app.console) if self._about.finding else None

    def to_open(self) -> Place | None:
        """The line of code that the line is about."""
        return self._about.place

    @property
    def _about(self) -> About:
        return self._data if isinstance(self._data, About) else About()


@dataclass(frozen=True)
class About:
    """What a line of this view is about."""

    finding: Finding | None = None
    vertex: Key | None = None
    place: Place | None = None


def lines_of(look: Look) -> Iterator[Line]:
    """The findings, or what failed where there are none; then what could not be read."""
    diagnosis = look.diagnosis
    if not diagnosis.findings:
        yield Line("none", SafeText(f"No findings: {headline(diagnosis)}."), hang=0)
        yield from _lines(look, "failed", None, _remarks(map(step_of_failure, diagnosis.failed_before)))
    for number, finding in enumerate(diagnosis.findings, 1):
        yield _finding(look, number, finding)
    failures = failures_in_words(look.snapshot, diagnosis.coverage.failures)
    if failures:
        children = [Line(f"failure/{at}", SafeText(text), hang=0) for at, text in enumerate(failures[:SHOWN_FAILURES])]
        if len(failures) > SHOWN_FAILURES:
            more = plural(len(failures) - SHOWN_FAILURES, "more failure")
            children.append(Line("failure/more", SafeText(more, "dim")))
        title = SafeText(f"Not observed: {plural(len(failures), 'failure')}", "bold yellow")
        yield Line("failures", title, children, is_open=True)


def _finding(look: Look, number: int, finding: Finding) -> Line:
    key = f"{finding.kind}/{number}"
    lead = f"{number}. {finding.kind}: "
    title = SafeText().append(lead, STYLE_OF_KIND.get(finding.kind, "bold cyan")).append(finding.summary, "bold")
    children = [
        *_lines(look, f"{key}/row", finding, _rows(finding)),
        *_lines(look, f"{key}/fix", finding, [fix_row(finding)], "bold green"),
        *_lines(look, f"{key}/assumed", finding, assumption_rows(finding)),
        *_lines(look, f"{key}/remark", finding, _remarks(finding.diagram.remarks)),
        _details(look, f"{key}/details", finding),
    ]
    is_open = number <= OPENED_FINDINGS
    return Line(key, title, children, is_open=is_open, data=About(finding), hang=HANG)


def _rows(finding: Finding) -> Iterator[Row]:
    """How sure it is, and the diagram, as in the report."""
    if sure := status_sentence(finding):
        yield Row("", "", SafeText(sure))
    yield from picture(finding)


def _remarks(steps: Iterable[Step]) -> Iterator[Row]:
    return (row for step in steps for row in remark_rows(step))


def _details(look: Look, key: str, finding: Finding) -> Line:
    """All sentences about the finding, folded."""

    def lines() -> list[Line]:
        rows = (row for step in finding.explanation for row in remark_rows(step, bullet=BULLET))
        return list(_lines(look, key, finding, rows))

    title = SafeText().append("Details", "bold").append(f"  {plural(len(finding.explanation), 'sentence')}", "dim")
    return Line(key, title, lines, data=About(finding))


def _lines(look: Look, key: str, finding: Finding | None, rows: Iterable[Row], style: str = "") -> Iterator[Line]:
    for at, row in enumerate(rows):
        vertex = look.diagnosis.vertices.get(row.vertex) if row.vertex else None
        yield Line(
            f"{key}/{at}",
            _plain(row),
            data=About(finding, row.vertex, row.place),
            terms=details_of(look.index, vertex).ranks.terms if vertex else frozenset(),
            layout=partial(_laid_out, row, style),
        )


def _plain(row: Row) -> Text:
    """All text of a row in one line, for the filter."""
    parts = (f"{part} " for part in (row.title, row.location) if part)
    return SafeText(row.lead + "".join(parts)).append_text(row.body)


def _laid_out(row: Row, style: str, width: int, console: Console) -> list[Text]:
    """The row in lines, the first of which begins in this style."""
    lines = row.lines(width, console)
    if style:
        lines[0].stylize(style, 0, len(row.lead))
    return lines


def finding_text(finding: Finding, console: Console) -> str:
    """A finding as plain text, to be copied."""
    rows = [
        Row("", "", SafeText(f"{finding.kind}: {finding.summary}")),
        *_rows(finding),
        fix_row(finding),
        *assumption_rows(finding),
    ]
    return "\n".join(line.plain for row in rows for line in row.lines(COPY_WIDTH, console))
