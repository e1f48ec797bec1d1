"""The paths of a profile in one sample: from a root through its waits, to what runs or is missing at their ends.

A wait for several things is shared equally among those that are still missing, or with :class:`Hindsight` among those
that were missing to the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.shown_frames import fold_imports, own_frames
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe, in_words
from dstack.analysis.naming.ends import ends_in_words
from dstack.analysis.naming.vertex_details import is_sleeping
from dstack.analysis.stacks.app_threads import kind_of, running, shown_step, step_of, with_spans
from dstack.errors import UsageError
from dstack.model.diagnosis import Vertex, Wait, WaitKind
from dstack.model.profile import PathStep, ProfileOptions, State
from dstack.model.snapshot import Worker, job_of_task
from dstack.model.vertex_keys import AnyKey, Key, ThreadKey, Unknown, UnknownKey
from dstack.observed.processes import Coroutine, Frame, Thread
from dstack.words import grouped, listed

MAX_DEPTH = 200
"""The most executions of a path."""
MAX_PATHS = 200
"""The most paths that continue one path; the lightest of more are added up."""
CYCLE = PathStep("a cycle: deadlocked", state="waits")
DEEPER = PathStep("…", state="waits")
OTHERS = PathStep("others", state="waits")
IDLE = PathStep("idle: no call to run", state="queue")
NOT_READ = PathStep("not read", state="outside")

STATES: Mapping[WaitKind, tuple[str, State]] = {
    "actor slot": ("queued behind", "queue"),
    "order": ("queued behind", "queue"),
    "Serve slot": ("queued behind", "queue"),
    "executor": ("sent to a worker", "queue"),
    "arguments": ("arguments", "waits"),
    "actor creation": ("actor creation", "starts"),
    "runtime environment": ("runtime environment", "starts"),
    "resources": ("resources", "resources"),
    "placement group": ("placement group", "resources"),
    "scheduler": ("scheduler", "resources"),
    "lifetime": ("resources", "resources"),
}
"""What something that does not run waits for, in a word; a wait of another kind is called by its kind."""
LEAVES: Mapping[Unknown, tuple[str, State]] = {
    "actor": ("actor creation", "starts"),
    "argument": ("an argument, which was not observed", "waits"),
    "argument memory": ("room for arguments", "resources"),
    "autoscaler": ("the autoscaler", "resources"),
    "caller": ("on its way from its caller", "outside"),
    "creation": ("actor creation", "starts"),
    "executor": ("about to run", "queue"),
    "fetched value": ("transfer of a value", "outside"),
    "holder": ("", "resources"),
    "new node": ("a node that may join", "resources"),
    "placement group": ("", "resources"),
    "room": ("", "resources"),
    "scheduler": ("scheduler", "resources"),
    "scheduler state": ("scheduler", "resources"),
    "setup": ("runtime environment", "starts"),
    "slot": ("starts to run", "queue"),
    "start of actor": ("", "starts"),
    "step": ("ready to run on its event loop", "runs"),
    "transfer of arguments": ("transfer of arguments", "outside"),
    "value": ("a value, which was not observed", "waits"),
    "worker": ("worker starts", "starts"),
}
"""The ends of paths that were not observed: in words that are the same in each sample, or none where its own are."""


@dataclass(frozen=True, slots=True)
class PathNode:
    """A vertex on a path: its own steps, and what it still waits for."""

    steps: tuple[PathStep, ...]
    targets: tuple[Key, ...] = ()


Nodes = dict[Key, PathNode]
"""The nodes on all paths of some roots, by vertex."""
Choice = Mapping[Key, frozenset[Key]]
"""Of some vertices: the targets among which its time is shared."""


@dataclass(frozen=True, slots=True)
class Root:
    """What is followed, by a name that is the same in each sample: one of the ``keys`` after another, or idle.

    ``ids`` are the refs that it waits for itself, and the calls of an actor that it runs.
    """

    name: str
    keys: tuple[Key, ...]
    ids: frozenset[str] = frozenset()


class PathReader:
    """Reads the nodes of one sample's graph."""

    def __init__(self, index: SampleIndex, vertices: Mapping[Key, Vertex]) -> None:
        self._index = index
        self._vertices = vertices
        self._busy = {
            (worker_id, thread.os_thread_id)
            for worker_id, process in index.processes.items()
            for thread in process.threads
            if thread.on_cpu or not thread.still
        }

    def nodes(self, roots: Sequence[Root]) -> Nodes:
        """The nodes that these roots depend on."""
        found: Nodes = {}
        ahead = [key for root in roots for key in root.keys]
        while ahead:
            key = ahead.pop()
            if key not in found:
                found[key] = self._node(key)
                ahead += found[key].targets
        return found

    def _node(self, key: Key) -> PathNode:
        vertex = self._vertices.get(key)
        if vertex is None:
            return PathNode((NOT_READ,))
        targets = tuple(dict.fromkeys(target.vertex for target in vertex.wait.targets)) if vertex.wait else ()
        if vertex.subject.what == "starting worker":
            return PathNode((PathStep("worker starts", state="starts"),), targets)
        if vertex.kind == "execution":
            return PathNode((*self._own_steps(vertex), *self._state(vertex, targets)), targets)
        return PathNode(self._pending(vertex, targets), targets)

    def _own_steps(self, vertex: Vertex) -> tuple[PathStep, ...]:
        """Its name and its frames; one step for both if the outermost frame is what it is named after.

        The main thread of a driver has the name of its root.
        """
        frames = tuple(self._frames(vertex))
        worker = self._index.worker_of(vertex)
        if worker and worker.is_driver and worker.pid == vertex.os_thread_id and vertex.child_pid is None:
            return frames
        name = describe(vertex)
        at = next((at for at, step in enumerate(frames) if not step.is_span), None)
        if at is not None and frames[at].name in (name, name.rpartition(".")[2]):  # without its class on Python 3.10
            return (*frames[:at], replace(frames[at], name=name), *frames[at + 1 :])
        return (PathStep(name), *frames)

    def _frames(self, vertex: Vertex) -> Iterator[PathStep]:
        frames, execution = self._index.frames_of_vertex(vertex), self._index.execution_of(vertex)
        if shown := own_frames(list(fold_imports(frames))):
            steps = ((one.first, shown_step(one)) for one in reversed(shown))
            yield from with_spans(steps, execution.spans if execution else ())
        elif vertex.wait is None and (innermost := next((one for one in frames if one.origin == "library"), None)):
            yield step_of(innermost)

    def _state(self, vertex: Vertex, targets: Sequence[Key]) -> tuple[PathStep, ...]:
        """The last step of an execution: what it waits in, or what it does."""
        if vertex.wait is not None:
            return (self._wait(vertex, vertex.wait, targets),)
        if vertex.never is not None:
            return (PathStep(in_words(vertex.never), state="waits"),)
        execution = self._index.execution_of(vertex)
        if execution is None:
            return (NOT_READ,)
        frames = self._index.frames_of_vertex(vertex)
        return (self._doing(vertex.worker_id or "", execution, frames),)

    def _wait(self, vertex: Vertex, wait: Wait, targets: Sequence[Key]) -> PathStep:
        name = "its event loop" if wait.kind == "event loop" else wait.kind_name
        if wait.of_group is not None:
            missing = names.ranks(wait.of_group.missing) if wait.of_group.missing else "the others"
            return PathStep(f"{wait.of_group.call.operation}: waits for {missing}", state="waits")
        is_outside = all(isinstance(key, UnknownKey) and key.what not in LEAVES for key in targets)
        if wait.kernel is not None:
            ends = ends_in_words(self._index, vertex, wait.kernel)
            return PathStep(f"{name}{ends}", state="outside" if is_outside else "waits")
        return PathStep(name, state="outside" if is_outside else "waits")

    def _doing(self, worker_id: str, execution: Thread | Coroutine, frames: Sequence[Frame]) -> PathStep:
        if isinstance(execution, Coroutine):
            sleeps = is_sleeping(execution, frames)
            return PathStep("asyncio.sleep", state="sleeps") if sleeps else PathStep("suspended", state="runs")
        if is_sleeping(execution, frames):
            return PathStep("time.sleep", state="sleeps")
        if (worker_id, execution.os_thread_id) in self._busy:
            return PathStep("on CPU", state="runs")
        others = self._busy.intersection((worker_id, one.os_thread_id) for one in self._index.threads(worker_id))
        if others:
            return PathStep("off CPU, while another thread of its process runs", state="runs")
        return PathStep("off CPU, in a call outside Python", state="outside")

    def _pending(self, vertex: Vertex, targets: Sequence[Key]) -> tuple[PathStep, ...]:
        """The steps of what does not run: a call, an actor, a group, or what represents others."""
        if isinstance(vertex.key, UnknownKey) and not targets:
            return (self._unknown(vertex, vertex.key),)
        if vertex.never is not None:
            return (PathStep(f"{describe(vertex)}: {in_words(vertex.never)}", state="waits"),)
        if isinstance(vertex.key, AnyKey | UnknownKey):
            return () if targets else (PathStep(describe(vertex), state="resources"),)
        wait = vertex.wait
        if wait is None:
            return (PathStep(describe(vertex)), PathStep("on its way", state="outside"))
        words, state = STATES.get(wait.kind, (wait.kind_name, "waits"))
        resources = f": {listed(wait.resources)}" if state == "resources" and wait.resources else ""
        return (PathStep(f"{describe(vertex)}: {words}{resources}", state=state),)

    def _unknown(self, vertex: Vertex, key: UnknownKey) -> PathStep:
        """The end of a path that was not observed; of a value, at least the actor whose call makes it is known."""
        words, state = LEAVES.get(key.what, ("", "outside"))
        made_by = key.ids[0] if key.what == "value" and key.ids else None
        if isinstance(made_by, str) and (actor := self._index.actor_of_call(made_by)):
            words = f"a call of {names.actor_kind(actor).name}, which has ended meanwhile"
        return PathStep(words or describe(vertex), state=state)

    # What is followed

    def roots(self, options: ProfileOptions) -> list[Root]:
        """What is followed of this sample; what cannot be read of it is left out."""
        if options.everything:
            found = running(self._index, self._vertices).executions
            chosen = [one for one in found if self._is_of_job(one.key, options.job_id)]
            return [Root(kind, tuple(keys)) for kind, keys in grouped((one.kind, one.key) for one in chosen).items()]
        workers = [one for one in self._index.snapshot.workers if one.worker_id in self._index.worker_samples]
        if options.of:
            chosen_workers = [one for one in workers if self._is_called(one, options.of)]
            return self._of_workers([one for one in chosen_workers if options.job_id in (None, one.job_id)])
        drivers = [one for one in workers if one.is_driver and options.job_id in (None, one.job_id)]
        keys = {one.worker_id: ThreadKey(one.worker_id, one.pid) for one in drivers}
        read = [one for one in drivers if keys[one.worker_id] in self._vertices]
        return [self._root(name, (keys[one.worker_id],)) for name, one in self._named(read)]

    def _is_of_job(self, key: Key, job_id: str | None) -> bool:
        vertex = self._vertices[key]
        worker = self._index.worker_of(vertex)
        own = job_of_task(vertex.task_id) if vertex.task_id else worker.job_id if worker else None
        return job_id in (None, own)

    def _is_called(self, worker: Worker, wanted: str) -> bool:
        """Whether it is this rank, or of this class or actor: ``rank 3``, ``Trainer``, an actor's name or its id."""
        rank = self._index.ranks(worker.worker_id).rank
        if wanted.removeprefix("rank").strip(" :=") == str(rank) and rank is not None:
            return True
        actor = self._index.actors.get(worker.actor_id or "")
        if actor is None:
            return False
        return wanted in (actor.class_name, actor.class_name.rpartition(".")[2], actor.name) or (
            len(wanted) >= 6 and actor.actor_id.startswith(wanted)
        )

    def _of_workers(self, workers: Sequence[Worker]) -> list[Root]:
        running_there = grouped(
            (vertex.worker_id, key)
            for key, vertex in self._vertices.items()
            if vertex.task_id and vertex.worker_id and vertex.child_pid is None
        )
        return [self._root(name, tuple(running_there.get(one.worker_id, ()))) for name, one in self._named(workers)]

    def _root(self, name: str, keys: tuple[Key, ...]) -> Root:
        read = [one for key in keys if (one := self._index.execution_of(self._vertices[key]))]
        refs = {ref for one in read if one.call for ref in one.call.refs}
        return Root(name, keys, frozenset(refs.union(one.task_id for one in read if one.task_id)))

    def _named(self, workers: Sequence[Worker]) -> list[tuple[str, Worker]]:
        """Each with its kind, and its rank or the beginning of its id where several are of one kind."""
        kinds = [(kind_of(self._index, worker, None), worker) for worker in workers]
        several = {kind for kind, count in Counter(kind for kind, _ in kinds).items() if count > 1}
        return [(f"{kind} {self._which(worker)}" if kind in several else kind, worker) for kind, worker in kinds]

    def _which(self, worker: Worker) -> str:
        ranks = self._index.ranks(worker.worker_id).in_words
        actor = self._index.actors.get(worker.actor_id or "")
        name = (f'"{actor.name}"' if actor.name else names.short(actor.actor_id)) if actor else f"(pid {worker.pid})"
        return ranks or name


