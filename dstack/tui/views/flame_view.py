"""The Flame view: merged stacks as an icicle, with a zoom into its branches."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from dstack.analysis.stacks.icicle import Icicle, IcicleCell, Weights, icicle
from dstack.analysis.stacks.stack_tree import PathBranch
from dstack.model.profile import PathStep
from dstack.report.rich_text import SafeText
from dstack.report.stacks_text import frame_location, short
from dstack.tui.views.base import GROUP, WHOLE, SourceLocation, following
from dstack.tui.views.flame_data import FlameDataView
from dstack.tui.views.flame_drawings import Drawing, WeightedDrawing, row_as_text
from dstack.tui.views.flame_functions import Functions
from dstack.tui.views.flame_selection import NO_LINES
from dstack.tui.views.stacks_view import StacksView
from dstack.tui.widgets.chart import NOTHING, Chart
from dstack.tui.widgets.outline import Detail, Outline
from dstack.words import SHOWN, plural, visible

Paths = tuple[tuple[tuple[PathStep, ...], int], ...]
"""Branches by their paths; in the order of time a path may come back, so also by where they begin."""
TEXT_WIDTH = 200
"""Width of an exported icicle, in characters."""


class Zoom:
    """A stack of zooms; each is one branch, or several narrow ones, by path, so that it survives another snapshot."""

    def __init__(self) -> None:
        self._zooms: list[Paths] = []

    @property
    def paths(self) -> Paths | None:
        """The paths of the current zoom; None without any."""
        return self._zooms[-1] if self._zooms else None

    def into(self, cell: IcicleCell[Any]) -> None:
        """Zoom into a cell; zoom out of the cell on top."""
        paths = tuple((branch.path, branch.begin) for branch in cell.branches)
        if cell.depth == 0 and not cell.is_folded:
            self.out()
        elif paths != self.paths:
            self._zooms.append(paths)

    def out(self) -> None:
        """Return to the previous zoom."""
        if self._zooms:
            self._zooms.pop()

    def reset(self) -> None:
        """Show all."""
        self._zooms.clear()

    def branches(self, root: PathBranch[Any], weights: Weights[Any]) -> tuple[PathBranch[Any], ...]:
        """The branches of the innermost zoom that exists in this tree; the root without any."""
        while self._zooms:
            found = [(path, root.find(path, begin)) for path, begin in self._zooms[-1]]
            existing = tuple(branch for path, branch in found if branch.path == path)
            if any(weights.of(branch) for branch in existing):
                return existing
            self._zooms.pop()
        return (root,)


class FlameView(FlameDataView):
    """All stacks merged, outermost frames on top. The width of a frame is its number of threads and coroutines.

    Enter or a second click zooms into the selected frame; Backspace or the right button zooms out. Frames that contain
    the words of the filter are marked with *. Colours show the origin of a frame; the pane below names it.

    d selects the time of tasks instead: the call tree, as wide as its attempts ran, in an interval that p, [ and ]
    choose. v compares with the interval, the snapshot or the recording before: + has a larger share now, - a smaller
    one, and m draws the widths of before.

    Profiles are drawn from the driver down through its waits; colours show what runs, sleeps, waits or queues. z draws
    the order of time, p a half, v compares the halves or two profiles.

    c lists all functions by their shares, with the callers of the selected one above it and its callees below; m sorts.
    """

    CSS_PATH = "flame.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("i", "zoom_in", "Zoom in", show=False, id="own.in", tooltip="Zoom into the selected frame"),
        Binding("backspace", "zoom_out", "Out", id="own.out", tooltip="Zoom out again"),
        Binding(
            "m",
            "measure",
            "Width",
            id="own.measure",
            tooltip="Width by all, waiting or running executions; of a comparison now or before; order of functions",
        ),
        GROUP,
        WHOLE,
        Binding("n", "found(1)", "Next", show=False, id="own.next", tooltip="Go to the next match"),
        Binding("N", "found(-1)", "Previous", show=False, id="own.before", tooltip="Go to the previous match"),
        Binding("L", "lines", "Lines", id="own.lines", tooltip="Steps and source lines of a profile, with their times"),
        Binding("x", "stacks", "Stack", id="own.stack", tooltip="Show this branch in the Stacks view"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.icicle: Icicle[Any] = NOTHING
        self._zoom = Zoom()
        self._words: tuple[str, ...] = ()
        self._is_of_lines = False
        self._step: PathStep | None = None
        self._place: PathStep | None = None

    # The view

    def compose_body(self) -> ComposeResult:
        yield Static(id="head")
        yield Chart(id="icicle", empty="")
        yield Outline(id="lines", empty=NO_LINES)
        yield Detail(id="figures")

    def use(self, drawing: Drawing) -> None:
        """Draw this; zoom and selection stay with their branches."""
        self.drawing = drawing
        self.set_class(self.profile is not None, "with-states")
        self._lines.show(drawing.lines)
        is_icicle = not self.is_of_lines and not self.is_of_functions
        if self._chart.display != is_icicle or self._lines.display != self.is_of_lines:
            self._chart.display, self._lines.display = is_icicle, self.is_of_lines
            for functions in self.query(Functions):
                functions.display = self.is_of_functions
            self.call_after_refresh(self._draw)  # only then the icicle has a width again
            self.call_after_refresh(self.focus_body)
        if self.is_of_functions:
            self.call_later(self._show_functions)
        self._draw()

    @property
    def is_of_functions(self) -> bool:
        """Whether functions are listed instead of an icicle."""
        return isinstance(self.drawing, WeightedDrawing) and bool(self.drawing.functions)

    async def _show_functions(self) -> None:
        """List the functions, the one of the cell that was selected last first."""
        if not self.query(Functions):
            await self.mount(Functions(), after=self._chart)
            self.focus_body()
        if isinstance(self.drawing, WeightedDrawing):
            self._functions.show(self.drawing, self._step)
            self._step = None

    def action_around(self) -> None:
        """List the functions, with callers and callees of the selected one; or draw all again."""
        self._step = self._chart.cell.place if self._chart.cell and not self.is_around else None
        super().action_around()

    def show_all(self) -> None:
        """Leave the zoom."""
        self._zoom.reset()

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self._draw)

    def filtered(self, text: str) -> int:
        """Mark the cells that contain all words; return how many do."""
        self._words = tuple(text.casefold().split())
        if self.is_of_lines:
            return self._lines.filter(text)
        if self.is_of_functions:
            self._show_head()
            return self._functions.filter(text)
        self._draw()
        return len(self._found())

    def _draw(self) -> None:
        if self._chart.size.width and self._chart.display:
            self._draw_icicle()
        self._show_figures(self._chart.cell)
        self._show_head()

    def _show_head(self) -> None:
        head = self.query_one("#head", Static)
        head.update(self._head())
        head.set_class(self.is_compared, "compared")

    def _draw_icicle(self) -> None:
        drawing = self.drawing
        branches = self._zoom.branches(drawing.root, drawing.weights)
        self.icicle = icicle(branches, drawing.weights, self._chart.size.width, in_order=drawing.in_order)
        self._chart.empty = drawing.empty
        self._chart.show(self.icicle, drawing.label, set(self._found()), drawing.tone)

    @property
    def is_of_lines(self) -> bool:
        """Whether the lines of a profile are shown instead of its icicle."""
        return self._is_of_lines and self.profile is not None

    @property
    def _lines(self) -> Outline:
        return self.query_one("#lines", Outline)

    @property
    def _chart(self) -> Chart:
        return self.query_one("#icicle", Chart)

    @property
    def _functions(self) -> Functions:
        return self.query_one(Functions)

    def _head(self) -> Text:
        """The zoom, what is drawn, and what is left out."""
        parts = list(self.drawing.head)
        if self.is_of_lines and parts:
            return SafeText(f"Lines of {parts[0]}")
        if self._words:
            parts.insert(0, self._matched())
        if self.is_of_functions:
            return SafeText("  ".join(["Functions", *parts]))
        if not self.icicle.to_scale:
            parts.insert(0, "NOT TO SCALE: all frames are narrow")
        if paths := self._zoom.paths:
            names = " › ".join(short(step.name) for step in paths[0][0][-SHOWN:])
            zoomed = names if len(paths) == 1 else plural(len(paths), "narrow branch", "narrow branches")
            parts.insert(0, f"⌫ all › {zoomed}")
        return SafeText("  ".join(parts))

    def _matched(self) -> str:
        """The share of what is shown that has a frame with the words, each stack counted once."""
        drawing = self.drawing
        branches = self._zoom.branches(drawing.root, drawing.weights)
        matched, shown = (sum(map(of, branches)) for of in (self._weight_matched, drawing.weights.of))
        return f"matched {100 * matched / shown if shown else 0.0:.1f} %"

    def _weight_matched(self, branch: Any) -> int:
        return self.drawing.matched(branch, self._words)

    @on(Chart.Selected, "#icicle")
    def show_selected(self, event: Chart.Selected) -> None:
        """Show the figures of the selected cell."""
        self._show_figures(event.cell)

    @on(Functions.Selected)
    def show_function(self, event: Functions.Selected) -> None:
        """Show the figures of the selected function."""
        self._place = event.place
        self.query_one(Detail).show(event.figures)

    def _show_figures(self, cell: IcicleCell[Any] | None) -> None:
        if not self.is_of_functions:
            self._place = cell.place if cell else None
            self.query_one(Detail).show(self._figures(cell) if cell and not self.is_of_lines else ())

    def _figures(self, cell: IcicleCell[Any]) -> list[Text]:
        return list(self.drawing.figures(cell, self.icicle.weight))

    @property
    def _location(self) -> SourceLocation | None:
        """The line of code of the line under the cursor."""
        match self._lines.cursor_line.data if self._lines.cursor_line else None:
            case (str(file), int(number)):
                return file, number
        return None

    def _found(self) -> list[IcicleCell[Any]]:
        """The cells that match the filter."""
        if not self._words:
            return []
        cells = (cell for row in self.icicle.rows for cell in row)
        return [cell for cell in cells if any(self.drawing.matches(one, self._words) for one in cell.branches)]

    # Keys

    @on(Chart.Chosen)
    def enter_zoom(self, event: Chart.Chosen) -> None:
        """Zoom into the chosen cell."""
        self._zoom.into(event.cell)
        self._draw()

    def action_zoom_in(self) -> None:
        self._chart.action_choose()

    @on(Chart.ZoomedOut)
    def action_zoom_out(self) -> None:
        if self.is_around:
            self.action_around()
        self._zoom.out()
        self._draw()

    def action_measure(self) -> None:
        """Select the next measure of the width, or the order of functions."""
        if self.is_of_functions:
            self._functions.sort()
        else:
            super().action_measure()

    def action_found(self, by: int) -> None:
        found = self._found()
        if not found:
            self.notify("No frame shown contains these words." if self._words else "Press / and enter words to find.")
            return
        self._chart.select(following(found, self._chart.cell, by))

    def action_lines(self) -> None:
        """Show the source of a profile with the time of each line, or its icicle again."""
        self._is_of_lines = not self._is_of_lines
        self._draw_anew()
        self.refresh_bindings()

    def action_stacks(self) -> None:
        if self._chart.cell is not None:
            self.app.call_later(self._go_to_stacks, self._chart.cell.branches[0].path)

    async def _go_to_stacks(self, path: tuple[PathStep, ...]) -> None:
        await self.app.switch_mode("stacks")
        if isinstance(self.app.screen, StacksView):
            self.app.screen.offer(self.host.shown)
            self.app.screen.reveal_branch(path, self.grouping, is_whole=self.is_whole)

    # Requests of the application

    def to_copy(self) -> str | None:
        """The figures of the selected frame, and the frames above it."""
        if self.is_of_lines:
            return self._lines.cursor_line.text.plain if self._lines.cursor_line else None
        cell = self._chart.cell
        if cell is None or self.is_of_functions:
            return self.query_one(Detail).text.plain or None
        path = cell.branches[0].path
        above = [f"{step.name}  {frame_location(step)}" if step.file else step.name for step in path]
        return "\n".join([*(line.plain for line in self._figures(cell)), *map(visible, above)])

    def to_export(self) -> str | None:
        """The icicle as lines of text."""
        if self.is_of_lines:
            return f"{self._head().plain}\n{self._lines.as_text()}"
        if self.is_of_functions:
            return f"{self._head().plain}\n{self._functions.as_text()}"
        weights = self.drawing.weights
        branches = self._zoom.branches(self.drawing.root, weights)
        drawn = icicle(branches, weights, TEXT_WIDTH, in_order=self.drawing.in_order)
        return "\n".join([self._head().plain, *(row_as_text(self.drawing, row) for row in drawn.rows)])

    def to_open(self) -> SourceLocation | None:
        """The line of code of the selected frame."""
        if self.is_of_lines:
            return self._location
        return (self._place.file, self._place.line) if self._place and self._place.file else None
