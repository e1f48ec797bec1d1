"""A row of bars or levels as cells of the screen: what is drawn in each, and how much of it is filled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from dstack.analysis.views.timeline_bars import Bars, Levels

EIGHTHS = " ▏▎▍▌▋▊▉█"
HEIGHTS = " ▁▂▃▄▅▆▇█"
SHADES = "░▒▓"
"""Several bars in one cell, by the part of it that they fill."""


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


@dataclass(slots=True)
class Cell:
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

    def add(self, other: Cell) -> None:
        """Add the bars that are in the same cell."""
        self.kind = max(self.kind, other.kind)
        self.count += other.count
        self.filled += other.filled


NEARLY_FULL = 0.99


def cells_of(bars: Bars, kinds: bytes, window: Window) -> dict[int, Cell]:
    """The cells with bars, by column. ``kinds`` are those of the bars, which colour them.

    The time this takes depends on the columns, not on the bars: those in one cell are found by bisection.
    """
    cells: dict[int, Cell] = {}
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
        cell = Cell(kind, last, after - at, filled, end > edge)
        if column in cells:  # the end of an earlier bar
            cell.add(cells[column])
        cells[column] = cell
        if end > edge:
            _fill(cells, kinds[last], last, edge, min(end, window.columns))
        at = after
    return cells


def _fill(cells: dict[int, Cell], kind: int, number: int, column: int, end: float) -> None:
    """The further cells of a bar that ends at a position."""
    whole = int(end)
    for one in range(column, whole):
        cells[one] = Cell(kind, number)
    if end > whole:
        cells[whole] = Cell(kind, number, 1, end - whole)


@dataclass(frozen=True, slots=True)
class Run:
    """Cells that one bar fills completely, with room for its name."""

    column: int
    width: int
    number: int


def runs_of(cells: dict[int, Cell]) -> Iterator[Run]:
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


def _length(cells: dict[int, Cell], first: int) -> int:
    width = 1
    number = cells[first].number
    while (cell := cells.get(first + width)) is not None and cell.is_full and cell.number == number:
        width += 1
    return width


@dataclass(frozen=True, slots=True)
class Height:
    """How many bars there are in a cell on average, their most frequent kind, and how many overlap it."""

    kind: int
    mean: float
    count: int
    glyph: str


def heights_of(levels: Levels, window: Window) -> list[Height | None]:
    """A height for each column, relative to the most at one time; None where there are none."""
    edges = [window.edge(column) for column in range(window.columns + 1)]
    found: list[Height | None] = []
    for kind, mean, count in levels.means(edges):
        eighths = max(1, min(8, round(mean / levels.peak * 8)))
        found.append(Height(kind, mean, count, HEIGHTS[eighths]) if count else None)
    return found
