"""An icicle drawn with cells: rows of frames, each as wide as its weight, only those on the screen ever drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from dstack.analysis.stacks.icicle import Cell, Icicle
from dstack.visible import visible

NOTHING = Icicle((), 0, True)
EDGE = "▏"
FOUND = "*"
CUT = "…"
RIGHT = 3
LEGIBLE = 4
"""In fewer cells, a sign that a name is cut would take the place of the name."""


class Chart(ScrollView, can_focus=True):
    """The rectangles of an icicle, one of them selected by keys or the mouse."""

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
        "chart--folded",
        "chart--selected",
        "chart--found",
    }

    class Selected(Message):
        """Another cell is selected, or none."""

        def __init__(self, cell: Cell | None) -> None:
            super().__init__()
            self.cell = cell

    class Chosen(Message):
        """Enter was pressed on a cell, or it was clicked when selected."""

        def __init__(self, cell: Cell) -> None:
            super().__init__()
            self.cell = cell

    class Left(Message):
        """The right button was clicked: out again."""

    def __init__(self, *, id: str | None = None, empty: str = "Nothing to show.") -> None:
        super().__init__(id=id)
        self._empty = empty
        self._icicle = NOTHING
        self._label: Callable[[Cell], str] = lambda cell: cell.label
        self._found: set[Cell] = set()
        self.cell: Cell | None = None

    def show(self, icicle: Icicle, label: Callable[[Cell], str], found: set[Cell]) -> None:
        """Draws another icicle; selected is the cell of the same branch, else the nearest above it, else the first."""
        self._icicle, self._label, self._found = icicle, label, found
        self.virtual_size = Size(self.size.width, len(icicle.rows))
        self.select(self._same(self.cell))
        self.refresh()

    def _same(self, cell: Cell | None) -> Cell | None:
        """The cell that shows the first branch of one of another icicle, or the deepest that shows what is above it."""
        first = self._icicle.rows[0][0] if self._icicle.rows else None
        if cell is None or first is None:
            return first
        path = cell.branches[0].path
        best = first
        for row in self._icicle.rows:
            for one in row:
                its = one.branches[0].path
                if its == path[: len(its)] and len(its) >= len(best.branches[0].path):
                    best = one
        return best

    def select(self, cell: Cell | None) -> None:
        """Selects a cell of this icicle and brings it onto the screen."""
        is_other = cell != self.cell
        self.cell = cell
        if cell is not None:
            self.scroll_to_region(Region(0, cell.depth, 1, 1), animate=False, force=True)
        if is_other:
            self.refresh()
            self.post_message(self.Selected(cell))

    # Drawing

    def render_line(self, y: int) -> Strip:
        """One row of cells."""
        row, width = y + self.scroll_offset.y, self.size.width
        if row >= len(self._icicle.rows):
            text = self._empty if not self._icicle.rows and y == 0 else ""
            return Strip([Segment(set_cell_size(text, width), self.rich_style + Style(dim=True))], width)
        segments: list[Segment] = []
        at = 0
        for cell in self._icicle.rows[row]:
            if cell.start > at:
                segments.append(Segment(" " * (cell.start - at), self.rich_style))
            segments += self._drawn(cell)
            at = cell.start + cell.width
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def _drawn(self, cell: Cell) -> list[Segment]:
        style = self._style_of(cell)
        mark = FOUND if cell in self._found else ""
        label = _fitted(mark + visible(self._label(cell)), cell.width - 1)
        return [Segment(EDGE, Style(color=self.rich_style.bgcolor, bgcolor=style.bgcolor)), Segment(label, style)]

    def _style_of(self, cell: Cell) -> Style:
        place = cell.place
        name = "folded" if cell.is_folded else "group" if place is None or not place.is_frame else place.origin
        style = self.get_component_rich_style(f"chart--{name}")
        if cell in self._found:
            style += self.get_component_rich_style("chart--found")
        if cell == self.cell:
            style += self.get_component_rich_style("chart--selected")
        return style

    # Moving

    def action_across(self, by: int) -> None:
        """To the cell above, or to the widest below."""
        if self.cell is None:
            return
        row = self.cell.depth + by
        if not 0 <= row < len(self._icicle.rows):
            return
        if by < 0:
            self.select(self._icicle.at(row, self.cell.start))
            return
        end = self.cell.start + self.cell.width
        below = [one for one in self._icicle.rows[row] if self.cell.start <= one.start < end]
        if below:
            self.select(below[0])

    def action_along(self, by: int) -> None:
        """To the next cell of the row."""
        if self.cell is not None:
            row = self._icicle.rows[self.cell.depth]
            self.select(row[max(0, min(row.index(self.cell) + by, len(row) - 1))])

    def action_top(self) -> None:
        """To the first cell."""
        if self._icicle.rows:
            self.select(self._icicle.rows[0][0])

    def action_bottom(self) -> None:
        """As deep as the widest way below the cell goes."""
        before = None
        while before != self.cell:
            before = self.cell
            self.action_across(1)

    def action_choose(self) -> None:
        """Posts that the cell was chosen."""
        if self.cell is not None:
            self.post_message(self.Chosen(self.cell))

    def on_click(self, event: events.Click) -> None:
        """A click selects a cell, another one chooses it; one with the right button goes out."""
        if event.button == RIGHT:
            self.post_message(self.Left())
            return
        cell = self._icicle.at(event.y + self.scroll_offset.y, event.x)
        if cell is None:
            return
        if cell == self.cell:
            self.action_choose()
        else:
            self.select(cell)


def _fitted(text: str, width: int) -> str:
    """The text in so many cells, cut where it is too long."""
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width) if width < LEGIBLE else set_cell_size(text, width - 1) + CUT
