"""The stacks of many executions as one prefix tree: where they all are, and where they part.

The executions are sorted by their paths once; a branch is a slice of them, so that it costs nothing to know who is in
it. Children are found when they are asked for: of 10,000 executions nobody looks at all branches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Literal

from dstack.analysis.running import Doing, Execution, Place

Grouping = Literal["kind", "node", "job"]


class Branch:
    """All executions whose paths begin alike: ``executions``, which are sorted by their paths.

    ``place`` is the last step of what they share, None at the root. Two are the same if their ``path`` is.
    """

    def __init__(self, tree: Sequence[Execution], begin: int, end: int, depth: int) -> None:
        self._tree = tree
        self.begin = begin
        self.end = end
        self.depth = depth

    @property
    def path(self) -> tuple[Place, ...]:
        """The steps from the root to here."""
        return self._tree[self.begin].path[: self.depth] if self.depth else ()

    @property
    def place(self) -> Place | None:
        """The frame or the group it is of."""
        return self._tree[self.begin].path[self.depth - 1] if self.depth else None

    @property
    def executions(self) -> Sequence[Execution]:
        """Who is in it."""
        return self._tree[self.begin : self.end]

    @property
    def count(self) -> int:
        """How many are in it."""
        return self.end - self.begin

    @cached_property
    def doing(self) -> Counter[Doing]:
        """How many of them wait, run, and neither."""
        return Counter(execution.doing for execution in self.executions)

    @cached_property
    def own(self) -> int:
        """How many of them end here: the first ones."""
        return next(
            (index for index, execution in enumerate(self.executions) if len(execution.path) > self.depth), self.count
        )

    @cached_property
    def children(self) -> tuple[Branch, ...]:
        """The branches it parts into, the largest first."""
        begin = self.begin + self.own
        found: list[Branch] = []
        for _, alike in groupby(self._tree[begin : self.end], key=lambda execution: execution.path[self.depth]):
            found.append(Branch(self._tree, begin, begin + sum(1 for _ in alike), self.depth + 1))
            begin = found[-1].end
        return tuple(sorted(found, key=lambda branch: -branch.count))

    def find(self, path: Sequence[Place]) -> Branch:
        """The branch of this path below this one, or as far as there is one."""
        branch = self
        for place in path:
            child = next((child for child in branch.children if child.place == place), None)
            if child is None:
                break
            branch = child
        return branch


def merge(
    executions: Iterable[Execution],
    *,
    by: Grouping | None = None,
    where: Callable[[Execution], bool] | None = None,
) -> Branch:
    """The root of the tree of all executions ``where`` that holds, with a first level of groups if wanted."""
    chosen = executions if where is None else filter(where, executions)
    if by is not None:
        name = attrgetter(by)
        groups: dict[str, Place] = {}
        chosen = [
            execution._replace(path=(groups.setdefault(name(execution), Place(name(execution))), *execution.path))
            for execution in chosen
        ]
    tree = sorted(chosen, key=lambda execution: (execution.path, str(execution.key)))
    return Branch(tree, 0, len(tree), 0)


class Words:
    """Which executions have all the words of a text: in their names, or in the frames of their paths.

    Many share a path, so its text is made once; it is kept with it, for by that it is known again.
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
        own = f"{execution.name} {execution.kind} {execution.node} {execution.job} {about}".casefold()
        return all(word in own or word in frames for word in self._words)

    def among(self, text: str) -> bool:
        """Whether all of them are in a text."""
        folded = text.casefold()
        return all(word in folded for word in self._words)

    def along(self, path: Sequence[Place]) -> bool:
        """Whether all of them are in these frames."""
        text = self._text(path)
        return all(word in text for word in self._words)

    @staticmethod
    def _text(path: Sequence[Place]) -> str:
        return " ".join(f"{step.name} {step.function} {step.file}:{step.line}" for step in path).casefold()
