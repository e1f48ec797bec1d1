"""What the Flame view draws, whatever was counted: a tree, the weights of its branches, and the texts of its cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

from rich.cells import cell_len
from rich.text import Text

from dstack.analysis.history.task_time import Path, Runs, runs_of
from dstack.analysis.stacks.app_threads import Execution
from dstack.analysis.stacks.icicle import IcicleCell, Measure, Weights, weigh_by
from dstack.analysis.stacks.peers import OutlierIndex
from dstack.analysis.stacks.stack_tree import Grouping, PathBranch, StackBranch, grouping_in_words, merge
from dstack.analysis.stacks.weighted_stacks import (
    Change,
    FunctionWeight,
    Shares,
    Side,
    Unit,
    WeightedBranch,
    WeightedPath,
    WeightedStacks,
    WeightedTree,
    innermost_of,
    places_of,
    stacks_around,
)
from dstack.analysis.views.all_stacks import Stacks
from dstack.model.profile import PathStep
from dstack.report.profile_text import STATE_WORDS
from dstack.report.rich_text import SafeText
from dstack.report.stacks_text import ORIGINS, activities_in_words, frame_location, short
from dstack.tui.widgets.outline import Line
from dstack.words import SHOWN, plural, short_duration, visible, word

MEASURES: dict[Measure, str] = {
    "executions": "all threads and coroutines",
    "waiting": "waiting ones",
    "running": "running ones",
}
MARKS: Mapping[Change, str] = {"more": "+", "less": "-", "same": "="}
"""The marks say the same as the colours."""


def folded_name(cell: IcicleCell[Any]) -> Text:
    """The name of a cell of several narrow branches."""
    widest = ", ".join(short(branch.place.name) for branch in cell.branches[:SHOWN] if branch.place)
    text = SafeText().append(f"{len(cell.branches):,} narrow branches", "bold")
    return text.append(f": {widest}, … Enter zooms in")


def frame_name(place: PathStep, source: str = "") -> Text:
    """The name of a frame with its location, its source line and its origin."""
    text = SafeText().append(place.name, "bold").append(f"  {frame_location(place)}", "cyan")
    if place.name != place.function:
        text.append(f"  in {place.function}")
    text.append(f"  {source}" if source else "", "italic")
    return text.append(f"  {ORIGINS[place.origin]} code", "dim")


def last_line(cell: IcicleCell[Any]) -> str:
    """``:12``: the line of a frame of the application that has none below it."""
    place = cell.place
    if place is None or place.origin != "user" or not place.is_frame or not place.line:
        return ""
    below = (child.place for child in cell.branches[0].children)
    return "" if any(step.origin == "user" and step.is_frame for step in below if step) else f":{place.line}"


def row_as_text(drawing: Drawing, row: tuple[IcicleCell[Any], ...]) -> str:
    """A row of cells as a line of plain text."""
    line = ""
    for cell in row:
        label = f"|{visible(drawing.label(cell))}"
        line = line.ljust(cell.start) + label[: cell.width].ljust(cell.width)
    return line.rstrip()


def longer(label: str, words: str, cell: IcicleCell[Any]) -> str:
    """The label with further words, if there are any and the cell has room for them."""
    whole = f"{label}  {words}"
    return whole if words and cell_len(whole) < cell.width - 1 else label


def percent(share: float) -> str:
    """``12 %``, ``0.3 %``."""
    return f"{share:.0f} %" if share >= 9.5 or share == 0 else f"{share:.1f} %"


def share(part: int, total: int) -> str:
    """A part of a total in percent."""
    return percent(100 * part / total if total else 0.0)


class FrameFilter:
    """Matches frames by their text, and by the ranks, dimensions and labels of their executions, such as ``rank:3``."""

    def __init__(self, root: StackBranch, words: tuple[str, ...]) -> None:
        terms = {execution.key: execution.ranks.terms for execution in root.executions if words}
        known: set[str] = set().union(*terms.values())
        wanted = known.intersection(words)
        self._words = tuple(word for word in words if word not in wanted)
        self._is_by_terms = bool(wanted)
        self._keys = {key for key, own in terms.items() if own >= wanted}
        self._with_terms = OutlierIndex(root, self._keys)

    def matches(self, branch: PathBranch[Execution]) -> bool:
        """Whether the branch's frame contains all words, and one of its executions has all terms."""
        has_words = branch.place is not None and has_all(branch.place, self._words)
        return has_words and (not self._is_by_terms or bool(self._with_terms.within(branch)))

    def has(self, execution: Execution, depth: int) -> bool:
        """Whether an execution has all terms, and a frame from a depth on that contains all words."""
        return execution.key in self._keys and any(has_all(step, self._words) for step in execution.path[depth:])


@lru_cache(maxsize=10_000)
def has_all(place: PathStep, words: tuple[str, ...]) -> bool:
    """Whether a frame or group contains all words, in its name or its location."""
    text = f"{place.name} {place.function} {place.file}:{place.line}".casefold()
    return all(word in text for word in words)


