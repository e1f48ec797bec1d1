"""Who is elsewhere than most that are alike: among 64 workers in a barrier, the one that still loads its data."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dstack.analysis.merging import Branch, merge
from dstack.analysis.running import Execution, Likeness
from dstack.vertex_keys import Key

FEW = 4
"""Few beside most are a single one, or not more than one to so many."""


class Outlier(NamedTuple):
    """An execution that is elsewhere than most that are alike.

    They share ``shared`` frames; of ``alike`` so many went on together, ``most``, and it did not.
    """

    execution: Execution
    shared: int
    most: int
    alike: int


def outliers(executions: Iterable[Execution]) -> dict[Key, Outlier]:
    """By key: those few who part from most that are alike, at the frame where they do. Paths are without groups."""
    groups: dict[Likeness, list[Execution]] = {}
    for execution in executions:
        groups.setdefault(execution.likeness, []).append(execution)
    return {odd.execution.key: odd for alike in groups.values() for odd in _odd(alike)}


def _odd(alike: list[Execution]) -> list[Outlier]:
    """Follows the way of most down from the root, and notes who leaves it."""
    found: list[Outlier] = []
    branch = merge(alike)
    while branch.count > len(alike) / 2 and branch.count > 1:
        parts = branch.children
        most = max((part.count for part in parts), default=0)
        if branch.own > len(alike) / 2:
            few = [execution for part in parts if _is_few(part.count, branch.own) for execution in part.executions]
            return found + [Outlier(odd, branch.depth, branch.own, len(alike)) for odd in few]
        if most <= len(alike) / 2:
            break
        others = [part.executions for part in parts[1:]] + [branch.executions[: branch.own]]
        few = [odd for part in others if _is_few(len(part), most) for odd in part]
        found += [Outlier(odd, branch.depth, most, len(alike)) for odd in few]
        branch = parts[0]
    return found


def _is_few(count: int, most: int) -> bool:
    return count <= max(1, most // FEW) and count < most


class Marked:
    """A tree's outliers, found by the places where they are: how many are in a branch costs no walk."""

    def __init__(self, root: Branch, odd: Iterable[Key]) -> None:
        keys = set(odd)
        self._at = [index for index, execution in enumerate(root.executions) if execution.key in keys]
        self._root = root

    def within(self, branch: Branch) -> list[Execution]:
        """The outliers in a branch of that tree."""
        begin, end = bisect_left(self._at, branch.begin), bisect_left(self._at, branch.end)
        return [self._root.executions[index] for index in self._at[begin:end]]

    def places(self) -> Iterator[Branch]:
        """The branches in which outliers end, in the order of the tree."""
        keys = {execution.key for execution in self.within(self._root)}
        ahead = [self._root]
        while ahead:
            branch = ahead.pop()
            if any(execution.key in keys for execution in branch.executions[: branch.own]):
                yield branch
            ahead += [child for child in reversed(branch.children) if self.within(child)]
