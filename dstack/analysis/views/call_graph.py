"""The call graph of a snapshot: which drivers, actors and functions call which, how often, and with what outcome.

It has the history of tasks, as far as the GCS keeps it, completed by the tasks that the samples show, and the waits of
the snapshot. Without a history it has only tasks that have not ended.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter

import networkx as nx

from dstack.analysis.history.call_nodes import UNKNOWN, By, CallNodes, NodeKey, NodeWait, node_waits
from dstack.analysis.history.task_index import Attempt, known_attempts
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.profile import Endpoint, Traffic
from dstack.model.snapshot import actor_of_task
from dstack.model.vertex_keys import CoroutineKey, Key, ThreadKey
from dstack.words import grouped

SHORTEST_SPAN_S = 1.0
"""The shortest span of a rate."""
HIGH_RATE_PER_S = 10.0
"""Calls at this rate, or more frequent, are marked."""
HIGH_RATE_CALLS = 20
"""Fewer repeated calls have no high rate."""


@dataclass(frozen=True, slots=True)
class CallFigures:
    """Counts and durations of the calls of a method, an edge or a caller.

    ``attempts`` includes retries, ``tasks`` does not; ``attempts`` are ``pending``, ``running``, ``finished`` or
    ``failed``. ``run_s`` is the sum of the durations of the ``timed`` attempts that have ended. ``max_s`` is the
    longest duration, and at least so long if ``is_max_open``: that attempt still runs. ``first_at`` and ``last_at`` are
    when the first and the last known attempt was submitted. ``per_s`` is the number of calls per second between these,
    and within at least one second; for several methods together that of the most frequent one. ``is_frequent`` says
    whether a method is called again and again at a high rate, as by a loop that polls: after earlier calls of it on the
    same actor have ended, which a burst of calls is not. ``live_bytes`` is the size of the live objects that the tasks
    have made.
    """

    attempts: int = 0
    tasks: int = 0
    pending: int = 0
    running: int = 0
    finished: int = 0
    failed: int = 0
    timed: int = 0
    run_s: float = 0.0
    max_s: float | None = None
    is_max_open: bool = False
    first_at: float | None = None
    last_at: float | None = None
    per_s: float | None = None
    is_frequent: bool = False
    live_bytes: int = 0

    @property
    def mean_s(self) -> float | None:
        """The mean duration of the attempts that have ended."""
        return self.run_s / self.timed if self.timed else None


def total_calls(parts: list[CallFigures]) -> CallFigures:
    """The figures of all these calls together."""
    if len(parts) == 1:
        return parts[0]
    longest = max(parts, key=lambda part: part.max_s or 0.0, default=CallFigures())
    first = [part.first_at for part in parts if part.first_at is not None]
    last = [part.last_at for part in parts if part.last_at is not None]
    return CallFigures(
        attempts=sum(part.attempts for part in parts),
        tasks=sum(part.tasks for part in parts),
        pending=sum(part.pending for part in parts),
        running=sum(part.running for part in parts),
        finished=sum(part.finished for part in parts),
        failed=sum(part.failed for part in parts),
        timed=sum(part.timed for part in parts),
        run_s=sum(part.run_s for part in parts),
        max_s=longest.max_s,
        is_max_open=longest.is_max_open,
        first_at=min(first, default=None),
        last_at=max(last, default=None),
        per_s=max((part.per_s for part in parts if part.per_s is not None), default=None),
        is_frequent=any(part.is_frequent for part in parts),
        live_bytes=sum(part.live_bytes for part in parts),
    )


@dataclass(slots=True)
class Tally:
    """Attempts with one caller and one method, the number of their tasks, and the size of these tasks' live objects."""

    attempts: list[Attempt] = field(default_factory=list)
    tasks: int = 0
    live_bytes: int = 0

    @property
    def open_tasks(self) -> tuple[str, ...]:
        """The tasks that run, then those that are pending, each oldest first."""
        return tuple(
            one.task.task_id for state in ("running", "pending") for one in self.attempts if one.state == state
        )

    def figures(self, now: float | None) -> CallFigures:
        """The figures of these attempts; those that run have run until ``now``."""
        states = Counter(one.state for one in self.attempts)
        submitted = [one.submitted_at for one in self.attempts if one.submitted_at is not None]
        first_at, last_at = min(submitted, default=None), max(submitted, default=None)
        durations = [found for one in self.attempts if (found := _duration(one, now))]
        ended = [duration_s for duration_s, is_open in durations if not is_open]
        max_s, is_max_open = max(durations, key=itemgetter(0), default=(None, False))
        per_s = None if first_at is None else len(self.attempts) / max(SHORTEST_SPAN_S, (last_at or 0.0) - first_at)
        return CallFigures(
            attempts=len(self.attempts),
            tasks=self.tasks,
            pending=states["pending"],
            running=states["running"],
            finished=states["finished"],
            failed=states["failed"],
            timed=len(ended),
            run_s=sum(ended, 0.0),
            max_s=max_s,
            is_max_open=is_max_open,
            first_at=first_at,
            last_at=last_at,
            per_s=per_s,
            is_frequent=(per_s or 0.0) >= HIGH_RATE_PER_S and self._repeated() >= HIGH_RATE_CALLS,
            live_bytes=self.live_bytes,
        )

    def _repeated(self) -> int:
        """The number of calls that were submitted after an earlier one on the same actor had ended."""
        first_end: dict[str | None, float] = {}
        for one in self.attempts:
            if one.ended_at is not None:
                actor = one.task.actor_id
                first_end[actor] = min(one.ended_at, first_end.get(actor, one.ended_at))
        never = float("inf")
        return sum(
            one.submitted_at >= first_end.get(one.task.actor_id, never)
            for one in self.attempts
            if one.submitted_at is not None
        )


