"""Executions that are in other code than most similar ones: of 64 workers in a barrier, the one that loads data."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dstack.analysis.stacks.app_threads import Execution, PeerGroup
from dstack.analysis.stacks.path_tree import PathBranch
from dstack.analysis.stacks.rank_sets import RankSet, RankSets
from dstack.analysis.stacks.stack_tree import StackBranch, merge
from dstack.vertex_keys import Key

FEW = 4
"""A part is few if it is one execution, or at most one to this number of others."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """An execution that is in other code than most similar ones.

    They have ``shared`` frames in common; ``most`` of ``alike`` executions share the next one. ``rank_set`` are the
    workers of this branch, ``others`` those of the largest, if ranks or labels distinguish them.
    """

    execution: Execution
    shared: int
    most: int
    alike: int
    rank_set: RankSet | None = None
    others: RankSet | None = None

    @property
    def words(self) -> str:
        """``rank 3 is in other code than ranks 0-2``; without ranks ``7 of 8 like it are in other code``."""
        if self.rank_set is None or not self.rank_set.words:
            return f"{self.most:,} of {self.alike:,} like it are in other code"
        verb = "is" if len(self.rank_set.ranks) == 1 else "are"
        others = self.others.words if self.others else ""
        most = others or f"{self.most:,} of {self.alike:,} others"
        return f"{self.rank_set.words} {verb} in other code than {most}"


def outliers(executions: Iterable[Execution], rank_sets: RankSets | None = None) -> dict[Key, Outlier]:
    """The outliers by key, at the frame where they diverge from similar executions. Paths are without groups.

    With ``teams`` a larger part is few as well where it is all of a dimension or label, as the second of three pipeline
    stages.
    """
    groups: dict[PeerGroup, list[Execution]] = {}
    for execution in executions:
        groups.setdefault(execution.peer_group, []).append(execution)
    return {odd.execution.key: odd for alike in groups.values() for odd in _odd(alike, rank_sets)}


def _odd(alike: list[Execution], rank_sets: RankSets | None) -> list[Outlier]:
    """Follow the largest branch down from the root, and collect the executions that diverge from it."""
    found: list[Outlier] = []
    branch = merge(alike)
    while branch.count > len(alike) / 2 and branch.count > 1:
        ending = branch.executions[: branch.own]
        parts = sorted([*(part.executions for part in branch.children), ending], key=len, reverse=True)
        if len(parts[0]) <= len(alike) / 2:
            break
        found += _leaving(parts, branch.depth, len(alike), rank_sets)
        if parts[0] is ending:
            break
        branch = branch.children[0]
    return found


def _leaving(
    parts: list[Sequence[Execution]], shared: int, alike: int, rank_sets: RankSets | None
) -> Iterator[Outlier]:
    """The executions of smaller parts that are few, or a whole rank set."""
    most, *others = parts
    there = _rank_set(most, rank_sets)
    for part in others:
        here = _rank_set(part, rank_sets) if part else None
        if _is_few(len(part), len(most)) or (here and here.common and len(part) < len(most)):
            yield from (Outlier(odd, shared, len(most), alike, here, there) for odd in part)


def _rank_set(executions: Sequence[Execution], rank_sets: RankSets | None) -> RankSet | None:
    return rank_sets.rank_set_of(executions) if rank_sets else None


def _is_few(count: int, most: int) -> bool:
    return count <= max(1, most // FEW) and count < most


class OutlierIndex:
    """A tree's outliers, found by the places where they are: how many are in a branch costs no walk."""

    def __init__(self, root: StackBranch, odd: Iterable[Key]) -> None:
        keys = set(odd)
        self._at = [index for index, execution in enumerate(root.executions) if execution.key in keys]
        self._root = root

    def within(self, branch: PathBranch[Execution]) -> list[Execution]:
        """The outliers in a branch of that tree."""
        begin, end = bisect_left(self._at, branch.begin), bisect_left(self._at, branch.end)
        return [self._root.executions[index] for index in self._at[begin:end]]

    def places(self) -> Iterator[StackBranch]:
        """The branches in which outliers end, in the order of the tree."""
        keys = {execution.key for execution in self.within(self._root)}
        ahead = [self._root]
        while ahead:
            branch = ahead.pop()
            if any(execution.key in keys for execution in branch.executions[: branch.own]):
                yield branch
            ahead += [child for child in reversed(branch.children) if self.within(child)]
