"""The base classes of the views, and what a view may ask of the application that shows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from rich.text import Text
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Input

from dstack.analysis.findings import verdict_of
from dstack.analysis.stacks.stack_tree import GROUPINGS, Grouping, grouping_in_words
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.cluster_activity import ClusterActivity
from dstack.analysis.views.snapshot_changes import SIGNS, Mark, SnapshotChanges
from dstack.model.diagnosis import FindingKind, Verdict
from dstack.model.vertex_keys import Key
from dstack.observed.node import LogTail
from dstack.report.logs_text import log_rows
from dstack.report.rich_text import Row, SafeText
from dstack.tui.snapshot_sources import NumberedSnapshot, OpenedRecording
from dstack.tui.views.bars import KeyBar, Status, TopBar
from dstack.tui.widgets.outline import Detail, Line, Outline
from dstack.words import visible

T = TypeVar("T")
NO_LOG = "No log of it was read. `dstack logs` reads those of processes that no finding concerns."
MARK_STYLES: dict[Mark, str] = {"new": "bold green", "changed": "bold cyan", "gone": "bold red"}
GROUP = Binding("b", "group", "Group", id="own.group", tooltip="Group by class, node, job, rank, dimension or label")
WHOLE = Binding(
    "W", "whole", "Whole", show=False, id="own.whole", tooltip="Show whole stacks, or only the application's frames"
)
STACK = Binding("x", "stack", "Stack", id="own.stack", tooltip="Go to the stack of what is selected")
WAITS = Binding("w", "waits", "Waits", id="own.waits", tooltip="Go to its entry in the Waits view")
SORT = Binding(
    "greater_than_sign", "sort(1)", "Sort", key_display=">", id="own.sort", tooltip="Sort by the next column"
)
SORT_BACK = Binding(
    "less_than_sign",
    "sort(-1)",
    "Sort back",
    key_display="<",
    show=False,
    id="own.sort-back",
    tooltip="Sort by the previous column",
)
LOGS = Binding("l", "logs", "Logs", id="own.logs", tooltip="Show the last lines of the logs of its processes")
"""The keys of these views; each view places them among its own, in the order of its footer."""


@runtime_checkable
class Host(Protocol):
    """The application, as views know it: its snapshots, its status, and the ways to another view or snapshot.

    ``skipped`` says which files were not opened, and why.
    """

    snapshots: list[NumberedSnapshot]
    shown: NumberedSnapshot | None
    recordings: Sequence[OpenedRecording]
    activity: ClusterActivity
    skipped: Sequence[str]
    status: Status

    def go_to(self, mode: str, vertex: Key) -> None:
        """Switch to the view of this mode and select a vertex there."""
        ...

    def request_history(self) -> bool:
        """Take a snapshot with the history of tasks, and all later ones too; false if the source cannot."""
        ...

    def show_snapshot(self, snapshot: NumberedSnapshot) -> None:
        """Show one of the snapshots in all views, and freeze those of a running cluster."""
        ...

    def read_and_show(self, snapshot: NumberedSnapshot) -> None:
        """Show one of the snapshots as soon as it has been read."""
        ...

    def show_status(self) -> None:
        """Show what the application is doing."""
        ...

    def show_text(self, title: str, rows: Sequence[Row]) -> None:
        """Show a text above the view, until it is closed."""
        ...


def marked(mark: Mark | None, text: Text, *, in_words: bool = False) -> Text:
    """The text behind the sign of its mark, ``+ ``, or behind ``+ new  `` in words; as it is without a mark."""
    if mark is None:
        return text
    lead = f"{SIGNS[mark]} {mark}  " if in_words else f"{SIGNS[mark]} "
    return SafeText().append(lead, MARK_STYLES[mark]).append_text(text)


def verdict_in_colour(kind: FindingKind) -> Verdict:
    """The verdict that has the colour of a finding; starved calls stand out, though they leave the verdict running."""
    return "stalled" if kind == "starved" else verdict_of(kind)


def following(values: Sequence[T], current: T | None, by: int = 1) -> T:
    """The value so many places after the current one, in a circle; the first or the last if that is none of them."""
    at = next((at for at, value in enumerate(values) if value == current), -1 if by > 0 else 0)
    return values[(at + by) % len(values)]


SourceLocation = tuple[str, int]
"""The name of a file on its node, and a line number."""


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
        self.changes: SnapshotChanges | None = None

    @property
    def host(self) -> Host:
        """The application that shows this view."""
        assert isinstance(self.app, Host)
        return self.app

    def compose(self) -> ComposeResult:
        yield TopBar()
        yield from self.compose_body()
        field = Input(placeholder="Words to find, or rank:3, tp:1, label:value; Esc clears", id="filter")
        field.display = False
        yield field
        yield KeyBar()

    def on_screen_resume(self) -> None:
        """Show the snapshot that the application has received meanwhile."""
        self.offer(self.host.shown)
        self.refresh_top()

    def offer(self, snapshot: NumberedSnapshot | None) -> None:
        """Show the snapshot unless the view shows it already."""
        if snapshot is not None and snapshot is not self.shown:
            self.shown, self.analysed, self.changes = snapshot, snapshot.analysed, snapshot.changes
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

    # The way to other views, for views that have keys for it

    @property
    def stack_vertex(self) -> Key | None:
        """The vertex whose stack :meth:`action_stack` shows."""
        return None

    @property
    def waits_vertex(self) -> Key | None:
        """The vertex whose entry in the Waits view :meth:`action_waits` shows."""
        return None

    @property
    def log_tails(self) -> Sequence[LogTail]:
        """The logs that :meth:`action_logs` shows: those of the processes that the selected line is about."""
        return ()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable actions that do not apply to what is selected."""
        if action == "stack":
            return self.stack_vertex is not None
        if action == "waits":
            return self.waits_vertex is not None
        return True

    def action_stack(self) -> None:
        """Go to the stack of what is selected."""
        if (vertex := self.stack_vertex) is not None:
            self.host.go_to("stacks", vertex)

    def action_logs(self) -> None:
        """Show the logs of the processes of what is selected."""
        if (tails := self.log_tails) and self.analysed is not None:
            self.host.show_text("Last lines of logs", list(log_rows(self.analysed, tails)))
        else:
            self.app.notify(NO_LOG, severity="warning")

    def action_waits(self) -> None:
        """Go to its entry in the Waits view."""
        if (vertex := self.waits_vertex) is not None:
            self.host.go_to("waits", vertex)

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

    def choices(self) -> Iterable[SystemCommand]:
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
        field = self.query_one("#filter", Input)
        field.display = True
        self.set_focus(field)  # immediately, so that the filter receives the next key

    def action_clear(self) -> None:
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


