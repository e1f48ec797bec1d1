"""An icicle: rows of frames, each as wide as its weight, downward or upward. Only rows on the screen are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from dstack.analysis.stacks.icicle import Icicle, IcicleCell
from dstack.report.rich_text import row_of
from dstack.words import visible

NOTHING: Icicle[Any] = Icicle((), 0, True)
EDGE = "▏"
FOUND = "*"
CUT = "…"
RIGHT = 3
LEGIBLE = 4
"""A name in fewer cells is cut without the sign for it, which would leave no room."""


class Chart(ScrollView, can_focus=True):
    """The cells of an icicle, one of them selected by keys or the mouse."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "across(-1)", "Up", show=False, id="outline.up"),
        Binding("down,j", "across(1)", "Down", show=False, id="outline.down"),
        Binding("left,h", "along(-1)", "Left", show=False, id="outline.left"),
        Binding("right,l", "along(1)", "Right", show=False, id="outline.right"),
        Binding("home,g", "top", "Top", show=False, id="outline.first"),
        Binding("end,G", "bottom", "Deepest", show=False, id="outline.last"),
        Binding("enter", "choose", "Zoom in", show=False, id="outline.choose", tooltip="Zoom into the selected frame"),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "chart--user",
        "chart--library",
        "chart--ray",
        "chart--stdlib",
        "chart--group",
        "chart--runs",
        "chart--sleeps",
        "chart--waits",
        "chart--queue",
        "chart--resources",
        "chart--starts",
        "chart--outside",
        "chart--folded",
        "chart--more",
        "chart--less",
        "chart--same",
        "chart--selected",
        "chart--found",
    }

    @dataclass
    class Selected(Message):
        """Another cell is selected, or none is left."""

        chart: Chart
        cell: IcicleCell[Any] | None

        @property
        def control(self) -> Chart:
            """The chart that posted the message."""
            return self.chart

    @dataclass
    class Chosen(Message):
        """Enter was pressed on a cell, or the selected cell was clicked."""

        cell: IcicleCell[Any]

    class ZoomedOut(Message):
        """The right button was clicked, which zooms out."""

    def __init__(self, *, id: str | None = None, empty: str = "Nothing to show.", is_upward: bool = False) -> None:
        super().__init__(id=id)
        self.empty = empty
        self._is_upward = is_upward
        self._icicle: Icicle[Any] = NOTHING
        self._label: Callable[[IcicleCell[Any]], str] = lambda cell: cell.label
        self._tone: Callable[[IcicleCell[Any]], str] = _no_tone
        self._found: set[IcicleCell[Any]] = set()
        self.cell: IcicleCell[Any] | None = None

    def show(
        self,
        icicle: Icicle[Any],
        label: Callable[[IcicleCell[Any]], str],
        found: set[IcicleCell[Any]],
        tone: Callable[[IcicleCell[Any]], str] | None = None,
    ) -> None:
        """Draw another icicle; the selection moves to the same branch, else to its nearest ancestor.

        ``tone`` is ``more``, ``less`` or ``same`` for cells that are coloured by their change instead of their origin.
        """
        self._icicle, self._label, self._found, self._tone = icicle, label, found, tone or _no_tone
        self.virtual_size = Size(self.size.width, len(icicle.rows))
        self.select(self._corresponding(self.cell))
        self.refresh()

    def _corresponding(self, cell: IcicleCell[Any] | None) -> IcicleCell[Any] | None:
        """The cell of the same branch as a cell of another icicle, or of its deepest ancestor."""
        first = self._icicle.rows[0][0] if self._icicle.rows else None
        if cell is None or first is None:
            return first
        path = cell.branches[0].path
        best = first
        for row in self._icicle.rows:
            for other in row:
                above = other.branches[0].path
                if above == path[: len(above)] and len(above) >= len(best.branches[0].path):
                    best = other
        return best

    def select(self, cell: IcicleCell[Any] | None) -> None:
        """Select a cell of this icicle, and scroll to it."""
        is_other = cell != self.cell
        self.cell = cell
        if cell is not None:
            self.scroll_to_region(Region(0, self._turned(cell.depth), 1, 1), animate=False, force=True)
        if is_other:
            self.refresh()
            self.post_message(self.Selected(self, cell))

    def _turned(self, row: int) -> int:
        """The line of a row, or the row of a line; upward the first row is the last line."""
        return max(len(self._icicle.rows), self.size.height) - 1 - row if self._is_upward else row

    # Drawing

    def render_line(self, y: int) -> Strip:
        row, width = self._turned(y + self.scroll_offset.y), self.size.width
        if row >= len(self._icicle.rows):
            text = "" if self._icicle.rows else row_of(self.empty, y, width)
            return Strip([Segment(set_cell_size(text, width), self.rich_style + Style(dim=True))], width)
        segments: list[Segment] = []
        at = 0
        for cell in self._icicle.rows[row]:
            if cell.start > at:
                segments.append(Segment(" " * (cell.start - at), self.rich_style))
            segments += self._segments(cell)
            at = cell.start + cell.width
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def _segments(self, cell: IcicleCell[Any]) -> list[Segment]:
        style = self._style_of(cell)
        mark = FOUND if cell in self._found else ""
        label = _fitted(mark + visible(self._label(cell)), cell.width - 1)
        return [Segment(EDGE, Style(color=self.rich_style.bgcolor, bgcolor=style.bgcolor)), Segment(label, style)]

    def _style_of(self, cell: IcicleCell[Any]) -> Style:
        place = cell.place
        step = "group" if place is None or not place.is_frame else place.origin
        kind = "folded" if cell.is_folded else (place and place.state) or step
        name = self._tone(cell) or kind
        style = self.get_component_rich_style(f"chart--{name}")
        if cell in self._found:
            style += self.get_component_rich_style("chart--found")
        if cell == self.cell:
            style += self.get_component_rich_style("chart--selected")
        return style

    # Keys and clicks

    def action_across(self, by: int) -> None:
        """Select the cell above, or the widest cell below."""
        if self.cell is None:
            return
        by = -by if self._is_upward else by
        row = self.cell.depth + by
        if not 0 <= row < len(self._icicle.rows):
            return
        if by < 0:
            self.select(self._icicle.at(row, self.cell.start))
            return
        end = self.cell.start + self.cell.width
        below = [cell for cell in self._icicle.rows[row] if self.cell.start <= cell.start < end]
        if below:
            self.select(below[0])

    def action_along(self, by: int) -> None:
        if self.cell is not None:
            row = self._icicle.rows[self.cell.depth]
            self.select(row[max(0, min(row.index(self.cell) + by, len(row) - 1))])

    def action_top(self) -> None:
        if self._icicle.rows:
            self.select(self._icicle.rows[0][0])

    def action_bottom(self) -> None:
        """Follow the widest cells below to the last row."""
        before = None
        while before != self.cell:
            before = self.cell
            self.action_across(-1 if self._is_upward else 1)

    def action_choose(self) -> None:
        if self.cell is not None:
            self.post_message(self.Chosen(self.cell))

    def on_click(self, event: events.Click) -> None:
        """Select the clicked cell, choose it if it is selected, or zoom out with the right button."""
        if event.button == RIGHT:
            self.post_message(self.ZoomedOut())
            return
        cell = self._icicle.at(self._turned(event.y + self.scroll_offset.y), event.x)
        if cell is None:
            return
        if cell == self.cell:
            self.action_choose()
        else:
            self.select(cell)


def _no_tone(_: object) -> str:
    return ""


def _fitted(text: str, width: int) -> str:
    """The text in so many cells, cut if it is longer."""
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width) if width < LEGIBLE else set_cell_size(text, width - 1) + CUT
