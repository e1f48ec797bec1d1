"""The nodes of a cluster as rows of a table: the host, Ray's resources, and what the workers there do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dstack.analysis.naming.names import BYTES
from dstack.analysis.stacks.app_threads import Activity
from dstack.analysis.views.inventory import Inventory
from dstack.analysis.views.node_resources import TITLES, Amount
from dstack.model import Node
from dstack.report.cluster_words import resident_in_words
from dstack.report.figure_texts import disk_figures, gpu_figures

MAX_NODES = 500
SHOWN_LINES = 8
"""So many disks, GPUs, placement groups and other resources of one node are listed."""
OWN_COLUMNS = ("CPU", "GPU", "object_store_memory")
"""The resources that have a column each, if any node has them."""
GIB = 2**30


@dataclass(frozen=True, slots=True)
class NodeCell:
    """A figure in words, and the number to sort by; None if it is unknown."""

    text: str = "-"
    value: float | None = None


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node; ``counts`` are its workers by activity, ``more`` is what has no column, in lines."""

    node: Node
    workers: int
    counts: tuple[tuple[Activity, int], ...]
    busy: NodeCell
    load: NodeCell
    memory: NodeCell
    amounts: tuple[NodeCell, ...]
    more: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeTable:
    """The rows, the titles of the resources that have columns, and how many nodes have no row."""

    rows: tuple[NodeRow, ...]
    resources: tuple[str, ...]
    left_out: int


def node_table(inventory: Inventory) -> NodeTable:
    """The table of all nodes; of very many the head, dead nodes, and those with stuck or unread workers come first."""
    nodes: Sequence[Node] = inventory.nodes
    if len(nodes) > MAX_NODES:
        nodes = sorted(nodes, key=lambda node: not _is_notable(inventory, node))
    shown = nodes[:MAX_NODES]
    found = {amount.name for node in shown for amount in inventory.resources.amounts(node) if node.alive}
    columns = tuple(name for name in OWN_COLUMNS if name in found)
    rows = tuple(_row(inventory, node, columns) for node in shown)
    return NodeTable(rows, tuple(TITLES.get(name, name) for name in columns), len(nodes) - len(shown))


def _is_notable(inventory: Inventory, node: Node) -> bool:
    counts = inventory.counts(inventory.on_node(node))
    return node.is_head or not node.alive or "stuck" in counts or "not read" in counts


def _row(inventory: Inventory, node: Node, columns: Sequence[str]) -> NodeRow:
    workers = inventory.on_node(node)
    amounts = {amount.name: amount for amount in inventory.resources.amounts(node)} if node.alive else {}
    return NodeRow(
        node=node,
        workers=len(workers),
        counts=tuple(inventory.counts(workers).items()),
        busy=_busy(node),
        load=NodeCell() if node.host.load_1m is None else NodeCell(f"{node.host.load_1m:.1f}", node.host.load_1m),
        memory=_memory(node),
        amounts=tuple(_amount(amounts.get(name)) for name in columns),
        more=tuple(_more(inventory, node, [amount for name, amount in amounts.items() if name not in columns])),
    )


def _busy(node: Node) -> NodeCell:
    cpus = f" of {node.host.cpu_count}" if node.host.cpu_count is not None else ""
    if node.host.cpu_percent is None:
        return NodeCell(f"-{cpus}")
    return NodeCell(f"{node.host.cpu_percent:.0f} %{cpus}", node.host.cpu_percent)


def _memory(node: Node) -> NodeCell:
    if node.host.memory_total_bytes is None or node.host.memory_available_bytes is None:
        return NodeCell()
    used = node.host.memory_total_bytes - node.host.memory_available_bytes
    return NodeCell(f"{used / GIB:.1f} of {node.host.memory_total_bytes / GIB:.1f} GiB", used)


def _amount(amount: Amount | None) -> NodeCell:
    """``2 of 4``: the used part of a resource."""
    if amount is None:
        return NodeCell()
    divisor, unit = (GIB, " GiB") if amount.name in BYTES else (1, "")
    total = f"{amount.total / GIB:.1f}" if unit else f"{amount.total:g}"
    if amount.free is None:
        return NodeCell(f"? of {total}{unit}")
    used = max(0.0, amount.total - amount.free)
    return NodeCell(f"{used / GIB:.1f} of {total}{unit}" if unit else f"{used:g} of {total}", used / divisor)


def _more(inventory: Inventory, node: Node, amounts: Sequence[Amount]) -> Iterator[str]:
    """Other resources, disks, GPUs and placement groups."""
    if not node.alive:
        yield node.death_cause or "no cause given"
    elif node.host.cpu_count is None:
        yield "host not read"
    yield from _first([amount.words for amount in amounts], "resources")
    yield from _first([f"disk: {text}" for text in disk_figures(node)], "disks")
    yield from _first(gpu_figures(node), "GPUs")
    groups = (one for one in inventory.resources.placement_groups_on(node) if one.group.state != "REMOVED")
    yield from _first(list(map(resident_in_words, groups)), "placement groups")


def _first(texts: Sequence[str], what: str) -> Iterator[str]:
    yield from texts[:SHOWN_LINES]
    if (more := len(texts) - SHOWN_LINES) > 0:
        yield f"{more:,} more {what}"
