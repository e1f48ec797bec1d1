"""A prefix tree as the rectangles of an icicle: one row of cells a depth, a branch as wide as its weight.

Widths are whole cells. Of a branch's children, those too narrow to be seen stand together in one cell, so nothing is
lost: the weights of the cells below a branch, and of what ends in it, are its weight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Generic, Literal, TypeVar

from dstack.analysis.stacks.app_threads import Execution
from dstack.analysis.stacks.stack_tree import Entry, PathBranch, marks_of
from dstack.model.profile import PathStep

Branch = TypeVar("Branch", bound=PathBranch[Any])
Weigh = Callable[[Execution], int]
"""What an execution adds to the width of all branches it is in: 0 or more, and whole, so that sums are exact."""
Measure = Literal["executions", "waiting", "running"]

NARROWEST = 2
"""Fewer cells than this show nothing."""
LEAST = 8
"""So many cells a branch has at least where none of many would be wide enough."""


@dataclass(frozen=True, slots=True)
class IcicleCell(Generic[Branch]):
    """One rectangle: of one branch, or of several that are folded because they are narrow, the largest first.

    ``start`` and ``width`` are in cells. ``own`` is the weight of what ends in it. ``mark`` tells it from a cell with
    the same name beside it.
    """

    depth: int
    start: int
    width: int
    weight: int
    own: int
    branches: tuple[Branch, ...]
    mark: str = ""

    @property
    def place(self) -> PathStep | None:
        """Its frame or group; None at the root, and where several are folded."""
        return None if self.is_folded else self.branches[0].place

    @property
    def is_folded(self) -> bool:
        """Whether it stands for several branches."""
        return len(self.branches) > 1

    @property
    def label(self) -> str:
        """``ray.get``, ``… 12 more``, or ``all``."""
        if self.is_folded:
            return f"… {len(self.branches):,} more"
        return self.place.name if self.place else "all"


@dataclass(frozen=True, slots=True)
class Icicle(Generic[Branch]):
    """Rows of cells from the outermost frame on, each from left to right, and the weight of all.

    ``to_scale`` is false where many alike narrow branches were made wide enough to be seen.
    """

    rows: tuple[tuple[IcicleCell[Branch], ...], ...]
    weight: int
    to_scale: bool

    def at(self, row: int, column: int) -> IcicleCell[Branch] | None:
        """The cell at a point, if there is one."""
        cells = self.rows[row] if 0 <= row < len(self.rows) else ()
        return next((cell for cell in cells if cell.start <= column < cell.start + cell.width), None)


class Weights(Generic[Entry]):
    """The weights of branches of one tree, each in constant time."""

    def __init__(self, root: PathBranch[Entry], weigh: Callable[[Entry], int]) -> None:
        self._sums = list(accumulate(map(weigh, root.entries), initial=0))
        self._first = root.begin

    def of(self, branch: PathBranch[Entry]) -> int:
        """The weight of all in a branch."""
        return self._sums[branch.end - self._first] - self._sums[branch.begin - self._first]

    def matching(self, branch: PathBranch[Entry], has: Callable[[Entry], bool]) -> int:
        """The weight of those in a branch for which a condition holds, each counted once."""
        first = branch.begin - self._first
        entries = enumerate(branch.entries, first)
        return sum(self._sums[at + 1] - self._sums[at] for at, entry in entries if has(entry))

    def own(self, branch: PathBranch[Entry]) -> int:
        """The weight of what ends in a branch."""
        return self.of(branch) - sum(map(self.of, branch.children))


def weigh_by(measure: Measure) -> Weigh:
    """How executions are counted: all, or only those that wait, or that run."""
    return partial(_counts, measure)


def _counts(measure: Measure, execution: Execution) -> int:
    return 1 if measure in ("executions", execution.activity) else 0


def icicle(top: Sequence[Branch], weights: Weights[Any], width: int, *, in_order: bool = False) -> Icicle[Branch]:
    """The rectangles of a branch and all below it, or of several side by side; to zoom is to begin elsewhere.

    The heaviest of a row are leftmost, unless they are ``in_order``.
    """
    rows: dict[int, list[IcicleCell[Branch]]] = {}
    first, to_scale = _first_row(top, weights, width)
    ahead = deque(first)
    while ahead:
        cell = ahead.popleft()
        rows.setdefault(cell.depth, []).append(cell)
        if not cell.is_folded:
            below = [child for child in cell.branches[0].children if weights.of(child) > 0]
            ahead.extend(_row(below, weights, cell.depth + 1, cell.start, cell.width, cell.weight, in_order))
    return Icicle(tuple(map(tuple, rows.values())), sum(cell.weight for cell in first), to_scale)


def _first_row(top: Sequence[Branch], weights: Weights[Any], width: int) -> tuple[list[IcicleCell[Branch]], bool]:
    """The cells that all others stand below: where none of several is wide enough, some are made so."""
    heavy = _heaviest_first([branch for branch in top if weights.of(branch) > 0], weights)
    total = sum(map(weights.of, heavy))
    if width <= 0 or not heavy:
        return [], True
    if len(heavy) == 1 or width * weights.of(heavy[0]) / total >= NARROWEST:
        return list(_row(heavy, weights, 0, 0, width, total)), True
    shown = min(max(1, width // LEAST - 1), width - 1)
    parts = [(branch,) for branch in heavy[:shown]] + [tuple(heavy[shown:])] * (len(heavy) > shown)
    edges = [width * number // len(parts) for number in range(len(parts) + 1)]
    cells = [
        _cell(part, weights, 0, start, end - start) for part, start, end in zip(parts, edges, edges[1:], strict=False)
    ]
    return cells, False


def _parts(ordered: Sequence[Branch], weights: Weights[Any], scale: float) -> list[tuple[Branch, ...]]:
    """What each cell of a row stands for; ``scale`` is the width of the weight 1. Narrow branches stand together."""
    parts: list[tuple[Branch, ...]] = []
    is_narrow_before = False
    for branch in ordered:
        is_narrow = scale * weights.of(branch) < NARROWEST
        if is_narrow and is_narrow_before:
            parts[-1] = (*parts[-1], branch)
        else:
            parts.append((branch,))
        is_narrow_before = is_narrow
    return parts


def _row(
    branches: Sequence[Branch],
    weights: Weights[Any],
    depth: int,
    start: int,
    width: int,
    total: int,
    in_order: bool = False,
) -> Iterator[IcicleCell[Branch]]:
    """The cells of children side by side, in ``width`` cells that stand for ``total``.

    In their order, there may be many narrow parts; those without a cell are left out.
    """
    parts = _parts(branches if in_order else _heaviest_first(branches, weights), weights, width / total)
    sums = accumulate((sum(map(weights.of, part)) for part in parts), initial=0)
    edges = [min(width, int(width * weight / total + 0.5)) for weight in sums]
    if parts and not in_order and width * weights.of(parts[-1][-1]) / total < NARROWEST:
        _make_room(edges, width)
    marks = marks_of([part[0].place for part in parts if len(part) == 1])
    for part, begin, end in zip(parts, edges, edges[1:], strict=False):
        if end > begin:
            cell = _cell(part, weights, depth, start + begin, end - begin)
            yield replace(cell, mark=marks.get(cell.place, ""))


def _make_room(edges: list[int], width: int) -> None:
    """Widens the last part to one cell if it has none, at the cost of what ends here, or else of those before it."""
    if edges[-1] == edges[-2]:
        edges[-1] = min(width, edges[-1] + 1)
    for index in range(len(edges) - 2, 0, -1):
        edges[index] = min(edges[index], edges[index + 1] - 1)


def _heaviest_first(branches: Sequence[Branch], weights: Weights[Any]) -> list[Branch]:
    return sorted(branches, key=lambda branch: -weights.of(branch))


def _cell(
    branches: tuple[Branch, ...], weights: Weights[Any], depth: int, start: int, width: int
) -> IcicleCell[Branch]:
    own = weights.own(branches[0]) if len(branches) == 1 else 0
    return IcicleCell(depth, start, width, sum(map(weights.of, branches)), own, branches)