@dataclass(frozen=True)
class StacksDrawing:
    """The stacks of a snapshot, merged by a grouping; ``whole`` ones, or with only the application's frames."""

    stacks: Stacks
    grouping: Grouping | None
    measure: Measure
    whole: bool
    empty: str = "No such executions. Press m to count others."
    in_order: bool = False
    lines: Sequence[Line] = ()

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

    def label(self, cell: IcicleCell[StackBranch]) -> str:
        """Name and weight; where the cell has room also the ranks, and what the executions do if all are counted."""
        if cell.is_folded:
            return cell.label
        (branch,) = cell.branches
        label = f"{short(cell.label)}{cell.mark} {cell.weight:,}"
        if branch.count < self.root.count and cell.place is not None and cell.place.is_frame:
            label = longer(label, self._ranks(cell), cell)
        label = longer(label, share(cell.weight, self.weights.of(self.root)), cell)
        return longer(label, activities_in_words(branch.activity), cell) if self.measure == "executions" else label

    def tone(self, cell: IcicleCell[StackBranch]) -> str:
        """Empty: nothing is compared."""
        return ""

    def figures(self, cell: IcicleCell[StackBranch], shown: int) -> Iterator[Text]:
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

    def matched(self, branch: PathBranch[Any], words: tuple[str, ...]) -> int:
        """The weight of the executions in a branch that match, each counted once."""
        self.matches(branch, words)
        depth = max(0, branch.depth - 1)
        return self.weights.matching(branch, lambda one: self._filters[words].has(one, depth))

    @cached_property
    def _filters(self) -> dict[tuple[str, ...], FrameFilter]:
        return {}

    def _kinds(self, cell: IcicleCell[StackBranch]) -> str:
        kinds = Counter(one.kind for branch in cell.branches for one in branch.executions)
        first = ", ".join(f"{count:,} × {kind}" for kind, count in kinds.most_common(SHOWN))
        nodes = len({one.node for branch in cell.branches for one in branch.executions})
        more = f" and {plural(len(kinds) - SHOWN, 'more kind')}" if len(kinds) > SHOWN else ""
        ranks = f", {found}" if (found := self._ranks(cell)) else ""
        return f"{first}{more}{ranks}, on {plural(nodes, 'node')}"

    def _ranks(self, cell: IcicleCell[StackBranch]) -> str:
        """The ranks of the executions, empty where ranks do not distinguish them."""
        return self.stacks.ranks_in_words([one for branch in cell.branches for one in branch.executions])

    def _name(self, cell: IcicleCell[StackBranch]) -> Text:
        place = cell.place
        if cell.is_folded:
            return folded_name(cell)
        if place is None or not place.is_frame:
            return SafeText().append(place.name if place else "All", "bold")
        return frame_name(place, self.stacks.index.snapshot.source_line(place.file, place.line) or "")


