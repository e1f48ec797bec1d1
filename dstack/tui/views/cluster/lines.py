"""The nodes, workers and pending work of a cluster as lines of an outline, and the details of each line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from rich.text import Text

from dstack import words
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.stacks.activity import ACTIVITIES, Activity
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.inventory import Inventory, PendingItem, WorkerSummary, group_similar_workers
from dstack.analysis.views.node_resources import GroupOnNode
from dstack.analysis.views.worker_activity import ExecutionGroup
from dstack.model import Actor, Node, Process
from dstack.report.paths import location, short_path
from dstack.report.safe_text import SafeText
from dstack.tui.views.base import SourceLocation
from dstack.tui.widgets.outline_tree import Line
from dstack.vertex_keys import Key

GIB = 2**30


@dataclass(frozen=True, slots=True)
class ClusterDetails:
    """What the view shows about the nodes, workers and pending work of an inventory."""

    index: SampleIndex
    inventory: Inventory

    def texts(self, data: object) -> Iterator[Text]:
        """All details of what a line is about."""
        match data:
            case Node():
                yield from self._node(data)
            case WorkerSummary():
                yield from self._occupant(data)
            case ExecutionGroup():
                yield from _execution_texts(data)
            case GroupOnNode():
                yield SafeText(resident_in_words(data))
                yield SafeText(f"{names.bundles(data.group)}, {data.group.strategy}", "dim")
            case PendingItem():
                yield SafeText().append(f"{data.count:,} × " if data.count > 1 else "", "dim").append(data.text)
            case Actor():
                yield SafeText(f"{names.actor(data)} is dead: {data.death_cause or 'no cause given'}")

    def _node(self, node: Node) -> Iterator[Text]:
        yield SafeText().append(f"{names.node(node)} {node.hostname}", "bold").append(f"  {node.node_id}", "dim")
        if not node.alive:
            yield SafeText(f"The node is dead: {node.death_cause or 'no cause given'}", "red")
        yield SafeText(" · ".join(host_figures(node)) or "Host not read: no probe reached it.")
        yield SafeText(" · ".join(amount.words for amount in self.inventory.resources.amounts(node)))
        labels = [f"{key}={value}" for key, value in node.labels.items() if not key.startswith("ray.io/")]
        if labels:
            yield SafeText(f"Labels {', '.join(labels)}", "dim")

    def _occupant(self, occupant: WorkerSummary) -> Iterator[Text]:
        worker = occupant.worker
        process = self.index.process(worker.worker_id)
        ranks = f"{found}, " if (found := occupant.ranks.in_words) else ""
        text = SafeText().append(f"{occupant.name}", "bold")
        text.append(f"  {ranks}pid {worker.pid}, node {worker.ip}")
        yield text if process is None else text.append_text(_process(process))
        held = self.inventory.held_by(worker.worker_id)
        queued = queued_calls(self.inventory, occupant) if occupant.queued else ""
        parts = [f"holds {held}" if held else "", queued, occupant.trouble or ""]
        if any(parts):
            yield SafeText("; ".join(part for part in parts if part))
        activities = self.inventory.executions(worker.worker_id)
        for activity in activities[:1]:
            yield from _execution_texts(activity)
        if len(activities) > 1:
            yield SafeText(f"and {len(activities) - 1:,} more: Enter unfolds them", "dim")
        if not activities and occupant.activity == "idle":
            yield SafeText("It is idle.")

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


def _process(process: Process) -> Text:
    text = SafeText()
    if process.started_at:
        text.append(f", {process.rss_bytes / GIB:.2f} GiB resident, {process.cpu_s:.1f} s of CPU time")
    if process.access != "memory" and process.threads:
        text.append(f", read by {process.access} only", "yellow")
    return text


def _execution_texts(activity: ExecutionGroup) -> Iterator[Text]:
    yield SafeText().append(f"{activity.count:,} × " if activity.count > 1 else "", "dim").append(activity.text)
    if activity.file is not None:
        source = f"  {activity.source}" if activity.source else ""
        yield SafeText().append(f"{short_path(activity.file)}:{activity.line}", "cyan").append(source)


def host_figures(node: Node) -> list[str]:
    """CPUs, load and memory of the host; empty if no probe reached it."""
    figures = []
    if node.cpu_count is not None:
        figures.append(f"host: {node.cpu_count} CPUs")
    if node.load_1m is not None:
        figures.append(f"load {node.load_1m:.1f}")
    if node.memory_total_bytes is not None and node.memory_available_bytes is not None:
        used = node.memory_total_bytes - node.memory_available_bytes
        figures.append(f"memory {used / GIB:.1f} of {node.memory_total_bytes / GIB:.1f} GiB used")
    return figures


def queued_calls(inventory: Inventory, occupant: WorkerSummary) -> str:
    """The number of queued calls; a lower bound unless all submitters were read."""
    least = "" if inventory.is_queue_known else "at least "
    return f"{least}{words.plural(occupant.queued, 'queued call')}"


def resident_in_words(resident: GroupOnNode) -> str:
    """``placement group trainers: bundles 0 and 1  CPU 2 of 2 used, 0 free``."""
    group, numbers = resident.group, [str(number) for number in resident.bundles]
    state = "" if group.state == "CREATED" else f" ({group.state})"
    bundles = f"{words.word(len(numbers), 'bundle')} {words.listed(numbers)} of {len(group.bundles)}"
    return f"{names.placement_group(group)}{state}: {bundles}  {' · '.join(one.words for one in resident.amounts)}"


OPENED_NODES = 8
OPENED_PENDING = 20
PENDING = "pending"
MARKS: dict[Activity, tuple[str, str]] = {
    "stuck": ("✖ stuck", "bold red"),
    "waiting": ("… waits", "yellow"),
    "running": ("▶ runs", "green"),
    "idle": ("○ idle", "dim"),
    "unreadable": ("? unreadable", "magenta"),
    "not read": ("? not read", "magenta"),
}
"""The words say the same as the colours."""


@dataclass(frozen=True, slots=True)
class ClusterLines:
    """The lines of one snapshot."""

    analysed: AnalysedSnapshot
    inventory: Inventory

    def roots(self) -> list[Line]:
        """The nodes, then the pending work."""
        nodes = self.inventory.nodes
        lines = [self._node(node, is_open=number < OPENED_NODES) for number, node in enumerate(nodes)]
        pending = self.inventory.pending_items()
        if pending:
            count = f"Pending: {sum(one.count for one in pending):,}"
            text = SafeText().append(count, "bold").append("  tasks, actors, placement groups and calls")
            is_open = len(pending) <= OPENED_PENDING
            lines.append(Line(PENDING, text, lambda: list(map(_pending, pending)), is_open=is_open, data="pending"))
        return lines

    def path_to(self, vertex: Key) -> list[str]:
        """The keys of the lines from the root down to a vertex; empty if it is not in this view."""
        known = self.analysed.diagnosis.vertices.get(vertex)
        if known is None:
            return []
        if known.worker_id is None:
            found = next((one for one in self.inventory.pending_items() if vertex in one.similar), None)
            return [PENDING, f"pending/{found.vertex}"] if found else []
        worker = self.analysed.merged_index.workers.get(known.worker_id)
        node = next((one for one in self.inventory.nodes if worker and one.node_id == worker.node_id), None)
        return self._path_on(node, known.worker_id) if node else []

    def _path_on(self, node: Node, worker_id: str) -> list[str]:
        for group in group_similar_workers(self.inventory.workers_of(node)):
            if any(one.worker.worker_id == worker_id for one in group):
                fold = [f"similar/{group[0].worker.worker_id}"] if len(group) > 1 else []
                return [node.node_id, *fold, worker_id]
        return []

    def _node(self, node: Node, *, is_open: bool) -> Line:
        text = SafeText().append(names.node(node), "bold").append(" (head)" if node.is_head else "")
        text.append(f" {node.hostname}" if node.hostname else "", "dim")
        if not node.alive:
            text.append("  ✖ dead", "bold red")
        for amount in self.inventory.resources.amounts(node)[:2] if node.alive else ():
            if amount.name in ("CPU", "GPU"):
                text.append(f"  {amount.words}")
        for activity, count in self.inventory.counts(self.inventory.on_node(node)).items():
            mark, style = MARKS[activity]
            text.append("  ").append(f"{mark}: {count:,}", style)
        if partly := self.inventory.partly_read(node):
            text.append(f"  ({partly:,} only partly read)", MARKS["not read"][1])
        return Line(node.node_id, text, partial(self._below, node), is_open=is_open and node.alive, data=node)

    def _below(self, node: Node) -> list[Line]:
        figures = SafeText(" · ".join(host_figures(node)) or "host not read", "dim")
        lines = [Line(f"host/{node.node_id}", figures, data=node)]
        if amounts := " · ".join(one.words for one in self.inventory.resources.amounts(node) if node.alive):
            lines.append(Line(f"amounts/{node.node_id}", SafeText(amounts), data=node))
        lines += [_resident(one, node) for one in self.inventory.resources.placement_groups_on(node)]
        lines += [self._group(group) for group in group_similar_workers(self.inventory.workers_of(node))]
        if dead := self.inventory.dead_actors(node):
            title = SafeText(f"† {words.plural(len(dead), 'dead actor')}")
            lines.append(Line(f"dead/{node.node_id}", title, list(map(_dead, dead))))
        return lines

    def _group(self, group: Sequence[WorkerSummary]) -> Line:
        """One line for similar workers."""
        first = group[0]
        if len(group) == 1:
            return self._occupant(first)
        part = self.analysed.stacks.rank_sets.rank_set([one.worker.worker_id for one in group])
        ranks = f"{part.words}, " if part else ""
        text = _mark(first.activity).append(f"{len(group):,} × ", "bold").append(f"{ranks}first: ", "dim")
        text.append_text(self._summary(first))
        return Line(
            f"similar/{first.worker.worker_id}",
            text,
            lambda: [self._occupant(one, is_in_group=True) for one in group],
            data=first,
            search_text=_search_text(first),
        )

    def _occupant(self, one: WorkerSummary, *, is_in_group: bool = False) -> Line:
        """One line for a worker; without its activity if that is common to the group and in the line above."""
        text = _mark(one.activity).append_text(_named(one) if is_in_group else self._summary(one))
        worker_id = one.worker.worker_id
        is_simple = sum(one.counts.values()) == 1
        children = () if is_simple else lambda: list(map(_activity, self.inventory.executions(worker_id)))
        return Line(worker_id, text, children, data=one, search_text=_search_text(one), terms=one.ranks.terms)

    def _summary(self, one: WorkerSummary) -> Text:
        """The worker's name and its activity, or the number of its executions in each state."""
        text = _named(one)
        activities = self.inventory.executions(one.worker.worker_id) if sum(one.counts.values()) == 1 else ()
        if activities:
            first = activities[0]
            text.append(f"  {first.words if first.is_whole_process else first.text}").append(_location(first), "cyan")
        elif sum(one.counts.values()) > 1:
            counts = (f"{count:,} {activity}" for activity in ACTIVITIES if (count := one.counts.get(activity)))
            text.append(f"  {words.listed(list(counts))}")
        text.append(f"  {queued_calls(self.inventory, one)}" if one.queued else "", "bold")
        return text.append(f"  {one.trouble}" if one.trouble else "", "magenta")


