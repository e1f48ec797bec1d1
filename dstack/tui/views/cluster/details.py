"""The details of the line under the cursor of the Cluster view."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.text import Text

from dstack import words
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.views.inventory import Inventory, PendingItem, WorkerSummary
from dstack.analysis.views.node_resources import GroupOnNode
from dstack.analysis.views.worker_activity import ExecutionGroup
from dstack.analysis.views.worker_groups import BundlePlace, WorkerGroup
from dstack.model import Actor, Node
from dstack.observed_node import Gpu
from dstack.report.cluster_words import bundle_in_words, queued_calls, resident_in_words
from dstack.report.figure_texts import (
    disk_figures,
    disk_paths,
    gpu_figures,
    host_figures,
    process_figures,
    use_in_words,
)
from dstack.report.paths import place_of
from dstack.report.safe_text import SafeText
from dstack.tui.views.base import SourceLocation
from dstack.vertex_keys import Key


@dataclass(frozen=True, slots=True)
class ClusterDetails:
    """What the view shows about the nodes, groups, workers and pending work of an inventory."""

    index: SampleIndex
    inventory: Inventory

    def texts(self, data: object) -> Iterator[Text]:
        """All details of what a line is about."""
        match data:
            case Node():
                yield from self._node(data)
            case WorkerSummary():
                yield from self._occupant(data)
            case WorkerGroup():
                yield from _group_texts(data)
            case BundlePlace():
                yield SafeText(bundle_in_words(data))
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
        if node.disks:
            yield SafeText(f"disk: {' · '.join(disk_figures(node))}").append(f"  {disk_paths(node)}", "dim")
        yield from map(SafeText, gpu_figures(node))
        labels = [f"{key}={value}" for key, value in node.labels.items() if not key.startswith("ray.io/")]
        if labels:
            yield SafeText(f"Labels {', '.join(labels)}", "dim")

    def _occupant(self, occupant: WorkerSummary) -> Iterator[Text]:
        worker = occupant.worker
        process = self.index.process(worker.worker_id)
        ranks = f"{found}, " if (found := occupant.ranks.in_words) else ""
        text = SafeText().append(f"{occupant.name}", "bold")
        text.append(f"  {ranks}pid {worker.pid}, node {worker.ip}")
        yield text if process is None else text.append_text(process_figures(process))
        if process and (use := " · ".join(use_in_words(occupant.figures, process, self._gpus_of(worker.node_id)))):
            yield SafeText(use)
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

    def _gpus_of(self, node_id: str) -> dict[int, Gpu]:
        node = next((node for node in self.index.snapshot.nodes if node.node_id == node_id), None)
        return {gpu.index: gpu for gpu in (node.gpus if node else None) or ()}

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


def _group_texts(group: WorkerGroup) -> Iterator[Text]:
    yield SafeText(group.title, "bold").append(f"  {words.plural(len(group.workers), 'worker')}", "dim")
    if (placed := group.placement_group) is not None:
        yield SafeText(f"{placed.state}, {placed.strategy}, {names.bundles(placed)}")
        if placed.scheduling_state and placed.state != "CREATED":
            yield SafeText(f"Ray's reason: {placed.scheduling_state}")
