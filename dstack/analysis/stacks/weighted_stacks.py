"""Stacks with weights: what flame graphs, comparisons and exporters of stacks work on, whatever was counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from dstack.analysis.stacks.app_threads import Execution, PathStep
from dstack.analysis.stacks.stack_tree import Grouping, group_of

Unit = Literal["executions", "samples", "microseconds"]


@dataclass(frozen=True, slots=True)
class WeightedStack:
    """One stack below its groups, both outermost first, and what it adds to the width of all of them: 0 or more."""

    groups: tuple[str, ...]
    frames: tuple[PathStep, ...]
    weight: int


@dataclass(frozen=True, slots=True)
class WeightedStacks:
    """Stacks of one kind of weight; no two of them have the same groups and frames."""

    name: str
    unit: Unit
    stacks: tuple[WeightedStack, ...]

    @classmethod
    def summed(
        cls, name: str, unit: Unit, stacks: Iterable[tuple[tuple[str, ...], tuple[PathStep, ...], int]]
    ) -> WeightedStacks:
        """Groups, frames and weights as stacks, the weights of equal ones added; those without weight are left out."""
        weights: Counter[tuple[tuple[str, ...], tuple[PathStep, ...]]] = Counter()
        for groups, frames, weight in stacks:
            weights[groups, frames] += weight
        found = (WeightedStack(*stack, weight) for stack, weight in weights.items() if weight > 0)
        return cls(name, unit, tuple(sorted(found, key=lambda one: (one.groups, one.frames))))

    @property
    def weight(self) -> int:
        """The sum of all weights."""
        return sum(stack.weight for stack in self.stacks)


def stacks_of(name: str, executions: Iterable[Execution], by: Sequence[Grouping] = ("kind",)) -> WeightedStacks:
    """The stacks of executions, each counted once, below one group for each of ``by``."""
    counted = ((tuple(group_of(one, each) for each in by), one.path, 1) for one in executions)
    return WeightedStacks.summed(name, "executions", counted)
