"""Time as columns of the screen: windows, the cells of bars or levels in them, an axis, and what all charts share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from time import localtime, strftime
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from dstack.analysis.history.slices import Bars, Levels
from dstack.words import visible

EIGHTHS = " ▏▎▍▌▋▊▉█"
HEIGHTS = " ▁▂▃▄▅▆▇█"
SHADES = "░▒▓"
"""Several bars in one cell, by the part of it that they fill."""
NEARLY_FULL = 0.99
STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
WIDEST_LABEL = 12
"""Columns from one tick to the next, at least."""
NEARLY = 0.999
CUT = "…"


@dataclass(frozen=True, slots=True)
class Window:
    """The visible part of the time, in Unix seconds, and the columns that show it."""

    began_at: float
    ended_at: float
    columns: int

    @property
    def cell_s(self) -> float:
        """The time that one column shows."""
        return (self.ended_at - self.began_at) / max(1, self.columns)

    def edge(self, column: int) -> float:
        """When a column begins."""
        return self.began_at + column * self.cell_s

    def column(self, at: float) -> int:
        """The column of a time, also if it is not visible."""
        return int((at - self.began_at) // self.cell_s)

    def marked(self, marked: tuple[float, float] | None) -> range:
        """The visible columns of a part of the time; none without one."""
        if marked is None:
            return range(0)
        first, last = (max(0, min(self.column(at), self.columns - 1)) for at in marked)
        return range(first, last + 1)


@dataclass(slots=True)
class BarCell:
    """What one cell shows: the highest kind of its bars, their number, and the filled part of it.

    ``is_right`` is true if one bar begins in the cell and continues, so that the right part of it is filled. ``number``
    is that of the last bar in it.
    """

    kind: int
    number: int
    count: int = 1
    filled: float = 1.0
    is_right: bool = False

    @property
    def is_full(self) -> bool:
        """Whether one bar fills it."""
        return self.count == 1 and self.filled >= 1.0

    @property
    def eighths(self) -> int:
        """How many eighths are filled; at least one."""
        return round(self.filled * 8) or 1

    @property
    def shade(self) -> str:
        """The glyph for several bars."""
        return "█" if self.filled >= NEARLY_FULL else SHADES[int(self.filled * 3)]

    def add(self, other: BarCell) -> None:
        """Add the bars that are in the same cell."""
        self.kind = max(self.kind, other.kind)
        self.count += other.count
        self.filled += other.filled


def cells_of(bars: Bars, kinds: bytes, window: Window) -> dict[int, BarCell]:
    """The cells with bars, by column. ``kinds`` are those of the bars, which colour them.

    The time this takes depends on the columns, not on the bars: those in one cell are found by bisection.
    """
    cells: dict[int, BarCell] = {}
    visible = bars.within(window.began_at, window.ended_at)
    at, stop = visible.start, visible.stop
    cell_s, began = window.cell_s, window.began_at
    begins, ends = bars.begins, bars.ends
    while at < stop:
        start = (begins[at] - began) / cell_s
        column = int(start) if start > 0 else 0
        after = bisect_left(begins, began + (column + 1) * cell_s, at + 1, stop)
        last = after - 1
        if last > at:  # all but the last are in this cell alone
            filled = (sum(ends[at:last]) - sum(begins[at:last])) / cell_s
            start, kind = (begins[last] - began) / cell_s, max(kinds[at:after])
        else:
            filled, kind = 0.0, kinds[at]
        end = (ends[last] - began) / cell_s
        edge = column + 1
        filled += (end if end < edge else edge) - (start if start > column else column)
        cell = BarCell(kind, last, after - at, filled, end > edge)
        if column in cells:  # the end of an earlier bar
            cell.add(cells[column])
        cells[column] = cell
        if end > edge:
            _fill(cells, kinds[last], last, edge, min(end, window.columns))
        at = after
    return cells


def _fill(cells: dict[int, BarCell], kind: int, number: int, column: int, end: float) -> None:
    """The further cells of a bar that ends at a position."""
    whole = int(end)
    for one in range(column, whole):
        cells[one] = BarCell(kind, number)
    if end > whole:
        cells[whole] = BarCell(kind, number, 1, end - whole)


@dataclass(frozen=True, slots=True)
class Run:
    """Cells that one bar fills completely, with room for its name."""

    column: int
    width: int
    number: int


def runs_of(cells: dict[int, BarCell]) -> Iterator[Run]:
    """The runs of full cells of one bar, from left to right."""
    first = None
    for column in sorted(cells):
        cell = cells[column]
        if first is not None and cell.is_full and cell.number == cells[first].number and column - 1 in cells:
            continue
        if first is not None:
            yield Run(first, _length(cells, first), cells[first].number)
        first = column if cell.is_full else None
    if first is not None:
        yield Run(first, _length(cells, first), cells[first].number)


def _length(cells: dict[int, BarCell], first: int) -> int:
    width = 1
    number = cells[first].number
    while (cell := cells.get(first + width)) is not None and cell.is_full and cell.number == number:
        width += 1
    return width


def heights_of(levels: Levels, window: Window) -> list[tuple[int, str] | None]:
    """For each column the most frequent kind of its bars, and a glyph that is the higher, the more they are.

    The glyphs are relative to the most bars at one time. None where there are none.
    """
    edges = [window.edge(column) for column in range(window.columns + 1)]
    found: list[tuple[int, str] | None] = []
    for kind, mean, count in levels.means(edges):
        eighths = max(1, min(8, round(mean / levels.peak * 8)))
        found.append((kind, HEIGHTS[eighths]) if count else None)
    return found


class TimeChart(ScrollView, can_focus=True):
    """Rows over a window of the time, with a cursor that is on a row and at a time.

    A subclass has the component classes ``PREFIX--NAME``, and shows no window that is shorter than ``SHORTEST_S``.
    """

    PREFIX: ClassVar[str]
    SHORTEST_S: ClassVar[float]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="outline.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="outline.down"),
        Binding("left,h", "along(-1)", "Left", show=False, id="outline.left"),
        Binding("right,l", "along(1)", "Right", show=False, id="outline.right"),
        Binding("home,g", "first", "First", show=False, id="outline.first"),
        Binding("end,G", "last", "Last", show=False, id="outline.last"),
        Binding("enter", "choose", "Choose", show=False, id="outline.choose"),
    ]

    class Selected(Message):
        """The cursor is on another row or at another time."""

    class Viewed(Message):
        """Another part of the time is shown, or with another width."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.rows: Sequence[object] = ()
        self.bounds = (0.0, 1.0)
        self.cursor_time = 0.0
        self._zoomed: tuple[float, float] | None = None
        self._styles: dict[str, Style] = {}

    # The window

    @property
    def left(self) -> int:
        """The columns of the titles."""
        return min(44, max(18, self.size.width * 3 // 10))

    @property
    def shown(self) -> tuple[float, float]:
        """The visible part of the time."""
        return self._zoomed or self.bounds

    def view(self, began_at: float, ended_at: float) -> None:
        """Show a part of the time."""
        first, last = self.bounds
        length = min(max(ended_at - began_at, self.SHORTEST_S), last - first)
        began_at = max(first, min(began_at, last - length))
        zoomed = (began_at, began_at + length) if length < last - first else None
        if zoomed != self._zoomed:
            self._zoomed = zoomed
            self.redraw()
            self._selected()

    def zoom(self, factor: float, at: float | None = None) -> None:
        """Show a shorter time for a factor above 1, around the cursor or another time."""
        began_at, ended_at = self.shown
        at = self.cursor_time if at is None else at
        at = at if began_at <= at <= ended_at else (began_at + ended_at) / 2
        self.view(at - (at - began_at) / factor, at + (ended_at - at) / factor)

    def whole(self) -> None:
        """Show the whole time."""
        self.view(*self.bounds)

    def redraw(self) -> None:
        """Draw all rows again."""
        self.refresh()
        self.post_message(self.Viewed())

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self.rows))
        self.redraw()

    def _selected(self) -> None:
        if self.is_attached:
            self.post_message(self.Selected())

    def _style(self, name: str) -> Style:
        style = self._styles.get(name)
        if style is None:
            own = self.get_component_rich_style(f"{self.PREFIX}--{name}", partial=True)
            style = self._styles[name] = self.rich_style + own
        return style

    def notify_style_update(self) -> None:
        """Use the new styles, also of another theme."""
        super().notify_style_update()
        self._styles.clear()


