"""The Timeline view: what ran when and where, what it waited for before, and what waits now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static

from dstack.analysis.history.slices import Bars
from dstack.analysis.history.task_index import Attempt
from dstack.analysis.index.sample_index import key_of_task
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.timeline_rows import GROUPINGS, AttemptSearch, Grouping, TimelineRow, TimelineRows, link
from dstack.errors import as_dstack_error
from dstack.model.vertex_keys import Key
from dstack.report.summaries import no_history
from dstack.tui.views.base import STACK, WAITS, SourceLocation, View, following
from dstack.tui.views.timeline_texts import (
    COLOURINGS,
    ON_PATH,
    Colouring,
    TimelineTexts,
    attempt_of,
    legend,
    mark_of,
)
from dstack.tui.widgets.gantt import (
    CHAIN_COLOURS,
    CRITICAL,
    FIRST_CHAIN,
    PAN,
    UNCRITICAL,
    ZOOM,
    Gantt,
    Link,
    RowDrawing,
    Selection,
    title_of,
)
from dstack.tui.widgets.outline import Detail
from dstack.tui.widgets.time_axis import TimeAxis, Window, ruler

READING = "Reading the history of tasks …"
ARRANGING = "Arranging {count:,} attempts …"
NO_HISTORY = (
    "This snapshot has no history of tasks. dstack snapshot -o FILE saves one with it, and so does s in this view."
)
NO_ATTEMPTS = "Ray keeps no attempts of tasks of this cluster."
NOT_READ = "The history of tasks could not be read. Press r to try again."
EXPORTED_ROWS = 2_000
TEXT_WIDTH = 200
TITLE_WIDTH = 44


MOST_LINKS = 40
"""The most callees to which lines are drawn, each on another track."""


@dataclass
class MarkedRange:
    """A part of the time that the user marks, from the bar or cell under the cursor to that of a second place."""

    shown: tuple[float, float] | None = None
    _anchor: tuple[float, float] | None = None

    def advance(self, selection: Selection | None) -> None:
        """Begin a range, end the one that has begun, or unmark it."""
        if self._anchor is not None:
            self._anchor = None
        elif self.shown is not None:
            self.shown = None
        elif selection is not None:
            self.shown = self._anchor = extent_of(selection)

    def extend(self, selection: Selection | None) -> None:
        """While its end is not marked, the range follows the cursor."""
        if self._anchor is not None and selection is not None:
            began_at, ended_at = extent_of(selection)
            self.shown = min(self._anchor[0], began_at), max(self._anchor[1], ended_at)


def extent_of(selection: Selection) -> tuple[float, float]:
    """The time of the bar under the cursor; that of the cell without one, or where a driver's bar is."""
    attempt, bars = attempt_of(selection), selection.row.bars
    if attempt is None or bars is None or selection.picked is None or attempt.task.kind == "DRIVER_TASK":
        return selection.began_at, selection.ended_at
    began_at, ended_at = bars.begins[selection.picked], bars.ends[selection.picked]
    return (began_at, ended_at) if began_at < ended_at else (selection.began_at, selection.ended_at)


@dataclass
class Arranged(Message):
    """The rows of a timeline, or the reason why there are none, from the thread that arranges them.

    Chains take as long again: the message is posted a second time when they are linked.
    """

    analysed: AnalysedSnapshot
    grouping: Grouping
    rows: TimelineRows | None
    is_linked: bool = False
    reason: str = ""


