"""The History view: the snapshots of this run, and the comparison of two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import localtime, strftime
from typing import ClassVar, TypeVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static

from dstack import words
from dstack.analysis.index.ranks import NO_RANKS
from dstack.analysis.naming import names
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.snapshot_changes import FindingSpan, finding_spans
from dstack.analysis.views.snapshot_diff import (
    Change,
    ExecutionChange,
    FindingChange,
    SnapshotDiff,
    WaitChange,
    compare,
)
from dstack.errors import as_dstack_error
from dstack.model.diagnosis import VERDICTS, Verdict, Vertex
from dstack.observed.processes import Frame
from dstack.report.finding import kind_in_words
from dstack.report.rich_text import SafeText, location
from dstack.tui.snapshot_sources import NumberedSnapshot
from dstack.tui.views.bars import VERDICT_MARKS
from dstack.tui.views.base import STACK, WAITS, OutlineView, verdict_in_colour
from dstack.tui.widgets.gantt import ZOOM
from dstack.tui.widgets.outline import Line, Outline
from dstack.tui.widgets.span_chart import Span, SpanChart, SpanRow
from dstack.tui.widgets.time_axis import TimeAxis, clock
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
        yield SafeText(f"{self._time(found)}  ").append(f"{kind_in_words(found.kind)}: ", "bold").append(found.summary)

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
    style = verdict_in_colour(found.kind)
    return SpanRow(f"{kind_in_words(found.kind)}: {found.summary}", [Span(found.first, found.last, STANDS, style)])


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
        text = _mark(found.change).append(f"{kind_in_words(finding.kind)}: ", "bold").append(finding.summary)
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


VertexChange = ExecutionChange | WaitChange
Pair = tuple[NumberedSnapshot, NumberedSnapshot]
LISTED = 10
"""More snapshots are folded into one line at first, as the chart above has them, too."""


@dataclass
class Compared(Message):
    """The comparison of two snapshots, or the reason why they cannot be compared, from the thread that compares."""

    pair: Pair
    lines: ComparisonLines | None
    reason: str = ""


class HistoryView(OutlineView):
    """Verdicts and findings over the snapshots of this run or of the files, and the differences between two of them.

    In the chart, each letter is a snapshot, and each finding has a row. Left and right move to another snapshot, Enter
    shows it in all views, + and - zoom, Tab goes to the list below. It compares the shown snapshot with the one before;
    Enter on a snapshot there picks it instead. What one of the two could not read is "not known". Enter on a wait or an
    execution goes to it, in the snapshot that contains it.
    """

    DEFAULT_CSS = """
    HistoryView Outline { scrollbar-size-horizontal: 0; }
    HistoryView SpanChart { max-height: 40%; }
    HistoryView #at {
        height: 3; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; border-bottom: solid $primary-muted;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "view", "View", id="own.view", tooltip="Show this snapshot in all views"),
        STACK,
        WAITS,
        Binding("p", "unpick", "Unpick", id="own.unpick", tooltip="Compare the shown snapshot with the one before"),
        Binding("tab", "other_pane", "Pane", show=False, id="own.pane", tooltip="Go to the chart, or to the list"),
        Binding("plus,equals_sign", "zoom(1)", "In", show=False, key_display="+", id="own.in", tooltip="Zoom in"),
        Binding("minus", "zoom(-1)", "Out", show=False, key_display="-", id="own.out", tooltip="Zoom out"),
        Binding("0", "whole", "All", show=False, id="own.whole", tooltip="Show the whole time"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._picked: list[int] = []
        self._pair: Pair | None = None
        self._result: Compared | None = None
        self._drawn: object = None
        self._rows = VerdictRows.of(())

    def compose_body(self) -> ComposeResult:
        has_chart = len(self.host.snapshots) > 1
        for widget in (TimeAxis(), SpanChart(), Static(id="at")):
            widget.display = has_chart
            yield widget
        yield Outline(empty="No snapshots yet.")

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Show all snapshots, and compare two of them."""
        self._draw()
        numbers = [one.number for one in self._rows.snapshots]
        if self.shown is not None and self.shown.number in numbers:
            self._chart.select(numbers.index(self.shown.number))

    # The chart

    @property
    def _chart(self) -> SpanChart:
        return self.query_one(SpanChart)

    @on(SpanChart.Viewed)
    def show_axis(self) -> None:
        """Show the ticks of the time that is visible."""
        chart = self._chart
        if chart.times:
            self.query_one(TimeAxis).show(chart.window, chart.times[0], chart.left)

    @on(SpanChart.Selected)
    def show_selected(self) -> None:
        """Show what is at the cursor of the chart."""
        chart = self._chart
        self.query_one("#at", Static).update(Text("\n").join(self._rows.details(chart.at, chart.row)))

    @on(SpanChart.Chosen)
    def show_chosen(self) -> None:
        """Show the snapshot at the cursor in all views."""
        self.host.read_and_show(self._rows.snapshots[self._chart.at])

    def action_zoom(self, direction: int) -> None:
        self._chart.zoom(ZOOM**direction)

    def action_whole(self) -> None:
        self._chart.whole()

    def action_other_pane(self) -> None:
        (self._outline if self._chart.has_focus or not self._chart.display else self._chart).focus()

    # The list

    def refresh_top(self) -> None:
        """Show the status, and new snapshots also while the views are frozen."""
        super().refresh_top()
        if self.is_mounted and self._state() != self._drawn:
            self._draw()

    def _choose(self, outline: Outline, line: Line) -> None:
        """Pick a snapshot, fold or unfold a line, or go to a wait or an execution."""
        data = line.data
        if isinstance(data, NumberedSnapshot):
            self._picked = [*(number for number in self._picked if number != data.number), data.number][-2:]
            self._draw()
        elif line.has_children:
            outline.toggle(line)
        elif isinstance(data, WaitChange):
            self.action_waits()
        elif isinstance(data, ExecutionChange):
            self.action_stack()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "view":
            return isinstance(self._data, NumberedSnapshot)
        if action in ("stack", "waits"):
            return isinstance(self._data, VertexChange)
        if action == "unpick":
            return bool(self._picked)
        if action in ("zoom", "whole", "other_pane"):
            return len(self.host.snapshots) > 1
        return True

    def action_view(self) -> None:
        if isinstance(self._data, NumberedSnapshot):
            self.host.read_and_show(self._data)

    def action_stack(self) -> None:
        """Go to the stack of the wait or execution."""
        self._go_to("stacks")

    def action_waits(self) -> None:
        """Go to the wait in the Waits view."""
        self._go_to("waits")

    def action_unpick(self) -> None:
        self._picked = []
        self._draw()

    def to_copy(self) -> str | None:
        """The text of the line."""
        line = self._outline.cursor_line
        return line.text.plain if line else None

    def to_export(self) -> str | None:
        """The chart, then all unfolded lines."""
        lines = super().to_export()
        return f"{self._chart.as_text()}\n\n{lines}" if self._chart.display else lines

    # Comparing

    def _state(self) -> object:
        snapshots = tuple((id(one), one.summary is None, one.trouble) for one in self.host.snapshots)
        return snapshots, tuple(self._picked), id(self.host.shown)

    def _draw(self) -> None:
        """Show the chart, the snapshots and the comparison, which is started if the pair is new."""
        self._drawn = self._state()
        snapshots = self.host.snapshots
        self._draw_chart(snapshots)
        pair = self._chosen(snapshots)
        if pair is not None and pair != self._pair:
            self._pair, self._result = pair, None
            self._compare(pair)
        self._pair = pair
        numbers = [snapshot.number for snapshot in pair] if pair else self._picked
        lines = snapshot_lines(snapshots, numbers, self.host.shown)
        title = SafeText().append(f"Snapshots: {len(snapshots)}", "bold").append("  Enter picks one to compare", "dim")
        is_open = len(lines) <= LISTED
        skipped = skipped_lines(self.host.skipped)
        self._outline.show([Line("snapshots", title, lines, is_open=is_open), *skipped, *self._comparison()])
        self.refresh_bindings()

    def _draw_chart(self, snapshots: Sequence[NumberedSnapshot]) -> None:
        self._rows = VerdictRows.of(snapshots)
        for widget in (self.query_one(TimeAxis), self._chart, self.query_one("#at")):
            widget.display = len(snapshots) > 1
        self._chart.show(self._rows.rows(), self._rows.times)
        self.show_selected()

    def _chosen(self, snapshots: list[NumberedSnapshot]) -> Pair | None:
        """The two that the user picked, or one with the shown one, or the shown one with the one before."""
        readable = [one for one in snapshots if not one.trouble]
        shown = self.host.shown
        picked = [one for number in self._picked for one in readable if one.number == number]
        chosen = dict.fromkeys((*reversed(picked), *([shown] if shown else []), *self._neighbours(readable)))
        if len(chosen) < 2:
            return None
        before, after = sorted(list(chosen)[:2], key=lambda one: (one.taken_at, one.number))
        return before, after

    def _neighbours(self, readable: Sequence[NumberedSnapshot]) -> Iterator[NumberedSnapshot]:
        """The snapshot before the shown one, else the one after it."""
        number = self.host.shown.number if self.host.shown else 0
        yield from [one for one in readable if one.number < number][-1:]
        yield from [one for one in readable if one.number > number][:1]

    def _comparison(self) -> list[Line]:
        if self._pair is None:
            return [Line("none", SafeText("A comparison needs two snapshots: r takes another one.", "italic"))]
        if self._result is None:
            return [Line("busy", SafeText("Comparing …", "italic"))]
        if self._result.lines is None:
            return [Line("error", SafeText(f"✖ {self._result.reason}", "yellow"), hanging_indent=2)]
        return list(self._result.lines.lines())

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _compare(self, pair: Pair) -> None:
        """Compare two snapshots. Runs in a thread, so it touches no widget."""
        try:
            before, after = (ComparedSide(one, one.analysed) for one in pair)
            result = Compared(pair, ComparisonLines(before, after, compare(before.analysed, after.analysed)))
        except Exception as error:
            result = Compared(pair, None, str(as_dstack_error(error)))
        self.post_message(result)

    def on_compared(self, message: Compared) -> None:
        """Show the comparison unless the user has picked another pair meanwhile."""
        if message.pair == self._pair:
            self._result = message
            self._draw()

    def _go_to(self, mode: str) -> None:
        """Go to the wait or execution of the line, in the snapshot that contains it."""
        data, result = self._data, self._result
        if result is None or result.lines is None or not isinstance(data, VertexChange):
            return
        snapshot = result.lines.snapshot_of(data).snapshot
        if snapshot is not self.host.shown:
            self._picked = [one.number for one in result.pair]  # so that the comparison is still there afterwards
            self.host.show_snapshot(snapshot)
            self.notify(f"All views now show snapshot #{snapshot.number}; }} shows the newest.")
        self.host.go_to(mode, data.vertex)
