"""Bars over time in rows: their glyphs, and a chart that draws only the visible rows and the visible time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from typing import ClassVar, Literal

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from dstack.analysis.history import slices
from dstack.analysis.views.timeline_rows import TimelineRow
from dstack.report.rich_text import row_of
from dstack.tui.widgets import time_axis
from dstack.words import visible

ZOOM = 1.6
PAN = 0.25
MARGIN = 0.02
"""The part of the whole time that stays empty after its end, so that marks there can be seen."""
CHOSEN_PART = 0.6
"""The part of the width that a bar has after Enter."""
CHAIN_COLOURS = 6
FIRST_CHAIN = 16
"""The kind of the first colour of chains."""
CRITICAL, UNCRITICAL = FIRST_CHAIN + CHAIN_COLOURS, FIRST_CHAIN + CHAIN_COLOURS + 1
"""The kinds of bars on the critical path, and of others, where these are coloured."""
NAMES = {
    slices.ARGUMENTS: "arguments",
    slices.RESOURCES: "resources",
    slices.SENT: "sent",
    slices.QUEUE: "queue",
    slices.FINISHED: "finished",
    slices.RUNNING: "running",
    slices.WAITING: "waiting",
    slices.STUCK: "stuck",
    slices.FAILED: "failed",
    CRITICAL: "critical",
    UNCRITICAL: "uncritical",
} | {FIRST_CHAIN + number: f"chain-{number}" for number in range(CHAIN_COLOURS)}
STYLES = (*NAMES.values(), "title", "heading", "cursor", "selected", "mark", "range", "link")
"""The component classes of a Gantt chart: of bars by kind, and of its other parts."""
WAIT_GLYPHS = {slices.ARGUMENTS: "┄", slices.RESOURCES: "─", slices.SENT: "·", slices.QUEUE: "═"}
"""They say the same as the colours."""
FAILED_GLYPH, RUNNING_GLYPH, MARK_GLYPH, STUCK_GLYPH = "✖", "▶", "◆", "■"
ENDINGS = {slices.RUNNING: RUNNING_GLYPH, slices.WAITING: MARK_GLYPH, slices.STUCK: STUCK_GLYPH}
"""The last cell of a bar whose attempt has not ended."""
LETTERS = {kind: NAMES[kind][0] for kind in WAIT_GLYPHS} | {slices.WAITING: MARK_GLYPH, slices.STUCK: STUCK_GLYPH}
"""``a`` for arguments, and so on: drawn where the numbers of waits are."""
LEGIBLE = 4
"""A bar with fewer full cells shows no name."""
PAIR = 2
BORDER = "│"
"""The end of a bar and the beginning of the next, without a gap."""
INDENT = 2
DENSE = 2
"""With more waits than this in a cell, gaps are too narrow to be drawn."""


@dataclass(frozen=True, slots=True)
class Glyph:
    """One cell: its character, the name of its style, and whether the style colours the cell behind it.

    ``is_part`` says that the character is the part of a coloured cell that is empty.
    """

    text: str
    style: str = ""
    is_behind: bool = False
    is_part: bool = False

    @property
    def behind(self) -> Literal["", "part", "text"]:
        """What is drawn on the coloured cell: nothing, the empty part of it, or text."""
        return "" if not self.is_behind else "part" if self.is_part else "text"


BLANK = Glyph(" ")


@dataclass(frozen=True, slots=True)
class RowDrawing:
    """The glyphs of one row in one window."""

    glyphs: list[Glyph]

    @classmethod
    def of(
        cls,
        row: TimelineRow,
        window: time_axis.Window,
        paint: Callable[[slices.Bars], bytes] | None,
        name: Callable[[TimelineRow, int], str],
    ) -> RowDrawing:
        """Draw a row."""
        glyphs = [BLANK] * window.columns
        if row.bars is not None:
            _draw_gaps(glyphs, row.gaps, window)
            _draw_bars(glyphs, row, row.bars, window, paint, name)
        elif row.levels is not None:
            _draw_levels(glyphs, row, window)
        for mark in row.marks:
            column = window.column(mark.at)
            if 0 <= column < window.columns:
                is_stuck = mark.is_stuck or glyphs[column].text == STUCK_GLYPH
                glyphs[column] = Glyph(STUCK_GLYPH, "stuck") if is_stuck else Glyph(MARK_GLYPH, "mark")
        return cls(glyphs)

    def segments(
        self, style_of: Callable[[str], Style], cursor: int | None, marked: range = range(0)
    ) -> Iterator[Segment]:
        """The row with its styles, with the cursor in a column, and with another background in ``marked`` ones."""
        styles: dict[Glyph, Style] = {}
        for glyph in set(self.glyphs):
            style = style_of(glyph.style) if glyph.style else style_of("title")
            if glyph.is_behind:
                style += Style(color=style.bgcolor, bgcolor=style.color)
            styles[glyph] = style
        runs = groupby(
            enumerate(self.glyphs), lambda one: (one[1].style, one[1].behind, one[0] in marked, one[0] == cursor)
        )
        for (_, behind, is_marked, is_cursor), cells in runs:
            texts = [glyph for _, glyph in cells]
            style = styles[texts[0]]
            if is_marked and behind != "text":
                empty = style_of("range").bgcolor
                style += Style(color=empty) if behind == "part" else Style(bgcolor=empty)
            if is_cursor:
                style += style_of("selected")
            yield Segment("".join(glyph.text for glyph in texts), style)

    @property
    def text(self) -> str:
        """The row as plain text."""
        return "".join(glyph.text for glyph in self.glyphs).rstrip()


def title_of(row: TimelineRow, width: int) -> str:
    """The title with its fold mark and indentation, in so many columns."""
    mark = "  " if row.is_open is None else "▾ " if row.is_open else "▸ "
    text = f"{' ' * (INDENT * row.depth)}{mark}{visible(row.title)}"
    return time_axis.cut(text, width)


def _draw_gaps(glyphs: list[Glyph], gaps: slices.Bars | None, window: time_axis.Window) -> None:
    if gaps is None or len(gaps.within(window.began_at, window.ended_at)) > DENSE * window.columns:
        return
    for column, cell in time_axis.cells_of(gaps, gaps.kinds, window).items():
        glyphs[column] = Glyph(WAIT_GLYPHS[cell.kind], NAMES[cell.kind])


def _draw_bars(
    glyphs: list[Glyph],
    row: TimelineRow,
    bars: slices.Bars,
    window: time_axis.Window,
    paint: Callable[[slices.Bars], bytes] | None,
    name: Callable[[TimelineRow, int], str],
) -> None:
    cells = time_axis.cells_of(bars, bars.kinds, window)
    colours = paint(bars) if paint else bars.kinds
    for column, cell in cells.items():
        kind = cell.kind if cell.kind == slices.FAILED else colours[cell.number]
        begins_here = bars.begins[cell.number] >= window.edge(column)
        is_failure = kind == slices.FAILED and (cell.count > 1 or (begins_here and not cell.is_full))
        glyphs[column] = _glyph(FAILED_GLYPH, NAMES[kind]) if is_failure else _bar_glyph(cell, NAMES[kind])
    for run in time_axis.runs_of(cells):
        own = bars.kinds[run.number]
        colour = NAMES[own if own == slices.FAILED else colours[run.number]]
        ending = ENDINGS.get(own, "")
        if run.width >= LEGIBLE:
            text = (f"{FAILED_GLYPH} " if own == slices.FAILED else "") + visible(name(row, run.number))
            room = run.width - len(ending)
            shown = text if cell_len(text) <= room else set_cell_size(text, room - 1) + time_axis.CUT
            _write(glyphs, run.column, shown, colour)
        if ending:
            glyphs[run.column + run.width - 1] = Glyph(ending, colour, is_behind=True)


def _write(glyphs: list[Glyph], column: int, text: str, style: str) -> None:
    """Put a text on a bar; a wide character takes two cells, of which the second has no text of its own."""
    for character in text:
        width = cell_len(character)
        if width == 0:
            continue
        glyphs[column] = Glyph(character, style, is_behind=True)
        if width == 2:
            glyphs[column + 1] = Glyph("", style, is_behind=True)
        column += width


@lru_cache(maxsize=1_000)
def _glyph(text: str, style: str, is_behind: bool = False, is_part: bool = False) -> Glyph:
    """One object for equal cells, of which a screen has thousands."""
    return Glyph(text, style, is_behind, is_part)


def _bar_glyph(cell: time_axis.BarCell, style: str) -> Glyph:
    """A cell of bars: full, partly filled at its left or right, or shaded if there are several."""
    if cell.count == PAIR and cell.filled >= time_axis.NEARLY_FULL:
        return _glyph(BORDER, style, True)
    if cell.count > 1:
        return _glyph(cell.shade, style)
    if cell.is_full or cell.eighths == 8:
        return _glyph("█", style)
    if cell.is_right:
        return _glyph(time_axis.EIGHTHS[8 - cell.eighths], style, True, True)
    return _glyph(time_axis.EIGHTHS[cell.eighths], style)


def _draw_levels(glyphs: list[Glyph], row: TimelineRow, window: time_axis.Window) -> None:
    """Heights; where what is waited for changes, its letter."""
    assert row.levels is not None
    heights = time_axis.heights_of(row.levels, window)
    for kind, group in groupby(enumerate(heights), lambda one: one[1][0] if one[1] else None):
        if kind is None:
            continue
        cells = list(group)
        for column, height in cells:
            glyphs[column] = Glyph(height[1] if height else "", NAMES[kind])
        if kind in LETTERS and len(cells) >= LEGIBLE:
            glyphs[cells[0][0]] = Glyph(LETTERS[kind], NAMES[kind])


@dataclass(frozen=True, slots=True)
class Link:
    """A line at a time from the row of a caller to that of its callee, which are indices."""

    at: float
    caller: int
    callee: int

    def glyph(self, row: int, is_blank: bool) -> Glyph | None:
        """What it is in a row, None if nothing: a head at the callee, a line where the row is blank."""
        first, last = sorted((self.caller, self.callee))
        if row == self.callee:
            return Glyph("▼" if self.caller < row else "▲", "link")
        return Glyph("│", "link") if is_blank and first < row < last else None


@dataclass(frozen=True, slots=True)
class Selection:
    """The row and the cell under the cursor, as a time, and the numbers of the bars in it; one of them is picked."""

    row: TimelineRow
    began_at: float
    ended_at: float
    numbers: Sequence[int]
    picked: int | None


class Gantt(time_axis.TimeChart):
    """Rows of bars with a cursor that is on a row and at a time; the window is the visible part of the time."""

    PREFIX = "gantt"
    SHORTEST_S = 1e-4  # times in Unix seconds have no more than 7 digits after the point
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False, id="outline.page-up"),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False, id="outline.page-down"),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"gantt--{name}" for name in STYLES}
    DEFAULT_CSS = """
    Gantt { height: 1fr; scrollbar-gutter: stable; overflow-x: hidden; overflow-y: auto; }
    """

    @dataclass
    class Chosen(Message):
        """Enter was pressed on a row, or a bar was clicked twice; ``is_fold`` if the title of a row was clicked."""

        row: TimelineRow
        is_fold: bool = False

    @dataclass
    class Dragged(Message):
        """The mouse was moved over a part of the time with its button pressed."""

        began_at: float
        ended_at: float

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.empty = "Nothing to show."
        self._marked: tuple[float, float] | None = None
        self._links: Sequence[Link] = ()
        self._dragged_from: int | None = None
        self.rows: Sequence[TimelineRow] = ()
        self.cursor = 0
        self._picked: tuple[str, object] | None = None
        self._paint: Callable[[slices.Bars], bytes] | None = None
        self._label: Callable[[TimelineRow, int], str] = lambda row, number: ""
        self._drawings: dict[str, RowDrawing] = {}

    # Rows and the window

    def show(self, rows: Sequence[TimelineRow], bounds: tuple[float, float]) -> None:
        """Show other rows. The cursor stays on its row, and the window at its time unless it showed the whole."""
        before = self.row
        is_whole = self._zoomed is None or not self.rows
        began_at, ended_at = bounds
        self.rows = rows
        self.__dict__.pop("index", None)
        self.bounds = (began_at, max(ended_at + (ended_at - began_at) * MARGIN, began_at + self.SHORTEST_S))
        if is_whole:
            self._zoomed = None
        if before is None:
            self.cursor_time = ended_at
        keys = [row.key for row in rows]
        self.cursor = keys.index(before.key) if before and before.key in keys else min(self.cursor, len(rows) - 1)
        self.cursor = max(0, self.cursor)
        self.virtual_size = Size(self.size.width, len(rows))
        self.redraw()
        self._selected()

    def dress(self, name: Callable[[TimelineRow, int], str], paint: Callable[[slices.Bars], bytes] | None) -> None:
        """Use these names of bars, and these kinds of bars for their colours; None for their own."""
        self._label, self._paint = name, paint
        self.redraw()

    def mark(self, marked: tuple[float, float] | None, links: Sequence[Link]) -> None:
        """Give a part of the time another background, and draw lines from callers to callees."""
        if (marked, links) != (self._marked, self._links):
            self._marked, self._links = marked, links
            self.refresh()

    def redraw(self) -> None:
        """Draw all rows again."""
        self._drawings.clear()
        super().redraw()

    @cached_property
    def index(self) -> Mapping[str, int]:
        """The index of each row by its key, and of the first row of each track by the key of its fold."""
        numbered = list(enumerate(self.rows))
        return {row.fold: at for at, row in reversed(numbered)} | {row.key: at for at, row in numbered}

    @property
    def window(self) -> time_axis.Window:
        """The visible part of the time."""
        return time_axis.Window(*self.shown, max(1, self.scrollable_size.width - self.left))

    @property
    def row(self) -> TimelineRow | None:
        """The row under the cursor."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    @property
    def _column(self) -> int:
        """The column of the cursor."""
        window = self.window
        return max(0, min(window.column(self.cursor_time), window.columns - 1))

    def pan(self, part: float) -> None:
        """Show an earlier or later part, by a part of the window; the cursor moves with it."""
        began_at, ended_at = self.shown
        self.view(began_at + part * (ended_at - began_at), ended_at + part * (ended_at - began_at))
        first, last = self.shown
        moved = first - began_at
        if moved and not first <= self.cursor_time <= last:
            self.select(self.cursor, self.cursor_time + moved)

    def close_up(self, began_at: float, ended_at: float) -> None:
        """Show a bar with some time before and after it."""
        spare = (ended_at - began_at) * (1 / CHOSEN_PART - 1) / 2
        self.view(began_at - spare, ended_at + spare)

    # The cursor

    @property
    def selection(self) -> Selection | None:
        """What is under the cursor."""
        row = self.row
        if row is None:
            return None
        window, column = self.window, self._column
        began_at, ended_at = window.edge(column), window.edge(column + 1)
        numbers: Sequence[int] = ()
        if row.bars is not None:
            numbers = row.bars.within(began_at, ended_at)
            if not numbers and row.gaps is not None:
                return Selection(row, began_at, ended_at, numbers, None)
        elif row.levels is not None:
            numbers = row.levels.within(began_at, ended_at)
        return Selection(row, began_at, ended_at, numbers, self._pick(row, numbers))

    def _pick(self, row: TimelineRow, numbers: Sequence[int]) -> int | None:
        """The bar that was selected before if it is one of these, else the most important one."""
        bars = row.bars if row.bars is not None else row.levels.bars if row.levels is not None else None
        if bars is None or not numbers:
            return None
        if self._picked and self._picked[0] == row.key:
            for number in numbers:
                if bars.attempts[number].task == self._picked[1]:
                    return number
        return max(numbers, key=lambda number: (bars.kinds[number], bars.ends[number] - bars.begins[number]))

    def select(self, cursor: int, at: float, task: object = None) -> None:
        """Move the cursor to a row and a time; ``task`` is the attempt to pick if there are several."""
        if not self.rows:
            return
        cursor = max(0, min(cursor, len(self.rows) - 1))
        before = self.cursor
        self.cursor, self.cursor_time = cursor, max(self.bounds[0], min(at, self.bounds[1]))
        self._picked = (self.rows[cursor].key, task)
        began_at, ended_at = self.shown
        if not began_at <= self.cursor_time < ended_at:
            half = (ended_at - began_at) / 2
            self.view(self.cursor_time - half, self.cursor_time + half)
        self.scroll_to_region(Region(0, cursor, 1, 1), animate=False, force=True)
        self.refresh_line(before)
        self.refresh_line(cursor)
        self._selected()

    def action_move(self, by: int) -> None:
        self.select(self.cursor + by, self.cursor_time)

    def action_page(self, by: int) -> None:
        self.select(self.cursor + by * max(1, self.scrollable_size.height - 1), self.cursor_time)

    def action_first(self) -> None:
        self.select(0, self.cursor_time)

    def action_last(self) -> None:
        self.select(len(self.rows) - 1, self.cursor_time)

    def action_along(self, by: int) -> None:
        """Move the cursor to the next cell that begins with another bar, or by one cell where numbers are drawn."""
        row, window = self.row, self.window
        if row is None:
            return
        column = self._column
        at = window.edge(column + by) + window.cell_s / 2
        bars = row.bars
        if bars is None:
            self.select(self.cursor, at)
            return
        if by > 0:
            later = bars.within(window.edge(column + 1), float("inf"))
            after = next((number for number in later[:2] if bars.begins[number] >= window.edge(column + 1)), None)
        else:
            earlier = bars.within(float("-inf"), window.edge(column))
            after = earlier[-1] if earlier else None
            if after is not None and bars.ends[after] > window.edge(column):  # it reaches into the cursor's cell
                after = after - 1 if after else None
        if after is not None:
            self.select(self.cursor, bars.begins[after], bars.attempts[after].task)

    def action_choose(self) -> None:
        if self.row is not None:
            self.post_message(self.Chosen(self.row))

    def on_click(self, event: events.Click) -> None:
        """Select the clicked row and time; choose it with a double click."""
        index = event.y + self.scroll_offset.y
        if index >= len(self.rows):
            return
        window = self.window
        column = event.x - self.left
        is_title = column < 0
        self.select(index, self.cursor_time if is_title else window.edge(column) + window.cell_s / 2)
        if is_title and self.rows[index].is_open is not None:
            self.post_message(self.Chosen(self.rows[index], is_fold=True))
        elif event.chain == 2:
            self.action_choose()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Begin to mark a part of the time."""
        self._dragged_from = event.x - self.left if event.button == 1 and event.x >= self.left else None

    def on_mouse_up(self) -> None:
        """Leave the part that is marked."""
        self._dragged_from = None

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Mark the part of the time between the first cell and this one."""
        if self._dragged_from is not None and event.button == 1 and event.x - self.left != self._dragged_from:
            first, last = sorted((self._dragged_from, max(0, event.x - self.left)))
            self.post_message(self.Dragged(self.window.edge(first), self.window.edge(last + 1)))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in with Ctrl."""
        self._wheel(event, ZOOM)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out with Ctrl."""
        self._wheel(event, 1 / ZOOM)

    def _wheel(self, event: events.MouseScrollUp | events.MouseScrollDown, factor: float) -> None:
        if event.ctrl:
            event.stop()
            event.prevent_default()
            self.zoom(factor, self.window.edge(max(0, event.x - self.left)))

    # Drawing

    def render_line(self, y: int) -> Strip:
        index, width = y + self.scroll_offset.y, self.size.width
        if index >= len(self.rows):
            text = "" if self.rows else row_of(self.empty, y, width - 1)
            return Strip([Segment(f" {text}", self.rich_style + Style(dim=True))]).adjust_cell_length(
                width, self.rich_style
            )
        row = self.rows[index]
        is_cursor = index == self.cursor
        title = self._style("title" if row.depth else "heading")
        if is_cursor:
            title += self._style("cursor")
        segments = [Segment(title_of(row, self.left), title)]
        window = self.window
        drawing = self._with_links(self._drawing(row), index, window)
        column = self._column if is_cursor else None
        segments += drawing.segments(self._style, column, window.marked(self._marked))
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def _with_links(self, drawing: RowDrawing, index: int, window: time_axis.Window) -> RowDrawing:
        glyphs = list(drawing.glyphs) if self._links else drawing.glyphs
        for link in self._links:
            column = window.column(link.at)
            if 0 <= column < window.columns and (glyph := link.glyph(index, glyphs[column] == BLANK)):
                glyphs[column] = glyph
        return RowDrawing(glyphs)

    def _drawing(self, row: TimelineRow) -> RowDrawing:
        drawing = self._drawings.get(row.key)
        if drawing is None:
            drawing = self._drawings[row.key] = RowDrawing.of(row, self.window, self._paint, self._label)
        return drawing
