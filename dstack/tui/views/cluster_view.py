"""The Cluster view: nodes, workers, actors and pending work, with the current activity of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.widgets import Static

from dstack import words
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.views import worker_groups
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.inventory import ClusterInventory, PendingItem, WorkerSummary
from dstack.analysis.views.node_resources import GroupOnNode
from dstack.analysis.views.worker_state import ExecutionGroup
from dstack.model.snapshot import Actor, Node
from dstack.model.vertex_keys import Key
from dstack.observed.node import Gpu, LogTail
from dstack.report import cluster_text
from dstack.report.logs_text import tails_of_workers
from dstack.report.rich_text import SafeText, place_of
from dstack.tui.views.base import LOGS, SORT, SORT_BACK, STACK, WAITS, OutlineView, SourceLocation, following
from dstack.tui.views.cluster_lines import ClusterLines, Columns, column_in_words, mark_of
from dstack.tui.widgets.outline import INDENT, Detail, Outline
from dstack.words import visible

SCROLLBAR = 2
"""The columns of an outline's scrollbar, which are always reserved."""


@dataclass(frozen=True, slots=True)
class ClusterDetails:
    """What the view shows about the nodes, groups, workers and pending work of an inventory."""

    index: SampleIndex
    inventory: ClusterInventory

    def texts(self, data: object) -> Iterator[Text]:
        """All details of what a line is about."""
        match data:
            case Node():
                yield from self._node(data)
            case WorkerSummary():
                yield from self._occupant(data)
            case worker_groups.WorkerGroup():
                yield from _group_texts(data)
            case worker_groups.BundlePlace():
                yield SafeText(cluster_text.bundle_in_words(data))
            case ExecutionGroup():
                yield from _execution_texts(data)
            case GroupOnNode():
                yield SafeText(cluster_text.resident_in_words(data))
                yield SafeText(f"{names.bundles(data.group)}, {data.group.strategy}", "dim")
            case PendingItem():
                yield SafeText().append(f"{data.count:,} × " if data.count > 1 else "", "dim").append(data.text)
            case Actor():
                yield SafeText(f"{names.actor(data)} is dead: {data.death_cause or 'no cause given'}")

    def _node(self, node: Node) -> Iterator[Text]:
        yield SafeText().append(f"{names.node(node)} {node.hostname}", "bold").append(f"  {node.node_id}", "dim")
        if not node.alive:
            yield SafeText(f"The node is dead: {node.death_cause or 'no cause given'}", "red")
        if not cluster_text.host_figures(node):
            yield SafeText("Host not read: no probe reached it.")
        if node.host.disks:
            yield SafeText(f"disk: {' · '.join(cluster_text.disk_figures(node))}").append(
                f"  {cluster_text.disk_paths(node)}", "dim"
            )
        yield from map(SafeText, cluster_text.gpu_figures(node))
        labels = [f"{key}={value}" for key, value in node.labels.items() if not key.startswith("ray.io/")]
        if labels:
            yield SafeText(f"Labels {', '.join(labels)}", "dim")

    def _occupant(self, occupant: WorkerSummary) -> Iterator[Text]:
        worker = occupant.worker
        process = self.index.process(worker.worker_id)
        ranks = f"{found}, " if (found := occupant.ranks.in_words) else ""
        text = SafeText().append(f"{occupant.name}", "bold")
        text.append(f"  {ranks}pid {worker.pid}, node {worker.ip}")
        yield text if process is None else text.append_text(cluster_text.process_figures(process))
        if process and (
            use := " · ".join(cluster_text.use_in_words(occupant.figures, process, self._gpus_of(worker.node_id)))
        ):
            yield SafeText(use)
        if notes := cluster_text.worker_notes(self.inventory, occupant):
            yield SafeText("; ".join(notes))
        activities = self.inventory.executions(worker.worker_id)
        for activity in activities[:1]:
            yield from _execution_texts(activity)
        if len(activities) > 1:
            yield SafeText(f"and {len(activities) - 1:,} more: Enter unfolds them", "dim")
        if not activities and occupant.activity == "idle":
            yield SafeText("It is idle.")

    def _gpus_of(self, node_id: str) -> dict[int, Gpu]:
        node = next((node for node in self.index.snapshot.nodes if node.node_id == node_id), None)
        return {gpu.index: gpu for gpu in (node.host.gpus if node else None) or ()}

    def location(self, data: object) -> SourceLocation | None:
        """The line of code of an execution."""
        found = self.activity(data)
        return (found.file, found.line) if found and found.file is not None and found.line is not None else None

    def activity(self, data: object) -> ExecutionGroup | None:
        """The activity that a line is about; that of the worst state for a worker."""
        if isinstance(data, WorkerSummary):
            return next(iter(self.inventory.executions(data.worker.worker_id)), None)
        return data if isinstance(data, ExecutionGroup) else None

    def vertex(self, data: object) -> Key | None:
        """The vertex that a line is about, if there is one."""
        found = self.activity(data)
        return found.vertex if found else data.vertex if isinstance(data, PendingItem) else None


def _execution_texts(activity: ExecutionGroup) -> Iterator[Text]:
    yield SafeText().append(f"{activity.count:,} × " if activity.count > 1 else "", "dim").append(activity.text)
    if activity.file is not None:
        source = f"  {activity.source}" if activity.source else ""
        yield SafeText().append(place_of(activity.file, activity.line), "cyan").append(source)


