"""The Flame view: all stacks merged into an icicle, which shows how many executions are in which code."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from dstack.analysis.stacks.app_threads import PathStep
from dstack.analysis.stacks.icicle import Cell, Icicle, Measure, Weights, icicle, weigh_by
from dstack.analysis.stacks.outliers import OutlierIndex
from dstack.analysis.stacks.stack_tree import StackBranch, grouping_in_words, merge
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.report.safe_text import SafeText
from dstack.tui.views.base import GROUP, WHOLE, GroupedView, SourceLocation
from dstack.tui.views.flame.cell_texts import SHOWN_KINDS, CellTexts
from dstack.tui.views.stacks.line_parts import frame_location, short
from dstack.tui.views.stacks.view import StacksView
from dstack.tui.widgets.chart import NOTHING, Chart
from dstack.tui.widgets.detail import Detail
from dstack.visible import visible
from dstack.words import plural

MEASURES: dict[Measure, str] = {
    "executions": "all threads and coroutines",
    "waiting": "waiting ones",
    "running": "running ones",
}
TEXT_WIDTH = 200
"""Width of an exported icicle, in characters."""


class FlameView(GroupedView):
    """All stacks merged, outermost frames on top. The width of a frame is its number of threads and coroutines.

    Enter or a second click zooms into the selected frame; Backspace or the right button zooms out. Frames that contain
    the words of the filter are marked with *. Colours show the origin of a frame; the pane below names it.
    """

    CSS_PATH = "flame.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("i", "zoom_in", "Zoom in", show=False, id="own.in", tooltip="Zoom into the selected frame"),
        Binding("backspace", "zoom_out", "Out", id="own.out", tooltip="Zoom out again"),
        Binding(
            "x",
            "measure",
            "Width",
            id="own.measure",
            tooltip="Width by all executions, by waiting ones or by running ones",
        ),
        GROUP,
        WHOLE,
        Binding("n", "found(1)", "Next", show=False, id="own.next", tooltip="Go to the next match"),
        Binding("N", "found(-1)", "Previous", show=False, id="own.before", tooltip="Go to the previous match"),
        Binding("t", "stacks", "Stacks", id="own.stacks", tooltip="Show this branch in the Stacks view"),
    ]

    def __init__(self) -> None:
        super().__init__(grouping="kind")
        self.measure: Measure = "executions"
        self.icicle: Icicle = NOTHING
        self.root: StackBranch = merge(())
        self._weights = Weights(self.root, weigh_by(self.measure))
        self._texts: CellTexts | None = None
        self._zoom = Zoom()
        self._words: tuple[str, ...] = ()
        self._filter = FrameFilter(self.root, ())

    # The view

    def compose_body(self) -> ComposeResult:
        """The settings, the icicle, and the figures of the selected frame."""
        yield Static(id="head")
        yield Chart(empty="No such executions. Press x to count others.")
        yield Detail(id="figures")

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Merge the stacks; zoom and selection stay with their branches."""
        self.root = merge(analysed.stacks.running(whole=self.is_whole).executions, by=self.grouping)
        self._weights = Weights(self.root, weigh_by(self.measure))
        self._texts = CellTexts(analysed.stacks, self.root, self._weights, self.measure)
        self._filter = FrameFilter(self.root, self._words)
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """Draw the icicle as wide as the screen."""
        self.call_after_refresh(self._draw)

    def filtered(self, text: str) -> int:
        """Mark the cells that contain all words; return how many do."""
        self._words = tuple(text.casefold().split())
        self._filter = FrameFilter(self.root, self._words)
        self._draw()
        return len(self._found())

    def _draw(self) -> None:
        if self._texts is None or not self._chart.size.width:
            return
        branches = self._zoom.branches(self.root, self._weights)
        self.icicle = icicle(branches, self._weights, self._chart.size.width)
        self._chart.show(self.icicle, self._texts.label, set(self._found()))
        self._show_figures(self._chart.cell)
        self.query_one("#head", Static).update(self._head())

    @property
    def _chart(self) -> Chart:
        return self.query_one(Chart)

    def _head(self) -> Text:
        """The zoom, the measure, the grouping, and what is left out."""
        assert self.analysed is not None
        running = self.analysed.stacks.running(whole=self.is_whole)
        parts = [f"Width: {MEASURES[self.measure]}", grouping_in_words(self.grouping) or "not grouped"]
        if paths := self._zoom.paths:
            names = " › ".join(short(step.name) for step in paths[0][-SHOWN_KINDS:])
            zoomed = names if len(paths) == 1 else plural(len(paths), "narrow branch", "narrow branches")
            parts.insert(0, f"⌫ all › {zoomed}")
        if not self.icicle.to_scale:
            parts.append("NOT TO SCALE: all frames are narrow")
        if running.left_out:
            parts.append(f"{plural(running.left_out, 'thread')} of Ray left out")
        if running.folded:
            parts.append(f"{plural(running.folded, 'library frame')} folded")
        return SafeText("  ".join(parts))

    @on(Chart.Selected)
    def show_selected(self, event: Chart.Selected) -> None:
        """Show the figures of the selected cell."""
        self._show_figures(event.cell)

    def _show_figures(self, cell: Cell | None) -> None:
        self.query_one(Detail).show(self._figures(cell) if cell else ())

    def _figures(self, cell: Cell) -> list[Text]:
        return list(self._texts.figures(cell, self.icicle.weight)) if self._texts else []

    def _found(self) -> list[Cell]:
        """The cells that match the filter."""
        if not self._words:
            return []
        return [cell for row in self.icicle.rows for cell in row if any(map(self._filter.matches, cell.branches))]

    # Keys

    @on(Chart.Chosen)
    def enter_zoom(self, event: Chart.Chosen) -> None:
        """Zoom into the chosen cell."""
        self._zoom.into(event.cell)
        self._draw()

    def action_zoom_in(self) -> None:
        """Zoom into the selected cell."""
        self._chart.action_choose()

    @on(Chart.ZoomedOut)
    def action_zoom_out(self) -> None:
        """Return to the previous zoom."""
        self._zoom.out()
        self._draw()

    def action_measure(self) -> None:
        """Select the next measure of the width."""
        measures = list(MEASURES)
        self.measure = measures[(measures.index(self.measure) + 1) % len(measures)]
        self._show_again()

    def merge_again(self) -> None:
        """Merge the stacks again, and show all of them."""
        self._zoom.reset()
        self._show_again()

    def _show_again(self) -> None:
        if self.analysed is not None:
            self.show(self.analysed)

    def action_found(self, by: int) -> None:
        """Select the next cell that matches the filter."""
        found = self._found()
        if not found:
            self.notify("No frame shown contains these words." if self._words else "Press / and enter words to find.")
            return
        cell = self._chart.cell
        index = found.index(cell) if cell in found else -1 if by > 0 else 0
        self._chart.select(found[(index + by) % len(found)])

    def action_stacks(self) -> None:
        """Go to the selected branch in the Stacks view."""
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
        cell = self._chart.cell
        if cell is None:
            return None
        path = cell.branches[0].path
        above = [f"{step.name}  {frame_location(step)}" if step.is_frame else step.name for step in path]
        return "\n".join([*(line.plain for line in self._figures(cell)), *map(visible, above)])

    def to_export(self) -> str | None:
        """The icicle as lines of text."""
        if self._texts is None:
            return None
        drawn = icicle(self._zoom.branches(self.root, self._weights), self._weights, TEXT_WIDTH)
        return "\n".join([self._head().plain, *map(self._texts.row_as_text, drawn.rows)])

    def to_open(self) -> SourceLocation | None:
        """The line of code of the selected frame."""
        place = self._chart.cell.place if self._chart.cell else None
        return (place.file, place.line) if place and place.is_frame else None


