"""The nodes and workers of a cluster with their activities, and the work that is pending.

Everything is computed on demand, so the cost for a large cluster depends on the part that is shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from dstack import words
from dstack.analysis.evidence.coverage import ReadState, read_states
from dstack.analysis.graph.resource_holders import in_group
from dstack.analysis.index import subjects
from dstack.analysis.index.ranks import NO_RANKS, Ranks
from dstack.analysis.index.refs import ENDED
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.naming.sentences import sentence
from dstack.analysis.stacks.app_threads import ACTIVITIES, Activity, kind_of
from dstack.analysis.views.distributed_stack import similarity_key
from dstack.analysis.views.node_resources import NodeResources
from dstack.analysis.views.worker_state import ExecutionGroup, FigureReader, WorkerActivity, WorkerFigures
from dstack.model.diagnosis import Diagnosis, Vertex, WaitKind
from dstack.model.snapshot import Actor, Node, Worker
from dstack.model.vertex_keys import Key
from dstack.observed.node import Failure, Task
from dstack.words import grouped

QUEUED: tuple[WaitKind, ...] = ("actor slot", "order")
"""The waits of calls that were sent to an actor and do not run; the line of the actor counts them."""
NO_FIGURES = WorkerFigures()


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """A worker or driver; ``activity`` is the worst of its executions, ``counts`` their number by activity.

    ``queued`` is at least how many calls of its actor do not run yet. ``trouble`` is why it was not read. Similar
    workers have the same ``shape``. ``kind`` is its class, script or task, as ``actor Trainer``.
    """

    worker: Worker
    name: str
    activity: Activity
    counts: Mapping[Activity, int]
    queued: int = 0
    trouble: str | None = None
    ranks: Ranks = NO_RANKS
    shape: object = None
    kind: str = ""
    figures: WorkerFigures = NO_FIGURES


@dataclass(frozen=True, slots=True)
class PendingItem:
    """Similar pending tasks, actors, calls or placement groups: the keys of all, and the first's key and sentence."""

    vertex: Key
    what: Literal["task", "actor", "placement group", "call"]
    text: str
    is_stuck: bool = False
    count: int = 1
    similar: tuple[Key, ...] = ()