def _duration(attempt: Attempt, now: float | None) -> tuple[float, bool] | None:
    """How long an attempt has run, and whether it still runs; None if that is unknown."""
    is_open = attempt.ended_at is None
    end = (now if attempt.state == "running" else None) if is_open else attempt.ended_at
    return None if attempt.started_at is None or end is None else (max(0.0, end - attempt.started_at), is_open)


@dataclass(frozen=True, slots=True)
class CallNode:
    """What calls or is called.

    ``instances`` is the number of actors of a class that are in the graph, 1 for other nodes. ``put_bytes`` is the size
    of the live objects that it has made by ray.put. ``level`` is the length of the longest way to it from a
    node that is not called; nodes that call each other have one level.
    """

    key: NodeKey
    title: str
    instances: int = 1
    put_bytes: int = 0
    level: int = 0


@dataclass(frozen=True, slots=True)
class MethodCalls:
    """The calls of one method on an edge, or of a function; ``open_tasks`` have not ended, running ones first."""

    method: str
    figures: CallFigures
    open_tasks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallEdge:
    """All calls from one node to another, and by method, most calls first."""

    source: NodeKey
    target: NodeKey
    figures: CallFigures
    methods: tuple[MethodCalls, ...]

    @property
    def open_tasks(self) -> tuple[str, ...]:
        """The tasks that have not ended, running ones first."""
        running = [task for one in self.methods for task in one.open_tasks[: one.figures.running]]
        return (*running, *(task for one in self.methods for task in one.open_tasks[one.figures.running :]))


@dataclass(frozen=True, slots=True)
class NodeTraffic:
    """At least so many objects, with so many bytes, that ``source`` made and ``target`` got while a profile ran."""

    source: NodeKey
    target: NodeKey
    objects: int
    bytes: int


@dataclass(frozen=True)
class CallGraph:
    """The graph of one snapshot.

    ``nodes`` are in the order of their levels, and ``edges`` in that of their sources, most calls first. ``waits`` also
    connect nodes without calls, and so does ``traffic``, most bytes first. ``figures`` are those of all calls. The
    history began at ``began_at`` and was requested at ``ended_at``; both are None without one. ``left_out`` and
    ``dropped`` count attempts that it does not have. ``other_bytes`` are the live
    objects of tasks that the graph does not have.
    """

    by: By
    job: str | None
    nodes: tuple[CallNode, ...]
    edges: tuple[CallEdge, ...]
    waits: tuple[NodeWait, ...]
    figures: CallFigures
    traffic: tuple[NodeTraffic, ...] = ()
    began_at: float | None = None
    ended_at: float | None = None
    left_out: int = 0
    dropped: int = 0
    other_bytes: int = 0

    @classmethod
    def of(
        cls, analysed: AnalysedSnapshot, *, by: By = "class", job: str | None = None, traffic: Iterable[Traffic] = ()
    ) -> CallGraph:
        """Build the graph; with the id of a ``job``, of the calls that this job has made, and of its waits.

        The ``traffic`` of a profile of the same cluster is that between classes, so it needs nodes ``by`` class.
        """
        return _Builder(analysed, by, job).graph(traffic)

    @cached_property
    def node(self) -> Mapping[NodeKey, CallNode]:
        """The nodes by key."""
        return {node.key: node for node in self.nodes}

    @cached_property
    def edges_of(self) -> Mapping[NodeKey, Sequence[CallEdge]]:
        """The edges by the node that calls."""
        return grouped((edge.source, edge) for edge in self.edges)

    @cached_property
    def made(self) -> Mapping[NodeKey, CallFigures]:
        """The figures of all calls that a node has made."""
        return {key: total_calls([edge.figures for edge in edges]) for key, edges in self.edges_of.items()}

    @cached_property
    def search_texts(self) -> Mapping[tuple[NodeKey, NodeKey], str]:
        """The names that a filter finds, in lower case, by the ends of an edge."""
        names = {node.key: f"{node.title} {node.key}".casefold() for node in self.nodes}
        return {
            (edge.source, edge.target): " ".join(
                (names[edge.source], names[edge.target], *(one.method.casefold() for one in edge.methods))
            )
            for edge in self.edges
        }

    @cached_property
    def waits_of(self) -> Mapping[NodeKey, Sequence[NodeWait]]:
        """The waits by the node that waits."""
        return grouped((wait.source, wait) for wait in self.waits)

    @property
    def has_unknown_callers(self) -> bool:
        """Whether the GCS does not keep the callers of some attempts."""
        return UNKNOWN in self.edges_of

    @cached_property
    def has_several_jobs(self) -> bool:
        """Whether nodes of one name may belong to different jobs."""
        return len({node.key.job_id for node in self.nodes if node.key.job_id}) > 1


