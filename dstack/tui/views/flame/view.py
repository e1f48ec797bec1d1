"""The merged stacks as an icicle: how many are where, at a glance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from dstack.analysis.stacks.app_threads import Place as Step
from dstack.analysis.stacks.icicle import Cell, Icicle, Measure, Weights, icicle, weigh_by
from dstack.analysis.stacks.outliers import Marked
from dstack.analysis.stacks.stack_tree import Branch, grouping_in_words, merge
from dstack.report.safe_text import SafeText
from dstack.tui.source import Look
from dstack.tui.views.base import Place
from dstack.tui.views.grouped_view import GROUP, WHOLE, GroupedView
from dstack.tui.views.stacks.lines import ORIGINS, at, doing_in_words, short
from dstack.tui.views.stacks.view import StacksView
from dstack.tui.widgets.chart import NOTHING, Chart
from dstack.tui.widgets.detail import Detail
from dstack.visible import visible
from dstack.words import plural, word

MEASURES: tuple[Measure, ...] = ("executions", "waiting", "running")
SHOWN_KINDS = 3
TEXT_WIDTH = 200
"""An exported icicle is so many characters wide."""


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
        self.is_whole = False
        self.zooms: list[tuple[tuple[Step, ...], ...]] = []
        self.icicle: Icicle = NOTHING
        self._words: tuple[str, ...] = ()
        self._root: Branch = merge(())
        self._weights = Weights(self._root, weigh_by("executions"))
        self._terms: set[str] = set()
        self._with_terms = Marked(self._root, ())

    # The view

    def compose_body(self) -> ComposeResult:
        """What is shown, the icicle, and the figures of the selected frame."""
        yield Static(id="head")
        yield Chart(empty="No such executions. Press x to count others.")
        yield Detail(id="figures")

    def show(self, look: Look) -> None:
        """Merges the look's stacks; zoom and selection stay with their branches."""
        self._root = merge(look.stacks.running(whole=self.is_whole).executions, by=self.grouping)
        self._weights = Weights(self._root, weigh_by(self.measure))
        self._search()
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """Draws it as wide as the screen."""
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        if self.look is None or not self._chart.size.width:
            return
        top = self._top()
        self.icicle = icicle(top, self._weights, self._chart.size.width)
        self._chart.show(self.icicle, self._label, set(self._found()))
        self._tell(self._chart.cell)
        self.query_one("#head", Static).update(self._head())

    @property
    def _chart(self) -> Chart:
        return self.query_one(Chart)

    def _top(self) -> tuple[Branch, ...]:
        """The branches zoomed on, as far as they are still there."""
        while self.zooms:
            found = [(path, self._root.find(path)) for path in self.zooms[-1]]
            there = tuple(branch for path, branch in found if branch.path == path)
            if any(self._weights.of(branch) for branch in there):
                return there
            self.zooms.pop()
        return (self._root,)

    def _head(self) -> Text:
        """How wide is what, what is left out, and where one is."""
        assert self.look is not None
        found = self.look.stacks.running(whole=self.is_whole)
        counted = {"executions": "all threads and coroutines", "waiting": "waiting ones", "running": "running ones"}
        parts = [f"Width: {counted[self.measure]}", grouping_in_words(self.grouping) or "not grouped"]
        if self.zooms:
            zoom = self.zooms[-1]
            names = " › ".join(short(step.name) for step in zoom[0][-SHOWN_KINDS:])
            parts.insert(
                0, f"⌫ all › {names if len(zoom) == 1 else plural(len(zoom), 'narrow branch', 'narrow branches')}"
            )
        if not self.icicle.to_scale:
            parts.append("NOT TO SCALE: all frames are narrow")
        if found.left_out:
            parts.append(f"{plural(found.left_out, 'thread')} of Ray left out")
        if found.folded:
            parts.append(f"{plural(found.folded, 'library frame')} folded")
        return SafeText("  ".join(parts))

    def _label(self, cell: Cell) -> str:
        """The name with its weight, and where there is room, with the ranks, and what they do if all have width."""
        if cell.is_folded:
            return cell.label
        (branch,) = cell.branches
        label = f"{short(cell.label)} {cell.weight:,}"
        if branch.count < self._root.count and cell.place is not None and cell.place.is_frame:
            label = _longer(label, self._slice(branch), cell)
        return _longer(label, doing_in_words(branch.doing), cell) if self.measure == "executions" else label

    def _slice(self, *branches: Branch) -> str:
        """The ranks of those in some branches, where these tell them apart."""
        executions = [one for branch in branches for one in branch.executions]
        return self.look.stacks.slice(executions) if self.look else ""

    # The selected frame

    @on(Chart.Selected)
    def tell_selected(self, event: Chart.Selected) -> None:
        """Tells the full text and the figures."""
        self._tell(event.cell)

    def _tell(self, cell: Cell | None) -> None:
        self.query_one(Detail).tell(self._figures(cell) if cell else ())

    def _figures(self, cell: Cell) -> Iterator[Text]:
        yield self._name_of(cell)
        counts = sum((branch.doing for branch in cell.branches), Counter())
        total = self._weights.of(self._root)
        parts = [f"{cell.weight:,} of {total:,} = {share(cell.weight, total)}"]
        if cell.weight < self.icicle.weight < total:
            parts.append(f"{share(cell.weight, self.icicle.weight)} of what is shown")
        parts.append(doing_in_words(counts))
        if cell.own and cell.own < cell.weight:
            parts.append(f"{cell.own:,} {word(cell.own, 'ends', 'end')} here")
        yield SafeText("  ".join(parts))
        kinds = Counter(one.kind for branch in cell.branches for one in branch.executions)
        who = ", ".join(f"{count:,} × {kind}" for kind, count in kinds.most_common(SHOWN_KINDS))
        nodes = len({one.node for branch in cell.branches for one in branch.executions})
        more = f" and {plural(len(kinds) - SHOWN_KINDS, 'more kind')}" if len(kinds) > SHOWN_KINDS else ""
        ranks = f", {found}" if (found := self._slice(*cell.branches)) else ""
        yield SafeText(f"{who}{more}{ranks}, on {plural(nodes, 'node')}", "dim")

    def _name_of(self, cell: Cell) -> Text:
        if cell.is_folded:
            widest = ", ".join(short(branch.place.name) for branch in cell.branches[:SHOWN_KINDS] if branch.place)
            return (
                SafeText()
                .append(f"{len(cell.branches):,} narrow branches", "bold")
                .append(f": {widest}, … Enter zooms in")
            )
        place = cell.place
        if place is None or not place.is_frame:
            return SafeText().append(place.name if place else "All", "bold")
        text = SafeText().append(place.name, "bold").append(f"  {at(place)}", "cyan")
        if place.name != place.function:
            text.append(f"  in {place.function}")
        source = self.look.snapshot.sources.get(place.file, {}).get(place.line, "").strip() if self.look else ""
        text.append(f"  {source}" if source else "", "italic")
        return text.append(f"  {ORIGINS[place.origin]} code", "dim")

    # Keys

    @on(Chart.Left)
    def zoom_back(self) -> None:
        """Back to what was shown before."""
        self.action_zoom_out()

    @on(Chart.Chosen)
    def zoom_into(self, event: Chart.Chosen) -> None:
        """Makes the frame as wide as all."""
        paths = tuple(branch.path for branch in event.cell.branches)
        if event.cell.depth == 0 and not event.cell.is_folded:
            self.action_zoom_out()
        elif not self.zooms or self.zooms[-1] != paths:
            self.zooms.append(paths)
            self._draw()

    def action_zoom_in(self) -> None:
        """Makes the selected frame as wide as all."""
        self._chart.action_choose()

    def action_zoom_out(self) -> None:
        """Back to what was shown before."""
        if self.zooms:
            self.zooms.pop()
            self._draw()

    def action_measure(self) -> None:
        """Goes on to the next thing to count."""
        self.measure = MEASURES[(MEASURES.index(self.measure) + 1) % len(MEASURES)]
        self._anew()

    def regroup(self) -> None:
        """Merges in other groups, all of which are shown."""
        self.zooms = []
        self._anew()

    def action_whole(self) -> None:
        """Whole stacks, or only the application's own frames."""
        self.is_whole = not self.is_whole
        self.zooms = []
        self._anew()

    def _anew(self) -> None:
        if self.look is not None:
            self.show(self.look)

    def action_found(self, by: int) -> None:
        """Selects the next cell in which the words are."""
        found = self._found()
        if not found:
            self.notify("No frame shown contains these words." if self._words else "Press / and enter words to find.")
            return
        cell = self._chart.cell
        index = found.index(cell) if cell in found else -1 if by > 0 else 0
        self._chart.select(found[(index + by) % len(found)])

    def action_stacks(self) -> None:
        """Goes to the selected branch among the merged stacks."""
        if self._chart.cell is not None:
            self.app.call_later(self._go_to_stacks, self._chart.cell.branches[0].path)

    async def _go_to_stacks(self, path: tuple[Step, ...]) -> None:
        await self.app.switch_mode("stacks")
        if isinstance(self.app.screen, StacksView):
            self.app.screen.offer(self.host.shown)
            self.app.screen.reveal_branch(path, self.grouping, is_whole=self.is_whole)

    # The filter, which marks

    def filtered(self, text: str) -> int:
        """Marks the cells in which all the words are; returns how many are."""
        self._words = tuple(text.casefold().split())
        self._search()
        self._draw()
        return len(self._found())

    def _search(self) -> None:
        """Finds the executions that have all those words that are ranks, dimensions or labels."""
        found = {one.key: one.ranks.terms for one in self._root.executions if self._words}
        known: set[str] = set().union(*found.values())
        self._terms = known.intersection(self._words)
        self._with_terms = Marked(self._root, (key for key, terms in found.items() if terms >= self._terms))

    def _found(self) -> list[Cell]:
        if not self._words:
            return []
        return [cell for row in self.icicle.rows for cell in row if any(map(self._has_words, cell.branches))]

    def _has_words(self, branch: Branch) -> bool:
        """Whether the words are in the branch's frame, and their terms those of one of its executions."""
        place = branch.place
        if place is None:
            return False
        text = f"{place.name} {place.function} {place.file}:{place.line}".casefold()
        is_there = all(word in text for word in self._words if word not in self._terms)
        return is_there and (not self._terms or bool(self._with_terms.within(branch)))

    # What it can be asked for

    def to_copy(self) -> str | None:
        """The selected frame with its figures, and the frames above it."""
        cell = self._chart.cell
        if cell is None:
            return None
        above = [f"{step.name}  {at(step)}" if step.is_frame else step.name for step in cell.branches[0].path]
        return "\n".join([*(line.plain for line in self._figures(cell)), *map(visible, above)])

    def to_export(self) -> str | None:
        """The icicle as lines of text."""
        drawn = icicle(self._top(), self._weights, TEXT_WIDTH)
        return "\n".join([self._head().plain, *(self._as_text(row) for row in drawn.rows)])

    def _as_text(self, row: tuple[Cell, ...]) -> str:
        line = ""
        for cell in row:
            label = f"|{visible(self._label(cell))}"
            line = line.ljust(cell.start) + label[: cell.width].ljust(cell.width)
        return line.rstrip()

    def to_open(self) -> Place | None:
        """The line of the selected frame."""
        place = self._chart.cell.place if self._chart.cell else None
        return (place.file, place.line) if place and place.is_frame else None


def _longer(label: str, words: str, cell: Cell) -> str:
    """The label with more words, if there are any and the cell has room for them."""
    longer = f"{label}  {words}"
    return longer if words and cell_len(longer) < cell.width - 1 else label


def share(part: int, total: int) -> str:
    """``12 %``, ``0.3 %``."""
    percent = 100 * part / total if total else 0.0
    return f"{percent:.0f} %" if percent >= 9.5 or percent == 0 else f"{percent:.1f} %"
