"""The History view: the snapshots of this run, and the comparison of two of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from dstack.analysis.views.snapshot_diff import ExecutionChange, SnapshotDiff, WaitChange, compare
from dstack.errors import as_dstack_error
from dstack.report.safe_text import SafeText
from dstack.tui.source import Look
from dstack.tui.views.history.lines import ComparisonLines, snapshot_lines
from dstack.tui.views.outline_view import OutlineView
from dstack.tui.widgets.outline import Outline
from dstack.tui.widgets.outline_line import Line

Pair = tuple[Look, Look]


@dataclass(frozen=True, slots=True)
class Result:
    """The comparison of two snapshots, or the reason why they cannot be compared."""

    pair: Pair
    comparison: SnapshotDiff | None
    reason: str = ""


@dataclass
class Compared(Message):
    """The thread that compares two snapshots has ended."""

    result: Result


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
        self._result: Result | None = None
        self._drawn: object = None

    def compose_body(self) -> ComposeResult:
        """The snapshots, with the comparison below them."""
        yield Outline(empty="No snapshots yet.")

    def show(self, look: Look) -> None:
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
        if isinstance(data, Look):
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
            return isinstance(self._data, Look)
        if action == "stack":
            return isinstance(self._data, ExecutionChange | WaitChange)
        if action == "unpick":
            return bool(self._picked)
        return True

    def on_outline_highlighted(self, _: Outline.Highlighted) -> None:
        """Enable the actions that apply to the line."""
        self.refresh_bindings()

    def action_view(self) -> None:
        """Show the snapshot in all views."""
        if isinstance(self._data, Look):
            self.host.show_look(self._data)
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
        looks = tuple(id(look) for look in self.host.looks)
        return looks, tuple(self._picked), id(self.host.shown)

    def _draw(self) -> None:
        """Show the snapshots and the comparison, which is started if the pair is new."""
        self._drawn = self._state()
        looks = self.host.looks
        pair = self._chosen(looks)
        if pair is not None and pair != self._pair:
            self._pair, self._result = pair, None
            self._compare(pair)
        self._pair = pair
        numbers = [look.number for look in pair] if pair else self._picked
        lines = snapshot_lines(looks, numbers, self.host.shown)
        title = SafeText().append(f"Snapshots: {len(looks)}", "bold").append("  Enter picks one to compare", "dim")
        self._outline.show([Line("looks", title, lines, is_open=True), *self._comparison()])
        self.refresh_bindings()

    def _chosen(self, looks: list[Look]) -> Pair | None:
        """The two that the user picked, or one with the last other, or the last two."""
        picked = [look for number in self._picked for look in looks if look.number == number]
        others = [look for look in looks if look not in picked]
        chosen = [*others[len(others) - (2 - len(picked)) :], *picked] if len(picked) < 2 else picked
        if len(chosen) < 2:
            return None
        before, after = sorted(chosen, key=lambda look: (look.snapshot.taken_at, look.number))
        return before, after

    def _comparison(self) -> list[Line]:
        if self._pair is None:
            return [Line("none", SafeText("A comparison needs two snapshots: r takes another one.", "italic"))]
        if self._result is None:
            return [Line("busy", SafeText("Comparing …", "italic"))]
        if self._result.comparison is None:
            return [Line("error", SafeText(f"✖ {self._result.reason}", "yellow"), hang=2)]
        return list(ComparisonLines(*self._pair, self._result.comparison).lines())

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _compare(self, pair: Pair) -> None:
        """Compare two snapshots. Runs in a thread, so it touches no widget."""
        before, after = pair
        try:
            result = Result(pair, compare(before.analysed, after.analysed))
        except Exception as error:
            result = Result(pair, None, str(as_dstack_error(error)))
        self.post_message(Compared(result))

    def on_compared(self, message: Compared) -> None:
        """Show the comparison unless the user has picked another pair meanwhile."""
        if message.result.pair == self._pair:
            self._result = message.result
            self._draw()

    def _go_to(self, mode: str) -> None:
        """Go to the wait or execution of the line, in the snapshot that contains it."""
        data, result = self._data, self._result
        if (
            self._pair is None
            or result is None
            or result.comparison is None
            or not isinstance(data, ExecutionChange | WaitChange)
        ):
            return
        look = ComparisonLines(*self._pair, result.comparison).look_of(data)
        if look is not self.host.shown:
            self.host.show_look(look)
            self.notify(f"All views now show snapshot #{look.number}; space shows the newest again.")
        self.host.go_to(mode, data.vertex)
