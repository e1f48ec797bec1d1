"""Nodes with something free for which tasks wait that are pinned to other nodes.

It is a GPU or custom resource. Pinned are tasks that ask for ``node:IP``, a custom resource or a label of those nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dstack import words
from dstack.analysis.graph.resources.amounts import EPSILON, fits, in_group, wanted
from dstack.analysis.graph.resources.label_selectors import match
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.model import Node, Task

COMMON = ("CPU", *names.BYTES)
"""Resources of which some are free on most nodes."""
SHOWN = 3


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
    """What one sample shows. Requests in placement groups are left out."""
    waiting: dict[tuple[str, str], list[tuple[Task, _Pinned]]] = defaultdict(list)
    for task, pinned in _pinned_tasks(index):
        for node, resource in pinned.free_elsewhere:
            waiting[node.node_id, resource].append((task, pinned))
    return [_starving(index, *key, found) for key, found in waiting.items()]


def confirmed(first: Sequence[StarvingNode], second: Sequence[StarvingNode]) -> list[StarvingNode]:
    """Those of the second sample that the first one shows too."""
    known = {(one.node.node_id, one.resource) for one in first}
    return [one for one in second if (one.node.node_id, one.resource) in known]


def starving_in_words(index: SampleIndex, one: StarvingNode) -> str:
    """``1 of 2 GPU is free on node 10.0.0.2, while 3 tasks (step_b) wait for GPU on node 10.0.0.1: ...``."""
    labels = words.shortly(sorted({names.task(index, task.task_id) for task in one.tasks}), SHOWN)
    places = words.shortly([names.node(node) for node in one.others], SHOWN, " or ")
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
    selector: Mapping[str, str]
    able: tuple[Node, ...]
    free_elsewhere: tuple[tuple[Node, str], ...]

    def pins_missing_on(self, node: Node) -> Iterator[str]:
        """The resources and labels that a node lacks."""
        total = _total(self.index, node)
        yield from (name for name, amount in self.request.items() if total.get(name, 0.0) < amount - EPSILON)
        labels = ((key, value) for key, value in self.selector.items() if not match({key: value}, node.labels))
        yield from (f"label {key}: {value}" for key, value in labels)


def _pinned_tasks(index: SampleIndex) -> Iterator[tuple[Task, _Pinned]]:
    known: dict[tuple[object, ...], _Pinned] = {}
    for task in index.tasks.values():
        if task.state != "PENDING_NODE_ASSIGNMENT" or task.kind == "ACTOR_TASK" or task.placement_group_id:
            continue
        request, selector = wanted(task.required_resources), _selector(index, task)
        if task.task_id in index.worker_of_task or any(map(in_group, request)):
            continue
        key = (*request.items(), "labels", *sorted(selector.items()))
        if key not in known:
            known[key] = _pinned(index, request, selector)
        if known[key].free_elsewhere:
            yield task, known[key]


def _selector(index: SampleIndex, task: Task) -> Mapping[str, str]:
    actor = index.actors.get(task.actor_id or "") if task.kind == "ACTOR_CREATION_TASK" else None
    return {**task.label_selector, **(actor.label_selector if actor else {})}


def _pinned(index: SampleIndex, request: Mapping[str, float], selector: Mapping[str, str]) -> _Pinned:
    alive = [node for node in index.snapshot.nodes if node.alive and node.node_id in index.sample.available]
    able = [node for node in alive if fits(request, _total(index, node)) and match(selector, node.labels)]
    short = [{name for name in request if _lacks(index, node, name, request[name])} for node in able]
    scarce = set.intersection(*short) if short else set()
    found = [
        (node, name)
        for node in alive
        if node not in able
        for name in sorted(scarce)
        if name not in COMMON and not name.startswith("node:") and not _lacks(index, node, name, request[name])
    ]
    return _Pinned(index, request, selector, tuple(able), tuple(found))


def _lacks(index: SampleIndex, node: Node, name: str, amount: float) -> bool:
    return _free(index, node).get(name, 0.0) < amount - EPSILON


def _free(index: SampleIndex, node: Node) -> Mapping[str, float]:
    return index.sample.available.get(node.node_id, {})


def _total(index: SampleIndex, node: Node) -> Mapping[str, float]:
    return index.sample.total.get(node.node_id) or node.resources