def _resident(resident: GroupOnNode, node: Node) -> Line:
    key = f"group/{resident.group.placement_group_id}/{node.node_id}"
    return Line(key, SafeText("▣ ").append(resident_in_words(resident)), data=resident)


def _dead(actor: Actor) -> Line:
    why = actor.death_cause or "no cause given"
    return Line(f"dead/{actor.actor_id}", SafeText(names.actor(actor)).append(f"  {why}", "dim"), data=actor)


def _named(one: WorkerSummary) -> Text:
    ranks = f"  {found}" if (found := one.ranks.in_words) else ""
    return SafeText().append(one.name, "bold").append(f"{ranks}  pid {one.worker.pid}", "dim")


def _activity(activity: ExecutionGroup) -> Line:
    count = f"{activity.count:,} × " if activity.count > 1 else ""
    text = _mark(activity.activity).append(count, "bold").append(activity.text).append(_location(activity), "cyan")
    return Line(f"activity/{activity.vertex}", text, data=activity)


def _location(activity: ExecutionGroup) -> str:
    return f"  {location(activity.file, activity.line)}" if activity.file else ""


def _pending(one: PendingItem) -> Line:
    text = _mark("stuck" if one.is_stuck else "waiting").append(f"{one.what}: ", "dim")
    text.append(f"{one.count:,} × " if one.count > 1 else "", "bold").append(one.text)
    return Line(f"pending/{one.vertex}", text, data=one)


def _mark(activity: Activity) -> SafeText:
    mark, style = MARKS[activity]
    return SafeText().append(f"{mark:<8}", style).append(" ")


def _search_text(one: WorkerSummary) -> str:
    """Further words for the filter."""
    return f"{one.worker.worker_id} {one.worker.actor_id or ''} {one.worker.ip}"