@dataclass(frozen=True)
class WeightedDrawing:
    """A tree of weighted stacks.

    ``runs`` are the attempts of tasks now and before, where it is made of those. ``lines`` and ``sources`` are those of
    a profile. ``functions`` are listed if it is to be drawn around one of them. ``whole`` is the weight of which shares
    are computed, if it is not that of the tree.
    """

    tree: WeightedTree
    head: Sequence[str]
    empty: str
    runs: Mapping[Path, Runs] = field(default_factory=dict)
    runs_before: Mapping[Path, Runs] = field(default_factory=dict)
    lines: Sequence[Line] = ()
    sources: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    functions: Sequence[FunctionWeight] = ()
    whole: int = 0

    @property
    def total(self) -> int:
        """The weight of which shares are computed."""
        return self.whole or self.weights.of(self.root)

    def around(self, step: PathStep, side: Side) -> WeightedDrawing:
        """The callers or the callees of a function."""
        now, before = (one and stacks_around(one, step, side) for one in (self.tree.stacks, self.tree.baseline))
        assert now is not None
        tree = WeightedTree(now, before, by_baseline=self.tree.by_baseline)
        return replace(self, tree=tree, runs={}, runs_before={}, whole=self.total)

    def function_figures(self, one: FunctionWeight) -> Iterator[Text]:
        """Full name of a function, and its shares of all."""
        yield self._step_name(one.step)
        parts = (("total", one.total), ("self", one.own))
        words = [f"{name} {self._amount(part)} = {share(part, self.total)}" for name, part in parts]
        yield SafeText("  ".join(words))

    @property
    def root(self) -> WeightedBranch:
        """The tree."""
        return self.tree.root

    @property
    def weights(self) -> Weights[WeightedPath]:
        """The widths."""
        return self.tree.weights

    @property
    def in_order(self) -> bool:
        """Whether its cells are in the order of time."""
        return self.tree.in_order

    @property
    def is_compared(self) -> bool:
        """Whether there is a baseline."""
        return self.tree.baseline is not None

    def tone(self, cell: IcicleCell[WeightedBranch]) -> str:
        """Whether its share has changed noticeably; empty unless it is compared."""
        return self.tree.shares(cell.branches).change if self.is_compared else ""

    def label(self, cell: IcicleCell[WeightedBranch]) -> str:
        """A mark for its change, its name and its weight; where the cell has room also the share or its change."""
        shares = self.tree.shares(cell.branches)
        mark = cell.mark or ("" if self.is_compared else last_line(cell))
        name = cell.label if cell.is_folded else f"{short(cell.label)}{mark} {self._amount(cell.weight)}"
        if not self.is_compared:
            return longer(name, share(cell.weight, self.total), cell)
        return longer(f"{MARKS[shares.change]} {name}", _points(shares) if shares.points else "", cell)

    def figures(self, cell: IcicleCell[WeightedBranch], shown: int) -> Iterator[Text]:
        """Full name; share of all, of what is shown and what ends here; the change; the attempts of a task."""
        yield self._name(cell)
        total = self.total
        parts = [f"{self._amount(cell.weight)} of {self._amount(total, in_unit=True)} = {share(cell.weight, total)}"]
        if cell.weight < shown < total:
            parts.append(f"{share(cell.weight, shown)} of what is shown")
        if cell.own and cell.own < cell.weight:
            own = "while no task below it ran" if self.runs else "end here"
            parts.append(f"{self._amount(cell.own)} {own}")
        parts += self._places(cell.place) if cell.place else ()
        yield SafeText("  ".join(parts))
        if self.is_compared:
            yield self._change(self.tree.shares(cell.branches))
        if self.runs and not (cell.place and cell.place.is_span):
            yield SafeText(self._attempts(cell), "dim")
        if cell.place is None and not cell.is_folded:
            yield from self._innermost

    def _places(self, place: PathStep) -> Iterator[str]:
        """``in all 2 places 6.2 s = 62 %``: the function wherever it is called."""
        weight, places = places_of(self.tree.stacks, place)
        if places > 1 and not self.is_compared:
            yield f"in all {places:,} places {self._amount(weight)} = {share(weight, self.total)}"

    @cached_property
    def _innermost(self) -> Sequence[Text]:
        """The functions that were innermost for the most time."""
        found = () if self.is_compared else innermost_of(self.tree.stacks)[:SHOWN]
        amounts = (SafeText(f"{share(one.own, self.total):>6}  {self._amount(one.own):>7}  ") for one in found)
        return [text.append_text(self._step_name(one.step)) for text, one in zip(amounts, found, strict=False)]

    def matches(self, branch: WeightedBranch, words: tuple[str, ...]) -> bool:
        """Whether the frame or group contains all words."""
        return branch.place is not None and has_all(branch.place, words)

    def matched(self, branch: WeightedBranch, words: tuple[str, ...]) -> int:
        """The weight of the stacks in a branch that have a frame or group that matches, each counted once."""
        depth = max(0, branch.depth - 1)
        return self.weights.matching(branch, lambda one: any(has_all(step, words) for step in one.path[depth:]))

    def _change(self, shares: Shares) -> Text:
        """``+ from 12 % (1.2 s) to 20 % (2 s) of its group: +8.0 points``."""
        before = f"from {percent(shares.then)} ({self._amount(shares.before)} of {self._amount(shares.total_before)})"
        now = f"to {percent(shares.now)} ({self._amount(shares.weight)} of {self._amount(shares.total)})"
        return SafeText(f"{MARKS[shares.change]} {before} {now}: {_points(shares)}", "bold")

    def _attempts(self, cell: IcicleCell[WeightedBranch]) -> str:
        """``28 attempts ran for 41 s, 5 of them failed; before: 14 attempts ran for 12 s``."""
        paths = [branch.path for branch in cell.branches]
        whole = all(path == () or not path[-1].is_frame for path in paths)
        now, before = (_runs_within(paths, runs, whole) for runs in (self.runs, self.runs_before))
        return runs_in_words(now) + (f"; before: {runs_in_words(before)}" if self.is_compared else "")

    def _name(self, cell: IcicleCell[WeightedBranch]) -> Text:
        place = cell.place
        if cell.is_folded:
            return folded_name(cell)
        return self._step_name(place) if place else SafeText().append("All", "bold")

    def _step_name(self, step: PathStep) -> Text:
        if not step.file:
            text = SafeText().append(step.name, "bold")
            return text.append(f"  {STATE_WORDS[step.state]}" if step.state else "", "dim")
        return frame_name(step, self.sources.get(step.file, {}).get(step.line, "").strip())

    def _amount(self, weight: int, *, in_unit: bool = False) -> str:
        return amount_in_words(weight, self.tree.unit, in_unit=in_unit)


Drawing: TypeAlias = StacksDrawing | WeightedDrawing
"""A tree to draw, the weights of its branches, and the texts of its cells."""


def no_drawing(reason: str = "") -> WeightedDrawing:
    """An empty chart with the reason."""
    return WeightedDrawing(WeightedTree(WeightedStacks("", "executions", ())), (), reason)


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