class _Builder:
    def __init__(self, analysed: AnalysedSnapshot, by: By, job: str | None) -> None:
        index = analysed.merged_index
        self._diagnosis = analysed.diagnosis
        self._history = analysed.history
        attempts = known_attempts(index, self._history)
        self._nodes = CallNodes(index, (attempt.task for attempt in attempts), by)
        self._attempts = [one for one in attempts if job is None or one.task.job_id == job]
        self._by: By = by
        self._job = job
        self._bytes = dict(analysed.snapshot.history.object_bytes) if analysed.snapshot.history else {}

    def graph(self, traffic: Iterable[Traffic]) -> CallGraph:
        tallies = self._tallies()
        edges = self._edges(tallies)
        waits = tuple(wait for wait in node_waits(self._diagnosis, self._nodes) if self._is_of_job(wait))
        put = self._put_bytes()
        nodes = self._call_nodes(edges, waits, put)
        order = {node.key: number for number, node in enumerate(nodes)}
        edges.sort(key=lambda edge: (order[edge.source], -edge.figures.attempts, order[edge.target]))
        history = self._history
        return CallGraph(
            by=self._by,
            job=self._job,
            nodes=tuple(nodes),
            edges=tuple(edges),
            waits=waits,
            figures=total_calls([edge.figures for edge in edges]),
            traffic=tuple(_between(traffic, order)),
            began_at=history.began_at if history else None,
            ended_at=history.asked_at if history else None,
            left_out=history.history.left_out if history else 0,
            dropped=history.history.dropped if history else 0,
            other_bytes=self._other_bytes(put, nodes) if self._job is None else 0,
        )

    def _tallies(self) -> Mapping[tuple[NodeKey, NodeKey, str], Tally]:
        found: dict[tuple[NodeKey, NodeKey, str], Tally] = defaultdict(Tally)
        nodes = self._nodes
        seen: set[str] = set()
        for attempt in self._attempts:
            task = attempt.task
            tally = found[nodes.caller(task.parent_task_id), nodes.called(task), nodes.method(task)]
            tally.attempts.append(attempt)
            if task.task_id not in seen:
                seen.add(task.task_id)
                tally.tasks += 1
                tally.live_bytes += self._bytes.pop(task.task_id, 0)
        return found

    def _edges(self, tallies: Mapping[tuple[NodeKey, NodeKey, str], Tally]) -> list[CallEdge]:
        methods: dict[tuple[NodeKey, NodeKey], list[MethodCalls]] = defaultdict(list)
        now = self._history.asked_at if self._history else None
        for (source, target, method), tally in tallies.items():
            methods[source, target].append(MethodCalls(method, tally.figures(now), tally.open_tasks))
        return [_edge(source, target, parts) for (source, target), parts in methods.items()]

    def _put_bytes(self) -> Mapping[NodeKey, int]:
        """The bytes that are of no edge, by the node that has put them."""
        found: Counter[NodeKey] = Counter()
        for put_id in list(self._bytes):
            key = self._nodes.putter(put_id)
            if key is not None:
                found[key] += self._bytes.pop(put_id)
        return found

    def _other_bytes(self, put: Mapping[NodeKey, int], nodes: Iterable[CallNode]) -> int:
        return sum(self._bytes.values()) + sum(put.values()) - sum(node.put_bytes for node in nodes)

    def _is_of_job(self, wait: NodeWait) -> bool:
        return self._job is None or self._job in (wait.source.job_id, wait.target.job_id)

    # Nodes

    def _call_nodes(
        self, edges: Iterable[CallEdge], waits: Iterable[NodeWait], put: Mapping[NodeKey, int]
    ) -> list[CallNode]:
        calls = {key: 0 for edge in edges for key in (edge.source, edge.target)}
        for edge in edges:
            calls[edge.source] += edge.figures.attempts
        keys = [*calls, *(key for wait in waits for key in (wait.source, wait.target) if key not in calls)]
        levels, instances = _levels(keys, edges), self._instances()
        nodes = [
            CallNode(
                key,
                self._nodes.title(key),
                instances=max(1, len(instances.get(key, ()))),
                put_bytes=put.get(key, 0),
                level=levels[key],
            )
            for key in dict.fromkeys(keys)
        ]
        return sorted(nodes, key=lambda node: (node.level, -calls.get(node.key, 0), node.title, str(node.key)))

    def _instances(self) -> Mapping[NodeKey, set[str]]:
        """The actors that call, are called, or wait, by the nodes of their classes."""
        vertices = self._diagnosis.vertices.values()
        tasks = {attempt.task.parent_task_id for attempt in self._attempts} | {vertex.task_id for vertex in vertices}
        actors = {actor_of_task(task_id) for task_id in tasks if task_id}
        actors |= {attempt.task.actor_id for attempt in self._attempts}
        found: dict[NodeKey, set[str]] = defaultdict(set)
        for actor_id in filter(None, actors):
            found[self._nodes.actor(actor_id)].add(actor_id)
        return found


