"""The resources of each node and its placement groups, and nodes where some are free that pinned tasks wait for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dstack import words
from dstack.analysis.graph.resource_holders import EPSILON, fits, in_group, summed, wanted
from dstack.analysis.graph.resource_requests import Selectors, any_matches, asked_labels
from dstack.analysis.index import subjects
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.model.snapshot import Node, PlacementGroup
from dstack.observed.node import Task
from dstack.words import grouped

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
        """``CPU 2 of 4 used, 2 free``; ``memory 1.0 of 2.0 GiB used``."""
        title = TITLES.get(self.name, self.name)
        if self.name in names.BYTES and self.free is not None:
            return f"{title} {max(0.0, self.total - self.free) / 2**30:.1f} of {self._figure(self.total)} used"
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
        return grouped(
            (node_id, group)
            for group in self._sample.placement_groups
            for node_id in sorted({bundle.node_id for bundle in group.bundles if bundle.node_id})
        )


def _amounts(
    total: Mapping[str, float], name_on_node: Mapping[str, str], available: Mapping[str, float] | None
) -> tuple[Amount, ...]:
    return tuple(
        Amount(name=name, total=total[name], free=None if available is None else available.get(name_on_node[name], 0.0))
        for name in sorted(total, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    )


COMMON = ("CPU", *names.BYTES)
"""Resources of which some are free on most nodes."""


@dataclass(frozen=True, slots=True)
class StarvingNode:
    """A node with ``free`` of a resource, for which the ``tasks`` wait on the ``others``; ``pins`` keep them there."""

    node: Node
    resource: str
    free: float
    total: float
    tasks: tuple[Task, ...]
    others: tuple[Node, ...]
    pins: tuple[str, ...]


def starving_nodes(index: SampleIndex) -> list[StarvingNode]:
    """The nodes of one sample with a free GPU or custom resource for which tasks wait that are pinned to other nodes.

    Pinned are tasks that ask for ``node:IP``, a custom resource or a label of those nodes. Requests in placement groups
    are left out.
    """
    waiting = grouped(
        ((node.node_id, resource), (task, pinned))
        for task, pinned in _pinned_tasks(index)
        for node, resource in pinned.free_elsewhere
    )
    return [_starving(index, *key, found) for key, found in waiting.items()]


def confirmed(first: Sequence[StarvingNode], second: Sequence[StarvingNode]) -> list[StarvingNode]:
    """Those of the second sample that the first one shows too."""
    known = {(one.node.node_id, one.resource) for one in first}
    return [one for one in second if (one.node.node_id, one.resource) in known]


def starving_in_words(index: SampleIndex, one: StarvingNode) -> str:
    """``1 of 2 GPU is free on node 10.0.0.2, while 3 tasks (step_b) wait for GPU on node 10.0.0.1: ...``."""
    labels = words.shortly(sorted({names.task(subjects.task(index, task.task_id)) for task in one.tasks}))
    places = words.shortly([names.node(node) for node in one.others], " or ")
    count = words.plural(len(one.tasks), "task")
    return (
        f"{one.free:g} of {one.total:g} {one.resource} {'is' if one.free <= 1 else 'are'} free on "
        f"{names.node(one.node)}, while {count} ({labels}) {words.word(len(one.tasks), 'waits', 'wait')} for "
        f"{one.resource} on {places}: {words.word(len(one.tasks), 'it asks', 'they ask')} for "
        f"{words.listed(one.pins)}, which {names.node(one.node)} does not have"
    )


def _starving(index: SampleIndex, node_id: str, resource: str, found: Sequence[tuple[Task, _Pinned]]) -> StarvingNode:
    node = index.nodes[node_id]
    others = {other.node_id: other for _, pinned in found for other in pinned.able}
    return StarvingNode(
        node=node,
        resource=resource,
        free=_free(index, node).get(resource, 0.0),
        total=_total(index, node).get(resource, 0.0),
        tasks=tuple(task for task, _ in found),
        others=tuple(others.values()),
        pins=tuple(dict.fromkeys(pin for _, pinned in found for pin in pinned.pins_missing_on(node))),
    )


@dataclass(frozen=True, slots=True)
class _Pinned:
    """A request that only the ``able`` nodes can satisfy, and nodes where a resource is free that is short on these."""

    index: SampleIndex
    request: Mapping[str, float]
    selectors: Selectors
    able: tuple[Node, ...]
    free_elsewhere: tuple[tuple[Node, str], ...]

    def pins_missing_on(self, node: Node) -> Iterator[str]:
        """The resources and labels that a node lacks."""
        total = _total(self.index, node)
        yield from (name for name, amount in self.request.items() if total.get(name, 0.0) < amount - EPSILON)
        if not any_matches(self.selectors, node.labels):
            yield f"label {words.listed(list(map(names.labels, self.selectors)), ' or ')}"


def _pinned_tasks(index: SampleIndex) -> Iterator[tuple[Task, _Pinned]]:
    known: dict[tuple[object, ...], _Pinned] = {}
    for task in index.tasks.values():
        if task.state != "PENDING_NODE_ASSIGNMENT" or task.kind == "ACTOR_TASK" or task.placement_group_id:
            continue
        request, selectors = wanted(task.required_resources), asked_labels(index, task)
        if task.task_id in index.worker_of_task or any(map(in_group, request)):
            continue
        key = (*request.items(), *(tuple(sorted(one.items())) for one in selectors))
        if key not in known:
            known[key] = _pinned(index, request, selectors)
        if known[key].free_elsewhere:
            yield task, known[key]


def _pinned(index: SampleIndex, request: Mapping[str, float], selectors: Selectors) -> _Pinned:
    alive = [node for node in index.snapshot.nodes if node.alive and node.node_id in index.sample.available]
    able = [node for node in alive if fits(request, _total(index, node)) and any_matches(selectors, node.labels)]
    short = [{name for name in request if _lacks(index, node, name, request[name])} for node in able]
    scarce = set.intersection(*short) if short else set()
    found = [
        (node, name)
        for node in alive
        if node not in able
        for name in sorted(scarce)
        if name not in COMMON and not name.startswith("node:") and not _lacks(index, node, name, request[name])
    ]
    return _Pinned(index, request, selectors, tuple(able), tuple(found))


def _lacks(index: SampleIndex, node: Node, name: str, amount: float) -> bool:
    return _free(index, node).get(name, 0.0) < amount - EPSILON


def _free(index: SampleIndex, node: Node) -> Mapping[str, float]:
    return index.sample.available.get(node.node_id, {})


def _total(index: SampleIndex, node: Node) -> Mapping[str, float]:
    return index.sample.total.get(node.node_id) or node.resources
