"""The application: it connects the source of snapshots, the views and the keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import PurePath
from typing import Any, ClassVar

from rich.console import Console
from rich.table import Table
from rich.terminal_theme import TerminalTheme
from rich.text import Text
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.containers import VerticalScroll
from textual.css.stylesheet import Stylesheet
from textual.screen import ModalScreen, Screen
from textual.system_commands import SystemCommandsProvider
from textual.widgets import Static

from dstack.analysis.views.cluster_activity import ClusterActivity
from dstack.errors import DstackError
from dstack.model.vertex_keys import Key
from dstack.report.rich_text import Row, SafeText, lines_of
from dstack.tui.output_app import OutputApp
from dstack.tui.replay import RATES, REPLAY_KEYS, Replay, SnapshotRead, SnapshotSummarised
from dstack.tui.snapshot_sources import (
    NO_SNAPSHOT,
    ClusterPolled,
    Files,
    NumberedSnapshot,
    OpenedRecording,
    PollFailed,
    SnapshotEnded,
    SnapshotFailed,
    SnapshotProgress,
    SnapshotTaken,
    SnapshotTaker,
    Source,
)
from dstack.tui.views.bars import Status
from dstack.tui.views.base import View, following
from dstack.words import grouped, visible, visible_lines

GROUPS = {
    "Look closer": ("own",),
    "Find": ("view",),
    "Snapshots": ("app.refresh", "app.every", "app.freeze"),
    "Replay": ("app.play", "app.snapshot"),
    "Save and copy": ("app.save", "app.export", "app.copy", "app.open"),
    "dstack": ("app.help", "app.quit"),
}
"""The keys in the help by what they are for: the beginnings of their ids."""
IN_PALETTE = ("app.", "view.", "own.")


class Views(Mapping[str, type[View]]):
    """The views by mode; their keys are 1 to 8. Each is imported when it is first needed, as that takes a while."""

    _NAMES = ("verdict", "waits", "stacks", "flame", "cluster", "history", "timeline", "calls")

    def __getitem__(self, name: str) -> type[View]:
        if name not in self._NAMES:
            raise KeyError(name)
        view: type[View] = getattr(import_module(f"dstack.tui.views.{name}_view"), f"{name.capitalize()}View")
        return view

    def __iter__(self) -> Iterator[str]:
        return iter(self._NAMES)

    def __len__(self) -> int:
        return len(self._NAMES)

    def make(self, name: str) -> View:
        """A new view."""
        return self[name]()


VIEWS = Views()
STYLED = ("flame", "stacks", "timeline")
"""The views with a style sheet, which is parsed at the start: on the first visit, all others would be parsed again."""
PERIODS_S: tuple[int | None, ...] = (15, 60, None, 5)
"""The shortest periods of automatic snapshots, in the order in which ``a`` selects them; the first one is used."""
POLL_EVERY_S = 3.0
KEPT_SNAPSHOTS, KEPT_WORKERS = 50, 50_000
"""So many snapshots of a running cluster are kept, with so many workers together, but at least two; of files all."""
TICK_S = 1.0
BREAKPOINTS = [(0, "-short"), (30, "-tall")]
"""From so many rows on, a long headline is wrapped instead of cut."""
TITLE_WIDTH = 20
"""The columns of the names in the command palette."""
DIALOG_WIDTH, DIALOG_EDGE = 94, 8
"""The most columns of the text of a dialog, and those beside it; as in the style sheet."""
DARK = "#121212", "#e0e0e0", "#1a1a1a", "#ff6b81", "#98e024", "#fd971f", "#82aaff", "#d58fff", "#58d1eb", "#f6f6ef"
LIGHT = "#e0e0e0", "#1f1f1f", "#000000", "#a61022", "#2a6118", "#7a4f00", "#1f4fa8", "#7a2e94", "#00587a", "#f7f7f7"
"""Background, foreground and the named colours; each can be read on all backgrounds of its theme (4.5:1)."""
MASK_S = 0.02
"""How long a switch between views is hidden at most; Textual's own 0.05 s are half of the time of such a key."""


