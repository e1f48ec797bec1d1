"""Weighted stacks as a drawing: times of tasks, samples of recordings, and comparisons of two of a kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from dstack.analysis.history.task_time import Path, Runs, runs_of
from dstack.analysis.stacks.icicle import Cell, Weights
from dstack.analysis.stacks.weighted_stacks import Change, Shares, Unit, WeightedBranch, WeightedPath, WeightedTree
from dstack.report.safe_text import SafeText
from dstack.tui.views.flame.drawing import folded_name, frame_name, longer, percent, share
from dstack.tui.views.flame.frame_filter import has_all
from dstack.tui.views.stacks.line_parts import short
from dstack.words import plural, short_duration

MARKS: Mapping[Change, str] = {"more": "+", "less": "-", "same": "="}
"""The marks say the same as the colours."""


@dataclass(frozen=True)
class WeightedDrawing:
    """A tree of weighted stacks; ``runs`` are the attempts of tasks now and before, where it is made of those."""

    tree: WeightedTree
    head: Sequence[str]
    empty: str
    runs: Mapping[Path, Runs] = field(default_factory=dict)
    runs_before: Mapping[Path, Runs] = field(default_factory=dict)

    @property
    def root(self) -> WeightedBranch:
        """The tree."""
        return self.tree.root

    @property
    def weights(self) -> Weights[WeightedPath]:
        """The widths."""
        return self.tree.weights

    @property
    def is_compared(self) -> bool:
        """Whether there is a baseline."""
        return self.tree.baseline is not None

    def tone(self, cell: Cell[WeightedBranch]) -> str:
        """Whether its share has changed noticeably; empty unless it is compared."""
        return self.tree.shares(cell.branches).change if self.is_compared else ""

    def label(self, cell: Cell[WeightedBranch]) -> str:
        """A mark for its change, its name and its weight; where the cell has room also the share or its change."""
        shares = self.tree.shares(cell.branches)
        name = cell.label if cell.is_folded else f"{short(cell.label)} {self._amount(cell.weight)}"
        if not self.is_compared:
            return longer(name, share(cell.weight, self.weights.of(self.root)), cell)
        return longer(f"{MARKS[shares.change]} {name}", _points(shares) if shares.points else "", cell)

    def figures(self, cell: Cell[WeightedBranch], shown: int) -> Iterator[Text]:
        """Full name; share of all, of what is shown and what ends here; the change; the attempts of a task."""
        yield self._name(cell)
        total = self.weights.of(self.root)
        parts = [f"{self._amount(cell.weight)} of {self._amount(total, in_unit=True)} = {share(cell.weight, total)}"]
        if cell.weight < shown < total:
            parts.append(f"{share(cell.weight, shown)} of what is shown")
        if cell.own and cell.own < cell.weight:
            own = "while no task below it ran" if self.tree.unit == "microseconds" else "end here"
            parts.append(f"{self._amount(cell.own)} {own}")
        yield SafeText("  ".join(parts))
        if self.is_compared:
            yield self._change(self.tree.shares(cell.branches))
        if self.runs:
            yield SafeText(self._attempts(cell), "dim")

    def matches(self, branch: WeightedBranch, words: tuple[str, ...]) -> bool:
        """Whether the frame or group contains all words."""
        return branch.place is not None and has_all(branch.place, words)

    def _change(self, shares: Shares) -> Text:
        """``+ from 12 % (1.2 s) to 20 % (2 s) of its group: +8.0 points``."""
        before = f"from {percent(shares.then)} ({self._amount(shares.before)} of {self._amount(shares.total_before)})"
        now = f"to {percent(shares.now)} ({self._amount(shares.weight)} of {self._amount(shares.total)})"
        return SafeText(f"{MARKS[shares.change]} {before} {now}: {_points(shares)}", "bold")

    def _attempts(self, cell: Cell[WeightedBranch]) -> str:
        """``28 attempts ran for 41 s, 5 of them failed; before: 14 attempts ran for 12 s``."""
        paths = [branch.path for branch in cell.branches]
        whole = all(path == () or not path[-1].is_frame for path in paths)
        now, before = (_runs_within(paths, runs, whole) for runs in (self.runs, self.runs_before))
        return runs_in_words(now) + (f"; before: {runs_in_words(before)}" if self.is_compared else "")

    def _name(self, cell: Cell[WeightedBranch]) -> Text:
        place = cell.place
        if cell.is_folded:
            return folded_name(cell)
        if place is None or not place.file:
            return SafeText().append(place.name if place else "All", "bold")
        return frame_name(place)

    def _amount(self, weight: int, *, in_unit: bool = False) -> str:
        return amount_in_words(weight, self.tree.unit, in_unit=in_unit)


def amount_in_words(weight: int, unit: Unit, *, in_unit: bool = False) -> str:
    """``12 s``, ``340 ms``; a number of samples or executions, with its unit if wanted."""
    if unit == "microseconds":
        return short_duration(weight / 1_000_000)
    return plural(weight, unit.removesuffix("s")) if in_unit else f"{weight:,}"


def runs_in_words(runs: Runs) -> str:
    """``28 attempts ran for 41 s together, 5 failed, 1 not ended``."""
    together = " together" if runs.attempts > 1 else ""
    parts = [f"{plural(runs.attempts, 'attempt')} ran for {short_duration(runs.run_us / 1_000_000)}{together}"]
    if runs.failed:
        parts.append(f"{runs.failed:,} failed")
    if runs.running:
        parts.append(f"{runs.running:,} not ended")
    return ", ".join(parts)


def _runs_within(paths: Sequence[Path], runs: Mapping[Path, Runs], whole: bool) -> Runs:
    """The attempts of these calls; of a group or all, those of all calls in it."""
    if not whole:
        return runs_of(paths, runs)
    return runs_of((path for path in runs if any(path[: len(above)] == above for above in paths)), runs)


def _points(shares: Shares) -> str:
    return f"{shares.points:+.1f} points"