def _between(traffic: Iterable[Traffic], nodes: Collection[NodeKey]) -> list[NodeTraffic]:
    """The objects that passed between these nodes."""
    found = grouped(((_node_of(one.maker), _node_of(one.asker)), one) for one in traffic)
    between = (
        NodeTraffic(source, target, sum(one.objects for one in parts), sum(one.bytes for one in parts))
        for (source, target), parts in found.items()
        if source in nodes and target in nodes
    )
    return sorted(between, key=lambda one: -one.bytes)


def _node_of(end: Endpoint) -> NodeKey:
    return NodeKey(end.kind, end.job_id, "" if end.kind == "driver" else end.name)


def _edge(source: NodeKey, target: NodeKey, methods: list[MethodCalls]) -> CallEdge:
    if len(methods) == 1:
        return CallEdge(source, target, methods[0].figures, tuple(methods))
    methods.sort(key=lambda one: (-one.figures.attempts, one.method))
    return CallEdge(source, target, total_calls([one.figures for one in methods]), tuple(methods))


def _levels(keys: Iterable[NodeKey], edges: Iterable[CallEdge]) -> Mapping[NodeKey, int]:
    """The length of the longest way to each node from one that is not called; cycles count as one node."""
    graph: nx.DiGraph[NodeKey] = nx.DiGraph()
    graph.add_nodes_from(keys)
    graph.add_edges_from((edge.source, edge.target) for edge in edges)
    parts = nx.condensation(graph)
    return {
        key: level
        for level, numbers in enumerate(nx.topological_generations(parts))
        for number in numbers
        for key in parts.nodes[number]["members"]
    }


class CallExecutions:
    """Finds the vertices of unfinished tasks in one snapshot."""

    def __init__(self, analysed: AnalysedSnapshot) -> None:
        self._analysed = analysed

    @cached_property
    def _of_task(self) -> dict[str, Key]:
        vertices = self._analysed.diagnosis.vertices.values()
        return {vertex.task_id: vertex.key for vertex in vertices if vertex.task_id and vertex.is_counted}

    def running(self, tasks: Iterable[str]) -> Key | None:
        """The thread or coroutine that runs the first of these tasks of which it is known."""
        index = self._analysed.merged_index
        for task_id in tasks:
            if task_id in index.coroutine_of_task:
                return CoroutineKey(*index.coroutine_of_task[task_id])
            if task_id in index.thread_of_task:
                return ThreadKey(*index.thread_of_task[task_id])
        return None

    def with_stack(self, vertices: Iterable[Key]) -> Key | None:
        """The first of these vertices that is an execution."""
        known = self._analysed.diagnosis.vertices
        return next((key for key in vertices if key in known and known[key].kind == "execution"), None)

    def waiting(self, tasks: Iterable[str]) -> Key | None:
        """The vertex of the first of these tasks that takes part in a wait."""
        return next((self._of_task[task_id] for task_id in tasks if task_id in self._of_task), None)
