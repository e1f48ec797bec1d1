"""What stands from when to when: a row of spans for each thing, over columns that are times of a series of moments."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from dstack.tui.widgets.gantt import BLANK, Glyph, RowDrawing
from dstack.tui.widgets.time_axis import TimeChart, Window, cut
from dstack.words import visible

LINE = "─"
NEARLY = 0.999
"""The end of the time is just within the last column, however Unix times are rounded."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that stands from one moment to another, which are indices; of several in one cell the highest is drawn.

    ``glyph`` is drawn at each moment, ``style`` is the name of a component class.
    """

    first: int
    last: int
    glyph: str
    style: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class SpanRow:
    """One row: a title, and its spans."""

    title: str
    spans: Sequence[Span]


class SpanChart(TimeChart):
    """Rows of spans with a cursor that is at a moment and on a row. The first row stays at the top."""

    PREFIX = "span"
    SHORTEST_S = 1.0
    STYLES: ClassVar[tuple[str, ...]] = ("deadlock", "hang", "stalled", "unknown", "running", "idle", "unread")
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"span--{name}" for name in (*STYLES, "title", "cursor", "selected")}
    DEFAULT_CSS = """
    SpanChart { height: auto; scrollbar-gutter: stable; overflow-x: hidden; overflow-y: auto; }
    SpanChart > .span--deadlock, SpanChart > .span--hang { color: $text-error; text-style: bold; }
    SpanChart > .span--stalled { color: $text-warning; text-style: bold; }
    SpanChart > .span--unknown { color: $text-accent; }
    SpanChart > .span--running { color: $text-primary; }
    SpanChart > .span--idle { color: $text-success; }
    SpanChart > .span--unread { text-style: dim; }
    SpanChart > .span--title { color: $foreground; }
    SpanChart > .span--cursor { background: $block-cursor-blurred-background; text-style: bold; }
    SpanChart > .span--selected { background: $block-cursor-background; color: $block-cursor-foreground; }
    """

    class Chosen(Message):
        """Enter was pressed, or a moment was clicked twice."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.rows: Sequence[SpanRow] = ()
        self.times: Sequence[float] = ()
        self.at = 0
        self.row = 0

    # Rows, the window and the cursor

    def show(self, rows: Sequence[SpanRow], times: Sequence[float]) -> None:
        """Show other rows and moments; the cursor stays at its moment."""
        self.rows, self.times = rows, times
        first, last = (min(times), max(times)) if times else (0.0, 0.0)
        self.bounds = (first, max(last, first + self.SHORTEST_S))
        self.at = max(0, min(self.at, len(times) - 1))
        self.row = max(0, min(self.row, len(rows) - 1))
        self.cursor_time = times[self.at] if times else first
        self.virtual_size = Size(self.size.width, len(rows))
        self.refresh(layout=True)
        self.post_message(self.Viewed())

    @property
    def window(self) -> Window:
        """The visible part of the time; its end is the beginning of the last column."""
        columns = max(2, self.scrollable_size.width - self.left)
        began_at, ended_at = self.shown
        return Window(began_at, ended_at + (ended_at - began_at) / (columns - 1) * NEARLY, columns)

    def select(self, at: int, row: int | None = None) -> None:
        """Move the cursor to a moment, and to a row if one is given."""
        if not self.times:
            return
        self.at = max(0, min(at, len(self.times) - 1))
        self.row = max(0, min(self.row if row is None else row, len(self.rows) - 1))
        self.cursor_time = self.times[self.at]
        began_at, ended_at = self.shown
        if not began_at <= self.cursor_time <= ended_at:
            half = (ended_at - began_at) / 2
            self.view(self.cursor_time - half, self.cursor_time + half)
        self.scroll_to_region(Region(0, max(0, self.row - 1), 1, 2), animate=False, force=True)
        self.refresh()
        self._selected()

    def action_along(self, by: int) -> None:
        self.select(self.at + by)

    def action_move(self, by: int) -> None:
        self.select(self.at, self.row + by)

    def action_first(self) -> None:
        """Move the cursor to the first moment."""
        self.select(0)

    def action_last(self) -> None:
        """Move the cursor to the last moment."""
        self.select(len(self.times) - 1)

    def action_choose(self) -> None:
        if self.times:
            self.post_message(self.Chosen())

    def on_click(self, event: events.Click) -> None:
        """Select the nearest moment and the clicked row; choose it with a double click."""
        if not self.times:
            return
        column = event.x - self.left
        row = 0 if event.y == 0 else event.y + self.scroll_offset.y
        self.select(self._nearest(self.window.edge(column)) if column >= 0 else self.at, row)
        if event.chain == 2:
            self.action_choose()

    def _nearest(self, at: float) -> int:
        """The moment nearest to a time."""
        after = min(bisect_left(self.times, at), len(self.times) - 1)
        return min((max(0, after - 1), after), key=lambda index: abs(self.times[index] - at))

    # Drawing

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """One line for each row."""
        return max(1, len(self.rows))

    def render_line(self, y: int) -> Strip:
        """One row of the screen; the first one is always that of the first row."""
        index = y + self.scroll_offset.y if y else 0
        if index >= len(self.rows):
            return Strip.blank(self.size.width, self.rich_style)
        row, window = self.rows[index], self.window
        title = self._style("title") + (self._style("cursor") if index == self.row else Style())
        column = min(window.column(self.cursor_time), window.columns - 1) if self.times else None
        segments = [Segment(cut(f" {visible(row.title)}", self.left), title)]
        segments += RowDrawing(self._glyphs(row, window)).segments(self._style, column)
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)

    def _glyphs(self, row: SpanRow, window: Window) -> list[Glyph]:
        glyphs = [BLANK] * window.columns
        for span in sorted(row.spans, key=lambda one: one.rank):
            first, last = (window.column(self.times[at]) for at in (span.first, span.last))
            for column in range(max(0, first), min(last, window.columns - 1)):
                glyphs[column] = Glyph(LINE, span.style)
            for at in range(span.first, span.last + 1):
                column = window.column(self.times[at])
                if 0 <= column < window.columns:
                    glyphs[column] = Glyph(span.glyph, span.style)
        return glyphs

    def as_text(self) -> str:
        """All rows as plain text."""
        window = self.window
        return "\n".join(
            cut(f" {visible(row.title)}", self.left) + RowDrawing(self._glyphs(row, window)).text for row in self.rows
        )