def require_roots(found: Sequence[Root], options: ProfileOptions) -> None:
    """Raise :class:`UsageError` if nothing in a cluster is called by the name of what is to be followed."""
    if options.of and not found:
        raise UsageError(
            f"There is no actor, class or rank called {options.of}.",
            "Use the name of a class, the name or the id of an actor, or as: --of 'rank 3'.",
        )


Paths = dict[tuple[PathStep, ...], float]
"""Paths with their fractions of 1."""


def paths_of(nodes: Nodes, root: Root, choice: Choice | None = None) -> Paths:
    """All paths of a root, with the fractions of its time."""
    if not root.keys:
        return {(IDLE,): 1.0}
    return _Sharing(nodes, choice or {}).among(root.keys, 0)


class _Sharing:
    """Shares the time of each vertex among its targets; each vertex once, as many may wait for it."""

    def __init__(self, nodes: Nodes, choice: Choice) -> None:
        self._nodes = nodes
        self._choice = choice
        self._known: dict[Key, Paths] = {}
        self._above: set[Key] = set()

    def among(self, targets: Sequence[Key], depth: int) -> Paths:
        found: Paths = {}
        for target in targets:
            for path, fraction in self._of(target, depth).items():
                found[path] = found.get(path, 0.0) + fraction / len(targets)
        return _heaviest(found) if len(found) > MAX_PATHS else found

    def _of(self, key: Key, depth: int) -> Paths:
        if key in self._above:
            return {(CYCLE,): 1.0}
        if key in self._known:
            return self._known[key]
        node = self._nodes[key]
        chosen = self._choice.get(key)
        targets = [one for one in node.targets if chosen is None or one in chosen]
        if not targets:
            paths: Paths = {node.steps: 1.0}
        elif depth >= MAX_DEPTH:
            paths = {(*node.steps, DEEPER): 1.0}
        else:
            self._above.add(key)
            paths = _continued(node.steps, self.among(targets, depth + 1))
            self._above.discard(key)
        self._known[key] = paths
        return paths


