"""The verdicts of the snapshots over time, and the findings below them, as rows of a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from dstack.analysis.views.snapshot_changes import FindingSpan, finding_spans
from dstack.diagnosis import VERDICTS, FindingKind, Verdict
from dstack.report.safe_text import SafeText
from dstack.tui.numbered_snapshot import NumberedSnapshot
from dstack.tui.views.top_bar import MARKS
from dstack.tui.widgets.span_chart import Span, SpanRow
from dstack.tui.widgets.time_axis import clock
from dstack.words import duration

LETTERS: dict[Verdict, str] = {"deadlock": "D", "hang": "H", "stalled": "S", "blocked": "b", "clear": "."}
"""They say the same as the colours."""
LEGEND = "D deadlock  H hang  S stalled  b blocked  . clear  ? not read"
UNREAD = "?"
STANDS = "●"
STYLE_OF_KIND: dict[FindingKind, Verdict] = {
    "deadlock": "deadlock",
    "orphaned": "hang",
    "infeasible": "hang",
    "stalled": "stalled",
    "starved": "stalled",
}
"""Findings of other kinds have the style of the verdict ``blocked``."""


@dataclass(frozen=True, slots=True)
class VerdictRows:
    """The rows of a series of snapshots, and what is at each place in them."""

    snapshots: Sequence[NumberedSnapshot]
    findings: Sequence[FindingSpan]

    @classmethod
    def of(cls, snapshots: Sequence[NumberedSnapshot]) -> VerdictRows:
        """Find from when to when each finding stands."""
        return cls(tuple(snapshots), finding_spans([one.summary for one in snapshots]))

    @property
    def times(self) -> list[float]:
        """The times of the snapshots, in Unix seconds."""
        return [one.taken_at for one in self.snapshots]

    def rows(self) -> list[SpanRow]:
        """The verdicts, then the findings by their first snapshot."""
        verdicts = [_verdict(at, one) for at, one in enumerate(self.snapshots)]
        return [SpanRow("verdict", verdicts), *map(_row, self.findings)]

    def details(self, at: int, row: int) -> Iterator[Text]:
        """The snapshot at the cursor, then the finding of its row or the meaning of the letters."""
        if at >= len(self.snapshots):
            return
        snapshot = self.snapshots[at]
        text = SafeText().append(f"#{snapshot.number}  {clock(snapshot.taken_at)}  ", "bold")
        yield text.append_text(verdict_text(snapshot)).append(_changes(snapshot), "dim")
        if not 0 < row <= len(self.findings):
            yield SafeText(LEGEND, "dim")
            return
        found = self.findings[row - 1]
        yield SafeText(f"{self._time(found)}  ").append(f"{found.kind}: ", "bold").append(found.summary)

    def _time(self, found: FindingSpan) -> str:
        first, last = self.snapshots[found.first], self.snapshots[found.last]
        if first is last:
            return f"Only in #{first.number}"
        return f"From #{first.number} to #{last.number}, {duration(last.taken_at - first.taken_at)}"


def verdict_text(snapshot: NumberedSnapshot) -> SafeText:
    """The verdict and the coverage, or why they are not known."""
    summary = snapshot.summary
    if summary is None:
        return SafeText(f"✖ {snapshot.trouble}" if snapshot.trouble else "not read yet", "yellow")
    text = SafeText().append(f"{MARKS[summary.verdict]} {summary.verdict.upper()}", "bold")
    return text.append(f"  {summary.coverage}")


def _changes(snapshot: NumberedSnapshot) -> str:
    return f"  {snapshot.summary.changes}" if snapshot.summary else ""


def _verdict(at: int, snapshot: NumberedSnapshot) -> Span:
    if snapshot.summary is None:
        return Span(at, at, UNREAD, "unread", -len(VERDICTS))
    verdict = snapshot.summary.verdict
    return Span(at, at, LETTERS[verdict], verdict, -VERDICTS.index(verdict))


def _row(found: FindingSpan) -> SpanRow:
    style = STYLE_OF_KIND.get(found.kind, "blocked")
    return SpanRow(f"{found.kind}: {found.summary}", [Span(found.first, found.last, STANDS, style)])
