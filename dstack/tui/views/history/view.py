"""The snapshots of this run, and the differences between two of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from dstack.analysis.views.snapshot_diff import Comparison, Moved, Waited, compare
from dstack.errors import as_dstack_error
from dstack.report.safe_text import SafeText
from dstack.tui.source import Look
from dstack.tui.views.history.lines import Lines, look_lines
from dstack.tui.views.outline_view import OutlineView
from dstack.tui.widgets.outline import Outline
from dstack.tui.widgets.outline_line import Line

Pair = tuple[Look, Look]


@dataclass
class Compared(Message):
    """Two snapshots have been compared, or cannot be, and why."""

    pair: Pair
    comparison: Comparison | None
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
        """The snapshots, and below them the comparison."""
        yield Outline(empty="No snapshots yet.")

    def show(self, look: Look) -> None:
        """Shows the snapshots there are, and compares two."""
        self._draw()

    def refresh_top(self) -> None:
        """Tells again what is on top, and whether there are more snapshots, also while the views are frozen."""
        super().refresh_top()
        if self.is_mounted and self._state() != self._drawn:
            self._draw()

    def on_outline_chosen(self, event: Outline.Chosen) -> None:
        """Picks a snapshot, goes to what a line is about, or folds."""
        data = event.line.data
        if isinstance(data, Look):
            self._picked = [*(number for number in self._picked if number != data.number), data.number][-2:]
            self._draw()
        elif event.line.has_children:
            event.outline.toggle(event.line)
        elif isinstance(data, Waited):
            self._go_to("waits")
        elif isinstance(data, Moved):
            self._go_to("stacks")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What the line has not is not offered."""
        if action == "view":
            return isinstance(self._data, Look)
        if action == "stack":
            return isinstance(self._data, Moved | Waited)
        if action == "unpick":
            return bool(self._picked)
        return True

    def on_outline_highlighted(self, _: Outline.Highlighted) -> None:
        """Offers what can be done with the line."""
        self.refresh_bindings()

    def action_view(self) -> None:
        """Shows the snapshot in all views."""
        if isinstance(self._data, Look):
            self.host.show_look(self._data)
            self._draw()

    def action_stack(self) -> None:
        """To the stack of what the line is about."""
        self._go_to("stacks")

    def action_unpick(self) -> None:
        """Compares the last two again."""
        self._picked = []
        self._draw()

    def to_copy(self) -> str | None:
        """The line."""
        line = self._outline.cursor_line
        return line.text.plain if line else None

    # Comparing

    def _state(self) -> object:
        looks = tuple(id(look) for look in self.host.looks)
        return looks, tuple(self._picked), id(self.host.shown)

    def _draw(self) -> None:
        """Shows what is known by now, and begins to compare what is not compared yet."""
        self._drawn = self._state()
        looks = self.host.looks
        pair = self._chosen(looks)
        if pair is not None and pair != self._pair:
            self._pair, self._result = pair, None
            self._compare(pair)
        self._pair = pair
        numbers = [look.number for look in pair] if pair else self._picked
        snapshots = look_lines(looks, numbers, self.host.shown)
        title = SafeText().append(f"Snapshots: {len(looks)}", "bold").append("  Enter picks one to compare", "dim")
        self._outline.show([Line("looks", title, snapshots, is_open=True), *self._comparison()])
        self.refresh_bindings()

    def _chosen(self, looks: list[Look]) -> Pair | None:
        """The two that were picked, or one with the latest other, or the last two."""
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
            return [Line("refused", SafeText(f"✖ {self._result.reason}", "yellow"), hang=2)]
        return list(Lines(*self._pair, self._result.comparison).lines())

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _compare(self, pair: Pair) -> None:
        """Runs in a thread of its own and touches no widget."""
        before, after = pair
        try:
            self.post_message(Compared(pair, compare(before.analysed, after.analysed)))
        except Exception as error:
            self.post_message(Compared(pair, None, str(as_dstack_error(error))))

    def on_compared(self, message: Compared) -> None:
        """Shows a comparison, unless others have been picked meanwhile."""
        if message.pair == self._pair:
            self._result = message
            self._draw()

    # Going on

    def _go_to(self, mode: str) -> None:
        """Goes to what the line is about, in the snapshot that has it."""
        data, result = self._data, self._result
        if self._pair is None or result is None or result.comparison is None or not isinstance(data, Moved | Waited):
            return
        look = Lines(*self._pair, result.comparison).look_of(data)
        if look is not self.host.shown:
            self.host.show_look(look)
            self.notify(f"All views now show snapshot #{look.number}; space shows the newest again.")
        self.host.go_to(mode, data.vertex)