class TimelineView(View):
    """What ran when: a row for each worker, its waits before each run, and a number for many at once.

    The cursor is on a row and at a time. Enter zooms to the bar under it, or folds a heading; z folds a track. A dotted
    or double line before a bar is what that attempt waited for; rows called "waiting" show how many wait, and a letter
    for what. ◆ marks what waits in the snapshot.
    """

    CSS_PATH = "timeline.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus,equals_sign", "zoom(1)", "In", key_display="+", id="own.in", tooltip="Zoom in at the cursor"),
        Binding("minus", "zoom(-1)", "Out", key_display="-", id="own.out", tooltip="Zoom out at the cursor"),
        Binding("0", "whole", "All", id="own.whole", tooltip="Show the whole time"),
        Binding(
            "less_than_sign,shift+left",
            "pan(-1)",
            "Earlier",
            show=False,
            key_display="<",
            id="own.earlier",
            tooltip="Show an earlier time",
        ),
        Binding(
            "greater_than_sign,shift+right",
            "pan(1)",
            "Later",
            show=False,
            key_display=">",
            id="own.later",
            tooltip="Show a later time",
        ),
        Binding("c", "colour", "Colour", id="own.colour", tooltip="Colour bars by state, chain or critical path"),
        Binding("b", "group", "Group", id="own.group", tooltip="A row for each worker, function or chain"),
        Binding("f", "failed(1)", "Failed", id="own.failed", tooltip="Go to the next failed attempt by time"),
        Binding(
            "F",
            "failed(-1)",
            "Failed before",
            show=False,
            id="own.failed-before",
            tooltip="Go to the failed one before",
        ),
        Binding(
            "z", "fold", "Fold", show=False, id="own.fold", tooltip="Fold or unfold the lanes and waits of a track"
        ),
        Binding("Z", "fold_all", "Fold all", show=False, id="own.fold-all", tooltip="Fold or unfold all tracks"),
        Binding(
            "m",
            "mark",
            "Range",
            id="own.range",
            tooltip="Mark a range of time from here, then its end, then unmark it; the pane sums what ran in it",
        ),
        Binding("u", "caller", "Caller", show=False, id="own.caller", tooltip="Go to the caller of this attempt"),
        Binding("d", "callee", "Callee", show=False, id="own.callee", tooltip="Go to the first call of this attempt"),
        STACK,
        WAITS,
    ]

    def __init__(self) -> None:
        super().__init__()
        self.grouping: Grouping = "worker"
        self.colouring: Colouring = "state"
        self.is_linked = False
        self.rows: TimelineRows | None = None
        self._texts: TimelineTexts | None = None
        self._arranged: dict[Grouping, TimelineRows] = {}
        self._folds: dict[str, bool] = {}
        self._search: AttemptSearch | None = None
        self._words: tuple[str, ...] = ()
        self._has_requested = False
        self._colours: dict[int, tuple[Bars, bytes]] = {}
        self._goal: Key | None = None
        self._footer_of: Key | None = None
        self._head: tuple[Text, ...] = ()
        self._range = MarkedRange()

    # The view

    def compose_body(self) -> ComposeResult:
        yield Static(id="head")
        yield TimeAxis()
        yield Gantt()
        yield Detail(id="attempt")

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Show the history of another snapshot, which is requested if this one has none."""
        self._arranged.clear()
        self.is_linked = False
        timeline = analysed.timeline
        if timeline is None:
            self._texts = self.rows = None
            self._head = ()
            if not self._has_requested:
                self._has_requested = self.host.request_history()
            self._draw()
            return
        self._arrange(analysed, self.grouping)

    def refresh_top(self) -> None:
        """Show the status, also of the history that has been requested."""
        super().refresh_top()
        if self.is_mounted and self.rows is None and self.query(Gantt):
            self._gantt.empty = self._state
            self._gantt.refresh()

    @property
    def _gantt(self) -> Gantt:
        return self.query_one(Gantt)

    @property
    def _state(self) -> str:
        """Why there are no rows."""
        if self.analysed is None:
            return ""
        if self.analysed.timeline is not None:
            count = len(self.analysed.snapshot.history.attempts) if self.analysed.snapshot.history else 0
            return ARRANGING.format(count=count) if self.rows is None else NO_ATTEMPTS
        if self.analysed.snapshot.lack_of_events:
            return no_history(self.analysed.snapshot)
        if not self._has_requested:
            return NO_HISTORY
        return READING if self.host.status.doing else NOT_READ

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _arrange(self, analysed: AnalysedSnapshot, grouping: Grouping) -> None:
        """Arrange the rows. Runs in a thread, so it touches no widget."""
        try:
            assert analysed.timeline is not None
            rows = TimelineRows.prepared(analysed.timeline, grouping)
            self.post_message(Arranged(analysed, grouping, rows))
            link(analysed.timeline)
            self.post_message(Arranged(analysed, grouping, rows, is_linked=True))
        except Exception as error:
            self.post_message(Arranged(analysed, grouping, None, reason=str(as_dstack_error(error))))

    def on_arranged(self, message: Arranged) -> None:
        """Show the rows, or their chains, unless another snapshot or grouping is wanted meanwhile."""
        if message.analysed is not self.analysed:
            return
        if message.rows is None:
            self.notify(message.reason, severity="error")
            return
        self._arranged[message.grouping] = message.rows
        self.is_linked = message.is_linked or self.is_linked
        self._texts = TimelineTexts(message.analysed, message.rows.timeline, self.is_linked)
        self._head = (self._texts.head(), *self._texts.limits(self.colouring))
        if message.is_linked:
            self._dress()
            self._show_head()
            self.show_selected()
        elif message.grouping == self.grouping:
            self._show_rows(message.rows)

    def _show_rows(self, rows: TimelineRows) -> None:
        self.rows = rows
        self._search = AttemptSearch(rows, self._words) if self._words else None
        self._colours.clear()
        self._dress()
        self._draw()
        if self._goal is not None:
            self.reveal(self._goal)

    def _draw(self) -> None:
        rows = self.rows
        self._gantt.empty = "No attempt contains these words." if self._words and rows else self._state
        bounds = (rows.timeline.began_at, rows.timeline.ended_at) if rows else (0.0, 1.0)
        self._gantt.show(rows.rows(self._folds, self._search) if rows else (), bounds)
        self._show_head()

    def _show_head(self) -> None:
        figures, *limits = self._head or (Text(),)
        kinds = self.rows.kinds if self.rows else ()
        lines = [figures, legend(self.colouring, kinds), *limits] if self._head else []
        self.query_one("#head", Static).update(Text("\n").join(lines))

    @on(Gantt.Viewed)
    def show_axis(self) -> None:
        """Show the ticks of the time that is visible."""
        if self.rows is not None:
            gantt = self._gantt
            window = gantt.window
            marked = window.marked(self._range.shown)
            self.query_one(TimeAxis).show(window, self.rows.timeline.began_at, gantt.left, marked)

    @on(Gantt.Selected)
    def show_selected(self) -> None:
        """Show the details of what is under the cursor, and enable the actions that apply to it."""
        self._range.extend(self._gantt.selection)
        self._show_marks()
        if (vertex := self.waits_vertex) != self._footer_of:
            self._footer_of = vertex
            self.refresh_bindings()  # composes the footer again, which takes longer than to draw the rows

    def _show_marks(self) -> None:
        """Show the range, the lines to the caller and the callees, and the pane."""
        self._gantt.mark(self._range.shown, self._links())
        self.show_axis()
        self.query_one(Detail).show(self._details())

    def _details(self) -> list[Text]:
        selection = self._gantt.selection if self.is_mounted else None
        if self._texts is None or selection is None:
            return []
        if self._range.shown is not None:
            has = self._search.has if self._search else lambda attempt: True
            return list(self._texts.sums(self._texts.timeline.sums(*self._range.shown, has)))
        row, details = selection.row, list(self._texts.details(selection))
        if row.depth and (row.levels is not None or selection.picked is not None):
            return details
        tracks = [track for track in self.rows.tracks if row.fold in (track.key, track.group_key)] if self.rows else []
        title = tracks[0].title if row.depth and tracks else row.title
        return [*self._texts.tracks(title, tracks), *(details if row.depth else ())]

    def _links(self) -> list[Link]:
        """Lines from the caller of the attempt under the cursor, and to one of its callees on each track."""
        attempt = attempt_of(self._gantt.selection)
        if attempt is None or self.rows is None:
            return []
        history, own = self.rows.timeline.history, self._gantt.cursor
        links = []
        if (caller := history.caller(attempt)) is not None and (row := self._row_of(caller)) is not None:
            links.append(Link(attempt.began_at, row, own))
        tracks: dict[str, Attempt] = {}
        began_at, ended_at = self._gantt.shown
        for callee in history.callees(attempt):
            if began_at <= callee.began_at < ended_at and (found := self.rows.track_of(callee)) is not None:
                tracks.setdefault(found.key, callee)
            if len(tracks) == MOST_LINKS:
                break
        rows = ((callee.began_at, self._row_of(callee)) for callee in tracks.values())
        return links + [Link(at, own, row) for at, row in rows if row is not None and row != own]

    def _row_of(self, attempt: Attempt) -> int | None:
        """The index of the row that draws an attempt, or of the first one of its track; None if none is shown."""
        found = self.rows.find(attempt) if self.rows else None
        if found is None:
            return None
        track, key, _ = found
        index = self._gantt.index
        return index.get(key, index.get(track.key))

    @on(Gantt.Dragged)
    def mark_dragged(self, event: Gantt.Dragged) -> None:
        """Mark the range that the mouse was moved over."""
        self._range = MarkedRange((event.began_at, event.ended_at))
        self._show_marks()

    def filtered(self, text: str) -> int:
        """Show only attempts with all words in their name, state, error or track; return how many there are."""
        self._words = tuple(text.casefold().split())
        if self.rows is None:
            return 0
        search = self._search = AttemptSearch(self.rows, self._words) if self._words else None
        self._draw()
        return sum(map(search.count, self.rows.tracks)) if search else 0

    # Keys

    @on(Gantt.Chosen)
    def choose(self, event: Gantt.Chosen) -> None:
        """Zoom to the bar under the cursor; fold or unfold a heading, or a row without a bar there."""
        selection = self._gantt.selection
        bars = event.row.bars
        if selection is not None and bars is not None and selection.picked is not None and not event.is_fold:
            self._gantt.close_up(bars.begins[selection.picked], bars.ends[selection.picked])
        else:
            self.action_fold()

    def action_zoom(self, direction: int) -> None:
        self._gantt.zoom(ZOOM**direction)

    def action_pan(self, direction: int) -> None:
        self._gantt.pan(PAN * direction)

    def action_whole(self) -> None:
        self._gantt.whole()

    def action_mark(self) -> None:
        """Mark a range of time from here on, end it here, or unmark it."""
        self._range.advance(self._gantt.selection)
        self._show_marks()

    def action_clear(self) -> None:
        """Unmark the range, and close the filter."""
        self._range = MarkedRange()
        super().action_clear()
        self._show_marks()

    def action_caller(self) -> None:
        attempt = attempt_of(self._gantt.selection)
        caller = self.rows.timeline.history.caller(attempt) if attempt and self.rows else None
        if caller is None or not self._go_to_attempt(caller):
            self.notify("The history has no caller of this.")

    def action_callee(self) -> None:
        attempt = attempt_of(self._gantt.selection)
        callees = self.rows.timeline.history.callees(attempt) if attempt and self.rows else ()
        if not callees or not self._go_to_attempt(callees[0]):
            self.notify("The history has no calls of this.")

    def action_fold(self) -> None:
        row = self._gantt.row
        if row is not None and row.fold:
            above = next((one for one in self._gantt.rows if one.fold == row.fold), row)
            if above.is_open is not None:
                self._folds[row.fold] = not above.is_open
                self._draw()
                self._select_row(above.key)

    def action_fold_all(self) -> None:
        """Fold all tracks, or unfold all if none is open."""
        tracks = [row for row in self._gantt.rows if row.depth == 1 and row.is_open is not None]
        is_open = not any(row.is_open for row in tracks)
        if self.rows is not None:
            self._folds.update((track.key, is_open) for track in self.rows.tracks)
            self._draw()

    def action_group(self) -> None:
        self._group_by(following(GROUPINGS, self.grouping))

    def _group_by(self, grouping: Grouping) -> None:
        self.grouping = grouping
        self.notify(f"A row for each {grouping}")
        if grouping in self._arranged:
            self._show_rows(self._arranged[grouping])
        elif self.analysed is not None and self.analysed.timeline is not None:
            self._arrange(self.analysed, grouping)

    def action_colour(self) -> None:
        self.colouring = following(COLOURINGS, self.colouring)
        if self.colouring != "state" and self.rows is not None and not self.is_linked:
            self.notify("The chains are still being linked.")
        self._colours.clear()
        if self._texts is not None:
            self._head = (self._texts.head(), *self._texts.limits(self.colouring))
        self._dress()
        self._show_head()

    def _dress(self) -> None:
        is_painted = self.colouring != "state" and self.is_linked
        self._gantt.dress(self._label, self._paint if is_painted else None)

    def _label(self, row: TimelineRow, number: int) -> str:
        """The name of a bar: its function, or its process where a row is for a function."""
        assert row.bars is not None
        attempt = row.bars.attempts[number]
        task = attempt.task
        is_by_function = self.grouping == "function" and task.pid
        name = f"pid {task.pid}" if is_by_function or self._texts is None else self._texts.name(attempt)
        return f"{ON_PATH} {name}" if self.colouring == "path" and self._is_critical(attempt) else name

    def _is_critical(self, attempt: Attempt) -> bool:
        return self.is_linked and self.rows is not None and self.rows.timeline.is_critical(attempt)

    def _paint(self, bars: Bars) -> bytes:
        """The kinds of bars by which they are coloured."""
        known = self._colours.get(id(bars))
        if known is None:
            kinds = map(self._kind, bars.attempts, bars.kinds)
            known = self._colours[id(bars)] = (bars, bytes(kinds))
        return known[1]

    def _kind(self, attempt: Attempt, kind: int) -> int:
        """That of the critical path, or of a chain; a bar in no chain has its own."""
        if self.colouring == "path":
            return CRITICAL if self._is_critical(attempt) else UNCRITICAL
        chain = self.rows.timeline.chain_of(attempt) if self.rows is not None else None
        return FIRST_CHAIN + chain.number % CHAIN_COLOURS if chain else kind

    def choices(self) -> Iterator[SystemCommand]:
        for grouping in GROUPINGS:
            yield SystemCommand(f"A row for each {grouping}", "Group the timeline", partial(self._group_by, grouping))

    def action_failed(self, by: int) -> None:
        """Go to the next failed attempt by time, or to the one before."""
        failures = self.rows.failures(self._search) if self.rows else []
        if not failures:
            self.notify("No attempt has failed." if self.rows else self._state)
            return
        at = self._gantt.cursor_time
        current = attempt_of(self._gantt.selection)
        index = next((number for number, one in enumerate(failures) if one is current), None)
        if index is None:
            later = (number for number, one in enumerate(failures) if (one.ended_at or 0.0) > at)
            index = next(later, 0) - (1 if by > 0 else 0)
        self._go_to_attempt(failures[(index + by) % len(failures)])

    def _go_to_attempt(self, attempt: Attempt) -> bool:
        """Select an attempt, unfolding its track if needed."""
        if self.rows is None:
            return False
        found = self.rows.find(attempt)
        if found is None:
            return False
        track, key, at = found
        self._folds[track.group_key] = True
        if key not in {row.key for row in self._gantt.rows}:
            self._folds[track.key] = True
            self._draw()
        return self._select_row(key, at, attempt.task)

    def _select_row(self, key: str, at: float | None = None, task: object = None) -> bool:
        rows = self._gantt.rows
        index = next((number for number, row in enumerate(rows) if row.key == key), None)
        if index is not None:
            self._gantt.select(index, self._gantt.cursor_time if at is None else at, task)
        return index is not None

    # Other views

    @property
    def stack_vertex(self) -> Key | None:
        """That of :attr:`waits_vertex`."""
        return self.waits_vertex

    @property
    def waits_vertex(self) -> Key | None:
        """The vertex of the attempt under the cursor if it has not ended, else of a wait marked on its track."""
        selection = self._gantt.selection if self.is_mounted else None
        attempt = attempt_of(selection)
        if attempt is not None and attempt.ended_at is None and self.analysed is not None:
            key = key_of_task(self.analysed.merged_index, attempt.task.task_id)
            if key in self.analysed.diagnosis.vertices:
                return key
        mark = mark_of(selection)
        return mark.key if mark else None

    def reveal(self, vertex: Key) -> bool:
        """Select the attempt of a vertex's task, or the track of its process."""
        if self.analysed is None or self.analysed.timeline is None:
            return False
        known = self.analysed.diagnosis.vertices.get(vertex)
        history = self.analysed.timeline.history
        attempt = history.latest.get(known.task_id or "") if known else None
        worker = known.worker_id if known else None
        self._goal = None if self.rows else vertex
        if self.rows is None:
            return attempt is not None or worker is not None
        if self._words:
            self.action_clear()
            self.filtered("")  # at once: the field posts its change later
        if attempt is not None and self._go_to_attempt(attempt):
            return True
        track = next((one for one in self.rows.tracks if one.key == worker), None)
        row = next((one for one in self._gantt.rows if track and one.fold == track.key), None)
        return row is not None and self._select_row(row.key, self._gantt.bounds[1])

    # Requests of the application

    def to_copy(self) -> str | None:
        """The details of what is under the cursor, and the id of its task."""
        lines = [line.plain for line in self._details()]
        attempt = attempt_of(self._gantt.selection)
        if attempt is not None:
            lines.append(f"Task {attempt.task.task_id}")
        return "\n".join(lines) or None

    def to_open(self) -> SourceLocation | None:
        """The line of code where the attempt under the cursor waits."""
        if self._texts is None or (vertex := self.waits_vertex) is None:
            return None
        return self._texts.location(vertex)

    def to_export(self) -> str | None:
        """The visible part of the time, with all rows, as lines of text."""
        if self.rows is None or self._texts is None:
            return None
        shown = self._gantt.window
        window = Window(shown.began_at, shown.ended_at, TEXT_WIDTH - TITLE_WIDTH)
        lines = [self._texts.head().plain, legend(self.colouring, self.rows.kinds).plain]
        lines.append(" " * TITLE_WIDTH + ruler(window, self.rows.timeline.began_at))
        for row in self._gantt.rows[:EXPORTED_ROWS]:
            drawing = RowDrawing.of(row, window, None, self._label)
            lines.append((title_of(row, TITLE_WIDTH) + drawing.text).rstrip())
        if (left_out := len(self._gantt.rows) - EXPORTED_ROWS) > 0:
            lines.append(f"{left_out:,} more rows left out")
        return "\n".join(lines)
