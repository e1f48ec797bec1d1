"""The nodes of the call graph, which task and vertex belong to which, and the waits between them.

Nodes call and are called: drivers, functions, and actors by class or one by one.

The id of a task says what it is, even if the GCS does not keep the task: the main thread of a driver has the id
``ff...JOB``, and the id of an actor's call ends in the id of the actor. Calls of async actors name the creation of the
actor as their caller. Calls of other threads name a task that does not exist: of these the owner of an unfinished call
is known, and so is the caller of all calls with the same parent (seen on Ray 2.60).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from msgspec import Struct

from dstack.analysis.index import ray_libraries
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Diagnosis, Vertex, Wait
from dstack.model.snapshot import ACTOR_HANDLE, TaskAttempt, actor_of_task, job_of_task
from dstack.model.vertex_keys import AnyKey, Key

By = Literal["class", "instance"]
Part = Literal["calls", "threads", "child processes"]
"""The parts of a node that it may wait for itself."""
NodeKind = Literal["driver", "actor", "function", "unknown"]
DRIVER = "f" * 40
"""The beginning of the id of the task that is a driver's main thread; its job follows."""


class NodeKey(Struct, frozen=True, cache_hash=True, gc=False):
    """The identity of a node: a driver by its job, a function or class by its name, an actor also by its id.

    It is a struct that caches its hash, as it is hashed several times for each attempt.
    """

    kind: NodeKind
    job_id: str = ""
    name: str = ""
    actor_id: str = ""

    def __str__(self) -> str:
        return ":".join(part for part in (self.kind, self.job_id, self.actor_id or self.name) if part)


UNKNOWN = NodeKey("unknown")
"""The caller of attempts whose parent the GCS does not keep."""


