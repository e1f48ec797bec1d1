"""The nodes, workers and pending work of a cluster, as lines of an outline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rich.text import Text

from dstack import words
from dstack.analysis.naming import names
from dstack.analysis.stacks.activity import ACTIVITIES, Activity
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.inventory import Inventory, PendingItem, WorkerSummary, group_similar_workers
from dstack.analysis.views.node_resources import GroupOnNode
from dstack.analysis.views.worker_activity import ExecutionGroup
from dstack.model import Actor, Node
from dstack.report.paths import location
from dstack.report.safe_text import SafeText
from dstack.tui.views.cluster.details import host_figures, queued_calls, resident_in_words
from dstack.tui.widgets.outline_line import Line
from dstack.vertex_keys import Key

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
            count = sum(one.count for one in pending)
            text = SafeText().append(f"Pending: {count:,}", "bold")
            text.append("  tasks, actors, placement groups and calls")
            is_open = len(pending) <= OPENED_PENDING
            lines.append(Line(PENDING, text, partial(_pending_lines, pending), is_open=is_open, data="pending"))
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
                fold = [f"alike/{group[0].worker.worker_id}"] if len(group) > 1 else []
                return [node.node_id, *fold, worker_id]
        return []

    # Nodes

    def _node(self, node: Node, *, is_open: bool) -> Line:
        text = SafeText().append(names.node(node), "bold").append(" (head)" if node.is_head else "")
        text.append(f" {node.hostname}" if node.hostname else "", "dim")
        if not node.alive:
            text.append("  ✖ dead", "bold red")
        for amount in self.inventory.resources.amounts(node)[:2] if node.alive else ():
            if amount.name in ("CPU", "GPU"):
                text.append(f"  {amount.words}")
        for activity, count in self.inventory.counts(node).items():
            mark, style = MARKS[activity]
            text.append("  ").append(f"{mark}: {count:,}", style)
        if partly := self.inventory.partly_read(node):
            text.append(f"  ({partly:,} only partly read)", MARKS["not read"][1])
        return Line(node.node_id, text, partial(self._below, node), is_open=is_open and node.alive, data=node)

    def _below(self, node: Node) -> list[Line]:
        figures = SafeText(" · ".join(host_figures(node)) or "host not read", "dim")
        lines = [Line(f"host/{node.node_id}", figures, data=node)]
        amounts = " · ".join(amount.words for amount in self.inventory.resources.amounts(node)) if node.alive else ""
        if amounts:
            lines.append(Line(f"amounts/{node.node_id}", SafeText(amounts), data=node))
        lines += [_resident(one, node) for one in self.inventory.resources.placement_groups_on(node)]
        lines += [self._group(group) for group in group_similar_workers(self.inventory.workers_of(node))]
        dead = self.inventory.dead_actors(node)
        if dead:
            children = [_dead(actor) for actor in dead]
            lines.append(Line(f"dead/{node.node_id}", SafeText(f"† {words.plural(len(dead), 'dead actor')}"), children))
        return lines

    # Workers

    def _group(self, group: Sequence[WorkerSummary]) -> Line:
        """One line for similar workers."""
        first = group[0]
        if len(group) == 1:
            return self._occupant(first)
        part = self.analysed.stacks.rank_sets.rank_set([one.worker.worker_id for one in group])
        ranks = f"{part.words}, " if part else ""
        text = _mark(first.activity).append(f"{len(group):,} × ", "bold").append(f"{ranks}first: ", "dim")
        text.append_text(self._summary(first))
        children = partial(self._occupants, group)
        return Line(f"alike/{first.worker.worker_id}", text, children, data=first, search_text=_search_text(first))

    def _occupants(self, group: Sequence[WorkerSummary]) -> list[Line]:
        """One line for each of similar workers, whose common activity is in the line above."""
        return [self._occupant(one, is_in_group=True) for one in group]

    def _occupant(self, one: WorkerSummary, *, is_in_group: bool = False) -> Line:
        text = _mark(one.activity).append_text(_named(one) if is_in_group else self._summary(one))
        is_simple = sum(one.counts.values()) == 1
        children = () if is_simple else partial(self._activities, one)
        return Line(
            one.worker.worker_id, text, children, data=one, search_text=_search_text(one), terms=one.ranks.terms
        )

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

    def _activities(self, one: WorkerSummary) -> list[Line]:
        return [_activity(activity) for activity in self.inventory.executions(one.worker.worker_id)]


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
    return Line(f"deed/{activity.vertex}", text, data=activity)


def _location(activity: ExecutionGroup) -> str:
    return f"  {location(activity.file, activity.line)}" if activity.file else ""


def _pending_lines(pending: Sequence[PendingItem]) -> list[Line]:
    return [_pending(one) for one in pending]


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
