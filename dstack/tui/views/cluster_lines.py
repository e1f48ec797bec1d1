"""The lines of the Cluster view, and the columns of figures beside them, right-aligned at the edge of the screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from rich.console import Console
from rich.text import Text

from dstack import words
from dstack.analysis.naming import names
from dstack.analysis.stacks.app_threads import ACTIVITIES, Activity
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.inventory import ClusterInventory, PendingItem, WorkerSummary, group_similar_workers
from dstack.analysis.views.node_resources import GroupOnNode
from dstack.analysis.views.object_memory import ObjectMemory
from dstack.analysis.views.snapshot_changes import SnapshotChanges
from dstack.analysis.views.worker_groups import BundlePlace, Column, Order, WorkerGroup, WorkerGrouping, WorkerGroups
from dstack.analysis.views.worker_state import FIGURES, ExecutionGroup, Figure, Total, WorkerFigures
from dstack.model.snapshot import Actor, Node, Worker
from dstack.model.vertex_keys import Key
from dstack.report import cluster_text
from dstack.report.memory_text import memory_lines
from dstack.report.rich_text import SafeText, location
from dstack.tui.views.base import marked
from dstack.tui.widgets.outline import Line

MIN_TEXT = 54
"""So many cells stay for the text of a line before a column is left out."""
OPENED_GROUPS = 8
OPENED_PENDING = 20
SHOWN_WORKERS = 200
"""Of a larger group, the first ones have lines; the others are in folded parts of :data:`PART`."""
PART = 1_000
PENDING, MEMORY = "pending", "memory"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that fit on the screen, in their order."""

    figures: tuple[Figure, ...] = ()

    @classmethod
    def that_fit(cls, known: Sequence[Figure], width: int, order: Order) -> Columns:
        """The most important of the ``known`` figures that leave enough cells for text; always the sorted one."""
        left = width - MIN_TEXT - (order.figure.width if order.figure else 0)
        found: set[Figure] = {order.figure} if order.figure else set()
        for figure in known:
            if figure not in found:
                left -= figure.width
                if left < 0:
                    break
                found.add(figure)
        return cls(tuple(figure for figure in FIGURES if figure in found))

    @property
    def width(self) -> int:
        """The width of all columns."""
        return sum(figure.width for figure in self.figures)

    def header(self, left: str, width: int, order: Order) -> Text:
        """The line of titles, with a mark at the sorted column."""
        cells = {figure: figure.title + (mark_of(order) if figure is order.figure else "") for figure in self.figures}
        text = Text(left, "dim", no_wrap=True, end="")
        text.truncate(max(1, width - self.width), overflow="ellipsis", pad=True)
        for figure in self.figures:
            text.append(cells[figure].rjust(figure.width), "bold" if figure is order.figure else "dim")
        return text

    def of_worker(self, figures: WorkerFigures) -> Text:
        """The cells of one worker."""
        return self._cells({figure: cluster_text.worker_cell(figure, figures) for figure in self.figures})

    def of_total(self, totals: Mapping[Figure, Total]) -> Text:
        """The cells of a group."""
        return self._cells({figure: cluster_text.total_cell(figure, totals[figure]) for figure in self.figures})

    def _cells(self, cells: Mapping[Figure, str]) -> Text:
        text = Text(end="")
        for figure in self.figures:
            cell = cells[figure]
            text.append(cell.rjust(figure.width), "dim" if cell == cluster_text.UNKNOWN else figure.style)
        return text


def beside(text: Text, cells: Text) -> Callable[[int, Console], Sequence[Text]]:
    """The layout of a line: its text, cut off where the cells begin; made once for each width."""
    made: dict[int, list[Text]] = {}

    def rows(width: int, _: Console) -> Sequence[Text]:
        if width not in made:
            row = text.copy()
            row.truncate(max(1, width - cells.cell_len), overflow="ellipsis", pad=True)
            made.clear()
            made[width] = [row.append_text(cells)]
        return made[width]

    return rows


def column_in_words(column: Column) -> str:
    """``activity``, ``CPU``: a column in sentences."""
    return column.words if isinstance(column, Figure) else column


def mark_of(order: Order) -> str:
    """``▼`` if the largest or last comes first, else ``▲``."""
    return "▼" if order.is_descending else "▲"


