"""The base of the views that merge stacks: how the stacks are grouped, and which frames they have."""

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
"""The keys of these views; each view places them among its own, in the order of its footer."""


class GroupedView(View):
    """A view of stacks, merged by class, node or job, or by a rank, dimension or label.

    Each subclass has :data:`GROUP` and :data:`WHOLE` among its bindings.
    """

    def __init__(self, grouping: Grouping | None) -> None:
        super().__init__()
        self.grouping = grouping
        self.is_whole = False

    def merge_again(self) -> None:
        """Merge the stacks again, by another grouping or with other frames."""
        raise NotImplementedError

    def action_group(self) -> None:
        """Select the next grouping."""
        groupings = self._groupings
        following = groupings.index(self.grouping) + 1 if self.grouping in groupings else 0
        self._group_by(groupings[following % len(groupings)])

    def action_whole(self) -> None:
        """Switch between whole stacks and the application's own frames."""
        self.is_whole = not self.is_whole
        self.merge_again()

    def choices(self) -> Iterator[Choice]:
        """One for each grouping."""
        for grouping in self._groupings:
            title = f"Group {grouping_in_words(grouping)}" if grouping else "No groups"
            yield Choice(title, "Group the merged stacks", partial(self._group_by, grouping))

    def _group_by(self, grouping: Grouping | None) -> None:
        self.grouping = grouping
        self.merge_again()

    @property
    def _groupings(self) -> tuple[Grouping | None, ...]:
        return self.analysed.stacks.groupings if self.analysed else GROUPINGS
