"""What there is in a cluster, node by node, and what each part of it does now.

Everything is computed on demand, so a large cluster costs no more than what is shown of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Literal, TypeVar

from dstack import words
from dstack.analysis.evidence.coverage import Sight, sights
from dstack.analysis.graph.resources.amounts import in_group, summed
from dstack.analysis.index.ranks import NO_RANKS, Ranks
from dstack.analysis.index.sample_index import ENDED, SampleIndex
from dstack.analysis.index.task_assignment import is_user_code
from dstack.analysis.naming import names
from dstack.analysis.naming.sentences import predicate, sentence
from dstack.analysis.naming.vertex_details import VertexDetails, details_of, execution_of
from dstack.analysis.solve.requirements import targets_of
from dstack.analysis.stacks.app_threads import kind_of
from dstack.analysis.views.distributed_stack import likeness
from dstack.diagnosis import Diagnosis, Vertex
from dstack.model import Actor, Coroutine, Failure, Frame, Model, Node, PlacementGroup, Task, Thread, Worker
from dstack.vertex_keys import Key

Doing = Literal["stuck", "waiting", "running", "idle", "unreadable", "not read"]
"""``unreadable`` is a call of which no stack was read, ``not read`` a process that does not count as seen."""
DOINGS: tuple[Doing, ...] = ("stuck", "waiting", "running", "idle", "unreadable", "not read")
FOR_GOOD = ("deadlock", "orphaned", "infeasible")
QUEUED = ("actor slot", "order")
"""The waits of calls that were sent to an actor and do not run: they are told with the actor."""
CALLED = {"object_store_memory": "object store"}
FIRST = ("CPU", "GPU", "object_store_memory", "memory")
T = TypeVar("T")
K = TypeVar("K")


class Amount(Model, frozen=True):
    """How much there is of a resource; ``free`` is None where the node did not tell."""

    name: str
    total: float
    free: float | None = None

    @property
    def words(self) -> str:
        """``CPU 2 of 4 used, 2 free``; bytes as GiB."""
        name = CALLED.get(self.name, self.name)
        if self.free is None:
            return f"{name} {self._figure(self.total)}, use unknown"
        used = max(0.0, self.total - self.free)
        return f"{name} {self._figure(used)} of {self._figure(self.total)} used, {self._figure(self.free)} free"

    def _figure(self, amount: float) -> str:
        return f"{amount / 2**30:.1f} GiB" if self.name in names.BYTES else f"{amount:g}"


class Deed(Model, frozen=True):
    """What one execution does now, or ``count`` alike ones, of which the first is told; ``vertex`` to jump to.

    ``name`` is the execution's, and ``words`` what it does; ``is_whole_process`` if it is a driver's main code.
    """

    vertex: Key
    doing: Doing
    name: str
    words: str
    is_whole_process: bool = False
    file: str | None = None
    line: int | None = None
    source: str | None = None
    count: int = 1

    @property
    def text(self) -> str:
        """The sentence about it."""
        return f"{self.name} {self.words}"


class Occupant(Model, frozen=True):
    """A worker or driver with what it does: ``doing`` is the worst of what its executions do.

    ``counts`` says how many of these do what, ``queued`` how many calls its actor has that do not run yet, as far as
    those answered who sent them. ``trouble`` is why it was not seen. Alike occupants have the same ``shape``.
    """

    worker: Worker
    name: str
    doing: Doing
    counts: Mapping[Doing, int]
    queued: int = 0
    trouble: str | None = None
    ranks: Ranks = NO_RANKS
    shape: object = None


class Resident(Model, frozen=True):
    """A placement group with some of its bundles on a node, and what is free in these."""

    group: PlacementGroup
    bundles: tuple[int, ...]
    amounts: tuple[Amount, ...]


class Lacking(Model, frozen=True):
    """Something that is not there yet, or ``count`` alike, with the sentence that says what it lacks."""

    vertex: Key
    what: Literal["task", "actor", "placement group", "call"]
    text: str
    is_stuck: bool = False
    count: int = 1
    alike: tuple[Key, ...] = ()


class Inventory:
    """The cluster of one snapshot, as all its samples show it, with the conclusions from them."""

    def __init__(self, index: SampleIndex, diagnosis: Diagnosis) -> None:
        self._seen = index
        self._vertices = diagnosis.vertices
        self._lines: dict[int, Frame | None] = {}
        self._stuck = {
            key
            for finding in diagnosis.findings
            if finding.kind in FOR_GOOD
            for key in (*finding.members, *finding.blocked_behind)
        }

    # Nodes

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, the dead last."""
        return tuple(sorted(self._seen.snapshot.nodes, key=lambda node: (not node.alive, not node.is_head)))

    def amounts(self, node: Node) -> tuple[Amount, ...]:
        """A node's resources, without those inside of placement groups and the marks of single nodes."""
        total = self._seen.sample.total.get(node.node_id) or node.resources
        own = {name: amount for name, amount in total.items() if not in_group(name) and not name.startswith("node:")}
        return self._amounts(node.node_id, own, {name: name for name in own})

    def residents(self, node: Node) -> tuple[Resident, ...]:
        """The placement groups with bundles on a node."""
        return tuple(self._resident(group, node) for group in self._groups_on.get(node.node_id, ()))

    def occupants(self, node: Node) -> tuple[Occupant, ...]:
        """A node's workers and drivers, those that are stuck first."""
        found = [self._occupant(worker) for worker in self._workers_on.get(node.node_id, ())]
        return tuple(
            sorted(found, key=lambda one: (DOINGS.index(one.doing), not one.worker.is_driver, *self._order(one)))
        )

    def _order(self, one: Occupant) -> tuple[str, int]:
        """By name; those with ranks by class and rank."""
        return (one.name, -1) if one.ranks.rank is None else (kind_of(self._seen, one.worker, None), one.ranks.rank)

    def counts(self, node: Node) -> dict[Doing, int]:
        """How many workers and drivers of a node do what."""
        counts = dict.fromkeys(DOINGS, 0)
        for worker in self._workers_on.get(node.node_id, ()):
            counts[self._doing_of(worker, self._counts_of(worker))] += 1
        return {doing: count for doing, count in counts.items() if count}

    def partly_seen(self, node: Node) -> int:
        """How many workers and drivers of a node are not counted as seen, though something is known of what they do."""
        unseen = (w for w in self._workers_on.get(node.node_id, ()) if self._sights[w.worker_id] != "seen")
        return sum(self._doing_of(worker, self._counts_of(worker)) != "not read" for worker in unseen)

    def dead_actors(self, node: Node) -> tuple[Actor, ...]:
        """The actors that ended on a node, as far as Ray still lists them."""
        return tuple(self._dead_on.get(node.node_id, ()))

    # Workers

    def deeds(self, worker_id: str) -> tuple[Deed, ...]:
        """What the executions of a worker do, alike ones as one, those that are stuck first."""
        groups: dict[object, list[Vertex]] = defaultdict(list)
        for vertex in self._executions.get(worker_id, ()):
            groups[self._shape(vertex)].append(vertex)
        deeds = [self._deed(alike[0], len(alike)) for alike in groups.values()]
        return tuple(sorted(deeds, key=lambda one: DOINGS.index(one.doing)))

    def held_by(self, worker_id: str) -> str:
        """``2 CPU and 1 GPU``: what a worker's task or actor holds, empty if nothing or nobody knows."""
        seen = self._seen.worker_samples.get(worker_id)
        worker = self._seen.workers.get(worker_id)
        actor = self._seen.actors.get((worker.actor_id if worker else None) or "")
        held = (actor.held if actor else None) or (seen.held if seen else {})
        own = {name: amount for name, amount in held.items() if not in_group(name)}
        own |= {place.resource: amount for name, amount in held.items() if (place := in_group(name))}
        own.pop("bundle", None)
        return names.amounts(own) if own else ""

    @property
    def is_queue_known(self) -> bool:
        """Whether everybody answered who may have sent calls, so that no queue is longer than counted."""
        return not any(self._seen.is_unresponsive(worker.worker_id) for worker in self._seen.snapshot.workers)

    # What is not there yet

    def lacking(self) -> tuple[Lacking, ...]:
        """Pending tasks, actors and placement groups, alike ones as one, with what each lacks."""
        groups: dict[object, list[Vertex]] = defaultdict(list)
        for vertex in self._vertices.values():
            if self._is_lacking(vertex):
                groups[likeness(vertex)].append(vertex)
        return tuple(self._lacking(alike) for alike in groups.values())

    def _is_lacking(self, vertex: Vertex) -> bool:
        if vertex.kind == "placement group":
            return True
        is_queued = vertex.wait is not None and vertex.wait.kind in QUEUED
        return vertex.is_counted and vertex.kind == "task" and vertex.worker_id is None and not is_queued

    def _lacking(self, alike: list[Vertex]) -> Lacking:
        first = alike[0]
        task = self._seen.tasks.get(first.task_id or "")
        return Lacking(
            vertex=first.key,
            what="placement group" if first.kind == "placement group" else _what(task),
            text=sentence(self._seen, self._vertices, first).text,
            is_stuck=first.key in self._stuck,
            count=len(alike),
            alike=tuple(vertex.key for vertex in alike),
        )

    # How it is found out

    @cached_property
    def _workers_on(self) -> dict[str, list[Worker]]:
        return _by(self._seen.snapshot.workers, lambda worker: worker.node_id)

    @cached_property
    def _sights(self) -> dict[str, Sight]:
        return sights(self._seen.snapshot)

    @cached_property
    def _failures_on(self) -> dict[str, list[Failure]]:
        return _by(self._seen.snapshot.failures, lambda failure: failure.node_id or "")

    @cached_property
    def _dead_on(self) -> dict[str, list[Actor]]:
        return _by((a for a in self._seen.snapshot.actors if a.state == "DEAD"), lambda actor: actor.node_id or "")

    @cached_property
    def _groups_on(self) -> dict[str, list[PlacementGroup]]:
        groups: dict[str, list[PlacementGroup]] = defaultdict(list)
        for group in self._seen.sample.placement_groups:
            for node_id in sorted({bundle.node_id for bundle in group.bundles if bundle.node_id}):
                groups[node_id].append(group)
        return groups

    @cached_property
    def _executions(self) -> dict[str, list[Vertex]]:
        return _by(filter(self._does_something, self._vertices.values()), lambda vertex: vertex.worker_id or "")

    @cached_property
    def _queued(self) -> dict[str, int]:
        queued: dict[str, int] = defaultdict(int)
        for task in self._seen.tasks.values():
            is_waiting = task.task_id not in self._seen.worker_of_task and task.state not in ENDED
            if task.kind == "ACTOR_TASK" and task.actor_id and is_waiting:
                queued[task.actor_id] += 1
        return queued

    def _resident(self, group: PlacementGroup, node: Node) -> Resident:
        bundles = tuple(n for n, bundle in enumerate(group.bundles) if bundle.node_id == node.node_id)
        total = summed(group.bundles[n].resources for n in bundles)
        whole = {name: f"{name}_group_{group.placement_group_id}" for name in total}
        is_there = group.state == "CREATED"
        return Resident(group=group, bundles=bundles, amounts=self._amounts(node.node_id, total, whole, is_there))

    def _amounts(
        self, node_id: str, total: Mapping[str, float], name_of: Mapping[str, str], is_there: bool = True
    ) -> tuple[Amount, ...]:
        free = self._seen.sample.available.get(node_id) if is_there else None
        return tuple(
            Amount(name=name, total=total[name], free=None if free is None else free.get(name_of[name], 0.0))
            for name in sorted(total, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
        )

    def _occupant(self, worker: Worker) -> Occupant:
        counts = self._counts_of(worker)
        actor = self._seen.actors.get(worker.actor_id or "")
        queued = self._queued.get(worker.actor_id or "", 0)
        name = names.actor(actor) if actor else names.worker(self._seen, worker)
        deeds = frozenset(self._shape(vertex) for vertex in self._executions.get(worker.worker_id, ()))
        trouble = self._trouble(worker)
        kind = (actor.class_name if actor else name, worker.job_id if worker.is_driver else None)
        shape = (kind, tuple(sorted(counts.items())), deeds, bool(queued), trouble)
        doing = self._doing_of(worker, counts)
        return Occupant(
            worker=worker,
            name=name,
            doing=doing,
            counts=counts,
            queued=queued,
            trouble=trouble,
            ranks=self._seen.ranks(worker.worker_id),
            shape=shape,
        )

    def _counts_of(self, worker: Worker) -> dict[Doing, int]:
        counts: dict[Doing, int] = defaultdict(int)
        for vertex in self._executions.get(worker.worker_id, ()):
            counts[self._doing(vertex)] += 1
        if counts:
            return dict(counts)
        return {"idle" if self._sights[worker.worker_id] == "seen" else "not read": 1}

    def _doing_of(self, worker: Worker, counts: Mapping[Doing, int]) -> Doing:
        """The worst of what a worker's executions do."""
        worst = min(counts, key=DOINGS.index)
        return "not read" if worst == "unreadable" and self._sights[worker.worker_id] != "seen" else worst

    def _trouble(self, worker: Worker) -> str | None:
        """What of a worker was not seen, and why."""
        seen = self._seen.worker_samples.get(worker.worker_id)
        lacks = []
        if seen is None or seen.running_task_ids is None:
            lacks += ["tasks", "calls"]
        if seen is None or seen.process is None or not seen.process.threads:
            lacks.append("threads")
        if not lacks and self._sights[worker.worker_id] != "seen":
            lacks.append("tasks and threads at the same time")
        if not lacks:
            return None
        reasons = self._reasons(worker)
        return f"{words.listed(lacks)} not read" + (f": {'; '.join(reasons)}" if reasons else "")

    def _reasons(self, worker: Worker) -> list[str]:
        """Why a worker was not seen, as far as the snapshot tells: for its own sake, or for its node's."""
        failures = self._failures_on.get(worker.node_id, [])
        own = [f for f in failures if worker.worker_id == f.worker_id or worker.pid == f.pid]
        whole = [f for f in failures if f.worker_id is None and f.pid is None]
        return list(dict.fromkeys(failure.reason for failure in own or whole))

    def _doing(self, vertex: Vertex) -> Doing:
        if vertex.key in self._stuck:
            return "stuck"
        if vertex.kind == "task" and vertex.wait is not None:
            if self._is_hidden(vertex):
                return "unreadable"
            if vertex.wait.kind == "thread":
                return "running"
        return "waiting" if vertex.wait or vertex.never else "running"

    def _is_hidden(self, vertex: Vertex) -> bool:
        """Whether a task runs, and nobody could see what it does."""
        return vertex.kind == "task" and any(self._vertices[key].unobserved for key in targets_of(vertex))

    def _does_something(self, vertex: Vertex) -> bool:
        """Whether it is an execution, and not a thread of an idle worker that waits for its next task."""
        if vertex.worker_id is None or vertex.kind not in ("execution", "task"):
            return False
        if vertex.task_id or vertex.wait or vertex.never:
            return True
        worker, seen = self._seen.workers.get(vertex.worker_id), self._seen.worker_samples.get(vertex.worker_id)
        if (worker and worker.is_driver) or seen is None or seen.running_task_ids != ():
            return True
        execution = execution_of(self._seen, vertex)
        return execution is not None and is_user_code(self._seen, execution)

    def _deed(self, vertex: Vertex, count: int) -> Deed:
        who = details_of(self._seen, vertex)
        return Deed(
            vertex=vertex.key,
            doing=self._doing(vertex),
            name=vertex.label,
            words=self._words(vertex, who),
            is_whole_process=self._is_whole_process(vertex),
            file=who.file,
            line=who.line,
            source=who.source,
            count=count,
        )

    def _words(self, vertex: Vertex, who: VertexDetails) -> str:
        if vertex.kind == "task" and vertex.key not in self._stuck:
            if self._is_hidden(vertex):
                targets = (self._vertices[key] for key in targets_of(vertex))
                hidden = next(target.label for target in targets if target.unobserved)
                return f"runs, but its stack was not read: {hidden}"
            if vertex.wait is None or vertex.wait.kind == "thread":
                return "runs on an unknown thread"
        return predicate(self._seen, self._vertices, vertex, who)

    def _is_whole_process(self, vertex: Vertex) -> bool:
        """Whether it is a driver's main thread, or a driver without stacks."""
        worker = self._seen.workers.get(vertex.worker_id or "")
        if worker is None or not worker.is_driver or vertex.task_id is not None:
            return False
        return vertex.kind == "task" or vertex.os_thread_id == worker.pid

    def _line_of(self, execution: Thread | Coroutine) -> Frame | None:
        if execution.stack not in self._lines:
            self._lines[execution.stack] = names.user_frame(self._seen.snapshot.frames_of(execution))
        return self._lines[execution.stack]

    def _name_alike(self, vertex: Vertex, execution: Thread | Coroutine | None) -> tuple[str, bool]:
        """What an execution is called, of an asyncio task without its number; and whether it is one."""
        if isinstance(execution, Coroutine) and vertex.task_id is None:
            return names.whose_coroutine(self._seen, vertex.worker_id or "", execution), True
        return vertex.label, False

    def _shape(self, vertex: Vertex) -> object:
        """What makes executions alike: what they are called, where they are, and for what, by name, they wait."""
        wait = vertex.wait
        execution = execution_of(self._seen, vertex)
        line = self._line_of(execution) if execution else None
        targets = frozenset(self._vertices[key].label for key in targets_of(vertex))
        return (
            self._name_alike(vertex, execution),
            self._doing(vertex),
            line,
            wait and (wait.kind, wait.what, wait.timeout_s, targets),
        )


def alike(occupants: Iterable[Occupant]) -> list[list[Occupant]]:
    """The occupants in groups of those that do the same."""
    return list(_by(occupants, lambda one: one.shape).values())


def _by(things: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    found: dict[K, list[T]] = defaultdict(list)
    for thing in things:
        found[key(thing)].append(thing)
    return found


def _what(task: Task | None) -> Literal["task", "actor", "call"]:
    if task is None or task.kind == "NORMAL_TASK":
        return "task"
    return "actor" if task.kind == "ACTOR_CREATION_TASK" else "call"
