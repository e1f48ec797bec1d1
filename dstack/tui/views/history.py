"""The History view: the snapshots of this run, and the comparison of two of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.snapshot_diff import ExecutionChange, WaitChange, compare
from dstack.errors import as_dstack_error
from dstack.report.rich_text import SafeText
from dstack.tui.snapshots import NumberedSnapshot
from dstack.tui.views.base import OutlineView
from dstack.tui.views.history_lines import ComparedSide, ComparisonLines, VerdictRows, skipped_lines, snapshot_lines
from dstack.tui.widgets.gantt import ZOOM
from dstack.tui.widgets.outline import Line, Outline
from dstack.tui.widgets.span_chart import SpanChart
from dstack.tui.widgets.time_axis import TimeAxis

Change = ExecutionChange | WaitChange
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

    CSS = """
    HistoryView Outline { scrollbar-size-horizontal: 0; }
    HistoryView SpanChart { max-height: 40%; }
    HistoryView #at {
        height: 3; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; border-bottom: solid $primary-muted;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "view", "View", id="own.view", tooltip="Show this snapshot in all views"),
        Binding("x", "stack", "Stack", id="own.stack", tooltip="Go to the stack of the selected line"),
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
        """The chart, the snapshot at its cursor, and the list of snapshots with the comparison below it."""
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
        """Show a shorter or longer time."""
        self._chart.zoom(ZOOM**direction)

    def action_whole(self) -> None:
        """Show the whole time."""
        self._chart.whole()

    def action_other_pane(self) -> None:
        """Go to the other pane."""
        (self._outline if self._chart.has_focus or not self._chart.display else self._chart).focus()

    # The list

    def refresh_top(self) -> None:
        """Show the status, and new snapshots also while the views are frozen."""
        super().refresh_top()
        if self.is_mounted and self._state() != self._drawn:
            self._draw()

    def on_outline_chosen(self, event: Outline.Chosen) -> None:
        """Pick a snapshot, fold or unfold a line, or go to a wait or an execution."""
        data = event.line.data
        if isinstance(data, NumberedSnapshot):
            self._picked = [*(number for number in self._picked if number != data.number), data.number][-2:]
            self._draw()
        elif event.line.has_children:
            event.outline.toggle(event.line)
        elif isinstance(data, WaitChange):
            self._go_to("waits")
        elif isinstance(data, ExecutionChange):
            self._go_to("stacks")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable actions that do not apply to the line."""
        if action == "view":
            return isinstance(self._data, NumberedSnapshot)
        if action == "stack":
            return isinstance(self._data, Change)
        if action == "unpick":
            return bool(self._picked)
        if action in ("zoom", "whole", "other_pane"):
            return len(self.host.snapshots) > 1
        return True

    def action_view(self) -> None:
        """Show the snapshot in all views."""
        if isinstance(self._data, NumberedSnapshot):
            self.host.read_and_show(self._data)

    def action_stack(self) -> None:
        """Go to the stack of the wait or execution."""
        self._go_to("stacks")

    def action_unpick(self) -> None:
        """Compare the shown snapshot with the one before again."""
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
        if result is None or result.lines is None or not isinstance(data, Change):
            return
        snapshot = result.lines.snapshot_of(data).snapshot
        if snapshot is not self.host.shown:
            self._picked = [one.number for one in result.pair]  # so that the comparison is still there afterwards
            self.host.show_snapshot(snapshot)
            self.notify(f"All views now show snapshot #{snapshot.number}; }} shows the newest.")
        self.host.go_to(mode, data.vertex)
