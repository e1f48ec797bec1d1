"""The application's part that brings something out of dstack: to the clipboard, to a file, to the user's editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable
from typing import Any, ClassVar

from textual import work
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from dstack.errors import DstackError, UsageError
from dstack.files.snapshot_file import save
from dstack.probes.node.stacks.source_files import find_source
from dstack.tui.snapshot_sources import NumberedSnapshot
from dstack.tui.views.base import View
from dstack.words import plural, visible_lines

PALETTE_CLOSES_S = 0.1
"""After so long, the command palette is no longer on the screen."""


def open_in_editor(app: App[Any], file: str, line: int) -> None:
    """Open the line in ``$VISUAL`` or ``$EDITOR``, if this machine has the file; else notify the user."""
    found = find_source(file)
    if found is None:
        app.notify(f"{file} is not a source file on this machine.", severity="warning")
        return
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    command = [*shlex.split(editor), f"+{max(1, line)}", found]
    try:
        with app.suspend():
            subprocess.run(command, check=False)
    except SuspendNotSupported:
        app.notify("No terminal for an editor.", severity="warning")
    except OSError as error:
        app.notify(f"Cannot start {editor}: {error}. Set $EDITOR.", severity="error")
    app.refresh()


class AskPath(ModalScreen[str | None]):
    """Asks for the file to write; the result is None if the user cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Cancel", id="ask.cancel")]

    def __init__(self, title: str, path: str) -> None:
        super().__init__()
        self._title = title
        self._path = path

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog question") as dialog:
            dialog.border_title = self._title
            yield Input(self._path, id="path")
            yield Label("Enter saves, Esc cancels", classes="hint")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the path."""
        event.stop()
        self.dismiss(event.value.strip() or None)


class OutputApp(App[int]):
    """Copies and writes what the view on the screen shows."""

    shown: NumberedSnapshot | None = None

    @property
    def view(self) -> View:
        """The view on the screen, perhaps behind a dialog."""
        view = self.screen_stack[0]
        assert isinstance(view, View)
        return view

    def action_copy_this(self) -> None:
        text = self.view.to_copy()
        if text is None:
            self.notify("Nothing to copy here.", severity="warning")
            return
        text = visible_lines(text)
        self.copy_to_clipboard(text)
        first, *others = text.splitlines() or [""]
        self.notify(f"Copied: {first}" + (f" and {plural(len(others), 'more line')}" if others else ""))

    def action_open_location(self) -> None:
        location = self.view.to_open()
        if location is None:
            self.notify("No line of code here.", severity="warning")
        else:
            open_in_editor(self, *location)

    @work
    async def action_save(self) -> None:
        if self.shown is None:
            self.notify("No snapshot yet.", severity="warning")
            return
        snapshot = self.shown.analysed.snapshot
        at = time.strftime("%Y%m%d-%H%M%S", time.localtime(snapshot.taken_at))
        await self._write("Save the snapshot to", f"dstack-{at}.json.gz", lambda path: save(snapshot, path))

    @work
    async def action_export(self) -> None:
        text = self.view.to_export()
        if text is None:
            self.notify("Nothing to export here.", severity="warning")
            return
        name = f"dstack-{self.current_mode}.txt"
        await self._write("Write this view to", name, lambda path: _write_text(path, text))

    def draw_picture(self) -> None:
        """Ask for a file, and write a picture of the screen to it, without the command palette."""
        self.set_timer(PALETTE_CLOSES_S, self.action_picture)

    @work
    async def action_picture(self) -> None:
        picture, name = self.export_screenshot(), f"dstack-{self.current_mode}.svg"
        await self._write("Save a picture of the screen to", name, lambda path: _write_text(path, picture))

    async def _write(self, question: str, name: str, write: Callable[[str], object]) -> None:
        path = await self.push_screen_wait(AskPath(question, name))
        if not path:
            return
        try:
            write(path)
        except DstackError as error:
            self.notify(str(error), severity="error")
        else:
            self.notify(f"Wrote {path}")


def _write_text(path: str, text: str) -> None:
    """Write a new file that only its owner can read. Raises :class:`UsageError` if the file exists or on failure."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except FileExistsError as error:
        raise UsageError(f"{path} exists.", "Give another name.") from error
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.", "Use another directory.") from error
