"""The cluster: its nodes with their resources, its workers with what they do and use, and what is pending."""

from __future__ import annotations

from dataclasses import dataclass

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.stacks.app_threads import ACTIVITIES
from dstack.analysis.views.inventory import Inventory
from dstack.analysis.views.worker_figures import Figure
from dstack.model import PlacementGroup
from dstack.report.cluster_words import MARKS
from dstack.report.page.report_data import ReportData
from dstack.report.page.rows.node_rows import node_table
from dstack.report.page.rows.worker_rows import worker_table
from dstack.report.page.section import Section, render
from dstack.words import plural

MAX_PENDING = 200
MAX_DEAD = 100
MAX_GROUPS = 200
HEADS: dict[Figure, str] = {
    "cpu": "CPU %",
    "memory": "Memory",
    "gpu memory": "GPU memory",
    "gpu": "GPU %",
    "queued": "Queued",
    "age": "Age",
    "threads": "Threads",
}


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
    inventory = Inventory(index, analysed.diagnosis)
    workers = inventory.summaries(snapshot.workers)
    groups, pending = index.sample.placement_groups, inventory.pending_items()
    dead = [actor for actor in snapshot.actors if actor.state == "DEAD"]
    body = render(
        "cluster.html",
        title=f"{plural(len(workers), 'worker or driver', 'workers and drivers')} on {plural(_alive(data), 'node')}",
        counts=inventory.counts(snapshot.workers),
        marks={activity: MARKS[activity][0] for activity in ACTIVITIES if activity in MARKS},
        orders={activity: at for at, activity in enumerate(ACTIVITIES)},
        nodes=node_table(inventory),
        workers=worker_table(inventory, workers, data.stack_ids, analysed.stacks.rank_sets),
        heads=HEADS,
        pending=pending[:MAX_PENDING],
        more_pending=len(pending) - MAX_PENDING,
        groups=[_group(index, group) for group in groups[:MAX_GROUPS]],
        all_groups=len(groups),
        dead=[(names.actor(one), one.death_cause or "no cause given") for one in dead[:MAX_DEAD]],
        all_dead=len(dead),
        plural=plural,
    )
    return Section("cluster", "Cluster", body, script="table.js")


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
