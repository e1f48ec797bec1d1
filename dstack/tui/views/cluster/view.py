"""The Cluster view: nodes, workers, actors and pending work, with the current activity of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.widgets import Static

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.inventory import Inventory, PendingItem
from dstack.analysis.views.worker_groups import BY_NODE, Column, Order, WorkerGrouping, WorkerGroups
from dstack.tui.views.base import OutlineView, SourceLocation
from dstack.tui.views.cluster.columns import WORDS, Columns, mark_of
from dstack.tui.views.cluster.details import ClusterDetails
from dstack.tui.views.cluster.lines import ClusterLines
from dstack.tui.widgets.detail import Detail
from dstack.tui.widgets.outline import Outline
from dstack.tui.widgets.outline_tree import INDENT
from dstack.vertex_keys import Key
from dstack.visible import visible

SCROLLBAR = 2
"""The columns of an outline's scrollbar, which are always reserved."""


class ClusterView(OutlineView):
    """The cluster: hosts with disks and GPUs, resources, placement groups, and all workers with what they use.

    Each worker shows what it does now: it runs, waits, is idle, or was not read; a stuck worker can never proceed.
    Workers are grouped by node, class, placement group or label (b), and sorted by any column (< and >); sorted by a
    figure, each worker has its own line. In the columns, - is unknown, ~ an average since the start of the process,
    and ≥ a sum of which some parts are unknown. Below are pending tasks, actors and placement groups, with what they
    lack. A worker with + is new since the snapshot before; those that are gone are listed last. Enter unfolds a line,
    or goes to Waits.
    """

    CSS = """
    ClusterView Outline { scrollbar-size-horizontal: 0; }
    ClusterView #columns { height: 1; padding: 0 1 0 0; text-wrap: nowrap; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "stack", "Stack", id="own.stack", tooltip="Go to the stack of what runs there"),
        Binding("w", "waits", "Waits", id="own.waits", tooltip="Go to its entry in the Waits view"),
        Binding(
            "b", "group", "Group", id="own.group", tooltip="Group by node, class, placement group, label, or not at all"
        ),
        Binding(
            "greater_than_sign",
            "sort(1)",
            "Sort",
            key_display=">",
            id="own.sort",
            tooltip="Sort by the next column",
        ),
        Binding(
            "less_than_sign",
            "sort(-1)",
            "Sort back",
            key_display="<",
            show=False,
            id="own.sort-back",
            tooltip="Sort by the previous column",
        ),
        Binding("v", "reverse", "Reverse", id="own.reverse", tooltip="Reverse the order"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.grouping = BY_NODE
        self.order = Order()
        self._groups: WorkerGroups | None = None
        self._columns = Columns()
        self._lines: ClusterLines | None = None
        self._texts: ClusterDetails | None = None

    def compose_body(self) -> ComposeResult:
        """The titles of the columns, the outline, and the details of the line under the cursor."""
        yield Static(id="columns")
        yield Outline(empty="No nodes in this snapshot.")
        yield Detail()

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Show the cluster; cursor, folds, groups and order stay."""
        inventory = Inventory(analysed.merged_index, analysed.diagnosis)
        self._texts = ClusterDetails(analysed.merged_index, inventory)
        self._groups = WorkerGroups(analysed.merged_index, inventory)
        if self.grouping not in self._groups.groupings():
            self.grouping = BY_NODE
        self._draw()
        self._show_details()

    def on_resize(self, event: events.Resize) -> None:
        """Show the columns that fit."""
        self._draw_if_columns_change()

    def _draw(self) -> None:
        """Make the lines again, with the groups, the order and the columns."""
        if self._groups is None or self._texts is None or self.analysed is None:
            return
        self._columns = self._columns_that_fit()
        self._lines = ClusterLines(
            self.analysed, self._texts.inventory, self._groups, self.grouping, self.order, self._columns, self.changes
        )
        self._outline.show(self._lines.roots())
        self._show_header()

    def _draw_if_columns_change(self) -> None:
        if self._columns != self._columns_that_fit():
            self._draw()
        self._show_header()

    def _columns_that_fit(self) -> Columns:
        known = self._groups.known_figures if self._groups else ()
        return Columns.that_fit(known, self.size.width - SCROLLBAR, self.order)

    def _show_header(self) -> None:
        self.query_one("#columns", Static).update(self._header(self.size.width - SCROLLBAR))

    def _header(self, width: int) -> Text:
        """The groups and the order in words, and the titles of the columns."""
        left = f" {self.grouping.words}, sorted by {WORDS[self.order.column]} {mark_of(self.order)}"
        return self._columns.header(visible(left), max(1, width), self.order)

    # Groups and order

    def action_group(self) -> None:
        """Select the next grouping."""
        if self._groups is not None:
            groupings = self._groups.groupings()
            self._arrange(groupings[(groupings.index(self.grouping) + 1) % len(groupings)], self.order)

    def action_sort(self, by: int) -> None:
        """Sort by the next or previous column that this snapshot has."""
        columns = self._sortable
        at = columns.index(self.order.column) if self.order.column in columns else 0
        self._sort_by(columns[(at + by) % len(columns)])

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._arrange(self.grouping, replace(self.order, is_reversed=not self.order.is_reversed))

    def choices(self) -> Iterator[SystemCommand]:
        """One for each grouping and column."""
        for grouping in self._groups.groupings() if self._groups else ():
            title = "Do not group" if grouping.kind == "all" else f"Group {grouping.words}"
            yield SystemCommand(visible(title), "Group the workers", partial(self._group_by, grouping))
        for column in self._sortable:
            yield SystemCommand(f"Sort by {WORDS[column]}", "Sort the workers", partial(self._sort_by, column))

    @property
    def _sortable(self) -> tuple[Column, ...]:
        return ("activity", "name", *(self._groups.known_figures if self._groups else ()))

    def _group_by(self, grouping: WorkerGrouping) -> None:
        self._arrange(grouping, self.order)

    def _sort_by(self, column: Column) -> None:
        self._arrange(self.grouping, Order(column))

    def _arrange(self, grouping: WorkerGrouping, order: Order) -> None:
        """Show other groups or another order, from the top."""
        self.grouping, self.order = grouping, order
        self._draw()
        self._outline.action_first()
        self._show_details()

    # Lines

    def on_outline_chosen(self, event: Outline.Chosen) -> None:
        """Fold or unfold the line; go to the waits of a line without children."""
        if event.line.has_children:
            event.outline.toggle(event.line)
        else:
            self.action_waits()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable actions that do not apply to the line."""
        if action == "stack":
            return self._vertex is not None and not isinstance(self._data, PendingItem)
        if action == "waits":
            return self._vertex is not None
        return True

    def action_stack(self) -> None:
        """Go to the stack of the execution; to that of the worst state for a worker."""
        if self._vertex is not None:
            self.host.go_to("stacks", self._vertex)

    def action_waits(self) -> None:
        """Go to its entry in the Waits view."""
        if self._vertex is not None:
            self.host.go_to("waits", self._vertex)

    def to_export(self) -> str | None:
        """The titles of the columns, and all unfolded lines."""
        titles = self._header(self.size.width - SCROLLBAR - INDENT)  # the marks of folds are not exported
        return f"{titles.plain}\n{self._outline.as_text()}"

    def to_copy(self) -> str | None:
        """The details of the line."""
        return "\n".join(text.plain for text in self._details()) or None

    def to_open(self) -> SourceLocation | None:
        """The line of code of the execution."""
        return self._texts.location(self._data) if self._texts else None

    def _path_to(self, vertex: Key) -> Sequence[str]:
        return self._lines.path_to(vertex) if self._lines else ()

    @property
    def _vertex(self) -> Key | None:
        return self._texts.vertex(self._data) if self._texts else None

    def _details(self) -> Iterable[Text]:
        return self._texts.texts(self._data) if self._texts else ()
