"""Who holds how much of each resource on each node, in one sample.

What is given back while its holder is blocked, measured on Ray 2.46 and 2.60 with `available` of the node:

===============================================  =========================  ==============================
blocked                                          CPU, also of a bundle      GPU, custom resource, memory
===============================================  =========================  ==============================
a task in ray.get, ray.wait, a generator's next  lent to others             kept
the same, with a timeout                         lent to others             kept
the same on a thread that the task has started   kept                       kept
a task that awaits a ref (asyncio.run), a lock   kept                       kept
an actor in a method or in its constructor       kept                       kept
===============================================  =========================  ==============================

Who wakes up again takes its CPU back at once, also one that others have got meanwhile. An actor that asks for nothing
holds nothing for life. An actor's resources are its own from before its constructor runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate, chain
from typing import NamedTuple

from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.graph.resources.amounts import EPSILON, Amounts, in_group, is_cpu, plain
from dstack.analysis.graph.resources.lifetimes import Lifetimes
from dstack.analysis.index import task_assignment
from dstack.analysis.naming import names
from dstack.diagnosis import Target
from dstack.model import Actor, Node, PlacementGroup, Task, Thread

Holder = Task | Actor | PlacementGroup
LENDING = ("ray.get", "ray.wait", "generator")
"""The calls in which a task lends its CPU."""


class Holding(NamedTuple):
    """Somebody's part of one resource on one node."""

    target: Target
    amount: float


class Holders:
    """All holdings of one sample, by node and resource."""

    def __init__(self, graph: GraphBuilder) -> None:
        self._graph = graph
        self._seen = graph.index
        self.lifetimes = Lifetimes(graph)
        self._held: dict[tuple[str, str], list[tuple[Holder, float]]] | None = None
        self._known: dict[tuple[str, str], list[Holding]] = {}
        self._sums: dict[tuple[str, str], list[float]] = {}

    def total(self, node: Node) -> Amounts:
        """All that a node has, with the resources of the placement groups that have a place there."""
        return self._seen.sample.total.get(node.node_id) or node.resources

    def available(self, node: Node) -> Amounts:
        """What is free on a node."""
        return self._seen.sample.available.get(node.node_id, {})

    def of(self, node: Node, resource: str) -> list[Holding]:
        """Who holds it there, most first; somebody unknown holds what cannot be accounted for."""
        key = (node.node_id, resource)
        if key not in self._known:
            self._known[key] = sorted(
                self._find(node, resource), key=lambda held: (-held.amount, str(held.target.vertex))
            )
        return self._known[key]

    def needed(self, node: Node, resource: str, amount: float) -> int:
        """How many must let go at least for so much to be freed there: those with the largest parts."""
        key = (node.node_id, resource)
        if key not in self._sums:
            self._sums[key] = list(accumulate(held.amount for held in self.of(node, resource)))
        sums = self._sums[key]
        return max(1, min(bisect_left(sums, amount - EPSILON) + 1, len(sums)))

    def _find(self, node: Node, resource: str) -> Iterator[Holding]:
        if self._held is None:
            self._held = self._all()
        known = self._held.get((node.node_id, resource), [])
        for holder, amount in known:
            yield Holding(self._target(holder), amount)
        taken = self.total(node).get(resource, 0.0) - self.available(node).get(resource, 0.0)
        unaccounted = taken - sum(amount for _, amount in known)
        if unaccounted > EPSILON:
            what = names.amounts(plain({resource: unaccounted})) or resource
            text = f"unidentified holder of {what} on {names.node(node)}"
            yield Holding(self._graph.unknown("holder", node.node_id, resource, label=text), unaccounted)

    def _target(self, holder: Holder) -> Target:
        """Who must go on, or end, before it lets go."""
        match holder:
            case Task():
                return Target(vertex=task_assignment.key_of_task(self._seen, holder.task_id))
            case Actor():
                return self.lifetimes.end_of(holder)
            case _:
                return self.lifetimes.removal_of(holder)

    def _all(self) -> dict[tuple[str, str], list[tuple[Holder, float]]]:
        held: dict[tuple[str, str], list[tuple[Holder, float]]] = defaultdict(list)
        everybody: Iterator[tuple[str, Holder, Amounts]] = chain(self._tasks(), self._actors(), self._groups())
        for node_id, holder, amounts in everybody:
            for name, amount in amounts.items():
                if amount > EPSILON:
                    held[node_id, name].append((holder, amount))
        return held

    def _tasks(self) -> Iterator[tuple[str, Task, Amounts]]:
        """What normal tasks hold that run."""
        for task_id, worker_id in self._seen.worker_of_task.items():
            task = self._seen.tasks.get(task_id)
            worker = self._seen.workers.get(worker_id)
            if task and worker and task.kind == "NORMAL_TASK":
                lends = any(_lends(thread) for thread in self._seen.threads_with_role(worker_id, "task"))
                amounts = {**task.required_resources, **self._in_bundles(task, worker_id)}
                kept = {name: amount for name, amount in amounts.items() if not (lends and is_cpu(name))}
                yield worker.node_id, task, kept

    def _in_bundles(self, task: Task, worker_id: str) -> Amounts:
        """What a task that asked for no certain bundle got of one."""
        held = self._seen.worker_samples[worker_id].held
        groups = {place.group for name in task.required_resources if (place := in_group(name))}
        return {name: amount for name, amount in held.items() if (place := in_group(name)) and place.group in groups}

    def _actors(self) -> Iterator[tuple[str, Actor, Amounts]]:
        """What actors hold until they end."""
        for actor in self._seen.snapshot.actors:
            if actor.state != "DEAD" and actor.node_id and actor.worker_id:
                amounts = actor.held or (actor.required_resources if actor.state == "ALIVE" else {})
                yield actor.node_id, actor, amounts

    def _groups(self) -> Iterator[tuple[str, PlacementGroup, Amounts]]:
        """What placement groups hold until they are removed."""
        for group in self._seen.sample.placement_groups:
            for bundle in group.bundles:
                if group.state == "CREATED" and bundle.node_id:
                    yield bundle.node_id, group, bundle.resources


def _lends(thread: Thread) -> bool:
    return thread.call is not None and thread.call.kind in LENDING