def help_rows(app: App[Any]) -> Iterator[tuple[str, str, str]]:
    """Group, keys and what they do: all views in one row, all movements in one, then each enabled binding."""
    yield "Views", f"1 to {len(VIEWS)}", ", ".join(name.capitalize() for name in VIEWS)
    active = [one for one in app.screen.active_bindings.values() if one.enabled and one.binding.id]
    moves = grouped(
        (one.binding.description.lower(), app.get_key_display(one.binding))
        for one in active
        if (one.binding.id or "").startswith("outline")
    )
    yield "Move", "", ", ".join(f"{' '.join(keys)} {does}" for does, keys in moves.items())
    for group, beginnings in GROUPS.items():
        of_group = {one.binding.description: one for one in active if (one.binding.id or "").startswith(beginnings)}
        for number, one in enumerate(of_group.values()):
            yield "" if number else group, app.get_key_display(one.binding), one.tooltip or one.binding.description


def palette_commands(app: App[Any], screen: Screen[Any]) -> Iterator[SystemCommand]:
    """One command for each enabled binding."""
    for active in screen.active_bindings.values():
        binding = active.binding
        if active.enabled and binding.id and binding.id.startswith(IN_PALETTE):

            def run(node: Any = active.node, action: str = binding.action) -> None:
                app.call_later(app.run_action, action, node)

            yield SystemCommand(binding.description, active.tooltip, run)


class CommandLines(SystemCommandsProvider):
    """The command palette, with one line for each command."""

    async def discover(self) -> Hits:
        """All commands, by name."""
        for command in sorted(self.app.get_system_commands(self.screen), key=lambda command: command.title):
            yield DiscoveryHit(_command_line(SafeText(command.title), command.help), command.callback, command.title)

    async def search(self, query: str) -> Hits:
        """The commands with these letters in their name."""
        matcher = self.matcher(query)
        for title, does, callback, _ in self.app.get_system_commands(self.screen):
            if (score := matcher.match(title)) > 0:
                line = _command_line(SafeText(matcher.highlight(title).plain), does)
                yield Hit(score, line, callback, text=title)


def _command_line(title: Text, does: str) -> Text:
    title.pad_right(max(2, TITLE_WIDTH - title.cell_len))
    return title.append(visible(does), "dim")


def _terminal_theme(background: str, foreground: str, *colours: str) -> TerminalTheme:
    """The named colours of texts, which Rich orders as black, red, green, yellow, blue, magenta, cyan and white."""
    rgb = [Color.parse(colour).rgb for colour in (background, foreground, *colours)]
    return TerminalTheme(rgb[0], rgb[1], rgb[2:])


