"""A prefix tree of anything that has a path: entries sorted by their paths once, and branches as slices of them.

Children are computed on demand, as a view of 10,000 entries shows few branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from dstack.analysis.stacks.app_threads import PathStep

if TYPE_CHECKING:
    from typing_extensions import Self


class HasPath(Protocol):
    """What a tree is made of."""

    @property
    def path(self) -> tuple[PathStep, ...]:
        """The steps from the root to where it ends."""
        ...


Entry = TypeVar("Entry", bound=HasPath)


class PathBranch(Generic[Entry]):
    """All entries whose paths have a common beginning, sorted by their paths.

    ``place`` is the last step of what they share, None at the root. Two are the same if their ``path`` is.
    """

    def __init__(self, tree: Sequence[Entry], begin: int, end: int, depth: int) -> None:
        self._tree = tree
        self.begin = begin
        self.end = end
        self.depth = depth

    @property
    def path(self) -> tuple[PathStep, ...]:
        """The steps from the root to here."""
        return self._tree[self.begin].path[: self.depth] if self.depth else ()

    @property
    def place(self) -> PathStep | None:
        """The frame or the group it is of."""
        return self._tree[self.begin].path[self.depth - 1] if self.depth else None

    @property
    def entries(self) -> Sequence[Entry]:
        """The entries in it."""
        return self._tree[self.begin : self.end]

    @property
    def count(self) -> int:
        """The number of entries in it."""
        return self.end - self.begin

    @cached_property
    def own(self) -> int:
        """How many of them end here: the first ones."""
        return next((index for index, entry in enumerate(self.entries) if len(entry.path) > self.depth), self.count)

    @cached_property
    def children(self) -> tuple[Self, ...]:
        """The branches it parts into, the largest first."""
        begin = self.begin + self.own
        found: list[Self] = []
        for _, alike in groupby(self._tree[begin : self.end], key=lambda entry: entry.path[self.depth]):
            found.append(type(self)(self._tree, begin, begin + sum(1 for _ in alike), self.depth + 1))
            begin = found[-1].end
        return tuple(sorted(found, key=lambda branch: -branch.count))

    def find(self, path: Sequence[PathStep]) -> Self:
        """The branch of this path below this one, or as far as there is one."""
        branch = self
        for place in path:
            child = next((child for child in branch.children if child.place == place), None)
            if child is None:
                break
            branch = child
        return branch
