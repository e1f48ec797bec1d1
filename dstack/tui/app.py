"""The application: it wires the source of snapshots, the views and the keys, and knows nothing of either."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

from textual import work
from textual.app import App, SuspendNotSupported, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from dstack.errors import DstackError, UsageError, as_dstack_error
from dstack.probes.node.stacks.source_lines import find_source
from dstack.snapshot_file import save
from dstack.tui.host import Status
from dstack.tui.messages import Ended, Failed, Progressed, Taken
from dstack.tui.source import Look, Source
from dstack.tui.views.base import View
from dstack.tui.views.registry import VIEWS
from dstack.tui.widgets.dialogs import AskPath, Help
from dstack.vertex_keys import Key
from dstack.visible import visible, visible_lines
from dstack.words import plural

PERIODS_S: tuple[int | None, ...] = (None, 5, 15, 60)
"""What ``a`` goes through: the time between looks by itself."""
HELPED = ("own", "view", "outline", "app")
"""The groups of keys in the help, by the first part of their ids: those of the view itself first."""
KEPT_LOOKS = 50
TICK_S = 1.0
PALETTE_GONE_S = 0.1
"""After so long, the command palette is not in the picture any more."""


class DstackApp(App[int]):
    """See a hang, walk it, understand it."""

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
                show=False,  # they have a line of their own
            )
            for number, name in enumerate(VIEWS, 1)
        ),
        Binding("r", "refresh_look", "Refresh", id="app.refresh", tooltip="Take another snapshot"),
        Binding("a", "every", "Auto", id="app.every", tooltip="Take a snapshot every 5, 15 or 60 s, or only on r"),
        Binding(
            "space", "freeze", "Freeze", id="app.freeze", tooltip="Keep the snapshot shown; new ones are still taken"
        ),
        Binding("o", "open_place", "Open", id="app.open", tooltip="Open the line of code in $EDITOR", show=False),
        Binding("y", "copy_this", "Copy", id="app.copy", tooltip="Copy what the selected line is about", show=False),
        Binding("s", "save", "Save", id="app.save", tooltip="Save the snapshot to a file", show=False),
        Binding("e", "export", "Export", id="app.export", tooltip="Write this view to a text file", show=False),
        Binding("question_mark", "help", "Help", key_display="?", id="app.help", tooltip="Show the keys of this view"),
        Binding("q", "quit", "Quit", id="app.quit", tooltip="Quit dstack"),
    ]

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        self.looks: list[Look] = []
        self.shown: Look | None = None
        self.status = Status(source=source.name)
        self._is_taking = self._is_wanted = False
        self._next_at: float | None = None

    # Looks come in

    def on_mount(self) -> None:
        """Begins to look, and to tell the time."""
        self.set_interval(TICK_S, self._tick)
        self.action_refresh_look()

    def action_refresh_look(self) -> None:
        """Takes another snapshot; one that is being taken is let come to its end first."""
        self._is_wanted = self._is_taking
        if not self._is_taking and (self.source.is_live or not self.looks):
            self._is_taking = True
            self._tell(doing="connecting")
            self._take(self.looks[-1].number if self.looks else 0)

    @work(thread=True, exit_on_error=False)
    def _take(self, before: int) -> None:
        """Runs in a thread of its own and touches no widget."""
        number = before

        def early(snapshot: Any) -> None:
            nonlocal number
            if self.source.is_live:
                self.post_message(Taken(Look.of(before + 1, snapshot, is_final=False)))
            else:
                number += 1
                self.post_message(Taken(Look.of(number, snapshot)))

        def progress(text: str) -> None:
            self.post_message(Progressed(text))

        try:
            taken = self.source.take(progress, early)
            self.post_message(Taken(Look.of(number + 1, taken)))
        except Exception as error:
            known = as_dstack_error(error)
            self.post_message(Failed(known.message, known.remedy))
        finally:
            self.post_message(Ended())

    def on_progressed(self, message: Progressed) -> None:
        """Tells what is being done."""
        self._tell(doing=message.text)

    def on_taken(self, message: Taken) -> None:
        """Keeps the look, in the place of its own early form, and shows it unless the views are frozen."""
        if self.looks and self.looks[-1].number == message.look.number:
            self.looks.pop()
        self.looks = [*self.looks, message.look][-KEPT_LOOKS:]
        if self.status.is_frozen and self.shown is not None:
            self._tell(newer=message.look.number - self.shown.number, trouble="")
            return
        self.shown = message.look
        self._tell(trouble="")
        self._view.offer(self.shown)

    def on_failed(self, message: Failed) -> None:
        """Says why, and what to do; what was seen last stays."""
        self._tell(trouble=message.reason)
        text = message.reason if message.remedy is None else f"{message.reason}\n{message.remedy}"
        self.notify(text, title="No snapshot", severity="error", timeout=15)

    def notify(self, message: str, **options: Any) -> None:
        """Tells something for a while; what it quotes is made visible, and never read as markup."""
        super().notify(visible_lines(message), **{**options, "markup": False})

    def on_ended(self, _: Ended) -> None:
        """The next look may begin."""
        self._is_taking = False
        self._tell(doing="")
        if self._is_wanted:
            self.action_refresh_look()
        elif self.status.every_s:
            self._next_at = time.monotonic() + self.status.every_s

    def _tick(self) -> None:
        if self._next_at is not None and time.monotonic() >= self._next_at:
            self._next_at = None
            self.action_refresh_look()
        self._tell()

    def _tell(self, **changes: Any) -> None:
        self.status = replace(self.status, **changes)
        if self.screen_stack and self._view.is_mounted:  # a tick may come when the last screen is gone
            self._view.refresh_top()

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What does not apply is not offered."""
        if action in ("refresh_look", "every", "freeze"):
            return self.source.is_live
        if action == "switch_mode":
            return isinstance(self.screen, View)
        return True

    def action_every(self) -> None:
        """Goes on to the next time between looks."""
        at = PERIODS_S.index(self.status.every_s)
        every_s = PERIODS_S[(at + 1) % len(PERIODS_S)]
        self._next_at = time.monotonic() + every_s if every_s and not self._is_taking else None
        self._tell(every_s=every_s)
        self.notify(f"A snapshot every {every_s} s" if every_s else "A snapshot only on r")

    def action_freeze(self) -> None:
        """Keeps what is shown, or shows the newest again; collecting goes on either way."""
        self._tell(is_frozen=not self.status.is_frozen, newer=0)
        if not self.status.is_frozen and self.looks:
            self.shown = self.looks[-1]
            self._view.offer(self.shown)
            self._tell()

    def go_to(self, mode: str, vertex: Key) -> None:
        """Switches to a view and goes to a vertex there."""
        if mode in VIEWS:
            self.call_later(self._go_to, mode, vertex)

    async def _go_to(self, mode: str, vertex: Key) -> None:
        """Goes there once the view is on the screen and shows what the others show."""
        await self.switch_mode(mode)
        self._view.offer(self.shown)
        self.call_later(self._reveal, vertex)

    def _reveal(self, vertex: Key) -> None:
        if not self._view.reveal(vertex):
            self.notify("This view does not contain it.", severity="warning")

    def show_look(self, look: Look) -> None:
        """Shows one of the looks, and freezes the views at it."""
        self.shown = look
        self._tell(is_frozen=look is not self.looks[-1], newer=self.looks[-1].number - look.number)
        self._view.offer(look)

    def action_help(self) -> None:
        """Shows what the keys do in this view."""
        ids = {one: (one.binding.id or "").partition(".") for one in self.screen.active_bindings.values()}
        known = [one for one, (group, _, _) in ids.items() if one.enabled and group in HELPED]
        bindings = sorted(known, key=lambda one: (HELPED.index(ids[one][0]), ids[one][2]))
        keys = {
            binding.binding.description: (
                binding.binding.key_display or self.get_key_display(binding.binding),
                binding.binding.description,
                binding.tooltip,
            )
            for binding in bindings
        }
        text = " ".join((type(self.screen).__doc__ or "").split())
        self.push_screen(Help(f"dstack: {self.current_mode}", text, list(keys.values())))

    def action_copy_this(self) -> None:
        """Copies what the cursor is on."""
        text = self._view.to_copy()
        if text is None:
            self.notify("Nothing to copy here.", severity="warning")
            return
        text = visible_lines(text)
        self.copy_to_clipboard(text)
        first, *others = text.splitlines() or [""]
        self.notify(f"Copied: {first}" + (f" and {plural(len(others), 'more line')}" if others else ""))

    def action_open_place(self) -> None:
        """Opens the line under the cursor in the editor, where its file is here."""
        place = self._view.to_open()
        if place is None:
            self.notify("No line of code here.", severity="warning")
            return
        file, line = place
        found = find_source(file)
        if found is None:
            self.notify(f"{file} is not a source file on this machine.", severity="warning")
            return
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        command = [*shlex.split(editor), f"+{max(1, line)}", found]
        try:
            with self.suspend():
                subprocess.run(command, check=False)
        except SuspendNotSupported:
            self.notify("No terminal for an editor.", severity="warning")
        except OSError as error:
            self.notify(f"Cannot start {editor}: {error}. Set $EDITOR.", severity="error")
        self.refresh()

    @work
    async def action_save(self) -> None:
        """Saves the snapshot that is shown."""
        if self.shown is None:
            self.notify("No snapshot yet.", severity="warning")
            return
        taken = time.strftime("%Y%m%d-%H%M%S", time.localtime(self.shown.snapshot.taken_at))
        path = await self.push_screen_wait(AskPath("Save the snapshot to", f"dstack-{taken}.json.gz"))
        if path:
            self._write(path, lambda: save(self.shown.snapshot, path) if self.shown else None)

    @work
    async def action_export(self) -> None:
        """Writes what is shown to a text file."""
        text = self._view.to_export()
        if text is None:
            self.notify("Nothing to export here.", severity="warning")
            return
        path = await self.push_screen_wait(AskPath("Write this view to", f"dstack-{self.current_mode}.txt"))
        if path:
            self._write(path, lambda: _write_text(path, text))

    @work
    async def action_picture(self) -> None:
        """Draws the screen into a file."""
        picture = self.export_screenshot()
        path = await self.push_screen_wait(
            AskPath("Save a picture of the screen to", f"dstack-{self.current_mode}.svg")
        )
        if path:
            self._write(path, lambda: _write_text(path, picture))

    def _write(self, path: str, write: Callable[[], object]) -> None:
        try:
            write()
        except DstackError as error:
            self.notify(str(error), severity="error")
        else:
            self.notify(f"Wrote {path}")

    @property
    def _view(self) -> View:
        """The view that is on the screen, perhaps behind a dialog."""
        view = self.screen_stack[0]
        assert isinstance(view, View)
        return view

    async def action_quit(self) -> None:
        """Leaves at once, whatever is under way."""
        self.source.cancel()
        self.exit()

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """All that has a key, too, and what Textual offers; its pictures are files as all others here."""
        for command in super().get_system_commands(screen):
            is_picture = command.title == "Screenshot"
            yield command._replace(callback=self._draw_picture) if is_picture else command
        for active in screen.active_bindings.values():
            binding = active.binding
            if active.enabled and binding.id and binding.id.startswith(("app.", "view.", "own.")):
                yield SystemCommand(binding.description, active.tooltip, self._runner(active.node, binding.action))
        for choice in screen.choices() if isinstance(screen, View) else ():
            yield SystemCommand(visible(choice.title), choice.tooltip, choice.choose)

    def _draw_picture(self) -> None:
        self.set_timer(PALETTE_GONE_S, self.action_picture)

    def _runner(self, node: Any, action: str) -> Callable[[], None]:
        def run() -> None:
            self.call_later(self.run_action, action, node)

        return run


def _write_text(path: str, text: str) -> None:
    """Writes a new file, readable by its owner only. Raises :class:`UsageError` where it cannot."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except FileExistsError as error:
        raise UsageError(f"{path} exists.", "Give another name.") from error
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from error