def cut(text: str, width: int) -> str:
    """The text in so many cells, cut if it is longer, with an empty cell at its end."""
    return set_cell_size(set_cell_size(text, width - 2) + CUT if cell_len(text) >= width else text, width)


class TimeAxis(Widget):
    """The ticks of a window, to the right of a title; times are relative to ``origin``."""

    DEFAULT_CSS = "TimeAxis { height: 1; color: $text-muted; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._window = Window(0.0, 1.0, 0)
        self._origin = 0.0
        self._left = 0
        self._marked = range(0)

    def show(self, window: Window, origin: float, left: int, marked: range = range(0)) -> None:
        """Draw the ticks of another window, which begins at the column ``left``; ``marked`` columns are reversed."""
        self._window, self._origin, self._left, self._marked = window, origin, left, marked
        self.refresh()

    def render_line(self, y: int) -> Strip:
        style = self.rich_style
        if not self._window.columns:
            return Strip.blank(self.size.width, style)
        title = f" 0 s = {clock(self._origin)}"[: self._left].ljust(self._left)
        ticks_line, (first, last) = ruler(self._window, self._origin), (self._marked.start, self._marked.stop)
        parts = [Segment(visible(title) + ticks_line[:first], style), Segment(ticks_line[last:], style)]
        parts.insert(1, Segment(ticks_line[first:last], style + Style(reverse=True)))
        return Strip(parts).adjust_cell_length(self.size.width, style)


