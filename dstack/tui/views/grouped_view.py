"""What those views have in common that merge stacks: how they are grouped."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from textual.binding import Binding

from dstack.analysis.stacks.stack_tree import GROUPINGS, Grouping, grouping_in_words
from dstack.tui.views.base import Choice, View

GROUP = Binding("b", "group", "Group", id="own.group", tooltip="Group by class, node, job, rank, dimension or label")
WHOLE = Binding(
    "w", "whole", "Whole", show=False, id="own.whole", tooltip="Show whole stacks, or only the application's frames"
)
"""The keys of these views; each class has them in the place that they have in its footer."""


class GroupedView(View):
    """A view of merged stacks, in groups of a class, node or job, or of one rank, dimension or label.

    Its class has :data:`GROUP` and :data:`WHOLE` among its bindings.
    """

    def __init__(self, grouping: Grouping | None) -> None:
        super().__init__()
        self.grouping = grouping

    def regroup(self) -> None:
        """Merges again, in other groups."""
        raise NotImplementedError

    def action_group(self) -> None:
        """Goes on to the next way of grouping."""
        ways = self._groupings
        after = ways.index(self.grouping) + 1 if self.grouping in ways else 0
        self._group_by(ways[after % len(ways)])

    def choices(self) -> Iterator[Choice]:
        """Every way of grouping."""
        for grouping in self._groupings:
            title = f"Group {grouping_in_words(grouping)}" if grouping else "No groups"
            yield Choice(title, "Group the merged stacks", partial(self._group_by, grouping))

    def _group_by(self, grouping: Grouping | None) -> None:
        self.grouping = grouping
        self.regroup()

    @property
    def _groupings(self) -> tuple[Grouping | None, ...]:
        return self.look.stacks.groupings if self.look else GROUPINGS