class CallNodes:
    """Finds the node of a task, caller, process or vertex; ``attempts`` are all that are known."""

    def __init__(self, index: SampleIndex, attempts: Iterable[TaskAttempt], by: By) -> None:
        self._index = index
        self._by = by
        self._actors: dict[str, NodeKey] = {}
        self._first_actor: dict[NodeKey, str] = {}
        self._functions: dict[tuple[str, str], NodeKey] = {}
        self._callers: dict[str | None, NodeKey] = {None: UNKNOWN}
        self._owners = {task.parent_task_id: task.owner_id for task in index.tasks.values() if task.parent_task_id}
        self._called: dict[str, TaskAttempt] = {}
        self._classes: dict[str, str] = {}
        for task in attempts:
            self._called[task.task_id] = task
            if task.actor_id and (task.actor_id not in self._classes or task.kind == "ACTOR_CREATION_TASK"):
                self._classes[task.actor_id] = task.name.rpartition(".")[0] or task.name

    def called(self, task: TaskAttempt) -> NodeKey:
        """What runs the task: an actor, or a function."""
        if task.actor_id:
            return self.actor(task.actor_id)
        if task.kind == "DRIVER_TASK":
            return NodeKey("driver", task.job_id)
        key = task.job_id, task.name
        if key not in self._functions:
            self._functions[key] = NodeKey("function", *key)
        return self._functions[key]

    def caller(self, parent_task_id: str | None) -> NodeKey:
        """What submits the calls that have this parent."""
        if parent_task_id not in self._callers:
            known = self._task(parent_task_id or "") or self.process(self._owners.get(parent_task_id or ""))
            self._callers[parent_task_id] = known or UNKNOWN
        return self._callers[parent_task_id]

    def actor(self, actor_id: str) -> NodeKey:
        """The node of an actor."""
        if actor_id not in self._actors:
            own = actor_id if self._by == "instance" else ""
            key = NodeKey("actor", actor_id[-8:], self.class_name(actor_id), own)
            self._actors[actor_id] = key
            self._first_actor.setdefault(key, actor_id)
        return self._actors[actor_id]

    def class_name(self, actor_id: str) -> str:
        """The class of an actor, by the control plane, else by the names of its calls."""
        known = self._index.actors.get(actor_id)
        return known.class_name if known else self._classes.get(actor_id, "")

    def process(self, worker_id: str | None) -> NodeKey | None:
        """The node of a driver, of an actor's worker, or of the task that a worker runs; None if it runs none."""
        worker = self._index.workers.get(worker_id or "")
        if worker is None:
            return None
        if worker.actor_id:
            return self.actor(worker.actor_id)
        if worker.is_driver and worker.job_id:
            return NodeKey("driver", worker.job_id)
        sample = self._index.worker_samples.get(worker.worker_id)
        running = sample.running_task_ids if sample else None
        return self._task(running[0]) if running else None

    def vertex(self, vertex: Vertex) -> NodeKey | None:
        """The node that a vertex of the wait-for graph belongs to; None for those between two nodes."""
        if vertex.task_id:
            return self._task(vertex.task_id) or self.process(vertex.worker_id)
        if isinstance(vertex.key, AnyKey):
            is_end = vertex.key.what == "end of actor"
            return self.actor(str(vertex.key.ids[0])) if is_end and vertex.key.ids else None
        return self.process(vertex.worker_id)

    def putter(self, put_id: str) -> NodeKey | None:
        """The node whose task has made an object by ray.put, by the part of the object's id that names the task.

        Ray replaces the first byte of that id by the number of the attempt (seen on Ray 2.60).
        """
        rest = put_id[2:]
        if rest.startswith(DRIVER[2:]):
            return NodeKey("driver", job_of_task(put_id))
        if rest.startswith(ACTOR_HANDLE[2:]):
            return self._task(ACTOR_HANDLE[:2] + rest)
        return self.called(self._by_rest[rest]) if rest in self._by_rest else None

    @cached_property
    def _by_rest(self) -> dict[str, TaskAttempt]:
        return {task_id[2:]: task for task_id, task in self._called.items()}

    def _task(self, task_id: str) -> NodeKey | None:
        """The node of a task, which need not be kept."""
        if task_id in self._called:
            return self.called(self._called[task_id])
        if task_id.startswith(DRIVER):
            return NodeKey("driver", job_of_task(task_id))
        actor_id = actor_of_task(task_id)
        if actor_id is not None and len(actor_id) == 32 and self.class_name(actor_id):
            return self.actor(actor_id)
        return None

    # Names

    def title(self, key: NodeKey) -> str:
        """``driver train.py``, ``Trainer``, ``Trainer "left"``, ``Trainer 5f8aed75``, ``prepare``."""
        if key.kind == "driver":
            job = self._index.jobs.get(key.job_id)
            return f"driver {names.script(job.entrypoint)}" if job and job.entrypoint else f"driver of job {key.job_id}"
        if key.kind == "function":
            return ray_libraries.data_operator(key.name) or key.name
        if key.kind == "unknown":
            return "unknown caller"
        actor_id = key.actor_id or self._first_actor.get(key, "")
        known = self._index.actors.get(actor_id)
        name = known.name if known else ""
        if part := ray_libraries.part(key.name, name, actor_id):
            return f"{part.name}{part.which}" if key.actor_id else part.name
        if not key.actor_id:
            return key.name
        return f'{key.name} "{name}"' if name else f"{key.name} {names.short(key.actor_id)}"

    def method(self, task: TaskAttempt) -> str:
        """``step``: the name of a call without its class; the whole name if the caller has chosen it."""
        if task.kind == "ACTOR_CREATION_TASK":
            return "__init__"
        return task.name.removeprefix(f"{self.class_name(task.actor_id)}.") if task.actor_id else task.name


@dataclass(frozen=True, slots=True)
class NodeWait:
    """The waits of one node for another, or for itself.

    ``waiters`` are vertices of the wait-for graph. Of these, ``deadlocked`` are in a deadlock with the other node, and
    ``blocked`` can never proceed for another reason: they are blocked behind a deadlock, or what they need never comes.
    ``kinds`` counts the waiters by the name of their call. ``own`` are the parts of itself that a node waits for. With
    ``is_inferred`` the other node is only one of several that the waiters may wait for, as Ray does not say for which.
    """

    source: NodeKey
    target: NodeKey
    waiters: tuple[Key, ...]
    kinds: Mapping[str, int]
    deadlocked: int = 0
    blocked: int = 0
    is_inferred: bool = False
    own: tuple[Part, ...] = ()

    @property
    def count(self) -> int:
        """The number of waiters."""
        return len(self.waiters)


@dataclass(slots=True)
class _Waits:
    waiters: dict[Key, None] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    deadlocked: set[Key] = field(default_factory=set)
    blocked: set[Key] = field(default_factory=set)
    own: dict[Part, None] = field(default_factory=dict)


def node_waits(diagnosis: Diagnosis, nodes: CallNodes) -> tuple[NodeWait, ...]:
    """The waits between nodes: deadlocks first, inferred waits after certain ones, most waiters first."""
    found = _Search(diagnosis, nodes).waits()
    waits = [
        NodeWait(
            source,
            target,
            tuple(one.waiters),
            dict(one.kinds),
            len(one.deadlocked),
            len(one.blocked - one.deadlocked),
            is_inferred,
            tuple(one.own),
        )
        for (source, target, is_inferred), one in found.items()
    ]
    return tuple(
        sorted(
            waits,
            key=lambda wait: (-wait.deadlocked, wait.is_inferred, -wait.count, str(wait.source), str(wait.target)),
        )
    )


