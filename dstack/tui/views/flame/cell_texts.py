"""The texts of the icicle's cells: the labels in them, and the figures of the selected cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from dstack.analysis.stacks.icicle import Cell, Measure, Weights
from dstack.analysis.stacks.stack_tree import StackBranch
from dstack.analysis.views.thread_pages import Stacks
from dstack.report.safe_text import SafeText
from dstack.tui.views.stacks.line_parts import ORIGINS, activities_in_words, frame_location, short
from dstack.visible import visible
from dstack.words import plural, word

SHOWN_KINDS = 3


@dataclass(frozen=True, slots=True)
class CellTexts:
    """The texts of the cells of one merged tree."""

    stacks: Stacks
    root: StackBranch
    weights: Weights
    measure: Measure

    def label(self, cell: Cell) -> str:
        """Name and weight; where the cell has room also the ranks, and what the executions do if all are counted."""
        if cell.is_folded:
            return cell.label
        (branch,) = cell.branches
        label = f"{short(cell.label)} {cell.weight:,}"
        if branch.count < self.root.count and cell.place is not None and cell.place.is_frame:
            label = _longer(label, self._ranks(cell), cell)
        return _longer(label, activities_in_words(branch.activity), cell) if self.measure == "executions" else label

    def figures(self, cell: Cell, shown: int) -> Iterator[Text]:
        """Full name, share of all and of the ``shown`` weight, and kinds, ranks and nodes of the executions."""
        yield self._name(cell)
        total = self.weights.of(self.root)
        parts = [f"{cell.weight:,} of {total:,} = {share(cell.weight, total)}"]
        if cell.weight < shown < total:
            parts.append(f"{share(cell.weight, shown)} of what is shown")
        parts.append(activities_in_words(sum((branch.activity for branch in cell.branches), Counter())))
        if cell.own and cell.own < cell.weight:
            parts.append(f"{cell.own:,} {word(cell.own, 'ends', 'end')} here")
        yield SafeText("  ".join(parts))
        yield SafeText(self._kinds(cell), "dim")

    def _kinds(self, cell: Cell) -> str:
        kinds = Counter(one.kind for branch in cell.branches for one in branch.executions)
        first = ", ".join(f"{count:,} × {kind}" for kind, count in kinds.most_common(SHOWN_KINDS))
        nodes = len({one.node for branch in cell.branches for one in branch.executions})
        more = f" and {plural(len(kinds) - SHOWN_KINDS, 'more kind')}" if len(kinds) > SHOWN_KINDS else ""
        ranks = f", {found}" if (found := self._ranks(cell)) else ""
        return f"{first}{more}{ranks}, on {plural(nodes, 'node')}"

    def _ranks(self, cell: Cell) -> str:
        """The ranks of the executions, empty where ranks do not distinguish them."""
        return self.stacks.ranks_in_words([one for branch in cell.branches for one in branch.executions])

    def _name(self, cell: Cell) -> Text:
        if cell.is_folded:
            widest = ", ".join(short(branch.place.name) for branch in cell.branches[:SHOWN_KINDS] if branch.place)
            text = SafeText().append(f"{len(cell.branches):,} narrow branches", "bold")
            return text.append(f": {widest}, … Enter zooms in")
        place = cell.place
        if place is None or not place.is_frame:
            return SafeText().append(place.name if place else "All", "bold")
        text = SafeText().append(place.name, "bold").append(f"  {frame_location(place)}", "cyan")
        if place.name != place.function:
            text.append(f"  in {place.function}")
        source = self.stacks.index.snapshot.source_line(place.file, place.line)
        text.append(f"  {source}" if source else "", "italic")
        return text.append(f"  {ORIGINS[place.origin]} code", "dim")

    def row_as_text(self, row: tuple[Cell, ...]) -> str:
        """A row of cells as a line of plain text."""
        line = ""
        for cell in row:
            label = f"|{visible(self.label(cell))}"
            line = line.ljust(cell.start) + label[: cell.width].ljust(cell.width)
        return line.rstrip()


def _longer(label: str, words: str, cell: Cell) -> str:
    """The label with further words, if there are any and the cell has room for them."""
    longer = f"{label}  {words}"
    return longer if words and cell_len(longer) < cell.width - 1 else label


def share(part: int, total: int) -> str:
    """``12 %``, ``0.3 %``."""
    percent = 100 * part / total if total else 0.0
    return f"{percent:.0f} %" if percent >= 9.5 or percent == 0 else f"{percent:.1f} %"
