"""Words about workers and placement groups that the Cluster view and the report share."""

from __future__ import annotations

from dstack import words
from dstack.analysis.naming import names
from dstack.analysis.stacks.app_threads import Activity
from dstack.analysis.views.inventory import Inventory, WorkerSummary
from dstack.analysis.views.node_resources import GroupOnNode
from dstack.analysis.views.worker_groups import BundlePlace

MARKS: dict[Activity, tuple[str, str]] = {
    "stuck": ("✖ stuck", "bold red"),
    "waiting": ("… waits", "yellow"),
    "running": ("▶ runs", "green"),
    "idle": ("○ idle", "dim"),
    "unreadable": ("? unreadable", "magenta"),
    "not read": ("? not read", "magenta"),
}
"""The words say the same as the colours."""


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


def bundle_in_words(bundle: BundlePlace) -> str:
    """``bundle 0 on node 10.0.0.1  CPU 1 of 1 used, 0 free``."""
    place = f"on {names.node(bundle.node)}" if bundle.node else "not placed"
    return f"bundle {bundle.number} {place}  {' · '.join(one.words for one in bundle.amounts)}"
