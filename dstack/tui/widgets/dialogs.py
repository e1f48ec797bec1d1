"""The dialogs: the help, and the question for a file name."""

from __future__ import annotations

from typing import ClassVar

from rich.table import Table
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from dstack.report.rich_text import SafeText


class Help(ModalScreen[None]):
    """The purpose of the view, and its enabled keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "dismiss", "Close", id="help.close")]

    def __init__(self, title: str, text: str, keys: list[tuple[str, str, str]]) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._keys = keys

    def compose(self) -> ComposeResult:
        """The text, and the table of keys."""
        table = Table.grid(padding=(0, 2))
        for key, label, tooltip in self._keys:
            table.add_row(SafeText(key, "bold"), SafeText(label), SafeText(tooltip, "dim"))
        with VerticalScroll(classes="dialog") as dialog:
            dialog.border_title = self._title
            yield Static(SafeText(self._text))
            yield Static(table, classes="keys")


class AskPath(ModalScreen[str | None]):
    """Asks for the file to write; the result is None if the user cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Cancel", id="ask.cancel")]

    def __init__(self, title: str, path: str) -> None:
        super().__init__()
        self._title = title
        self._path = path

    def compose(self) -> ComposeResult:
        """One input field."""
        with Vertical(classes="dialog question") as dialog:
            dialog.border_title = self._title
            yield Input(self._path, id="path")
            yield Label("Enter saves, Esc cancels", classes="hint")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the path."""
        event.stop()
        self.dismiss(event.value.strip() or None)
