"""Which branches of a tree are shown: the zoom."""

from __future__ import annotations

from typing import Any

from dstack.analysis.stacks.app_threads import PathStep
from dstack.analysis.stacks.icicle import Cell, Weights
from dstack.analysis.stacks.stack_tree import PathBranch

Paths = tuple[tuple[PathStep, ...], ...]


class Zoom:
    """A stack of zooms; each is one branch, or several narrow ones, by path, so that it survives another snapshot."""

    def __init__(self) -> None:
        self._zooms: list[Paths] = []

    @property
    def paths(self) -> Paths | None:
        """The paths of the current zoom; None without any."""
        return self._zooms[-1] if self._zooms else None

    def into(self, cell: Cell[Any]) -> None:
        """Zoom into a cell; zoom out of the cell on top."""
        paths = tuple(branch.path for branch in cell.branches)
        if cell.depth == 0 and not cell.is_folded:
            self.out()
        elif paths != self.paths:
            self._zooms.append(paths)

    def out(self) -> None:
        """Return to the previous zoom."""
        if self._zooms:
            self._zooms.pop()

    def reset(self) -> None:
        """Show all."""
        self._zooms.clear()

    def branches(self, root: PathBranch[Any], weights: Weights[Any]) -> tuple[PathBranch[Any], ...]:
        """The branches of the innermost zoom that exists in this tree; the root without any."""
        while self._zooms:
            found = [(path, root.find(path)) for path in self._zooms[-1]]
            existing = tuple(branch for path, branch in found if branch.path == path)
            if any(weights.of(branch) for branch in existing):
                return existing
            self._zooms.pop()
        return (root,)