def _group_texts(group: worker_groups.WorkerGroup) -> Iterator[Text]:
    yield SafeText(group.title, "bold").append(f"  {words.plural(len(group.workers), 'worker')}", "dim")
    if (placed := group.placement_group) is not None:
        yield SafeText(f"{placed.state}, {placed.strategy}, {names.bundles(placed)}")
        if placed.scheduling_state and placed.state != "CREATED":
            yield SafeText(f"Ray's reason: {placed.scheduling_state}")


class ClusterView(OutlineView):
    """The cluster: hosts with disks and GPUs, resources, placement groups, and all workers with what they use.

    Each worker shows what it does now: it runs, waits, is idle, or was not read; a stuck worker can never proceed.
    Workers are grouped by node, class, placement group or label (b), and sorted by any column (< and >); sorted by a
    figure, each worker has its own line. In the columns, - is unknown, ~ an average since the start of the process,
    and ≥ a sum of which some parts are unknown. Below are pending tasks, actors and placement groups, with what they
    lack. A worker with + is new since the snapshot before; those that are gone are listed last. Enter unfolds a line,
    or goes to Waits.
    """

    DEFAULT_CSS = """
    ClusterView Outline { scrollbar-size-horizontal: 0; }
    ClusterView #columns { height: 1; padding: 0 1 0 0; text-wrap: nowrap; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        STACK,
        WAITS,
        LOGS,
        Binding(
            "b", "group", "Group", id="own.group", tooltip="Group by node, class, placement group, label, or not at all"
        ),
        SORT,
        SORT_BACK,
        Binding("v", "reverse", "Reverse", id="own.reverse", tooltip="Reverse the order"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.grouping = worker_groups.BY_NODE
        self.order = worker_groups.Order()
        self._groups: worker_groups.WorkerGroups | None = None
        self._columns = Columns()
        self._lines: ClusterLines | None = None
        self._texts: ClusterDetails | None = None

    def compose_body(self) -> ComposeResult:
        yield Static(id="columns")
        yield Outline(empty="No nodes in this snapshot.")
        yield Detail()

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Show the cluster; cursor, folds, groups and order stay."""
        inventory = ClusterInventory(analysed.merged_index, analysed.diagnosis)
        self._texts = ClusterDetails(analysed.merged_index, inventory)
        self._groups = worker_groups.WorkerGroups(analysed.merged_index, inventory)
        if self.grouping not in self._groups.groupings():
            self.grouping = worker_groups.BY_NODE
        self._draw()
        self._show_details()

    def on_resize(self, event: events.Resize) -> None:
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
        left = f" {self.grouping.words}, sorted by {column_in_words(self.order.column)} {mark_of(self.order)}"
        return self._columns.header(visible(left), max(1, width), self.order)

    # Groups and order

    def action_group(self) -> None:
        if self._groups is not None:
            self._arrange(following(self._groups.groupings(), self.grouping), self.order)

    def action_sort(self, by: int) -> None:
        columns, column = self._sortable, self.order.column
        self._sort_by(following(columns, column if column in columns else columns[0], by))

    def action_reverse(self) -> None:
        self._arrange(self.grouping, replace(self.order, is_reversed=not self.order.is_reversed))

    def choices(self) -> Iterator[SystemCommand]:
        for grouping in self._groups.groupings() if self._groups else ():
            title = "Do not group" if grouping.kind == "all" else f"Group {grouping.words}"
            yield SystemCommand(visible(title), "Group the workers", partial(self._group_by, grouping))
        for column in self._sortable:
            yield SystemCommand(
                f"Sort by {column_in_words(column)}", "Sort the workers", partial(self._sort_by, column)
            )

    @property
    def _sortable(self) -> tuple[worker_groups.Column, ...]:
        return ("activity", "name", *(self._groups.known_figures if self._groups else ()))

    def _group_by(self, grouping: worker_groups.WorkerGrouping) -> None:
        self._arrange(grouping, self.order)

    def _sort_by(self, column: worker_groups.Column) -> None:
        self._arrange(self.grouping, worker_groups.Order(column))

    def _arrange(self, grouping: worker_groups.WorkerGrouping, order: worker_groups.Order) -> None:
        """Show other groups or another order, from the top."""
        self.grouping, self.order = grouping, order
        self._draw()
        self._outline.action_first()
        self._show_details()

    # Lines

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
    def stack_vertex(self) -> Key | None:
        """What is executed; of a worker, what is in the worst state."""
        return None if isinstance(self._data, PendingItem) else self.waits_vertex

    @property
    def log_tails(self) -> Sequence[LogTail]:
        """The logs of the worker, or of the node's raylet and agent."""
        data = self._data
        if isinstance(data, WorkerSummary) and self.analysed:
            return tails_of_workers(self.analysed, [data.worker.worker_id])
        tails = self.analysed.snapshot.log_tails if self.analysed and isinstance(data, Node) else ()
        return [tail for tail in tails if isinstance(data, Node) and tail.node_id == data.node_id]

    @property
    def waits_vertex(self) -> Key | None:
        """What is executed or pending."""
        return self._texts.vertex(self._data) if self._texts else None

    def _details(self) -> Iterable[Text]:
        return self._texts.texts(self._data) if self._texts else ()