def ruler(window: Window, origin: float) -> str:
    """The ticks of a window as one line of text."""
    line = ""
    step = tick_step(window.cell_s * WIDEST_LABEL)
    for at in ticks(window, origin, step):
        column = window.column(at)
        label = f"╵{relative(at - origin, step)}"
        if column >= len(line) and column + len(label) <= window.columns:
            line = line.ljust(column) + label
    return line.ljust(window.columns)


def ticks(window: Window, origin: float, step: float) -> Iterator[float]:
    """The times of the ticks in a window, at multiples of the step."""
    number = ceil((window.began_at - origin) / step)
    while (at := origin + number * step) < window.ended_at:
        yield at
        number += 1


def tick_step(least_s: float) -> float:
    """The smallest round number of seconds, minutes, hours or days that is not below this."""
    if least_s > STEPS_S[-1]:
        return ceil(least_s / STEPS_S[-1]) * STEPS_S[-1]
    if least_s > 1:
        return next(step for step in STEPS_S if step >= least_s)
    power = 10.0 ** ceil(log10(max(least_s, 1e-7)))
    return next(step for step in (power / 5, power / 2, power) if step >= least_s * NEARLY)


def relative(seconds: float, step: float) -> str:
    """``-5 s``, ``12.35 s``, ``3:20``, ``1:05:00``: as exact as the step between two of them demands."""
    sign = "-" if seconds < -step / 2 else ""
    seconds = abs(seconds)
    digits = max(0, ceil(-log10(step) - 1e-9)) if step < 1 else 0
    if seconds < 60 or digits:
        return f"{sign}{seconds:.{digits}f} s"
    whole = round(seconds)
    minutes, hours = whole // 60, whole // 3_600
    clock_text = f"{hours}:{minutes % 60:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
    return sign + clock_text


def clock(at: float, *, digits: int = 0) -> str:
    """``14:03:22.125``: the time of day of dstack's host; seconds are not rounded, as in the reports."""
    seconds, fraction = divmod(round(at * 10**digits) if digits else floor(at), 10**digits)
    text = strftime("%H:%M:%S", localtime(seconds))
    return f"{text}.{fraction:0{digits}}" if digits else text
