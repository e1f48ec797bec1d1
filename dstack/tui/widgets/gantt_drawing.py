"""One row of a Gantt chart as glyphs with styles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style

from dstack.analysis.history.slices import (
    ARGUMENTS,
    FAILED,
    FINISHED,
    QUEUE,
    RESOURCES,
    RUNNING,
    SENT,
    STUCK,
    WAITING,
    Bars,
)
from dstack.analysis.views.timeline_rows import TimelineRow
from dstack.tui.widgets.time_axis import EIGHTHS, NEARLY_FULL, BarCell, Window, cells_of, heights_of, runs_of
from dstack.words import visible

CHAIN_COLOURS = 6
FIRST_CHAIN = 16
"""The kind of the first colour of chains."""
NAMES = {
    ARGUMENTS: "arguments",
    RESOURCES: "resources",
    SENT: "sent",
    QUEUE: "queue",
    FINISHED: "finished",
    RUNNING: "running",
    WAITING: "waiting",
    STUCK: "stuck",
    FAILED: "failed",
} | {FIRST_CHAIN + number: f"chain-{number}" for number in range(CHAIN_COLOURS)}
STYLES = (*NAMES.values(), "title", "heading", "cursor", "selected", "mark")
"""The component classes of a Gantt chart: of bars by kind, and of its other parts."""
WAIT_GLYPHS = {ARGUMENTS: "┄", RESOURCES: "─", SENT: "·", QUEUE: "═"}
"""They say the same as the colours."""
FAILED_GLYPH, RUNNING_GLYPH, MARK_GLYPH, STUCK_GLYPH = "✖", "▶", "◆", "■"
ENDINGS = {RUNNING: RUNNING_GLYPH, WAITING: MARK_GLYPH, STUCK: STUCK_GLYPH}
"""The last cell of a bar whose attempt has not ended."""
LETTERS = {kind: NAMES[kind][0] for kind in WAIT_GLYPHS} | {WAITING: MARK_GLYPH, STUCK: STUCK_GLYPH}
"""``a`` for arguments, and so on: drawn where the numbers of waits are."""
LEGIBLE = 4
"""A bar with fewer full cells shows no name."""
PAIR = 2
BORDER = "│"
"""The end of a bar and the beginning of the next, without a gap."""
INDENT = 2
CUT = "…"
DENSE = 2
"""With more waits than this in a cell, gaps are too narrow to be drawn."""


@dataclass(frozen=True, slots=True)
class Glyph:
    """One cell: its character, the name of its style, and whether the style colours the cell behind it."""

    text: str
    style: str = ""
    is_behind: bool = False


BLANK = Glyph(" ")


@dataclass(frozen=True, slots=True)
class RowDrawing:
    """The glyphs of one row in one window."""

    glyphs: list[Glyph]

    @classmethod
    def of(
        cls,
        row: TimelineRow,
        window: Window,
        paint: Callable[[Bars], bytes] | None,
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

    def segments(self, style_of: Callable[[str], Style], cursor: int | None) -> Iterator[Segment]:
        """The row with its styles, and with the cursor in a column."""
        styles: dict[Glyph, Style] = {}
        for glyph in set(self.glyphs):
            style = style_of(glyph.style) if glyph.style else style_of("title")
            if glyph.is_behind:
                style += Style(color=style.bgcolor, bgcolor=style.color)
            styles[glyph] = style
        runs = groupby(enumerate(self.glyphs), lambda one: (one[1].style, one[1].is_behind, one[0] == cursor))
        for (_, _, is_cursor), cells in runs:
            texts = [glyph for _, glyph in cells]
            style = styles[texts[0]]
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
    if cell_len(text) >= width:
        text = set_cell_size(text, width - 2) + CUT
    return set_cell_size(text, width)


def _draw_gaps(glyphs: list[Glyph], gaps: Bars | None, window: Window) -> None:
    if gaps is None or len(gaps.within(window.began_at, window.ended_at)) > DENSE * window.columns:
        return
    for column, cell in cells_of(gaps, gaps.kinds, window).items():
        glyphs[column] = Glyph(WAIT_GLYPHS[cell.kind], NAMES[cell.kind])


def _draw_bars(
    glyphs: list[Glyph],
    row: TimelineRow,
    bars: Bars,
    window: Window,
    paint: Callable[[Bars], bytes] | None,
    name: Callable[[TimelineRow, int], str],
) -> None:
    cells = cells_of(bars, bars.kinds, window)
    colours = paint(bars) if paint else bars.kinds
    for column, cell in cells.items():
        kind = cell.kind if cell.kind == FAILED else colours[cell.number]
        begins_here = bars.begins[cell.number] >= window.edge(column)
        is_failure = kind == FAILED and (cell.count > 1 or (begins_here and not cell.is_full))
        glyphs[column] = _glyph(FAILED_GLYPH, NAMES[kind]) if is_failure else _bar_glyph(cell, NAMES[kind])
    for run in runs_of(cells):
        own = bars.kinds[run.number]
        colour = NAMES[own if own == FAILED else colours[run.number]]
        ending = ENDINGS.get(own, "")
        if run.width >= LEGIBLE:
            text = (f"{FAILED_GLYPH} " if own == FAILED else "") + visible(name(row, run.number))
            room = run.width - len(ending)
            shown = text if cell_len(text) <= room else set_cell_size(text, room - 1) + CUT
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
def _glyph(text: str, style: str, is_behind: bool = False) -> Glyph:
    """One object for equal cells, of which a screen has thousands."""
    return Glyph(text, style, is_behind)


def _bar_glyph(cell: BarCell, style: str) -> Glyph:
    """A cell of bars: full, partly filled at its left or right, or shaded if there are several."""
    if cell.count == PAIR and cell.filled >= NEARLY_FULL:
        return _glyph(BORDER, style, True)
    if cell.count > 1:
        return _glyph(cell.shade, style)
    if cell.is_full or cell.eighths == 8:
        return _glyph("█", style)
    if cell.is_right:
        return _glyph(EIGHTHS[8 - cell.eighths], style, True)
    return _glyph(EIGHTHS[cell.eighths], style)


def _draw_levels(glyphs: list[Glyph], row: TimelineRow, window: Window) -> None:
    """Heights; where what is waited for changes, its letter."""
    assert row.levels is not None
    heights = heights_of(row.levels, window)
    for kind, group in groupby(enumerate(heights), lambda one: one[1].kind if one[1] else None):
        if kind is None:
            continue
        cells = list(group)
        for column, height in cells:
            glyphs[column] = Glyph(height.glyph if height else "", NAMES[kind])
        if kind in LETTERS and len(cells) >= LEGIBLE:
            glyphs[cells[0][0]] = Glyph(LETTERS[kind], NAMES[kind])
