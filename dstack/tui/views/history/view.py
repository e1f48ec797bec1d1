"""The History view: the snapshots of this run, and the comparison of two of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.snapshot_diff import ExecutionChange, SnapshotDiff, WaitChange, compare
from dstack.errors import as_dstack_error
from dstack.report.safe_text import SafeText
from dstack.tui.source import NumberedSnapshot
from dstack.tui.views.base import OutlineView
from dstack.tui.views.history.lines import ComparisonLines, snapshot_lines
from dstack.tui.widgets.outline import Outline
from dstack.tui.widgets.outline_tree import Line

Change = ExecutionChange | WaitChange
Pair = tuple[NumberedSnapshot, NumberedSnapshot]


@dataclass
class Compared(Message):
    """The comparison of two snapshots, or the reason why they cannot be compared, from the thread that compares."""

    pair: Pair
    comparison: SnapshotDiff | None
    reason: str = ""


class HistoryView(OutlineView):
    """The snapshots of this run or of the files, and the differences between two of them.

    The last two are compared first; Enter on a snapshot picks it instead. What one of the two could not read is "not
    known". Enter on a wait or an execution goes to it, in the snapshot that contains it.
    """

    CSS = "HistoryView Outline { scrollbar-size-horizontal: 0; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "view", "View", id="own.view", tooltip="Show this snapshot in all views"),
        Binding("x", "stack", "Stack", id="own.stack", tooltip="Go to the stack of the selected line"),
        Binding("p", "unpick", "Last two", id="own.unpick", tooltip="Compare the last two snapshots again"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._picked: list[int] = []
        self._pair: Pair | None = None
        self._result: Compared | None = None
        self._drawn: object = None

    def compose_body(self) -> ComposeResult:
        """The snapshots, with the comparison below them."""
        yield Outline(empty="No snapshots yet.")

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Show all snapshots, and compare two of them."""
        self._draw()

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
        return True

    def action_view(self) -> None:
        """Show the snapshot in all views."""
        if isinstance(self._data, NumberedSnapshot):
            self.host.show_snapshot(self._data)
            self._draw()

    def action_stack(self) -> None:
        """Go to the stack of the wait or execution."""
        self._go_to("stacks")

    def action_unpick(self) -> None:
        """Compare the last two again."""
        self._picked = []
        self._draw()

    def to_copy(self) -> str | None:
        """The text of the line."""
        line = self._outline.cursor_line
        return line.text.plain if line else None

    # Comparing

    def _state(self) -> object:
        snapshots = tuple(id(snapshot) for snapshot in self.host.snapshots)
        return snapshots, tuple(self._picked), id(self.host.shown)

    def _draw(self) -> None:
        """Show the snapshots and the comparison, which is started if the pair is new."""
        self._drawn = self._state()
        snapshots = self.host.snapshots
        pair = self._chosen(snapshots)
        if pair is not None and pair != self._pair:
            self._pair, self._result = pair, None
            self._compare(pair)
        self._pair = pair
        numbers = [snapshot.number for snapshot in pair] if pair else self._picked
        lines = snapshot_lines(snapshots, numbers, self.host.shown)
        title = SafeText().append(f"Snapshots: {len(snapshots)}", "bold").append("  Enter picks one to compare", "dim")
        self._outline.show([Line("snapshots", title, lines, is_open=True), *self._comparison()])
        self.refresh_bindings()

    def _chosen(self, snapshots: list[NumberedSnapshot]) -> Pair | None:
        """The two that the user picked, or one with the last other, or the last two."""
        picked = [snapshot for number in self._picked for snapshot in snapshots if snapshot.number == number]
        others = [snapshot for snapshot in snapshots if snapshot not in picked]
        chosen = [*others[len(others) - (2 - len(picked)) :], *picked] if len(picked) < 2 else picked
        if len(chosen) < 2:
            return None
        before, after = sorted(chosen, key=lambda snapshot: (snapshot.analysed.snapshot.taken_at, snapshot.number))
        return before, after

    def _comparison(self) -> list[Line]:
        if self._pair is None:
            return [Line("none", SafeText("A comparison needs two snapshots: r takes another one.", "italic"))]
        if self._result is None:
            return [Line("busy", SafeText("Comparing …", "italic"))]
        if self._result.comparison is None:
            return [Line("error", SafeText(f"✖ {self._result.reason}", "yellow"), hanging_indent=2)]
        return list(ComparisonLines(*self._result.pair, self._result.comparison).lines())

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _compare(self, pair: Pair) -> None:
        """Compare two snapshots. Runs in a thread, so it touches no widget."""
        before, after = pair
        try:
            result = Compared(pair, compare(before.analysed, after.analysed))
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
        if result is None or result.comparison is None or not isinstance(data, Change):
            return
        snapshot = ComparisonLines(*result.pair, result.comparison).snapshot_of(data)
        if snapshot is not self.host.shown:
            self.host.show_snapshot(snapshot)
            self.notify(f"All views now show snapshot #{snapshot.number}; space shows the newest again.")
        self.host.go_to(mode, data.vertex)