class ClusterInventory:
    """The cluster of one snapshot, with its diagnosis."""

    def __init__(self, index: SampleIndex, diagnosis: Diagnosis) -> None:
        self.resources = NodeResources(index)
        self._activity = WorkerActivity(index, diagnosis)
        self._index = index
        self._vertices = diagnosis.vertices
        self._figures = FigureReader(index.snapshot)
        self._summaries: dict[str, WorkerSummary] = {}
        self._known_figures: dict[str, WorkerFigures] = {}

    # Nodes

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes: the head first, dead nodes last."""
        return tuple(sorted(self._index.snapshot.nodes, key=lambda node: (not node.alive, not node.is_head)))

    def on_node(self, node: Node) -> tuple[Worker, ...]:
        """The workers and drivers of a node."""
        return tuple(self._workers_on.get(node.node_id, ()))

    def counts(self, workers: Iterable[Worker]) -> dict[Activity, int]:
        """The number of these workers by activity."""
        counts = dict.fromkeys(ACTIVITIES, 0)
        for worker in workers:
            counts[self._worst(worker, self._counts(worker))] += 1
        return {activity: count for activity, count in counts.items() if count}

    def partly_read(self, node: Node) -> int:
        """The number of workers and drivers of a node that do not count as read though their activity is known."""
        partly = (w for w in self._workers_on.get(node.node_id, ()) if self._read_states[w.worker_id] != "seen")
        return sum(self._worst(worker, self._counts(worker)) != "not read" for worker in partly)

    def dead_actors(self, node: Node) -> tuple[Actor, ...]:
        """The actors that ended on a node and that Ray still lists."""
        return tuple(self._dead_on.get(node.node_id, ()))

    # Workers

    def summaries(self, workers: Iterable[Worker]) -> tuple[WorkerSummary, ...]:
        """The summaries of these workers, each made once, stuck ones first."""
        return tuple(sorted(map(self._summary, workers), key=_by_activity))

    def figures(self, worker: Worker) -> WorkerFigures:
        """What a worker uses; read once."""
        if worker.worker_id not in self._known_figures:
            queued = self._queued.get(worker.actor_id, 0) if worker.actor_id else None
            self._known_figures[worker.worker_id] = self._figures.of(worker, queued)
        return self._known_figures[worker.worker_id]

    def executions(self, worker_id: str) -> tuple[ExecutionGroup, ...]:
        """The executions of a worker, stuck ones first, similar ones as one group."""
        return self._activity.groups(worker_id)

    def held_by(self, worker_id: str) -> str:
        """``2 CPU and 1 GPU``: what a worker's task or actor holds; empty if it holds nothing or that is unknown."""
        sample = self._index.worker_samples.get(worker_id)
        worker = self._index.workers.get(worker_id)
        actor = self._index.actors.get((worker.actor_id if worker else None) or "")
        held = (actor.held if actor else None) or (sample.held if sample else {})
        own = {name: amount for name, amount in held.items() if not in_group(name)}
        own |= {place.resource: amount for name, amount in held.items() if (place := in_group(name))}
        own.pop("bundle", None)
        return names.amounts(own) if own else ""

    @property
    def is_queue_known(self) -> bool:
        """Whether all possible callers answered, so that no queue is longer than counted."""
        return not any(self._index.is_unresponsive(worker.worker_id) for worker in self._index.snapshot.workers)

    def _summary(self, worker: Worker) -> WorkerSummary:
        if worker.worker_id not in self._summaries:
            self._summaries[worker.worker_id] = self._new_summary(worker)
        return self._summaries[worker.worker_id]

    def _new_summary(self, worker: Worker) -> WorkerSummary:
        counts = self._counts(worker)
        actor = self._index.actors.get(worker.actor_id or "")
        queued = self._queued.get(worker.actor_id or "", 0)
        name = names.actor(actor) if actor else names.process(subjects.worker(self._index, worker))
        shapes = self._activity.shapes(worker.worker_id)
        trouble = self._trouble(worker)
        kind = (actor.class_name if actor else name, worker.job_id if worker.is_driver else None)
        return WorkerSummary(
            worker=worker,
            name=name,
            activity=self._worst(worker, counts),
            counts=counts,
            queued=queued,
            trouble=trouble,
            ranks=self._index.ranks(worker.worker_id),
            shape=(kind, tuple(sorted(counts.items())), shapes, bool(queued), trouble),
            kind=kind_of(self._index, worker, None),
            figures=self.figures(worker),
        )

    def _counts(self, worker: Worker) -> dict[Activity, int]:
        is_read = self._read_states[worker.worker_id] == "seen"
        return self._activity.counts(worker.worker_id) or {"idle" if is_read else "not read": 1}

    def _worst(self, worker: Worker, counts: Mapping[Activity, int]) -> Activity:
        worst = min(counts, key=ACTIVITIES.index)
        return "not read" if worst == "unreadable" and self._read_states[worker.worker_id] != "seen" else worst

    def _trouble(self, worker: Worker) -> str | None:
        """What of a worker was not read, and why."""
        sample = self._index.worker_samples.get(worker.worker_id)
        lacks = []
        if sample is None or sample.running_task_ids is None:
            lacks += ["tasks", "calls"]
        if sample is None or sample.process is None or not sample.process.threads:
            lacks.append("threads")
        if not lacks and self._read_states[worker.worker_id] != "seen":
            lacks.append("tasks and threads at the same time")
        if not lacks:
            return None
        reasons = self._failure_reasons(worker)
        return f"{words.listed(lacks)} not read" + (f": {'; '.join(reasons)}" if reasons else "")

    def _failure_reasons(self, worker: Worker) -> list[str]:
        """The reasons of the failures to read a worker, or else its node."""
        failures = self._failures_on.get(worker.node_id, [])
        own = [f for f in failures if worker.worker_id == f.worker_id or worker.pid == f.pid]
        of_node = [f for f in failures if f.worker_id is None and f.pid is None]
        return list(dict.fromkeys(failure.reason for failure in own or of_node))

    # Pending work

    def pending_items(self) -> tuple[PendingItem, ...]:
        """Pending tasks, actors and placement groups, similar ones as one item, with what each lacks."""
        groups = grouped((similarity_key(vertex), vertex) for vertex in self._vertices.values() if _is_pending(vertex))
        return tuple(map(self._pending_item, groups.values()))

    def _pending_item(self, similar: list[Vertex]) -> PendingItem:
        first = similar[0]
        task = self._index.tasks.get(first.task_id or "")
        return PendingItem(
            vertex=first.key,
            what="placement group" if first.kind == "placement group" else _what(task),
            text=sentence(self._index, self._vertices, first).text,
            is_stuck=first.key in self._activity.stuck,
            count=len(similar),
            similar=tuple(vertex.key for vertex in similar),
        )

    # Lookups

    @cached_property
    def _workers_on(self) -> dict[str, list[Worker]]:
        return grouped((worker.node_id, worker) for worker in self._index.snapshot.workers)

    @cached_property
    def _read_states(self) -> dict[str, ReadState]:
        return read_states(self._index.snapshot)

    @cached_property
    def _failures_on(self) -> dict[str, list[Failure]]:
        return grouped((failure.node_id or "", failure) for failure in self._index.snapshot.failures)

    @cached_property
    def _dead_on(self) -> dict[str, list[Actor]]:
        dead = (actor for actor in self._index.snapshot.actors if actor.state == "DEAD")
        return grouped((actor.node_id or "", actor) for actor in dead)

    @cached_property
    def _queued(self) -> dict[str, int]:
        queued: dict[str, int] = defaultdict(int)
        for task in self._index.tasks.values():
            is_waiting = task.task_id not in self._index.worker_of_task and task.state not in ENDED
            if task.kind == "ACTOR_TASK" and task.actor_id and is_waiting:
                queued[task.actor_id] += 1
        return queued


def _by_activity(one: WorkerSummary) -> tuple[int, bool, str, int]:
    """By activity, then by name; workers with ranks by class and rank."""
    rank = one.ranks.rank
    name = (one.name, -1) if rank is None else (one.kind, rank)
    return ACTIVITIES.index(one.activity), not one.worker.is_driver, *name


def group_similar_workers(workers: Iterable[WorkerSummary]) -> list[list[WorkerSummary]]:
    """Group similar workers."""
    return list(grouped((one.shape, one) for one in workers).values())


def _is_pending(vertex: Vertex) -> bool:
    if vertex.kind == "placement group":
        return True
    is_queued = vertex.wait is not None and vertex.wait.kind in QUEUED
    return vertex.is_counted and vertex.kind == "task" and vertex.worker_id is None and not is_queued


def _what(task: Task | None) -> Literal["task", "actor", "call"]:
    if task is None or task.kind == "NORMAL_TASK":
        return "task"
    return "actor" if task.kind == "ACTOR_CREATION_TASK" else "call"
