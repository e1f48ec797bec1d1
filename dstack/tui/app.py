"""The application: it connects the source of snapshots, the views and the keys."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from dstack.errors import DstackError, UsageError
from dstack.snapshot_file import save
from dstack.tui.editor import open_in_editor
from dstack.tui.host import Status
from dstack.tui.key_help import help_keys, palette_commands
from dstack.tui.snapshot_taker import SnapshotEnded, SnapshotFailed, SnapshotProgress, SnapshotTaken, SnapshotTaker
from dstack.tui.source import NO_SNAPSHOT, Files, NumberedSnapshot, OpenedRecording, Source
from dstack.tui.views.base import View
from dstack.tui.views.calls.view import CallsView
from dstack.tui.views.cluster.view import ClusterView
from dstack.tui.views.flame.view import FlameView
from dstack.tui.views.history.view import HistoryView
from dstack.tui.views.stacks.view import StacksView
from dstack.tui.views.timeline.view import TimelineView
from dstack.tui.views.verdict.view import VerdictView
from dstack.tui.views.waits.view import WaitsView
from dstack.tui.widgets.dialogs import AskPath, Help
from dstack.vertex_keys import Key
from dstack.visible import visible_lines
from dstack.words import plural

VIEWS: dict[str, type[View]] = {
    "verdict": VerdictView,
    "waits": WaitsView,
    "stacks": StacksView,
    "flame": FlameView,
    "cluster": ClusterView,
    "history": HistoryView,
    "timeline": TimelineView,
    "calls": CallsView,
}
"""The views by mode; their keys are 1 to 8."""


PERIODS_S: tuple[int | None, ...] = (None, 5, 15, 60)
"""The periods of automatic snapshots, in the order in which ``a`` selects them."""
KEPT_SNAPSHOTS = 50
TICK_S = 1.0
PALETTE_CLOSES_S = 0.1
"""After so long, the command palette is no longer on the screen."""


class DstackApp(App[int]):
    """Shows the snapshots of a source in its views."""

    TITLE = "dstack"
    CSS_PATH = "app.tcss"
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = dict(VIEWS)
    DEFAULT_MODE = "verdict"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(
                str(number),
                f"switch_mode('{name}')",
                name.capitalize(),
                id=f"app.{name}",
                tooltip=f"Go to the {name.capitalize()} view",
                show=False,  # the top bar lists the views
            )
            for number, name in enumerate(VIEWS, 1)
        ),
        Binding("r", "take_snapshot", "Refresh", id="app.refresh", tooltip="Take another snapshot"),
        Binding("a", "every", "Auto", id="app.every", tooltip="Take a snapshot every 5, 15 or 60 s, or only on r"),
        Binding(
            "space", "freeze", "Freeze", id="app.freeze", tooltip="Keep the snapshot shown; new ones are still taken"
        ),
        Binding("o", "open_location", "Open", id="app.open", tooltip="Open the line of code in $EDITOR", show=False),
        Binding("y", "copy_this", "Copy", id="app.copy", tooltip="Copy what the selected line is about", show=False),
        Binding("s", "save", "Save", id="app.save", tooltip="Save the snapshot to a file", show=False),
        Binding("e", "export", "Export", id="app.export", tooltip="Write this view to a text file", show=False),
        Binding("question_mark", "help", "Help", key_display="?", id="app.help", tooltip="Show the keys of this view"),
        Binding("q", "quit", "Quit", id="app.quit", tooltip="Quit dstack"),
    ]

    def __init__(self, source: Source, recordings: Sequence[OpenedRecording] = ()) -> None:
        super().__init__()
        self.source = source
        self.snapshots: list[NumberedSnapshot] = []
        self.recordings = tuple(recordings)
        self.shown: NumberedSnapshot | None = None
        self.status = Status(source=source.name)
        self._taker = SnapshotTaker(source, self)

    # Snapshots

    def on_mount(self) -> None:
        """Take the first snapshot, and start the clock."""
        self.set_interval(TICK_S, self._tick)
        if self.recordings and isinstance(self.source, Files) and not self.source.snapshots:
            self._update(trouble=NO_SNAPSHOT)
            self.call_later(self.switch_mode, "flame")
        else:
            self.action_take_snapshot()

    def action_take_snapshot(self) -> None:
        """Take another snapshot, after the one in progress if there is one."""
        if self._taker.start(self.snapshots[-1].number if self.snapshots else 0):
            self._update(doing="connecting")

    def on_snapshot_progress(self, message: SnapshotProgress) -> None:
        """Show the step in progress."""
        self._update(doing=message.step)

    def on_snapshot_taken(self, message: SnapshotTaken) -> None:
        """Keep the snapshot, instead of its own preliminary form, and show it unless the views are frozen."""
        snapshot = message.snapshot
        if self.snapshots and self.snapshots[-1].number == snapshot.number:
            self.snapshots.pop()
        self.snapshots = [*self.snapshots, snapshot][-KEPT_SNAPSHOTS:]
        if self.status.is_frozen and self.shown is not None:
            self._update(newer=snapshot.number - self.shown.number, trouble="")
            return
        self.shown = snapshot
        self._update(trouble="")
        self._view.offer(snapshot)

    def on_snapshot_failed(self, message: SnapshotFailed) -> None:
        """Show the error and its remedy; the last snapshot stays on the screen."""
        error = message.error
        self._update(trouble=error.message)
        text = error.message if error.remedy is None else f"{error.message}\n{error.remedy}"
        self.notify(text, title="No snapshot", severity="error", timeout=15)

    def on_snapshot_ended(self, _: SnapshotEnded) -> None:
        """Start the snapshot that was requested meanwhile, or schedule the next automatic one."""
        is_wanted = self._taker.end()
        self._update(doing="")
        if is_wanted:
            self.action_take_snapshot()
        else:
            self._taker.schedule(self.status.every_s)

    def _tick(self) -> None:
        if self._taker.is_due():
            self.action_take_snapshot()
        self._update()

    def _update(self, **changes: Any) -> None:
        """Change the status, and show it with the current age of the snapshot."""
        self.status = replace(self.status, **changes)
        if self.screen_stack and self._view.is_mounted:  # a tick may come after the last screen was removed
            self._view.refresh_top()

    def show_snapshot(self, snapshot: NumberedSnapshot) -> None:
        """Show one of the snapshots in all views, and freeze them unless it is the newest."""
        self.shown = snapshot
        self._update(is_frozen=snapshot is not self.snapshots[-1], newer=self.snapshots[-1].number - snapshot.number)
        self._view.offer(snapshot)

    def request_history(self) -> bool:
        """Take a snapshot with the history of tasks, and all later ones too; false if the source cannot."""
        if not self.source.request_history():
            return False
        self.action_take_snapshot()
        return True

    def action_every(self) -> None:
        """Select the next period of automatic snapshots."""
        every_s = PERIODS_S[(PERIODS_S.index(self.status.every_s) + 1) % len(PERIODS_S)]
        self._taker.schedule(every_s)
        self._update(every_s=every_s)
        self.notify(f"A snapshot every {every_s} s" if every_s else "A snapshot only on r")

    def action_freeze(self) -> None:
        """Keep the shown snapshot, or show the newest again; new ones are taken in both cases."""
        self._update(is_frozen=not self.status.is_frozen, newer=0)
        if not self.status.is_frozen and self.snapshots:
            self.shown = self.snapshots[-1]
            self._view.offer(self.shown)
            self._update()

    # Views

    @property
    def _view(self) -> View:
        """The view on the screen, perhaps behind a dialog."""
        view = self.screen_stack[0]
        assert isinstance(view, View)
        return view

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable actions that do not apply."""
        if action in ("take_snapshot", "every", "freeze"):
            return self.source.is_live
        if action == "switch_mode":
            return isinstance(self.screen, View)
        return True

    def go_to(self, mode: str, vertex: Key) -> None:
        """Switch to the view of this mode and select a vertex there."""
        if mode in VIEWS:
            self.call_later(self._go_to, mode, vertex)

    async def _go_to(self, mode: str, vertex: Key) -> None:
        """Select the vertex after the view is on the screen and shows the same snapshot as the others."""
        await self.switch_mode(mode)
        self._view.offer(self.shown)
        self.call_later(self._reveal, vertex)

    def _reveal(self, vertex: Key) -> None:
        if not self._view.reveal(vertex):
            self.notify("This view does not contain it.", severity="warning")

    def notify(self, message: str, **options: Any) -> None:
        """Notify the user; quoted text is made visible, and never parsed as markup."""
        super().notify(visible_lines(message), **{**options, "markup": False})

    def action_help(self) -> None:
        """Show the keys of this view."""
        text = " ".join((type(self.screen).__doc__ or "").split())
        self.push_screen(Help(f"dstack: {self.current_mode}", text, help_keys(self)))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Textual's commands, one for each key, and the choices of the view."""
        for command in super().get_system_commands(screen):
            is_picture = command.title == "Screenshot"
            yield command._replace(callback=self._draw_picture) if is_picture else command
        yield from palette_commands(self, screen)
        yield from screen.choices() if isinstance(screen, View) else ()

    # Copies and files

    def action_copy_this(self) -> None:
        """Copy what the cursor is on."""
        text = self._view.to_copy()
        if text is None:
            self.notify("Nothing to copy here.", severity="warning")
            return
        text = visible_lines(text)
        self.copy_to_clipboard(text)
        first, *others = text.splitlines() or [""]
        self.notify(f"Copied: {first}" + (f" and {plural(len(others), 'more line')}" if others else ""))

    def action_open_location(self) -> None:
        """Open the line under the cursor in the editor."""
        location = self._view.to_open()
        if location is None:
            self.notify("No line of code here.", severity="warning")
        else:
            open_in_editor(self, *location)

    @work
    async def action_save(self) -> None:
        """Save the shown snapshot."""
        if self.shown is None:
            self.notify("No snapshot yet.", severity="warning")
            return
        snapshot = self.shown.analysed.snapshot
        at = time.strftime("%Y%m%d-%H%M%S", time.localtime(snapshot.taken_at))
        await self._write("Save the snapshot to", f"dstack-{at}.json.gz", lambda path: save(snapshot, path))

    @work
    async def action_export(self) -> None:
        """Write what the view shows to a text file."""
        text = self._view.to_export()
        if text is None:
            self.notify("Nothing to export here.", severity="warning")
            return
        name = f"dstack-{self.current_mode}.txt"
        await self._write("Write this view to", name, lambda path: _write_text(path, text))

    def _draw_picture(self) -> None:
        self.set_timer(PALETTE_CLOSES_S, self.action_picture)

    @work
    async def action_picture(self) -> None:
        """Write a picture of the screen to a file."""
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

    async def action_quit(self) -> None:
        """Exit at once, also during a snapshot."""
        self.source.cancel()
        self.exit()


def _write_text(path: str, text: str) -> None:
    """Write a new file that only its owner can read. Raises :class:`UsageError` if the file exists or on failure."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except FileExistsError as error:
        raise UsageError(f"{path} exists.", "Give another name.") from error
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from error
