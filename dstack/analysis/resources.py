"""Who waits for which resources, which nodes could ever give them, and who holds what is missing there.

Nothing here says that a holder can never let go: an actor's resources, or a placement group's, are held by an unknown
target. Only what a running task holds leads on to that task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Protocol

from dstack.analysis import names
from dstack.analysis.observed import Observed
from dstack.diagnosis import Group, Target, Wait
from dstack.model import Node, PlacementGroup

EPSILON = 1e-4
"""Ray counts resources in units of 1/10,000."""

Amounts = Mapping[str, float]


class UnknownTarget(Protocol):
    """Makes a target whose own waits are not known."""

    def __call__(self, what: str, *, worker_id: str | None = None) -> Target:
        """A target in these words, at this worker."""
        ...


class Resources:
    """The cluster's resources in one sample. ``key_of_running`` gives a running task's vertex."""

    def __init__(self, observed: Observed, key_of_running: Callable[[str], str]) -> None:
        self._seen = observed
        self._key_of_running = key_of_running
        self._nodes = [node for node in observed.snapshot.nodes if node.alive]
        self._holders_on: dict[str, list[tuple[Target, Amounts]]] | None = None
        self._waits: dict[frozenset[tuple[str, float]], tuple[Wait | None, str | None]] = {}

    def wait_of(self, required: Amounts, unknown: UnknownTarget) -> tuple[Wait | None, str | None]:
        """The wait for ``required`` on any one node, or why no node can ever give it."""
        key = frozenset(required.items())
        if key not in self._waits:
            self._waits[key] = self._find_wait(required, unknown)
        return self._waits[key]

    def _find_wait(self, required: Amounts, unknown: UnknownTarget) -> tuple[Wait | None, str | None]:
        wanted = {name: amount for name, amount in required.items() if amount > EPSILON}
        able = [node for node in self._nodes if _fits(wanted, node.resources)]
        if not able:
            return None, f"asks for {names.amounts(wanted)}, and {self._best_offer(wanted)}"
        missing = {node.node_id: self._missing(wanted, node) for node in able}
        if not all(missing.values()):
            place = next(node for node in able if not missing[node.node_id])
            what = f"scheduler, though {names.amounts(wanted)} is free on {names.node(place)}"
            return self._wait([unknown(what)], tuple(wanted)), None
        targets = [target for node in able for target in self._holders(node, missing[node.node_id], unknown)]
        return self._wait(targets, tuple(sorted({name for names_ in missing.values() for name in names_}))), None

    def wait_of_group(self, group: PlacementGroup, unknown: UnknownTarget) -> tuple[Wait | None, str | None]:
        """The wait of a pending placement group, as far as its bundles tell."""
        wanted: dict[str, float] = defaultdict(float)
        for bundle in group.bundles:
            for name, amount in bundle.resources.items():
                wanted[name] += amount
        if group.scheduling_state == "INFEASIBLE":
            return (
                None,
                f"asks for {names.bundles(group)} ({group.strategy}), and the cluster's nodes cannot hold that",
            )
        holders = [target for node in self._nodes for target in self._holders(node, wanted, unknown)]
        what = unknown(f"room for {names.bundles(group)} ({group.strategy})")
        return self._wait([*holders, what], tuple(sorted(wanted))), None

    @staticmethod
    def _wait(targets: list[Target], resources: tuple[str, ...]) -> Wait:
        """Satisfied at the earliest when one of the holders lets go."""
        groups = (Group(needs=1, targets=tuple(dict.fromkeys(targets))),)
        reason = "any of the holders may let go first"
        return Wait(kind="resources", groups=groups, evidence="inferred", inferred=reason, resources=resources)

    def _missing(self, wanted: Amounts, node: Node) -> set[str]:
        available = self._seen.sample.available.get(node.node_id, {})
        return {name for name, amount in wanted.items() if available.get(name, 0.0) < amount - EPSILON}

    def _holders(self, node: Node, missing: Mapping[str, float] | set[str], unknown: UnknownTarget) -> list[Target]:
        """Who holds any of the missing resources on a node, and an unknown where the sum does not come out."""
        targets: list[Target] = []
        accounted: dict[str, float] = defaultdict(float)
        for target, held in self._all_holders(unknown)[node.node_id]:
            if any(held.get(name, 0.0) > EPSILON for name in missing):
                targets.append(target)
                for name, amount in held.items():
                    accounted[name] += amount
        available = self._seen.sample.available.get(node.node_id, {})
        for name in sorted(missing):
            taken = node.resources.get(name, 0.0) - available.get(name, 0.0)
            if taken > accounted[name] + EPSILON:
                targets.append(unknown(f"{name} taken on {names.node(node)} by somebody who was not identified"))
        return targets

    def _all_holders(self, unknown: UnknownTarget) -> dict[str, list[tuple[Target, Amounts]]]:
        """By node: who holds how much of what."""
        if self._holders_on is None:
            self._holders_on = defaultdict(list)
            for node_id, target, amounts in chain(self._running_tasks(), self._reservations(unknown)):
                self._holders_on[node_id].append((target, amounts))
        return self._holders_on

    def _running_tasks(self) -> Iterator[tuple[str, Target, Amounts]]:
        """What normal tasks hold that run, by node; the CPU of one that waits for values is lent back."""
        for task_id, worker_id in self._seen.running_on.items():
            task = self._seen.tasks.get(task_id)
            worker = self._seen.workers.get(worker_id)
            if task is None or worker is None or task.kind != "NORMAL_TASK":
                continue
            lends = any(
                t.call and t.call.kind != "thread.join" for t in self._seen.threads(worker_id) if t.role == "task"
            )
            amounts = {k: v for k, v in task.required_resources.items() if not (lends and k == "CPU")}
            yield worker.node_id, Target(vertex=self._key_of_running(task_id)), amounts

    def _reservations(self, unknown: UnknownTarget) -> Iterator[tuple[str, Target, Amounts]]:
        """What actors hold until they end, and placement groups until they are removed, by node."""
        for actor in self._seen.snapshot.actors:
            if actor.state == "ALIVE" and actor.node_id and actor.required_resources and not actor.placement_group_id:
                what = f"end of {names.actor(actor)}, which holds {names.amounts(actor.required_resources)} for life"
                yield actor.node_id, unknown(what, worker_id=actor.worker_id), actor.required_resources
        for group in self._seen.sample.placement_groups:
            for bundle in group.bundles:
                if group.state == "CREATED" and bundle.node_id:
                    what = f"removal of {names.placement_group(group)}, which holds {names.amounts(bundle.resources)}"
                    yield bundle.node_id, unknown(what), bundle.resources

    def _best_offer(self, wanted: Amounts) -> str:
        """The first resource that rules out every node, with the most any node has of it."""
        for name, amount in wanted.items():
            most = max((node.resources.get(name, 0.0) for node in self._nodes), default=0.0)
            if most < amount - EPSILON:
                return (
                    f"no node has any {name}"
                    if most <= EPSILON
                    else f"the most a node has is {names.amounts({name: most})}"
                )
        return "no one node has all of it"


def _fits(wanted: Amounts, total: Amounts) -> bool:
    return all(total.get(name, 0.0) >= amount - EPSILON for name, amount in wanted.items())
