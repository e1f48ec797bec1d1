"""Weighted stacks as one prefix tree, alone or compared with others: how the share of each branch has changed.

What is compared are shares, in percent of all or of the first group, as two recordings are seldom of the same length,
and two snapshots seldom of as many processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dstack.analysis.stacks.app_threads import PathStep
from dstack.analysis.stacks.icicle import Weights
from dstack.analysis.stacks.path_tree import PathBranch
from dstack.analysis.stacks.weighted_stacks import WeightedStacks

Change = Literal["more", "less", "same"]
NOTICEABLE = 1.0
"""A share that changed by less, in percentage points, counts as the same."""


@dataclass(frozen=True, slots=True)
class WeightedPath:
    """A stack with its groups as one path, its weight, and the weight of the same stack before."""

    path: tuple[PathStep, ...]
    weight: int
    before: int


WeightedBranch = PathBranch[WeightedPath]


@dataclass(frozen=True, slots=True)
class Shares:
    """The weights of a branch now and before, and its shares of its group or of all, in percent; 0 of nothing."""

    weight: int
    total: int
    before: int
    total_before: int

    @property
    def now(self) -> float:
        """The share now."""
        return 100 * self.weight / self.total if self.total else 0.0

    @property
    def then(self) -> float:
        """The share before."""
        return 100 * self.before / self.total_before if self.total_before else 0.0

    @property
    def points(self) -> float:
        """The difference in percentage points."""
        return self.now - self.then

    @property
    def change(self) -> Change:
        """Whether the share has changed noticeably."""
        return "more" if self.points >= NOTICEABLE else "less" if self.points <= -NOTICEABLE else "same"


class WeightedTree:
    """A tree of weighted stacks; ``baseline`` are those that it is compared with, if any.

    The widths are those of ``stacks``, or of the baseline if ``by_baseline``, which shows what has disappeared.
    """

    def __init__(
        self, stacks: WeightedStacks, baseline: WeightedStacks | None = None, *, by_baseline: bool = False
    ) -> None:
        self.unit = stacks.unit
        self.baseline = baseline
        self.root = _tree(stacks, baseline)
        sides = (stacks, baseline) if baseline else (stacks,)
        self._groups = {stack.groups[0] for side in sides for stack in side.stacks if stack.groups}
        self._now = Weights(self.root, lambda entry: entry.weight)
        self._before = Weights(self.root, lambda entry: entry.before)
        self.weights = self._before if by_baseline and baseline is not None else self._now

    def shares(self, branches: Iterable[WeightedBranch]) -> Shares:
        """The weights and shares of branches of one group; those of a group itself are of all."""
        found = tuple(branches)
        whole = self._group(found[0]) if found else self.root
        return Shares(
            sum(map(self._now.of, found)),
            self._now.of(whole),
            sum(map(self._before.of, found)),
            self._before.of(whole),
        )

    def _group(self, branch: WeightedBranch) -> WeightedBranch:
        """The outermost group that a branch is in, else the root."""
        path = branch.path
        return self.root.find(path[:1]) if len(path) > 1 and path[0].name in self._groups else self.root


def _tree(stacks: WeightedStacks, baseline: WeightedStacks | None) -> WeightedBranch:
    weights: dict[tuple[PathStep, ...], list[int]] = {}
    groups: dict[str, PathStep] = {}
    for at, side in enumerate((stacks, baseline)):
        for stack in side.stacks if side else ():
            above = tuple(groups.setdefault(name, PathStep(name)) for name in stack.groups)
            weights.setdefault((*above, *stack.frames), [0, 0])[at] += stack.weight
    entries = sorted((WeightedPath(path, now, before) for path, (now, before) in weights.items()), key=_path)
    return WeightedBranch(entries, 0, len(entries), 0)


def _path(entry: WeightedPath) -> tuple[PathStep, ...]:
    return entry.path
