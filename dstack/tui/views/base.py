"""The base of the peer views: the top bar, the filter, and the requests that the application makes of a view."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Input

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.tui.host import Host
from dstack.tui.source import NumberedSnapshot
from dstack.tui.views.top_bar import TopBar
from dstack.vertex_keys import Key

SourceLocation = tuple[str, int]
"""The name of a file on its node, and a line number."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An entry of the command palette that has no key."""

    title: str
    tooltip: str
    choose: Callable[[], None]


class View(Screen[None]):
    """One of the peer views.

    A view composes its body, shows the application's current snapshot, and filters. Its cursor, folds and scroll offset
    survive another snapshot. The application asks it for what the user copies, exports or opens.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "slash",
            "search",
            "Filter",
            key_display="/",
            tooltip="Show only what contains these words, ranks or labels, such as rank:3 or tp:1",
            id="view.filter",
        ),
        Binding("escape", "clear", "Clear", show=False, tooltip="Close and clear the filter", id="view.clear"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.shown: NumberedSnapshot | None = None
        self.analysed: AnalysedSnapshot | None = None

    @property
    def host(self) -> Host:
        """The application that shows this view."""
        assert isinstance(self.app, Host)
        return self.app

    def compose(self) -> ComposeResult:
        """The top bar, the body, the filter and the footer."""
        yield TopBar()
        yield from self.compose_body()
        field = Input(placeholder="Words to find, or rank:3, tp:1, label:value; Esc clears", id="filter")
        field.display = False
        yield field
        yield Footer(show_command_palette=False)

    def on_screen_resume(self) -> None:
        """Show the snapshot that the application has received meanwhile."""
        self.offer(self.host.shown)
        self.refresh_top()

    def offer(self, snapshot: NumberedSnapshot | None) -> None:
        """Show the snapshot unless the view shows it already."""
        if snapshot is not None and snapshot is not self.shown:
            self.shown, self.analysed = snapshot, snapshot.analysed
            self.show(snapshot.analysed)

    def refresh_top(self) -> None:
        """Show the age of the snapshot and the status of the application."""
        if self.query("#coverage"):  # otherwise the view is not composed yet
            status = self.host.status
            self.query_one(TopBar).show(self.shown, status, list(self.app.MODES), self.app.current_mode)

    # Each view implements these; Textual's metaclass excludes abc's

    def compose_body(self) -> ComposeResult:
        """The widgets of the view."""
        raise NotImplementedError

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Show another snapshot."""
        raise NotImplementedError

    def filtered(self, text: str) -> int:
        """Show only what contains all words of the text; return the number of matches."""
        raise NotImplementedError

    # Requests of the application

    def to_copy(self) -> str | None:
        """The text that ``y`` copies: the stack, id or finding under the cursor."""
        return None

    def to_export(self) -> str | None:
        """The text that ``e`` writes: all that the view shows."""
        return None

    def to_open(self) -> SourceLocation | None:
        """The line of code that ``o`` opens."""
        return None

    def choices(self) -> Iterable[Choice]:
        """The entries of the command palette that have no key."""
        return ()

    def reveal(self, vertex: Key) -> bool:
        """Go to a vertex of the wait-for graph; false if it is not in this view."""
        return False

    # The filter

    @property
    def filter_text(self) -> str:
        """The words of the filter."""
        return self.query_one("#filter", Input).value

    def action_search(self) -> None:
        """Open the filter."""
        field = self.query_one("#filter", Input)
        field.display = True
        self.set_focus(field)  # immediately, so that the filter receives the next key

    def action_clear(self) -> None:
        """Close the filter and show everything again."""
        field = self.query_one("#filter", Input)
        field.value = ""
        field.display = False
        self.focus_body()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter on each key."""
        if event.input.id == "filter":
            event.stop()
            count = self.filtered(event.value)
            event.input.border_subtitle = f"{count:,} found" if event.value.strip() else ""

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter, and focus the body."""
        if event.input.id == "filter":
            event.stop()
            self.focus_body()

    def focus_body(self) -> None:
        """Focus the first widget of the body that accepts keys."""
        widgets: Iterable[Any] = self.query("*")
        body = (widget for widget in widgets if widget.can_focus and widget.id != "filter" and widget.display)
        if first := next(body, None):
            first.focus()