def _continued(steps: tuple[PathStep, ...], further: Paths) -> Paths:
    """The paths after these steps; a queue behind calls that are queued themselves is one step."""
    found: Paths = {}
    for path, fraction in further.items():
        is_same_queue = len(steps) == 1 and path[:1] == steps and steps[0].state == "queue"
        whole = path if is_same_queue else (*steps, *path)
        found[whole] = found.get(whole, 0.0) + fraction
    return found


def _heaviest(found: Paths) -> Paths:
    ordered = sorted(found.items(), key=lambda one: (-one[1], one[0]))
    kept = dict(ordered[: MAX_PATHS - 1])
    kept[(OTHERS,)] = kept.get((OTHERS,), 0.0) + sum(fraction for _, fraction in ordered[MAX_PATHS - 1 :])
    return kept


class Hindsight:
    """What the waits of earlier samples were missing to their end, from the last sample back to the first.

    A wait is the same in the sample before if its steps are, and if what was missing later was missing already.
    """

    def __init__(self) -> None:
        self._later: dict[Key, tuple[PathNode, frozenset[Key]]] = {}

    def choice(self, nodes: Nodes) -> Choice:
        """The targets that count in a sample, which is the one before that of the last call."""
        found: dict[Key, tuple[PathNode, frozenset[Key]]] = {}
        for key, node in nodes.items():
            missing = frozenset(node.targets)
            later = self._later.get(key)
            if later is not None and later[0].steps == node.steps and later[1] and later[1] <= missing:
                missing = later[1]
            found[key] = node, missing
        self._later = found
        return {key: missing for key, (_, missing) in found.items()}


class OwnWaits:
    """Numbers the waits of each root, from 1: another one is for a ref that the last one was not for."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, frozenset[str]]] = {}

    def number(self, root: Root) -> int:
        """The number of the wait in which a root is in this sample, or was last."""
        number, last = self._last.get(root.name, (0, frozenset()))
        if not root.ids <= last:
            number, last = number + 1, root.ids
            self._last[root.name] = number, last
        return number