class ClusterLines:
    """The lines of one snapshot, in groups and in an order; children are made when they are unfolded."""

    def __init__(
        self,
        analysed: AnalysedSnapshot,
        inventory: ClusterInventory,
        groups: WorkerGroups,
        grouping: WorkerGrouping,
        order: Order,
        columns: Columns,
        changes: SnapshotChanges | None = None,
    ) -> None:
        self.analysed = analysed
        self.inventory = inventory
        self._groups = groups
        self._grouping = grouping
        self._order = order
        self._columns = columns
        self._changes = changes

    def roots(self) -> list[Line]:
        """The groups, then the pending work and the object store."""
        lines = [self._group_line(group, is_open=n < OPENED_GROUPS) for n, group in enumerate(self._shown_groups)]
        pending = self.inventory.pending_items()
        if pending:
            count = f"Pending: {sum(one.count for one in pending):,}"
            text = SafeText().append(count, "bold").append("  tasks, actors, placement groups and calls")
            is_open = len(pending) <= OPENED_PENDING
            lines.append(Line(PENDING, text, lambda: list(map(_pending, pending)), is_open=is_open, data="pending"))
        return [*lines, *_memory(self.analysed.object_memory), *_gone(self._changes)]

    @cached_property
    def _shown_groups(self) -> tuple[WorkerGroup, ...]:
        return self._groups.groups(self._grouping, self._order)

    # The way to a vertex

    def path_to(self, vertex: Key) -> list[str]:
        """The keys of the lines from the root down to a vertex; empty if it is not in this view."""
        known = self.analysed.diagnosis.vertices.get(vertex)
        if known is None:
            return []
        if known.worker_id is None:
            found = next((one for one in self.inventory.pending_items() if vertex in one.similar), None)
            return [PENDING, f"pending/{found.vertex}"] if found else []
        return self._path_to_worker(known.worker_id)

    def _path_to_worker(self, worker_id: str) -> list[str]:
        for group in self._shown_groups:
            for bundle in group.bundles:
                key = _bundle_key(group, bundle)
                if path := self._path_among(key, bundle.workers, worker_id):
                    return [group.key, key, *path]
            if path := self._path_among(group.key, group.outside_bundles, worker_id):
                return [group.key, *path]
        return []

    def _path_among(self, key: str, workers: Sequence[Worker], worker_id: str) -> list[str]:
        """The keys of the lines below the group's that lead to a worker; empty if it is not among these."""
        if all(worker.worker_id != worker_id for worker in workers):
            return []
        for number, similar in enumerate(self._folded(workers)):
            if any(one.worker.worker_id == worker_id for one in similar):
                part = [] if number < SHOWN_WORKERS else [_part_key(key, number - (number - SHOWN_WORKERS) % PART)]
                fold = [f"similar/{similar[0].worker.worker_id}"] if len(similar) > 1 else []
                return [*part, *fold, worker_id]
        return []

    # Groups

    def _group_line(self, group: WorkerGroup, *, is_open: bool) -> Line:
        if group.node is not None:
            return self._node(group, group.node, is_open=is_open)
        text = SafeText(group.title, "bold").append(f"  {words.plural(len(group.workers), 'worker')}", "dim")
        self._append_counts(text, group.workers)
        line = Line(group.key, text, partial(self._below_group, group), is_open=is_open, data=group)
        return self._with_totals(line, group.workers)

    def _node(self, group: WorkerGroup, node: Node, *, is_open: bool) -> Line:
        text = SafeText().append(group.title, "bold").append(" (head)" if node.is_head else "")
        text.append(f" {node.hostname}" if node.hostname else "", "dim")
        if not node.alive:
            text.append("  ✖ dead", "bold red")
        for amount in self.inventory.resources.amounts(node)[:2] if node.alive else ():
            if amount.name in ("CPU", "GPU"):
                text.append(f"  {amount.words}")
        self._append_counts(text, group.workers)
        if partly := self.inventory.partly_read(node):
            text.append(f"  ({partly:,} only partly read)", cluster_text.MARKS["not read"][1])
        below = partial(self._below_node, group, node)
        line = Line(node.node_id, text, below, is_open=is_open and node.alive, data=node)
        return self._with_totals(line, group.workers)

    def _append_counts(self, text: Text, workers: Iterable[Worker]) -> None:
        for activity, count in self.inventory.counts(workers).items():
            mark, style = cluster_text.MARKS[activity]
            text.append("  ").append(f"{mark}: {count:,}", style)

    def _below_node(self, group: WorkerGroup, node: Node) -> list[Line]:
        lines = list(_host_lines(node))
        if amounts := " · ".join(one.words for one in self.inventory.resources.amounts(node) if node.alive):
            lines.append(Line(f"amounts/{node.node_id}", SafeText(amounts), data=node, hanging_indent=0))
        lines += [_resident(one, node) for one in self.inventory.resources.placement_groups_on(node)]
        lines += self._worker_lines(group.key, group.workers)
        if dead := self.inventory.dead_actors(node):
            title = SafeText(f"† {words.plural(len(dead), 'dead actor')}")
            lines.append(Line(f"dead/{node.node_id}", title, list(map(_dead, dead))))
        return lines

    def _below_group(self, group: WorkerGroup) -> list[Line]:
        bundles = [self._bundle(group, bundle) for bundle in group.bundles]
        return [*bundles, *self._worker_lines(group.key, group.outside_bundles)]

    def _bundle(self, group: WorkerGroup, bundle: BundlePlace) -> Line:
        children: Callable[[], Sequence[Line]] | tuple[()] = ()
        if bundle.workers:
            children = partial(self._worker_lines, _bundle_key(group, bundle), bundle.workers)
        text = SafeText("▣ ").append(cluster_text.bundle_in_words(bundle))
        line = Line(_bundle_key(group, bundle), text, children, is_open=True, data=bundle)
        return self._with_totals(line, bundle.workers)

    def _with_totals(self, line: Line, workers: Sequence[Worker]) -> Line:
        if not self._columns.figures or not workers:
            return line
        totals = self._groups.totals(self._columns.figures, workers)
        return replace(line, layout=beside(line.text, self._columns.of_total(totals)))

    # Workers

    def _worker_lines(self, key: str, workers: Iterable[Worker]) -> list[Line]:
        """The lines of workers below the line with this key."""
        folded = self._folded(workers)
        lines = [self._group(similar) for similar in folded[:SHOWN_WORKERS]]
        starts = range(SHOWN_WORKERS, len(folded), PART)
        return [*lines, *(self._part(key, start, folded[start : start + PART]) for start in starts)]

    def _part(self, key: str, start: int, folded: Sequence[Sequence[WorkerSummary]]) -> Line:
        """One line for further workers in their order."""
        workers = [one.worker for similar in folded for one in similar]
        text = SafeText(f"{start + 1:,} to {start + len(folded):,} in this order", "bold")
        text.append(f"  {words.plural(len(workers), 'worker')}", "dim")
        line = Line(_part_key(key, start), text, lambda: [self._group(similar) for similar in folded])
        return self._with_totals(line, workers)

    def _folded(self, workers: Iterable[Worker]) -> list[list[WorkerSummary]]:
        """The workers in their order; similar ones together, unless a figure distinguishes them."""
        found = self._groups.workers(workers, self._order)
        return group_similar_workers(found) if self._order.figure is None else [[one] for one in found]

    def _group(self, group: Sequence[WorkerSummary]) -> Line:
        """One line for similar workers."""
        first = group[0]
        if len(group) == 1:
            return self._occupant(first)
        part = self.analysed.stacks.rank_sets.rank_set([one.worker.worker_id for one in group])
        ranks = f"{part.words}, " if part else ""
        text = _mark(first.activity).append(f"{len(group):,} × ", "bold").append(f"{ranks}first: ", "dim")
        text.append_text(self._summary(first))
        line = Line(
            f"similar/{first.worker.worker_id}",
            text,
            lambda: [self._occupant(one, is_in_group=True) for one in group],
            data=first,
            search_text=_search_text(first),
        )
        return self._with_totals(line, [one.worker for one in group])

    def _occupant(self, one: WorkerSummary, *, is_in_group: bool = False) -> Line:
        """One line for a worker; without its activity if that is common to the group and in the line above."""
        text = _mark(one.activity).append_text(self._named(one) if is_in_group else self._summary(one))
        worker_id = one.worker.worker_id
        is_simple = sum(one.counts.values()) == 1
        children = () if is_simple else lambda: list(map(_activity, self.inventory.executions(worker_id)))
        layout = beside(text, self._columns.of_worker(one.figures)) if self._columns.figures else None
        return Line(
            worker_id,
            text,
            children,
            data=one,
            search_text=_search_text(one),
            terms=one.ranks.terms,
            layout=layout,
        )

    def _summary(self, one: WorkerSummary) -> Text:
        """The worker's name and its activity, or the number of its executions in each state."""
        text = self._named(one)
        activities = self.inventory.executions(one.worker.worker_id) if sum(one.counts.values()) == 1 else ()
        if activities:
            first = activities[0]
            text.append(f"  {first.words if first.is_whole_process else first.text}").append(_location(first), "cyan")
        elif sum(one.counts.values()) > 1:
            counts = (f"{count:,} {activity}" for activity in ACTIVITIES if (count := one.counts.get(activity)))
            text.append(f"  {words.listed(list(counts))}")
        text.append(f"  {cluster_text.queued_calls(self.inventory, one)}" if one.queued else "", "bold")
        return text.append(f"  {one.trouble}" if one.trouble else "", "magenta")

    def _named(self, one: WorkerSummary) -> Text:
        """The worker's name, its ranks and its pid, and its node unless that is the group."""
        ranks = f"  {found}" if (found := one.ranks.in_words) else ""
        node = "" if self._grouping.kind == "node" else f"  node {one.worker.ip}"
        text = SafeText().append(one.name, "bold").append(f"{ranks}  pid {one.worker.pid}{node}", "dim")
        is_new = self._changes is not None and one.worker.worker_id in self._changes.new_workers
        return marked("new" if is_new else None, text)


