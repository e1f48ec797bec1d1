"""The functions of the Flame view as a table, with the callers of the selected one above it and its callees below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Static

from dstack.analysis.stacks.icicle import IcicleCell, icicle
from dstack.analysis.stacks.weighted_stacks import FunctionWeight, Side, without_line
from dstack.model.profile import PathStep
from dstack.report.rich_text import SafeText, location
from dstack.report.stacks_text import short
from dstack.tui.views.flame_drawings import WeightedDrawing, has_all, no_drawing
from dstack.tui.widgets.chart import Chart
from dstack.tui.widgets.outline import Line, Outline

SIDES: tuple[Side, ...] = ("callers", "callees")
EMPTY: dict[Side, str] = {"callers": "No callers.", "callees": "No callees."}


class Functions(Horizontal):
    """A table of functions, and the charts around the selected one; Enter in a chart selects another one."""

    @dataclass
    class Selected(Message):
        """Another function or cell is selected, or none is left: its figures and its line of code."""

        figures: Sequence[Text]
        place: PathStep | None

    def __init__(self) -> None:
        super().__init__(id="functions")
        self._drawing = no_drawing()
        self._drawings: dict[Side, WeightedDrawing] = {}
        self._words: tuple[str, ...] = ()
        self._is_by_own = False

    def compose(self) -> ComposeResult:
        with Vertical(id="table"):
            yield Static(id="columns")
            yield Outline(empty="No functions.")
        with Vertical():
            yield Chart(id="callers", is_upward=True)
            yield Chart(id="callees")

    # What is shown

    def show(self, drawing: WeightedDrawing, step: PathStep | None = None) -> None:
        """List the functions of a drawing, and select one if it is given."""
        self._drawing = drawing
        self._list()
        if step is not None:
            self._outline.reveal([key_of(step)])
        self._draw()

    def sort(self) -> None:
        """Sort by what is in the functions themselves, or by their totals again."""
        self._is_by_own = not self._is_by_own
        self._list()

    def filter(self, text: str) -> int:
        """List only functions that contain all words, and mark them in the charts; return how many there are."""
        self._words = tuple(text.casefold().split())
        found = self._outline.filter(text)
        self._draw()
        return found

    def as_text(self) -> str:
        """The table as plain text."""
        return f"{self._columns}\n{self._outline.as_text()}"

    @property
    def _outline(self) -> Outline:
        return self.query_one(Outline)

    @property
    def _columns(self) -> str:
        total, own = ("  TOTAL", "  SELF▼") if self._is_by_own else (" TOTAL▼", "   SELF")
        return f"  {total} {own}  FUNCTION"

    def _list(self) -> None:
        functions = list(self._drawing.functions)
        if self._is_by_own:
            functions.sort(key=lambda one: (-one.own, -one.total, one.step))
        self.query_one("#columns", Static).update(self._columns)
        self._outline.show([self._line(one) for one in functions])

    def _line(self, one: FunctionWeight) -> Line:
        total, own = (100 * part / (self._drawing.total or 1) for part in (one.total, one.own))
        text = SafeText(f"{total:5.1f} % {own:5.1f} %  ").append(short(one.step.name), "bold")
        text.append(f"  {location(one.step.file, one.step.line)}" if one.step.file else "", "cyan")
        return Line(key_of(one.step), text, data=one)

    @property
    def _function(self) -> FunctionWeight | None:
        line = self._outline.cursor_line
        return line.data if line is not None and isinstance(line.data, FunctionWeight) else None

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        """Draw the callers and the callees of the selected function."""
        one = self._function
        for side in SIDES:
            chart = self.query_one(f"#{side}", Chart)
            drawing = self._drawings[side] = self._drawing.around(one.step, side) if one else no_drawing()
            made = icicle(drawing.root.children, drawing.weights, chart.size.width)
            found = {cell for row in made.rows for cell in row if cell.place and self._is_found(cell.place)}
            chart.empty = EMPTY[side]
            chart.show(made, drawing.label, found, drawing.tone)

    def _is_found(self, step: PathStep) -> bool:
        return bool(self._words) and has_all(step, self._words)

    # The selection

    @on(Outline.Highlighted)
    def select_function(self, event: Outline.Highlighted) -> None:
        """Draw what is around another function."""
        event.stop()
        self._draw()
        one = self._function
        figures = list(self._drawing.function_figures(one)) if one else []
        self.post_message(self.Selected(figures, one.step if one else None))

    @on(Outline.Chosen)
    def enter_charts(self, event: Outline.Chosen) -> None:
        """Go from the table to the callees."""
        event.stop()
        self.query_one("#callees", Chart).focus()

    @on(Chart.Selected)
    def select_cell(self, event: Chart.Selected) -> None:
        """Show the figures of a caller or a callee."""
        event.stop()
        side: Side = "callers" if event.chart.id == "callers" else "callees"
        if event.chart.has_focus and event.cell is not None and side in self._drawings:
            figures = list(self._drawings[side].figures(event.cell, self._drawings[side].total))
            self.post_message(self.Selected(figures, event.cell.place))

    @on(Chart.Chosen)
    def choose_cell(self, event: Chart.Chosen) -> None:
        """Select the function of a caller or a callee in the table."""
        event.stop()
        self._choose(event.cell)

    @on(Chart.ZoomedOut)
    def return_to_table(self, event: Chart.ZoomedOut) -> None:
        """Go back to the table."""
        event.stop()
        self._outline.focus()

    def _choose(self, cell: IcicleCell[Any]) -> None:
        if cell.place is not None and self._outline.reveal([key_of(cell.place)]):
            self._outline.focus()


def key_of(step: PathStep) -> str:
    """The key of the line of a function."""
    return "\0".join(without_line(step))