Paths = tuple[tuple[PathStep, ...], ...]


class Zoom:
    """A stack of zooms; each is one branch, or several narrow ones, by path, so that it survives another snapshot."""

    def __init__(self) -> None:
        self._zooms: list[Paths] = []

    @property
    def paths(self) -> Paths | None:
        """The paths of the current zoom; None without any."""
        return self._zooms[-1] if self._zooms else None

    def into(self, cell: Cell) -> None:
        """Zoom into a cell; zoom out of the cell on top."""
        paths = tuple(branch.path for branch in cell.branches)
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

    def branches(self, root: StackBranch, weights: Weights) -> tuple[StackBranch, ...]:
        """The branches of the innermost zoom that exists in this tree; the root without any."""
        while self._zooms:
            found = [(path, root.find(path)) for path in self._zooms[-1]]
            existing = tuple(branch for path, branch in found if branch.path == path)
            if any(weights.of(branch) for branch in existing):
                return existing
            self._zooms.pop()
        return (root,)


class FrameFilter:
    """Matches frames by their text, and by the ranks, dimensions and labels of their executions, such as ``rank:3``."""

    def __init__(self, root: StackBranch, words: tuple[str, ...]) -> None:
        terms = {execution.key: execution.ranks.terms for execution in root.executions if words}
        known: set[str] = set().union(*terms.values())
        wanted = known.intersection(words)
        self._words = tuple(word for word in words if word not in wanted)
        self._is_by_terms = bool(wanted)
        self._with_terms = OutlierIndex(root, (key for key, own in terms.items() if own >= wanted))

    def matches(self, branch: StackBranch) -> bool:
        """Whether the branch's frame contains all words, and one of its executions has all terms."""
        place = branch.place
        if place is None:
            return False
        text = f"{place.name} {place.function} {place.file}:{place.line}".casefold()
        has_words = all(word in text for word in self._words)
        return has_words and (not self._is_by_terms or bool(self._with_terms.within(branch)))