def _gone(changes: SnapshotChanges | None) -> Iterator[Line]:
    """One line for all workers that are gone, with their names below."""
    if changes and changes.gone_workers:
        text = marked("gone", SafeText(words.plural(len(changes.gone_workers), "worker")), in_words=True)
        names_of_gone = Counter(changes.gone_workers).most_common()
        below = [Line(f"gone/{name}", SafeText(f"{n:,} × " * (n > 1) + name)) for name, n in names_of_gone]
        yield Line("gone", text, below)


def _bundle_key(group: WorkerGroup, bundle: BundlePlace) -> str:
    return f"{group.key}/{bundle.number}"


def _part_key(key: str, start: int) -> str:
    return f"part/{key}/{start}"


def _host_lines(node: Node) -> Iterator[Line]:
    """The host and its GPUs; its disks are in the pane."""
    host = " · ".join(cluster_text.host_figures(node)) or "host not read"
    yield Line(f"host/{node.node_id}", SafeText(host, "dim"), data=node)
    if gpus := cluster_text.gpu_figures(node):
        yield Line(f"gpus/{node.node_id}", SafeText(" · ".join(gpus), "dim"), data=node)


def _resident(resident: GroupOnNode, node: Node) -> Line:
    key = f"group/{resident.group.placement_group_id}/{node.node_id}"
    return Line(key, SafeText("▣ ").append(cluster_text.resident_in_words(resident)), data=resident)


