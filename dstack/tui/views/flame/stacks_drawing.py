"""The stacks of a snapshot as a drawing: labels of cells, and the figures of the selected cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.text import Text

from dstack.analysis.stacks.app_threads import Execution
from dstack.analysis.stacks.icicle import Cell, Measure, Weights, weigh_by
from dstack.analysis.stacks.stack_tree import Grouping, PathBranch, StackBranch, grouping_in_words, merge
from dstack.analysis.views.thread_pages import Stacks
from dstack.report.safe_text import SafeText
from dstack.tui.views.flame.drawing import SHOWN_KINDS, folded_name, frame_name, longer, share
from dstack.tui.views.flame.frame_filter import FrameFilter
from dstack.tui.views.stacks.line_parts import activities_in_words, short
from dstack.words import plural, word

MEASURES: dict[Measure, str] = {
    "executions": "all threads and coroutines",
    "waiting": "waiting ones",
    "running": "running ones",
}


@dataclass(frozen=True)
class StacksDrawing:
    """The stacks of a snapshot, merged by a grouping; ``whole`` ones, or with only the application's frames."""

    stacks: Stacks
    grouping: Grouping | None
    measure: Measure
    whole: bool
    empty: str = "No such executions. Press x to count others."

    @cached_property
    def root(self) -> StackBranch:
        """The merged stacks."""
        return merge(self.stacks.running(whole=self.whole).executions, by=self.grouping)

    @cached_property
    def weights(self) -> Weights[Execution]:
        """Each execution counts 1, or 0 if it is not of the measure."""
        return Weights(self.root, weigh_by(self.measure))

    @property
    def head(self) -> Sequence[str]:
        """The measure, the grouping, and what is left out."""
        running = self.stacks.running(whole=self.whole)
        parts = [f"Width: {MEASURES[self.measure]}", grouping_in_words(self.grouping) or "not grouped"]
        if running.left_out:
            parts.append(f"{plural(running.left_out, 'thread')} of Ray left out")
        if running.folded:
            parts.append(f"{plural(running.folded, 'library frame')} folded")
        return parts

    def label(self, cell: Cell[StackBranch]) -> str:
        """Name and weight; where the cell has room also the ranks, and what the executions do if all are counted."""
        if cell.is_folded:
            return cell.label
        (branch,) = cell.branches
        label = f"{short(cell.label)} {cell.weight:,}"
        if branch.count < self.root.count and cell.place is not None and cell.place.is_frame:
            label = longer(label, self._ranks(cell), cell)
        return longer(label, activities_in_words(branch.activity), cell) if self.measure == "executions" else label

    def tone(self, cell: Cell[StackBranch]) -> str:
        """Empty: nothing is compared."""
        return ""

    def figures(self, cell: Cell[StackBranch], shown: int) -> Iterator[Text]:
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

    def matches(self, branch: PathBranch[Any], words: tuple[str, ...]) -> bool:
        """Whether the frame contains all words, and one of its executions has all terms, such as ``rank:3``."""
        if words not in self._filters:
            self._filters[words] = FrameFilter(self.root, words)
        return self._filters[words].matches(branch)

    @cached_property
    def _filters(self) -> dict[tuple[str, ...], FrameFilter]:
        return {}

    def _kinds(self, cell: Cell[StackBranch]) -> str:
        kinds = Counter(one.kind for branch in cell.branches for one in branch.executions)
        first = ", ".join(f"{count:,} × {kind}" for kind, count in kinds.most_common(SHOWN_KINDS))
        nodes = len({one.node for branch in cell.branches for one in branch.executions})
        more = f" and {plural(len(kinds) - SHOWN_KINDS, 'more kind')}" if len(kinds) > SHOWN_KINDS else ""
        ranks = f", {found}" if (found := self._ranks(cell)) else ""
        return f"{first}{more}{ranks}, on {plural(nodes, 'node')}"

    def _ranks(self, cell: Cell[StackBranch]) -> str:
        """The ranks of the executions, empty where ranks do not distinguish them."""
        return self.stacks.ranks_in_words([one for branch in cell.branches for one in branch.executions])

    def _name(self, cell: Cell[StackBranch]) -> Text:
        place = cell.place
        if cell.is_folded:
            return folded_name(cell)
        if place is None or not place.is_frame:
            return SafeText().append(place.name if place else "All", "bold")
        return frame_name(place, self.stacks.index.snapshot.source_line(place.file, place.line) or "")
