"""The cluster: its nodes with their resources, its workers with what they do and use, and what is pending."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.naming.names import BYTES
from dstack.analysis.stacks.app_threads import ACTIVITIES, Activity
from dstack.analysis.stacks.peers import RankSets
from dstack.analysis.views.inventory import ClusterInventory, WorkerSummary, group_similar_workers
from dstack.analysis.views.node_resources import TITLES, Amount
from dstack.analysis.views.worker_state import FIGURES, Figure, total
from dstack.model.snapshot import Node, PlacementGroup
from dstack.model.vertex_keys import Key
from dstack.report import cluster_text
from dstack.report.memory_text import memory_lines
from dstack.report.page.section import ReportData, Section, render
from dstack.report.rich_text import place_of
from dstack.words import listed, plural

MAX_NODES = 500
SHOWN_LINES = 8
"""So many disks, GPUs, placement groups and other resources of one node are listed."""
OWN_COLUMNS = ("CPU", "GPU", "object_store_memory")
"""The resources that have a column each, if any node has them."""
GIB = 2**30
MAX_ROWS = 2_000
"""Of more workers, similar ones share a row; of more rows, the first ones are shown: stuck workers come first."""
MAX_PENDING = 200
MAX_DEAD = 100
MAX_GROUPS = 200


@dataclass(frozen=True, slots=True)
class FigureCell:
    """A figure in words, and the number to sort by; None if it is unknown."""

    text: str = "-"
    value: float | None = None


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node; ``counts`` are its workers by activity, ``more`` is what has no column, in lines."""

    node: Node
    workers: int
    counts: tuple[tuple[Activity, int], ...]
    busy: FigureCell
    load: FigureCell
    memory: FigureCell
    amounts: tuple[FigureCell, ...]
    more: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeTable:
    """The rows, the titles of the resources that have columns, and how many nodes have no row."""

    rows: tuple[NodeRow, ...]
    resources: tuple[str, ...]
    left_out: int


def node_table(inventory: ClusterInventory) -> NodeTable:
    """The table of all nodes; of very many the head, dead nodes, and those with stuck or unread workers come first."""
    nodes: Sequence[Node] = inventory.nodes
    if len(nodes) > MAX_NODES:
        nodes = sorted(nodes, key=lambda node: not _is_notable(inventory, node))
    shown = nodes[:MAX_NODES]
    found = {amount.name for node in shown for amount in inventory.resources.amounts(node) if node.alive}
    columns = tuple(name for name in OWN_COLUMNS if name in found)
    rows = tuple(_row(inventory, node, columns) for node in shown)
    return NodeTable(rows, tuple(TITLES.get(name, name) for name in columns), len(nodes) - len(shown))


def _is_notable(inventory: ClusterInventory, node: Node) -> bool:
    counts = inventory.counts(inventory.on_node(node))
    return node.is_head or not node.alive or "stuck" in counts or "not read" in counts


def _row(inventory: ClusterInventory, node: Node, columns: Sequence[str]) -> NodeRow:
    workers = inventory.on_node(node)
    amounts = {amount.name: amount for amount in inventory.resources.amounts(node)} if node.alive else {}
    return NodeRow(
        node=node,
        workers=len(workers),
        counts=tuple(inventory.counts(workers).items()),
        busy=_busy(node),
        load=FigureCell() if node.host.load_1m is None else FigureCell(f"{node.host.load_1m:.1f}", node.host.load_1m),
        memory=_memory(node),
        amounts=tuple(_amount(amounts.get(name)) for name in columns),
        more=tuple(_more(inventory, node, [amount for name, amount in amounts.items() if name not in columns])),
    )


def _busy(node: Node) -> FigureCell:
    cpus = f" of {node.host.cpu_count}" if node.host.cpu_count is not None else ""
    if node.host.cpu_percent is None:
        return FigureCell(f"-{cpus}")
    return FigureCell(f"{node.host.cpu_percent:.0f} %{cpus}", node.host.cpu_percent)