class Dialog(ModalScreen[None]):
    """A text above the view, until it is closed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,l", "dismiss", "Close", id="help.close"),
        Binding("j", "scroll(1)", "Down", show=False, id="help.down"),
        Binding("k", "scroll(-1)", "Up", show=False, id="help.up"),
    ]

    def __init__(self, title: str, *parts: Text | Table) -> None:
        super().__init__()
        self._title = title
        self._parts = parts

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as dialog:
            dialog.border_title = self._title
            for at, part in enumerate(self._parts):
                yield Static(part, classes="next" if at else None)

    def action_scroll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)


class ThemedStyles(Stylesheet):
    """Parses all styles again only if the theme has changed; Textual asks for it at each first visit of a view."""

    def __init__(self, variables: dict[str, str]) -> None:
        super().__init__(variables=variables)
        self._parsed_with: dict[str, str] | None = None
        self._is_other_theme = True

    def set_variables(self, variables: dict[str, str]) -> None:
        """Use the variables of a theme."""
        self._is_other_theme = variables != self._parsed_with
        if self._is_other_theme:
            self._parsed_with = variables
            super().set_variables(variables)

    def reparse(self) -> None:
        """Parse everything, or only new style sheets, as soon as their rules are needed."""
        if self._is_other_theme:
            super().reparse()
            self._is_other_theme = False


class DstackApp(OutputApp):
    """Shows the snapshots of a source in its views."""

    TITLE = "dstack"
    CSS_PATH: ClassVar[list[str | PurePath]] = ["app.tcss", *(f"views/{name}.tcss" for name in STYLED)]
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {name: partial(VIEWS.make, name) for name in VIEWS}
    DEFAULT_MODE = "verdict"
    VERTICAL_BREAKPOINTS = BREAKPOINTS
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {CommandLines}
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
        Binding(
            "a",
            "every",
            "Auto",
            id="app.every",
            tooltip="The shortest time between snapshots: 5, 15 or 60 s, or only on r",
        ),
        Binding(
            "space", "freeze", "Freeze", id="app.freeze", tooltip="Keep the snapshot shown; new ones are still taken"
        ),
        *REPLAY_KEYS,
        Binding("o", "open_location", "Open", id="app.open", tooltip="Open the line of code in $EDITOR", show=False),
        Binding("y", "copy_this", "Copy", id="app.copy", tooltip="Copy what the selected line is about", show=False),
        Binding("s", "save", "Save", id="app.save", tooltip="Save the snapshot to a file", show=False),
        Binding("e", "export", "Export", id="app.export", tooltip="Write this view to a text file", show=False),
        Binding("question_mark", "help", "Help", key_display="?", id="app.help", tooltip="Show the keys of this view"),
        Binding("q", "quit", "Quit", id="app.quit", tooltip="Quit dstack"),
    ]

    def __init__(self, source: Source, recordings: Sequence[OpenedRecording] = ()) -> None:
        super().__init__()
        self.stylesheet = ThemedStyles(self.get_css_variables())
        self.ansi_theme_dark, self.ansi_theme_light = _terminal_theme(*DARK), _terminal_theme(*LIGHT)
        self.source = source
        self.snapshots: list[NumberedSnapshot] = source.saved.numbered if isinstance(source, Files) else []
        self.recordings: Sequence[OpenedRecording] = tuple(recordings)
        self.skipped: Sequence[str] = source.skipped if isinstance(source, Files) else ()
        is_live = not isinstance(source, Files)
        self.status = Status(source=source.name, every_s=PERIODS_S[0] if is_live else None)
        self.activity = ClusterActivity()
        self._taker = None if isinstance(source, Files) else SnapshotTaker(source, self)
        self._replay = Replay(self, self, source.saved.is_prepared if isinstance(source, Files) else _is_in_memory)
        self._answered_at = time.time()
        self._reported: set[int] = set()

    def get_css_variables(self) -> dict[str, str]:
        """The variables of the theme, with a cursor on which text can be read (4.5:1)."""
        variables = super().get_css_variables()
        cursor = {
            "block-cursor-background": variables["primary-darken-2"],
            "block-cursor-foreground": "#ffffff",
            "block-cursor-blurred-background": variables["primary-muted"],
        }
        return {**variables, **cursor}

    # Snapshots

    def on_mount(self) -> None:
        """Take or read the first snapshot, and start the clock."""
        self.set_interval(TICK_S, self._tick)
        self.run_worker(lambda: list(VIEWS.values()), thread=True, exit_on_error=False)  # before they are needed
        if not isinstance(self.source, Files):
            self.action_take_snapshot()
            return
        if self.skipped:
            self.notify("\n".join(self.skipped), title="Skipped", severity="warning", timeout=15)
        if self.snapshots:
            self._replay.go_to_end(1)
            self._update()
        elif self.recordings:
            self._update(trouble=NO_SNAPSHOT)
            self.call_later(self.switch_mode, "flame")

    def delay_update(self, delay: float = MASK_S) -> None:
        """Delay painting, which hides a transition."""
        super().delay_update(min(delay, MASK_S))

    def action_take_snapshot(self) -> None:
        """Take another snapshot, after the one in progress if there is one."""
        if self._taker is not None and self._taker.start(self.snapshots[-1] if self.snapshots else None):
            self.activity.mark()
            self._update(doing="connecting")

    def on_snapshot_progress(self, message: SnapshotProgress) -> None:
        """Show the step in progress."""
        self._update(doing=message.step)

    def on_snapshot_taken(self, message: SnapshotTaken) -> None:
        """Keep the snapshot, instead of its own preliminary form, and show it unless the views are frozen."""
        snapshot = message.snapshot
        if self.snapshots and self.snapshots[-1].number == snapshot.number:
            self.snapshots.pop()
        kept = KEPT_WORKERS // max(1, len(snapshot.analysed.snapshot.workers))
        self.snapshots = [*self.snapshots, snapshot][-min(KEPT_SNAPSHOTS, max(2, kept)) :]
        self.status = self.status.answered()
        if self.status.is_frozen and self.shown is not None:
            self._update(newer=snapshot.number - self.shown.number, last=snapshot.number)
            return
        self.shown, self._answered_at = snapshot, time.time()
        self._update()
        self.view.offer(snapshot)
        self._update()

    def on_snapshot_failed(self, message: SnapshotFailed) -> None:
        """Show the error and its remedy; the last snapshot stays on the screen."""
        self._update(trouble=message.error.message, remedy=message.error.remedy or "")

    def on_cluster_polled(self, message: ClusterPolled) -> None:
        """Show the state of the cluster, and that it answers if it did not before."""
        self.activity.add(message.poll, message.at)
        self._answered_at = message.at
        if self.status.lost_at is not None:
            self.status = self.status.answered()
            self._update()

    def on_poll_failed(self, message: PollFailed) -> None:
        """Show since when the cluster does not answer."""
        self.activity.interrupt()
        self._update(
            lost_at=self.status.lost_at or self._answered_at,
            trouble=message.error.message,
            remedy=message.error.remedy or "",
        )

    def on_snapshot_ended(self, _: SnapshotEnded) -> None:
        """Start the snapshot that was requested meanwhile."""
        assert self._taker is not None
        is_wanted = self._taker.end()
        self._update(doing="")
        if is_wanted:
            self.action_take_snapshot()

    def _tick(self) -> None:
        """Take a snapshot if something has changed, or poll the cluster, if it is time."""
        if self._taker is not None:
            every_s, has_answered = self.status.every_s, self.status.lost_at is None
            has_changed = self.activity.has_changed or bool(self.status.trouble)
            if every_s and has_answered and self._taker.is_due(every_s, has_changed=has_changed):
                self.action_take_snapshot()
            else:
                self._taker.poll(POLL_EVERY_S)
        self._update()

    def _update(self, **changes: Any) -> None:
        """Change the status, and show it with the current age of the snapshot."""
        if not self.is_live:
            changes.setdefault("doing", "reading a file" if self._replay.is_waiting else "")
        self.status = replace(self.status, **{"is_playing": self._replay.is_playing, **changes})
        if self.screen_stack and self.view.is_mounted:  # a tick may come after the last screen was removed
            self.view.refresh_top()

    def show_status(self) -> None:
        """Show what the application is doing."""
        self._update()

    def show_snapshot(self, snapshot: NumberedSnapshot) -> None:
        """Show one of the snapshots in all views; those of a cluster are frozen unless it is the newest."""
        try:
            snapshot.hold()
        except DstackError as error:
            self.notify(error.message, severity="error")
            return
        if self.shown is not None and self.shown is not snapshot:
            self.shown.release()
        is_first = self.shown is None
        newest = self.snapshots[-1].number
        is_frozen = self.is_live and snapshot.number < newest
        self.shown = snapshot
        self._update(
            is_frozen=is_frozen,
            newer=newest - snapshot.number,
            last=newest if is_frozen or (not self.is_live and newest > 1) else 0,
            trouble=self.status.trouble if self.is_live else "",
        )
        self.view.offer(snapshot)
        self._update()
        if is_first and not self.is_live:
            self._replay.summarise_all()

    def request_history(self) -> bool:
        """Take a snapshot with the history of tasks, and all later ones too; false if the source cannot."""
        if isinstance(self.source, Files) or not self.source.request_history():
            return False
        self.action_take_snapshot()
        return True

    def action_every(self) -> None:
        every_s = following(PERIODS_S, self.status.every_s)
        self._update(every_s=every_s)
        self.notify(f"A snapshot after changes, at most every {every_s} s" if every_s else "A snapshot only on r")

    def action_freeze(self) -> None:
        """Keep the shown snapshot, or show the newest again; new ones are taken in both cases."""
        self._replay.pause()
        if self.status.is_frozen and self.snapshots:
            self.show_snapshot(self.snapshots[-1])
        else:
            self._update(is_frozen=not self.status.is_frozen, newer=0, last=0)

    # Replay

    @property
    def is_live(self) -> bool:
        """Whether the snapshots are those of a running cluster."""
        return self._taker is not None

    def read_and_show(self, snapshot: NumberedSnapshot) -> None:
        """Show one of the snapshots as soon as it has been read."""
        self._replay.pause()
        self._replay.go(snapshot)
        self._update()

    def action_step(self, direction: int) -> None:
        self._replay.pause()
        self._replay.step(direction)
        self._update()

    def action_go_to_end(self, direction: int) -> None:
        self._replay.pause()
        self._replay.go_to_end(direction)
        self._update()

    def action_play(self) -> None:
        if self._replay.is_playing:
            self._replay.pause()
        else:
            self._replay.play()
        self._update()

    def on_snapshot_read(self, message: SnapshotRead) -> None:
        """Show the snapshot if it is still wanted."""
        self._replay.accept(message.snapshot)
        self._report_trouble(message.snapshot)

    def on_snapshot_summarised(self, message: SnapshotSummarised) -> None:
        """Have the view show the summary."""
        self._report_trouble(message.snapshot)
        self._update()

    def _report_trouble(self, snapshot: NumberedSnapshot) -> None:
        """Say once that a snapshot cannot be read."""
        if snapshot.trouble and snapshot.number not in self._reported:
            self._reported.add(snapshot.number)
            self.notify(snapshot.trouble, title="Skipped", severity="warning", timeout=15)
            if self.shown is None and all(one.trouble for one in self.snapshots):
                self._update(trouble=snapshot.trouble)

    def _play_at(self, rate: float) -> None:
        self._replay.play_at(rate)
        self._update()

    # Views

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("take_snapshot", "every", "freeze"):
            return self.is_live
        if action in ("play", "step", "go_to_end"):
            return len(self.snapshots) > 1
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
        self.view.offer(self.shown)
        self.call_later(self._reveal, vertex)

    def _reveal(self, vertex: Key) -> None:
        if not self.view.reveal(vertex):
            self.notify("This view does not contain it.", severity="warning")

    def notify(self, message: str, **options: Any) -> None:
        """Notify the user; quoted text is made visible, and never parsed as markup."""
        super().notify(visible_lines(message), **{**options, "markup": False})

    def action_help(self) -> None:
        table = Table.grid(padding=(0, 2))
        for group, key, does in help_rows(self):
            table.add_row(SafeText().append(group, "bold"), SafeText().append(key, "bold"), SafeText(does))
        text = SafeText(" ".join((type(self.screen).__doc__ or "").split()))
        self.push_screen(Dialog(f"dstack: {self.current_mode}", table, text))

    def show_text(self, title: str, rows: Sequence[Row]) -> None:
        """Show a text above the view, until it is closed."""
        lines = lines_of(Console(width=min(DIALOG_WIDTH, self.size.width * 4 // 5 - DIALOG_EDGE)), rows)
        self.push_screen(Dialog(title, Text("\n").join(lines)))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Textual's commands, one for each key, and the choices of the view."""
        for command in super().get_system_commands(screen):
            is_picture = command.title == "Screenshot"
            yield command._replace(callback=self.draw_picture) if is_picture else command
        yield from palette_commands(self, screen)
        if len(self.snapshots) > 1:
            for rate in RATES:
                title = f"Play {rate:g} snapshots per second"
                yield SystemCommand(title, "Show one snapshot after the other", partial(self._play_at, rate))
        yield from screen.choices() if isinstance(screen, View) else ()

    async def action_quit(self) -> None:
        """Exit at once, also during a snapshot."""
        if not isinstance(self.source, Files):
            self.source.cancel()
        self.exit()


def _is_in_memory(snapshot: NumberedSnapshot) -> bool:
    """True: snapshots of a running cluster stay in memory."""
    return True
