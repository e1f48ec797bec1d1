"""The pane below an outline, with the details of the selected line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from dstack.report.rich_text import wrapped


class Detail(VerticalScroll):
    """A few wrapped sentences; the mouse, or Tab and the keys of an outline, scroll to what does not fit."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "scroll_up", "Up", show=False, id="detail.up"),
        Binding("j", "scroll_down", "Down", show=False, id="detail.down"),
        Binding("g", "scroll_home", "First", show=False, id="detail.first"),
        Binding("G", "scroll_end", "Last", show=False, id="detail.last"),
    ]
    DEFAULT_CSS = """
    Detail {
        height: 8; max-height: 35%; padding: 0 1; scrollbar-gutter: stable;
        border-top: solid $primary-muted; background: $surface;
    }
    Detail:focus { border-top: solid $accent; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.text = Text()
        self._lines: tuple[Text, ...] = ()

    def compose(self) -> ComposeResult:
        """The text."""
        yield Static()

    def show(self, lines: Iterable[Text]) -> None:
        """Replace the lines, and scroll to the first."""
        self._lines = tuple(lines)
        self.text = Text("\n").join(self._lines)
        self._wrap()
        self.scroll_home(animate=False)

    def on_resize(self) -> None:
        """Wrap the lines again to the new width."""
        self._wrap()

    def _wrap(self) -> None:
        width = self.scrollable_content_region.width
        rows = [row for line in self._lines for row in wrapped(line, self.app.console, width)] if width else self._lines
        self.query_one(Static).update(Text("\n").join(rows))
