"""The lines of the History view: verdicts and findings over time, snapshots, and the comparison of two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import localtime, strftime
from typing import TypeVar

from rich.text import Text

from dstack import words
from dstack.analysis.index.ranks import NO_RANKS
from dstack.analysis.naming import names
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.snapshot_changes import FindingSpan, finding_spans
from dstack.analysis.views.snapshot_diff import Change, ExecutionChange, FindingChange, SnapshotDiff, WaitChange
from dstack.model.diagnosis import VERDICTS, FindingKind, Verdict, Vertex
from dstack.observed.processes import Frame
from dstack.report.rich_text import SafeText, location
from dstack.tui.snapshots import NumberedSnapshot
from dstack.tui.views.base import VERDICT_MARKS
from dstack.tui.widgets.outline import Line
from dstack.tui.widgets.span_chart import Span, SpanRow
from dstack.tui.widgets.time_axis import clock
from dstack.words import duration, grouped

LETTERS: dict[Verdict, str] = {
    "deadlock": "D",
    "hang": "H",
    "stalled": "S",
    "unknown": "U",
    "running": "r",
    "idle": ".",
}
"""They say the same as the colours."""
LEGEND = "D deadlock  H hang  S stalled  U unknown  r running  . idle  ? not read"
UNREAD = "?"
STANDS = "●"
STYLE_OF_KIND: dict[FindingKind, Verdict] = {
    "deadlock": "deadlock",
    "orphaned": "hang",
    "infeasible": "hang",
    "stalled": "stalled",
    "starved": "stalled",
}
"""Findings of other kinds have the style of the verdict ``running``."""
T = TypeVar("T", ExecutionChange, WaitChange)
CHANGES: dict[Change, tuple[str, str]] = {
    "new": ("+ new", "green"),
    "gone": ("- gone", "red"),
    "moved": ("→ moved", "cyan"),
    "stayed": ("= stayed", "yellow"),
    "not known": ("? not known", "magenta"),
}
"""The words say the same as the colours."""
ORDER: tuple[Change, ...] = ("new", "gone", "stayed", "moved", "not known")
OPENED = 12
"""The lines of one change are unfolded at first unless there are more than this."""
HANG = 2
"""Indent of the further rows of waits and executions, in cells."""


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
    text = SafeText().append(f"{VERDICT_MARKS[summary.verdict]} {summary.verdict.upper()}", "bold")
    return text.append(f"  {summary.coverage}")


def _changes(snapshot: NumberedSnapshot) -> str:
    return f"  {snapshot.summary.changes}" if snapshot.summary else ""


def _verdict(at: int, snapshot: NumberedSnapshot) -> Span:
    if snapshot.summary is None:
        return Span(at, at, UNREAD, "unread", -len(VERDICTS))
    verdict = snapshot.summary.verdict
    return Span(at, at, LETTERS[verdict], verdict, -VERDICTS.index(verdict))


def _row(found: FindingSpan) -> SpanRow:
    style = STYLE_OF_KIND.get(found.kind, "running")
    return SpanRow(f"{found.kind}: {found.summary}", [Span(found.first, found.last, STANDS, style)])


def snapshot_lines(
    snapshots: Sequence[NumberedSnapshot], picked: Sequence[int], shown: NumberedSnapshot | None
) -> list[Line]:
    """One line for each snapshot; marked are the two numbers in ``picked``, the earlier first, and the one shown."""
    lines = []
    for snapshot in snapshots:
        place = dict(zip(picked, ("before", "after"), strict=False))
        text = SafeText().append(f"{place.get(snapshot.number, ''):<7}", "bold")
        text.append(f"#{snapshot.number}  {_time_of(snapshot)}  ").append_text(verdict_text(snapshot))
        text.append("  shown in the views" if snapshot is shown else "", "italic")
        lines.append(Line(f"snapshot/{snapshot.number}", text, data=snapshot, hanging_indent=7))
    return lines


def skipped_lines(reasons: Sequence[str]) -> list[Line]:
    """One line for all files that were not opened, with the reasons below it; none without such files."""
    below = [Line(f"skipped/{at}", SafeText(reason), hanging_indent=HANG) for at, reason in enumerate(reasons)]
    return [Line("skipped", SafeText(f"Skipped: {words.plural(len(below), 'file')}", "yellow"), below)] if below else []


def _time_of(snapshot: NumberedSnapshot) -> str:
    """The time of the snapshot, in this machine's time zone."""
    return strftime("%Y-%m-%d %H:%M:%S", localtime(snapshot.taken_at))


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One of two compared snapshots, in memory."""

    snapshot: NumberedSnapshot
    analysed: AnalysedSnapshot


@dataclass(frozen=True, slots=True)
class ComparisonLines:
    """The lines of one comparison."""

    before: ComparedSide
    after: ComparedSide
    comparison: SnapshotDiff

    def lines(self) -> Iterator[Line]:
        """The time between the two, then the findings, waits and executions by change."""
        between = words.duration(self.comparison.between_s)
        title = SafeText().append(f"From #{self.before.snapshot.number} to #{self.after.snapshot.number}", "bold")
        yield Line("between", title.append(f", {between} later"))
        yield self._findings()
        yield self._section("waits", "Waits", self.comparison.waits, self._wait)
        yield self._section("executions", "Executions", self.comparison.executions, self._moved)
        yield from self._workers_and_nodes()

    def _findings(self) -> Line:
        found = sorted(self.comparison.findings, key=lambda one: ORDER.index(one.change))
        lines = [self._finding(one) for one in found]
        text = SafeText().append("Findings", "bold").append_text(_counts([one.change for one in found]))
        return Line("findings", text, lines, is_open=True)

    def _finding(self, found: FindingChange) -> Line:
        side, number = (self.before, found.before) if found.after is None else (self.after, found.after)
        assert number is not None
        finding = side.analysed.diagnosis.findings[number]
        text = _mark(found.change).append(f"{finding.kind}: ", "bold").append(finding.summary)
        return Line(f"finding/{found.before}/{found.after}", text, data=found, hanging_indent=12)

    def _section(self, key: str, title: str, items: Sequence[T], text_of: Callable[[T, str], Text]) -> Line:
        by_change: dict[Change, list[T]] = {change: [] for change in ORDER}
        for item in items:
            by_change[item.change].append(item)
        lines = [self._changed(key, change, found, text_of) for change, found in by_change.items() if found]
        text = SafeText().append(title, "bold").append_text(_counts([item.change for item in items]))
        return Line(key, text, lines, is_open=True)

    def _changed(self, key: str, change: Change, items: list[T], text_of: Callable[[T, str], Text]) -> Line:
        groups = grouped((item.shape, item) for item in items)
        lines = [self._group(key, group, text_of) for group in sorted(groups.values(), key=len, reverse=True)]
        text = _mark(change).append(f"{len(items):,}", "bold")
        is_open = change not in ("stayed", "not known") and len(lines) <= OPENED
        return Line(f"{key}/{change}", text, lines, is_open=is_open)

    def _group(self, key: str, group: list[T], text_of: Callable[[T, str], Text]) -> Line:
        first = group[0]
        name = f"{key}/{first.change}/{first.vertex}"
        if len(group) == 1:
            return self._item(name, first, text_of)
        vertices = [vertex for item in group if (vertex := self._vertex(item))]
        rank_sets = self.snapshot_of(first).analysed.stacks.rank_sets
        part = rank_sets.rank_set_of(vertices) if len(vertices) == len(group) else None
        text = SafeText().append(f"{len(group):,} × ", "bold").append_text(text_of(first, part.words if part else ""))
        return Line(f"{name}/similar", text, partial(self._each, key, group, text_of), data=first, hanging_indent=HANG)

    def _each(self, key: str, group: list[T], text_of: Callable[[T, str], Text]) -> list[Line]:
        return [self._item(f"{key}/{item.change}/{item.vertex}", item, text_of) for item in group]

    def _item(self, key: str, item: T, text_of: Callable[[T, str], Text]) -> Line:
        vertex = self._vertex(item)
        index = self.snapshot_of(item).analysed.merged_index
        ranks = index.ranks(vertex.worker_id or "", vertex.child_pid) if vertex else NO_RANKS
        return Line(key, text_of(item, ranks.in_words), data=item, terms=ranks.terms, hanging_indent=HANG)

    def _vertex(self, item: T) -> Vertex | None:
        return self.snapshot_of(item).analysed.diagnosis.vertices.get(item.vertex)

    def _wait(self, wait: WaitChange, ranks: str) -> Text:
        text = SafeText(wait.label).append(f"  {ranks}" if ranks else "").append(f"  {wait.kind}", "magenta")
        if wait.change == "stayed":
            since = names.lasting(wait.since)
            text.append("  in both, but may have ended in between" if wait.may_have_ended else f"  the same {since}")
        return text

    def _moved(self, moved: ExecutionChange, ranks: str) -> Text:
        text = SafeText(moved.label).append(f"  {ranks}" if ranks else "")
        if moved.change == "moved":
            text.append(f"  {_line(moved.before)} → {_line(moved.after)}", "cyan")
        else:
            text.append(f"  {_line(moved.after or moved.before)}", "cyan")
        return text.append(f"  {moved.cpu_s:.1f} s of CPU time in between" if moved.cpu_s is not None else "", "dim")

    def _workers_and_nodes(self) -> Iterator[Line]:
        for kind in ("workers", "nodes"):
            for change in ("new", "gone"):
                keys: tuple[str, ...] = getattr(self.comparison, f"{change}_{kind}")
                if keys:
                    count = words.plural(len(keys), kind.removesuffix("s"))
                    text = _mark("new" if change == "new" else "gone").append(count, "bold")
                    yield Line(f"{kind}/{change}", text, [Line(f"{kind}/{key}", SafeText(key)) for key in keys])

    def snapshot_of(self, item: ExecutionChange | WaitChange) -> ComparedSide:
        """The snapshot that contains a wait or an execution."""
        return self.before if item.change == "gone" else self.after


def _mark(change: Change) -> SafeText:
    mark, style = CHANGES[change]
    return SafeText().append(f"{mark:<11} ", style)


def _counts(changes: Sequence[Change]) -> Text:
    text = SafeText()
    for change in ORDER:
        if count := changes.count(change):
            mark, style = CHANGES[change]
            text.append("  ").append(f"{mark}: {count:,}", style)
    return text if changes else text.append("  none", "dim")


def _line(frame: Frame | None) -> str:
    return location(frame.file, frame.line) if frame else ""
