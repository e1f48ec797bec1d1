"""Prefix trees of paths; the stacks of many executions as one such tree, and the ways of grouping them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, islice
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from dstack.analysis.index.ranks import names_in
from dstack.analysis.stacks.app_threads import Activity, Execution
from dstack.model.profile import PathStep
from dstack.words import grouped

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

    def find(self, path: Sequence[PathStep], near: int = 0) -> Self:
        """The branch of this path below this one, or as far as there is one; of several the one with entry ``near``."""
        branch = self
        for place in path:
            same = [child for child in branch.children if child.place == place]
            if not same:
                break
            branch = next((child for child in same if child.begin <= near < child.end), same[0])
        return branch


def marks_of(siblings: Iterable[PathStep | None]) -> dict[PathStep | None, str]:
    """``:12`` or `` train.py:12`` for each of these frames that would read like another one without it."""
    frames = [step for step in siblings if step is not None and step.is_frame]
    by_name = grouped((step.name.rpartition("<locals>.")[2], step) for step in dict.fromkeys(frames))
    marks: dict[PathStep | None, str] = {}
    for same in by_name.values():
        if len(same) > 1:
            is_line_enough = len({step.line for step in same}) == len(same)
            files = [] if is_line_enough else [step.file.rpartition("/")[2] for step in same]
            marks |= {step: f":{step.line}" for step in same}
            marks |= {step: f" {file}:{step.line}" for step, file in zip(same, files, strict=False)}
    return marks


@dataclass(frozen=True, slots=True)
class ByRanks:
    """Groups of those with the same rank, the same rank in a dimension, or the same value of a label: by its name."""

    name: str


Grouping = Literal["kind", "node", "job"] | ByRanks
GROUPINGS: tuple[Grouping | None, ...] = (None, "kind", "node", "job")
"""The ways of grouping that there are for every application."""
LONG = 18
"""A text of so many digits is no number to order by."""
MAX_GROUPINGS = 16
"""So many names of dimensions and labels are offered to group by."""


class StackBranch(PathBranch[Execution]):
    """All executions whose stacks have a common beginning."""

    @property
    def executions(self) -> Sequence[Execution]:
        """The executions in it."""
        return self.entries

    @cached_property
    def activity(self) -> Counter[Activity]:
        """The number of executions by activity."""
        return Counter(execution.activity for execution in self.executions)


def merge(
    executions: Iterable[Execution],
    *,
    by: Grouping | None = None,
    where: Callable[[Execution], bool] | None = None,
) -> StackBranch:
    """The root of the tree of all executions ``where`` that holds, with a first level of groups if wanted."""
    chosen = executions if where is None else filter(where, executions)
    if by is None:
        tree = sorted(chosen, key=lambda execution: (execution.path, *_order(execution)))
        return StackBranch(tree, 0, len(tree), 0)
    named = [(group_of(execution, by), execution) for execution in chosen]
    groups = {name: PathStep(name) for name, _ in named}
    found = (replace(execution, path=(groups[name], *execution.path)) for name, execution in named)
    tree = sorted(found, key=lambda one: (_by_number(one.path[0].name), one.path, *_order(one)))
    return StackBranch(tree, 0, len(tree), 0)


def _order(execution: Execution) -> tuple[int, str]:
    """Of those with one path: by rank."""
    rank = execution.ranks.rank
    return -1 if rank is None else rank, str(execution.key)


def group_of(execution: Execution, by: Grouping) -> str:
    """The name of its group, as ``actor Trainer``, ``tp 1`` or ``no tp``."""
    if isinstance(by, ByRanks):
        return execution.ranks.words(by.name) or f"no {by.name}"
    return str(getattr(execution, by))


def _by_number(name: str) -> tuple[str, int]:
    """Orders ``rank 9`` before ``rank 10``."""
    words, _, number = name.rpartition(" ")
    return (words, int(number)) if number.isascii() and number.isdecimal() and len(number) < LONG else (name, -1)


def groupings(executions: Iterable[Execution]) -> tuple[Grouping | None, ...]:
    """All ways of grouping these: by class, node and job, and by each rank, dimension and label that occurs."""
    named = islice(names_in(execution.ranks for execution in executions), MAX_GROUPINGS)
    return (*GROUPINGS, *map(ByRanks, named))


def grouping_in_words(by: Grouping | None) -> str:
    """``by class``, ``by tp``; empty where there are no groups."""
    if isinstance(by, ByRanks):
        return f"by {by.name}"
    return {None: "", "kind": "by class", "node": "by node", "job": "by job"}[by]


class TextFilter:
    """Which executions have all the words of a text: in their names, or in the frames of their paths.

    A word as ``rank:3``, ``tp:1`` or ``stage:rollout`` is also that rank, dimension or label, and no other. Many share
    a path, so its text is made once; it is kept with it, for by that it is known again.
    """

    def __init__(self, text: str) -> None:
        self._words = text.casefold().split()
        self._known: dict[int, tuple[object, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._words)

    def within(self, execution: Execution, about: str = "") -> bool:
        """Whether it has all of them, or they are in a text about it."""
        path = execution.path
        if id(path) not in self._known:
            self._known[id(path)] = path, self._text(path)
        _, frames = self._known[id(path)]
        ranks = execution.ranks
        own = f"{execution.name} {execution.kind} {ranks.in_words} {execution.node} {execution.job} {about}".casefold()
        return all(word in own or word in frames or word in ranks.terms for word in self._words)

    def among(self, text: str, terms: Collection[str] = ()) -> bool:
        """Whether all of them are in a text, or are one of these terms."""
        folded = text.casefold()
        return all(word in folded or word in terms for word in self._words)

    def along(self, path: Sequence[PathStep]) -> bool:
        """Whether all of them are in these frames."""
        text = self._text(path)
        return all(word in text for word in self._words)

    @staticmethod
    def _text(path: Sequence[PathStep]) -> str:
        return " ".join(f"{step.name} {step.function} {step.file}:{step.line}" for step in path).casefold()
