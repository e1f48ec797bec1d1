"""The resources of each node, and of the placement groups that have bundles there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from dstack.analysis.graph.resources.amounts import in_group, summed
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.model import Node, PlacementGroup

TITLES = {"object_store_memory": "object store"}
FIRST = ("CPU", "GPU", "object_store_memory", "memory")
"""These resources come first, in this order."""


@dataclass(frozen=True, slots=True)
class Amount:
    """The amount of a resource; ``free`` is None if the node did not report it."""

    name: str
    total: float
    free: float | None = None

    @property
    def words(self) -> str:
        """``CPU 2 of 4 used, 2 free``; bytes as GiB."""
        title = TITLES.get(self.name, self.name)
        if self.free is None:
            return f"{title} {self._figure(self.total)}, use unknown"
        used = max(0.0, self.total - self.free)
        return f"{title} {self._figure(used)} of {self._figure(self.total)} used, {self._figure(self.free)} free"

    def _figure(self, amount: float) -> str:
        return f"{amount / 2**30:.1f} GiB" if self.name in names.BYTES else f"{amount:g}"


@dataclass(frozen=True, slots=True)
class GroupOnNode:
    """A placement group with its bundles on one node, and the amounts in these bundles."""

    group: PlacementGroup
    bundles: tuple[int, ...]
    amounts: tuple[Amount, ...]


class NodeResources:
    """The resources that one sample shows."""

    def __init__(self, index: SampleIndex) -> None:
        self._sample = index.sample

    def amounts(self, node: Node) -> tuple[Amount, ...]:
        """The resources of a node, without those reserved by placement groups and the node's own marker resource."""
        total = self._sample.total.get(node.node_id) or node.resources
        own = {name: amount for name, amount in total.items() if not in_group(name) and not name.startswith("node:")}
        return _amounts(own, {name: name for name in own}, self._sample.available.get(node.node_id))

    def placement_groups_on(self, node: Node) -> tuple[GroupOnNode, ...]:
        """The placement groups with bundles on a node."""
        return tuple(self._group_on_node(group, node) for group in self._groups_by_node.get(node.node_id, ()))

    def _group_on_node(self, group: PlacementGroup, node: Node) -> GroupOnNode:
        bundles = tuple(n for n, bundle in enumerate(group.bundles) if bundle.node_id == node.node_id)
        total = summed(group.bundles[n].resources for n in bundles)
        reserved = {name: f"{name}_group_{group.placement_group_id}" for name in total}
        available = self._sample.available.get(node.node_id) if group.state == "CREATED" else None
        return GroupOnNode(group=group, bundles=bundles, amounts=_amounts(total, reserved, available))

    def bundle_amounts(self, group: PlacementGroup, number: int) -> tuple[Amount, ...]:
        """The amounts in one bundle of a placement group."""
        bundle = group.bundles[number]
        reserved = {name: f"{name}_group_{number}_{group.placement_group_id}" for name in bundle.resources}
        available = self._sample.available.get(bundle.node_id or "") if group.state == "CREATED" else None
        return _amounts(bundle.resources, reserved, available)

    @cached_property
    def _groups_by_node(self) -> dict[str, list[PlacementGroup]]:
        groups: dict[str, list[PlacementGroup]] = defaultdict(list)
        for group in self._sample.placement_groups:
            for node_id in sorted({bundle.node_id for bundle in group.bundles if bundle.node_id}):
                groups[node_id].append(group)
        return groups


def _amounts(
    total: Mapping[str, float], name_on_node: Mapping[str, str], available: Mapping[str, float] | None
) -> tuple[Amount, ...]:
    return tuple(
        Amount(name=name, total=total[name], free=None if available is None else available.get(name_on_node[name], 0.0))
        for name in sorted(total, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    )