def _dead(actor: Actor) -> Line:
    why = actor.death_cause or "no cause given"
    return Line(f"dead/{actor.actor_id}", SafeText(names.actor(actor)).append(f"  {why}", "dim"), data=actor)


def _activity(activity: ExecutionGroup) -> Line:
    count = f"{activity.count:,} × " if activity.count > 1 else ""
    text = _mark(activity.activity).append(count, "bold").append(activity.text).append(_location(activity), "cyan")
    return Line(f"activity/{activity.vertex}", text, data=activity)


def _location(activity: ExecutionGroup) -> str:
    return f"  {location(activity.file, activity.line)}" if activity.file else ""


def _memory(memory: ObjectMemory) -> Iterator[Line]:
    """The line of the object store, with who made and who keeps its values; none without values."""
    if not memory.stored.total:
        return
    text = SafeText().append("Object store", "bold")
    text.append(f"  {words.size(memory.stored.size_bytes)} in {words.plural(memory.stored.total, 'object')}")
    yield Line(MEMORY, text, lambda: [_titled(*titled) for titled in memory_lines(memory)], data=MEMORY)


def _titled(title: str, lines: Sequence[str]) -> Line:
    key = f"{MEMORY}/{title}"
    below = [Line(f"{key}/{number}", SafeText(line), data=MEMORY) for number, line in enumerate(lines)]
    return Line(key, SafeText(title, "bold"), lambda: below, is_open=True, data=MEMORY)


def _pending(one: PendingItem) -> Line:
    text = _mark("stuck" if one.is_stuck else "waiting").append(f"{one.what}: ", "dim")
    text.append(f"{one.count:,} × " if one.count > 1 else "", "bold").append(one.text)
    return Line(f"pending/{one.vertex}", text, data=one)


def _mark(activity: Activity) -> SafeText:
    mark, style = cluster_text.MARKS[activity]
    return SafeText().append(f"{mark:<10}", style).append(" ")


def _search_text(one: WorkerSummary) -> str:
    """Further words for the filter."""
    return f"{one.worker.worker_id} {one.worker.actor_id or ''} {one.worker.ip}"