class OutlineView(View):
    """A view of one outline: the filter, the export and the way to a vertex are those of its lines."""

    def filtered(self, text: str) -> int:
        """Show only lines that contain all words, with their ancestors and descendants; return how many match."""
        return self._outline.filter(text)

    def to_export(self) -> str | None:
        """All unfolded lines."""
        return self._outline.as_text()

    def reveal(self, vertex: Key) -> bool:
        """Unfold the outline down to a vertex, and select it."""
        keys = self._path_to(vertex)
        if keys and self.filter_text:
            self.action_clear()
        self.call_after_refresh(self._outline.scroll_to_cursor)  # for a view that was not on the screen before
        return self._outline.reveal(keys)

    def on_outline_chosen(self, event: Outline.Chosen) -> None:
        """Do with the line what Enter does."""
        self._choose(event.outline, event.line)

    def _choose(self, outline: Outline, line: Line) -> None:
        """Fold or unfold a line with lines below it; of another, go to the stack, or if it has none to the waits."""
        if line.has_children:
            outline.toggle(line)
        elif self.stack_vertex is not None:
            self.action_stack()
        else:
            self.action_waits()

    def on_outline_highlighted(self, _: Outline.Highlighted) -> None:
        """Show the details of the line, and enable the actions that apply to it."""
        self._show_details()

    def _show_details(self) -> None:
        for pane in self.query(Detail):
            pane.show(self._details())
        self.refresh_bindings()

    def _details(self) -> Iterable[Text]:
        """The details of the line under the cursor, for a view with a pane for them."""
        return ()

    def _path_to(self, vertex: Key) -> Sequence[str]:
        """The keys of the lines from the root down to a vertex; empty if it is not in this view."""
        return ()

    @property
    def _outline(self) -> Outline:
        return self.query_one(Outline)

    @property
    def _data(self) -> object:
        """The data of the line under the cursor."""
        line = self._outline.cursor_line if self.is_mounted else None
        return line.data if line else None


class GroupedView(View):
    """A view of stacks, merged by class, node or job, or by a rank, dimension or label.

    Each subclass has :data:`GROUP` and :data:`WHOLE` among its bindings.
    """

    def __init__(self, grouping: Grouping | None) -> None:
        super().__init__()
        self.grouping = grouping
        self.is_whole = False

    def merge_again(self) -> None:
        """Merge the stacks again, by another grouping or with other frames."""
        raise NotImplementedError

    def action_group(self) -> None:
        self._group_by(following(self._groupings, self.grouping))

    def action_whole(self) -> None:
        self.is_whole = not self.is_whole
        self.merge_again()

    def choices(self) -> Iterator[SystemCommand]:
        for grouping in self._groupings:
            title = f"Group {grouping_in_words(grouping)}" if grouping else "No groups"
            yield SystemCommand(visible(title), "Group the merged stacks", partial(self._group_by, grouping))

    def _group_by(self, grouping: Grouping | None) -> None:
        self.grouping = grouping
        self.merge_again()

    @property
    def _groupings(self) -> tuple[Grouping | None, ...]:
        return self.analysed.stacks.groupings if self.analysed else GROUPINGS