def _memory(node: Node) -> FigureCell:
    if node.host.memory_total_bytes is None or node.host.memory_available_bytes is None:
        return FigureCell()
    used = node.host.memory_total_bytes - node.host.memory_available_bytes
    return FigureCell(f"{used / GIB:.1f} of {node.host.memory_total_bytes / GIB:.1f} GiB", used)


def _amount(amount: Amount | None) -> FigureCell:
    """``2 of 4``: the used part of a resource."""
    if amount is None:
        return FigureCell()
    divisor, unit = (GIB, " GiB") if amount.name in BYTES else (1, "")
    total = f"{amount.total / GIB:.1f}" if unit else f"{amount.total:g}"
    if amount.free is None:
        return FigureCell(f"? of {total}{unit}")
    used = max(0.0, amount.total - amount.free)
    return FigureCell(f"{used / GIB:.1f} of {total}{unit}" if unit else f"{used:g} of {total}", used / divisor)


def _more(inventory: ClusterInventory, node: Node, amounts: Sequence[Amount]) -> Iterator[str]:
    """Other resources, disks, GPUs and placement groups."""
    if not node.alive:
        yield node.death_cause or "no cause given"
    elif node.host.cpu_count is None:
        yield "host not read"
    yield from _first([amount.words for amount in amounts], "resources")
    yield from _first([f"disk: {text}" for text in cluster_text.disk_figures(node)], "disks")
    yield from _first(cluster_text.gpu_figures(node), "GPUs")
    groups = (one for one in inventory.resources.placement_groups_on(node) if one.group.state != "REMOVED")
    yield from _first(list(map(cluster_text.resident_in_words, groups)), "placement groups")


def _first(texts: Sequence[str], what: str) -> Iterator[str]:
    yield from texts[:SHOWN_LINES]
    if (more := len(texts) - SHOWN_LINES) > 0:
        yield f"{more:,} more {what}"


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker, or ``count`` similar ones with the pid and the node of the first; ``stack`` is the id of its stack.

    ``does`` is its activity, or the number of its executions by activity. ``notes`` are its queue, its resources and
    why it was not read.
    """

    activity: Activity
    count: int
    nodes: int
    name: str
    ranks: str
    pid: int
    node: str
    does: str
    place: str
    stack: str | None
    notes: tuple[str, ...]
    figures: tuple[FigureCell, ...]
    terms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerTable:
    """The rows, the figures that any of the workers has, and how many workers have no row."""

    rows: tuple[WorkerRow, ...]
    figures: tuple[Figure, ...]
    left_out: int

    @property
    def is_grouped(self) -> bool:
        """Whether a row is of several workers."""
        return any(row.count > 1 for row in self.rows)


def worker_table(
    inventory: ClusterInventory, summaries: Sequence[WorkerSummary], ids: Mapping[Key, str], rank_sets: RankSets
) -> WorkerTable:
    """The table of these workers, stuck ones first; ``ids`` are those of the elements with stacks."""
    groups = group_similar_workers(summaries) if len(summaries) > MAX_ROWS else [[one] for one in summaries]
    figures = tuple(one for one in FIGURES if any(one.value(some.figures) is not None for some in summaries))
    maker = _RowMaker(inventory, ids, rank_sets, figures)
    left_out = sum(map(len, groups[MAX_ROWS:]))
    return WorkerTable(tuple(map(maker.row, groups[:MAX_ROWS])), figures, left_out)


@dataclass(frozen=True, slots=True)
class _RowMaker:
    inventory: ClusterInventory
    ids: Mapping[Key, str]
    rank_sets: RankSets
    figures: tuple[Figure, ...]

    def row(self, similar: Sequence[WorkerSummary]) -> WorkerRow:
        """The row of one worker or of several similar ones."""
        first, worker = similar[0], similar[0].worker
        does, place, stack = self._activity(first)
        return WorkerRow(
            activity=first.activity,
            count=len(similar),
            nodes=len({one.worker.node_id for one in similar}),
            name=first.name,
            ranks=self._ranks(similar),
            pid=worker.pid,
            node=worker.ip,
            does=does,
            place=place,
            stack=stack,
            notes=tuple(cluster_text.worker_notes(self.inventory, first)),
            figures=tuple(self._cell(figure, similar) for figure in self.figures),
            terms=tuple(sorted({term for one in similar for term in one.ranks.terms})),
        )

    def _ranks(self, similar: Sequence[WorkerSummary]) -> str:
        if len(similar) == 1:
            return similar[0].ranks.in_words
        found = self.rank_sets.rank_set([one.worker.worker_id for one in similar])
        return found.words if found else ""

    def _activity(self, one: WorkerSummary) -> tuple[str, str, str | None]:
        """What it does, at which line, and the id of its stack."""
        executions = self.inventory.executions(one.worker.worker_id)
        if not executions:
            return "", "", None
        first = executions[0]
        words = first.words if first.is_whole_process else first.text
        if sum(one.counts.values()) > 1:
            words = f"{listed([f'{count:,} {activity}' for activity, count in one.counts.items()])}; {words}"
        place = place_of(first.file, first.line) if first.file else ""
        return words, place, self.ids.get(first.vertex)

    def _cell(self, figure: Figure, similar: Sequence[WorkerSummary]) -> FigureCell:
        if len(similar) == 1:
            own = similar[0].figures
            return FigureCell(cluster_text.worker_cell(figure, own), figure.value(own))
        summed = total(figure, (one.figures for one in similar))
        return FigureCell(cluster_text.total_cell(figure, summed), summed.value)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A placement group in words; ``why`` is Ray's reason while it is pending."""

    name: str
    state: str
    strategy: str
    bundles: str
    nodes: str
    why: str


