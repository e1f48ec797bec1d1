"""Amounts of resources, and their holders on each node in one sample, with what must happen before these end.

What a blocked holder lends to others, measured on Ray 2.46 and 2.60 with ``available`` of the node:

===============================================  =========================  ==============================
blocked                                          CPU, also of a bundle      GPU, custom resource, memory
===============================================  =========================  ==============================
a task in ray.get, ray.wait, a generator's next  lent to others             kept
the same, with a timeout                         lent to others             kept
the same on a thread that the task has started   kept                       kept
a task that awaits a ref (asyncio.run), a lock   kept                       kept
an actor in a method or in its constructor       kept                       kept
===============================================  =========================  ==============================

A holder that wakes up takes its CPU back at once, even if others have got it meanwhile. An actor that requires nothing
holds nothing for life. An actor holds its resources from before its constructor runs.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.graph.users import Users
from dstack.analysis.index import subjects
from dstack.analysis.index.ray_libraries import groups_of_libraries
from dstack.call_sites import kind_of
from dstack.model.diagnosis import Target, Vertex
from dstack.model.snapshot import Actor, Node, PlacementGroup, Worker
from dstack.model.vertex_facts import Bundles, ResourceRequest, subject
from dstack.model.vertex_keys import AnyKey, ThreadKey
from dstack.observed.calls import REF_CALLS
from dstack.observed.node import Task

EPSILON = 1e-4
"""Ray counts resources in units of 1/10,000."""

Amounts = Mapping[str, float]

_IN_GROUP = re.compile(r"(?P<resource>.+)_group_(?:(?P<bundle>\d+)_)?(?P<group>[0-9a-f]{36})")
_MARKER = "bundle"
"""A resource of which each bundle has 1000 and each task in it takes 0.001: it is never exhausted."""
Holder = Task | Actor | PlacementGroup


@dataclass(frozen=True, slots=True)
class InGroup:
    """A resource of a placement group, in one of its bundles or in any."""

    resource: str
    bundle: int | None
    group: str


def in_group(name: str) -> InGroup | None:
    """Parse a name such as ``CPU_group_0_ID`` or ``CPU_group_ID``; None for a resource outside of placement groups.

    A request for a certain bundle names both, a request for any bundle only the second. The node counts both as used in
    each case. Seen on Ray 2.46 and 2.60.
    """
    match = _IN_GROUP.fullmatch(name) if "_group_" in name else None
    if match is None:
        return None
    return InGroup(match["resource"], int(match["bundle"]) if match["bundle"] else None, match["group"])


def is_implied(name: str, names: Iterable[str]) -> bool:
    """Whether one of the names is the same resource of a certain bundle."""
    place = in_group(name)
    if place is None or place.bundle is not None:
        return False
    others = map(in_group, names)
    return any(o and o.bundle is not None and (o.resource, o.group) == (place.resource, place.group) for o in others)


def is_cpu(name: str) -> bool:
    """Whether it is CPU, perhaps of a placement group."""
    place = in_group(name)
    return (place.resource if place else name) == "CPU"


def wanted(amounts: Amounts) -> dict[str, float]:
    """The positive amounts, sorted by name."""
    return {name: amounts[name] for name in sorted(amounts) if amounts[name] > EPSILON}


def fits(amounts: Amounts, total: Amounts) -> bool:
    """Whether the total contains all of these amounts."""
    return all(total.get(name, 0.0) >= amount - EPSILON for name, amount in amounts.items())


def summed(several: Iterable[Amounts]) -> dict[str, float]:
    """The sum of several amounts."""
    total: dict[str, float] = {}
    for amounts in several:
        for name, amount in amounts.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def plain(amounts: Amounts) -> dict[str, float]:
    """The amounts by the names that users know, without bundles."""
    named: dict[str, float] = {}
    for name, amount in amounts.items():
        place = in_group(name)
        if place is None:
            named[name] = amount
        elif place.resource != _MARKER:
            named.setdefault(place.resource, amount)
    return named


def bundle_of(amounts: Amounts) -> int | None:
    """The bundle that a request names, if any."""
    places = map(in_group, amounts)
    return next((place.bundle for place in places if place and place.bundle is not None), None)


@dataclass(frozen=True, slots=True)
class Holding:
    """The part of one resource on one node that a target holds."""

    target: Target
    amount: float


class Holders:
    """All holdings of one sample, by node and resource."""

    def __init__(self, graph: GraphBuilder, users: Users) -> None:
        self._graph = graph
        self._index = graph.index
        self._users = users
        self._held: dict[tuple[str, str], list[tuple[Holder, float]]] | None = None
        self._known: dict[tuple[str, str], list[Holding]] = {}
        self._sums: dict[tuple[str, str], list[float]] = {}

    @cached_property
    def of_libraries(self) -> dict[str, str]:
        """What libraries have made placement groups for, by id."""
        return groups_of_libraries(self._index)

    def total(self, node: Node) -> Amounts:
        """All resources of a node, with those of the placement groups on it."""
        return self._index.sample.total.get(node.node_id) or node.resources

    def available(self, node: Node) -> Amounts:
        """What is free on a node."""
        return self._index.sample.available.get(node.node_id, {})

    def of(self, node: Node, resource: str) -> list[Holding]:
        """The holders of a resource there, largest first; an unknown holder has the unaccounted rest."""
        key = (node.node_id, resource)
        if key not in self._known:
            self._known[key] = sorted(
                self._find(node, resource), key=lambda held: (-held.amount, str(held.target.vertex))
            )
        return self._known[key]

    def needed(self, node: Node, resource: str, amount: float) -> int:
        """The least number of holders that must release a resource so that this amount becomes available."""
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
        used = self.total(node).get(resource, 0.0) - self.available(node).get(resource, 0.0)
        unaccounted = used - sum(amount for _, amount in known)
        if unaccounted > EPSILON:
            for target in self._unaccounted(node, resource, unaccounted):
                yield Holding(target, unaccounted)

    def _unaccounted(self, node: Node, resource: str, amount: float) -> Iterator[Target]:
        """Whatever holds an amount that no known holder has: any worker that is starting there, for a lease.

        How much of it each of them holds is unknown.
        """
        starts = starts_of_workers(self._graph, node_id=node.node_id)
        yield from starts
        if not starts:
            unidentified = subject("holder", ResourceRequest(amounts=plain({resource: amount})), node)
            yield self._graph.unknown("holder", node.node_id, resource, subject=unidentified)

    def _target(self, holder: Holder) -> Target:
        """What must proceed or end before the holder releases its resources."""
        match holder:
            case Task():
                return self._graph.task(holder.task_id)
            case Actor():
                return self.end_of(holder)
            case _:
                return self.removal_of(holder)

    def _all(self) -> dict[tuple[str, str], list[tuple[Holder, float]]]:
        held: dict[tuple[str, str], list[tuple[Holder, float]]] = defaultdict(list)
        holdings: Iterator[tuple[str, Holder, Amounts]] = chain(self._tasks(), self._actors(), self._groups())
        for node_id, holder, amounts in holdings:
            for name, amount in amounts.items():
                if amount > EPSILON:
                    held[node_id, name].append((holder, amount))
        return held

    def _tasks(self) -> Iterator[tuple[str, Task, Amounts]]:
        for task_id, worker_id in self._index.worker_of_task.items():
            task = self._index.tasks.get(task_id)
            worker = self._index.workers.get(worker_id)
            if task and worker and task.kind == "NORMAL_TASK":
                calls = (
                    self._index.call_of(worker_id, one) for one in self._index.threads_with_role(worker_id, "task")
                )
                lends = any(call is not None and kind_of(call) in REF_CALLS for call in calls)
                amounts = {**task.required_resources, **self._in_bundles(task, worker_id)}
                kept = {name: amount for name, amount in amounts.items() if not (lends and is_cpu(name))}
                yield worker.node_id, task, kept

    def _in_bundles(self, task: Task, worker_id: str) -> Amounts:
        """What a task got from a bundle if it required no certain one."""
        held = self._index.worker_samples[worker_id].held
        groups = {place.group for name in task.required_resources if (place := in_group(name))}
        return {name: amount for name, amount in held.items() if (place := in_group(name)) and place.group in groups}

    def _actors(self) -> Iterator[tuple[str, Actor, Amounts]]:
        for actor in self._index.snapshot.actors:
            if actor.state != "DEAD" and actor.node_id and actor.worker_id:
                amounts = actor.held or (actor.required_resources if actor.state == "ALIVE" else {})
                yield actor.node_id, actor, amounts

    def _groups(self) -> Iterator[tuple[str, PlacementGroup, Amounts]]:
        for group in self._index.sample.placement_groups:
            for bundle in group.bundles:
                if group.state == "CREATED" and bundle.node_id:
                    yield bundle.node_id, group, bundle.resources

    # Until a holder ends

    def end_of(self, actor: Actor) -> Target:
        """The end of an actor that holds resources.

        An actor ends when the last handle of it is dropped, when a process with a handle kills it, when it exits by
        itself, and with its owner or the driver of its job. A detached actor ends with none of these processes. A named
        actor can be ended by all code that can look it up. So an actor ends only if one of its users can proceed, or
        the driver of its job.
        """
        threads = self._index.threads_with_role(actor.worker_id, "task") if actor.worker_id else []
        held = ResourceRequest(amounts=dict(sorted(plain(actor.held or actor.required_resources).items())))
        vertex = Vertex(
            key=AnyKey("end of actor", (actor.actor_id,)),
            kind="lifetime",
            subject=subject("end of actor", actor, held),
            worker_id=actor.worker_id,
            os_thread_id=threads[0].os_thread_id if len(threads) == 1 else None,
        )
        return self._users.alternatives.add(vertex, lambda: self._enders(actor))

    def removal_of(self, group: PlacementGroup) -> Target:
        """The removal of a placement group; its id may be in all code of the job that created it."""
        vertex = Vertex(
            key=AnyKey("removal", (group.placement_group_id,)),
            kind="lifetime",
            subject=subject("removal", group, Bundles(group=group), self.of_libraries.get(group.placement_group_id)),
        )
        return self._users.alternatives.add(vertex, lambda: self._removers(group))

    def _enders(self, actor: Actor) -> Iterator[Target]:
        yield from self._users.each_of_actor(actor)
        if actor.is_detached:
            yield from self._users.of_namespace(actor.namespace, actor.actor_id, actor)
        else:
            yield from self._users.driver_of(actor.job_id)

    def _removers(self, group: PlacementGroup) -> Iterator[Target]:
        creator = self._index.actors.get(group.creator_actor_id or "")
        if creator and not group.is_detached:
            yield self._users.of_actor(creator)
        if group.job_id and not (group.is_detached and self._is_over(group.job_id)):
            yield self._users.of_job(group.job_id)
        if group.is_detached or group.name or not group.job_id:
            yield from self._users.of_namespace(group.namespace, group.placement_group_id, group)

    def _is_over(self, job_id: str) -> bool:
        job = self._index.jobs.get(job_id)
        return job is None or job.is_dead


def starts_of_workers(graph: GraphBuilder, job_id: str | None = None, node_id: str | None = None) -> tuple[Target, ...]:
    """The workers that are starting, on a node or any, and that may run tasks of a job, or of any job."""
    known = graph.index.starting_workers
    workers = chain.from_iterable(known.values() if node_id is None else [known.get(node_id, ())])
    return tuple(start_of(graph, one) for one in workers if job_id is None or one.job_id in (None, job_id))


def start_of(graph: GraphBuilder, worker: Worker) -> Target:
    """The main thread of a worker that is starting."""
    key = ThreadKey(worker.worker_id, worker.pid)
    if key in graph.vertices:
        return Target(vertex=key)
    starting = subjects.of_start(graph.index, worker) or subject("unread process")
    return graph.unknown("worker", worker.worker_id, "start", subject=starting, unobserved=True)