@dataclass(frozen=True, slots=True)
class _Reach:
    """The nodes that a target leads to.

    ``is_exact`` says that no helper on the way was inferred, ``is_whole`` that each way ends in a node.
    """

    nodes: frozenset[NodeKey]
    is_exact: bool = True
    is_whole: bool = True


class _Search:
    def __init__(self, diagnosis: Diagnosis, nodes: CallNodes) -> None:
        self._vertices = diagnosis.vertices
        self._node_of = {key: nodes.vertex(vertex) for key, vertex in diagnosis.vertices.items()}
        self._reached: dict[Key, _Reach] = {}
        deadlocks = [finding for finding in diagnosis.findings if finding.kind == "deadlock"]
        self._members = {key for finding in deadlocks for key in finding.members}
        self._cores = self._members | {key for finding in deadlocks for key in finding.helpers}
        self._stuck = diagnosis.stuck

    def waits(self) -> Mapping[tuple[NodeKey, NodeKey, bool], _Waits]:
        """The waits by the nodes that they go from and to, and whether they are only inferred."""
        found: dict[tuple[NodeKey, NodeKey, bool], _Waits] = defaultdict(_Waits)
        for key, vertex in self._vertices.items():
            source = self._node_of[key]
            if vertex.wait is None or source is None or not vertex.is_counted:
                continue
            certain = self._certain(vertex.wait)
            for target in vertex.wait.targets:
                is_in_core = key in self._members and target.vertex in self._cores
                for node in self._at(target.vertex).nodes:
                    if node == source and self._is_only_behind(vertex.wait, target.vertex):
                        continue
                    waits = found[source, node, node not in certain]
                    self._add(waits, vertex, is_in_core=is_in_core)
                    if node == source:
                        waits.own[self._part(target.vertex)] = None
        return found

    def _is_only_behind(self, wait: Wait, target: Key) -> bool:
        """Whether the kernel has named other processes, behind which the waiter's own node is one of many."""
        return bool(wait.ends) and self._node_of.get(target) is None

    def _part(self, target: Key) -> Part:
        vertex = self._vertices.get(target)
        if vertex is None or vertex.kind != "execution" or vertex.task_id:
            return "calls"
        return "threads" if vertex.child_pid is None else "child processes"

    def _certain(self, wait: Wait) -> set[NodeKey]:
        """The nodes that it is known to wait for: by what was read, or as all of the possible targets are there."""
        certain: set[NodeKey] = set()
        for group in wait.proven_groups if wait.assumed else wait.groups:
            reached = [self._at(target.vertex) for target in group.targets]
            nodes = frozenset[NodeKey]().union(*(one.nodes for one in reached))
            is_exact = not wait.inferred and all(one.is_exact for one in reached)
            if is_exact or (len(nodes) == 1 and all(one.is_whole for one in reached)):
                certain |= nodes
        return certain

    def _add(self, waits: _Waits, vertex: Vertex, *, is_in_core: bool) -> None:
        assert vertex.wait is not None
        if vertex.key not in waits.waiters:
            waits.waiters[vertex.key] = None
            waits.kinds[vertex.wait.kind_name] += 1
        if is_in_core:
            waits.deadlocked.add(vertex.key)
        elif vertex.key in self._stuck:
            waits.blocked.add(vertex.key)

    def _at(self, target: Key) -> _Reach:
        """The node of a target; for one between two nodes, those that it waits for."""
        if target not in self._reached:
            node = self._node_of.get(target)
            self._reached[target] = self._behind(target) if node is None else _Reach(frozenset((node,)))
        return self._reached[target]

    def _behind(self, target: Key) -> _Reach:
        nodes: set[NodeKey] = set()
        seen, ahead = {target}, [target]
        is_exact = is_whole = True
        while ahead:
            vertex = self._vertices.get(ahead.pop())
            targets = targets_of(vertex) if vertex else []
            is_exact = is_exact and not (vertex and vertex.wait and vertex.wait.inferred)
            is_whole = is_whole and bool(targets)
            for further in targets:
                node = self._node_of.get(further)
                if node is not None:
                    nodes.add(node)
                elif further not in seen:
                    seen.add(further)
                    ahead.append(further)
        return _Reach(frozenset(nodes), is_exact, is_whole)