def section(data: ReportData) -> Section | None:
    """The cluster; None if the snapshot has neither nodes nor workers."""
    analysed = data.analysed
    index, snapshot = analysed.merged_index, analysed.snapshot
    if not snapshot.nodes and not snapshot.workers:
        return None
    inventory = ClusterInventory(index, analysed.diagnosis)
    workers = inventory.summaries(snapshot.workers)
    groups, pending = index.sample.placement_groups, inventory.pending_items()
    dead = [actor for actor in snapshot.actors if actor.state == "DEAD"]
    body = render(
        "cluster.html",
        title=f"{plural(len(workers), 'worker or driver', 'workers and drivers')} on {plural(_alive(data), 'node')}",
        counts=inventory.counts(snapshot.workers),
        marks={activity: cluster_text.MARKS[activity][0] for activity in ACTIVITIES if activity in cluster_text.MARKS},
        orders={activity: at for at, activity in enumerate(ACTIVITIES)},
        nodes=node_table(inventory),
        workers=worker_table(inventory, workers, data.stack_ids, analysed.stacks.rank_sets),
        pending=pending[:MAX_PENDING],
        more_pending=len(pending) - MAX_PENDING,
        memory=list(memory_lines(analysed.object_memory)) if analysed.object_memory.stored.total else (),
        groups=[_group(index, group) for group in groups[:MAX_GROUPS]],
        all_groups=len(groups),
        dead=[(names.actor(one), one.death_cause or "no cause given") for one in dead[:MAX_DEAD]],
        all_dead=len(dead),
        plural=plural,
    )
    return Section("cluster", "Cluster", body, script="table.js", count=len(workers))


def _alive(data: ReportData) -> int:
    return sum(node.alive for node in data.analysed.snapshot.nodes)


def _group(index: SampleIndex, group: PlacementGroup) -> GroupRow:
    nodes = dict.fromkeys(bundle.node_id for bundle in group.bundles if bundle.node_id)
    found = [index.nodes[node_id].ip for node_id in nodes if node_id in index.nodes]
    more = f" and {len(found) - 3:,} more" if len(found) > 3 else ""
    return GroupRow(
        names.placement_group(group),
        group.state,
        group.strategy,
        names.bundles(group),
        ", ".join(found[:3]) + more,
        (group.scheduling_state or "") if group.state != "CREATED" else "",
    )
