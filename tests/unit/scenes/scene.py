"""A cluster described line by line, and sampled once or twice.

A test changes the scene between samples as a cluster changes by itself::

    scene = Scene()
    driver, left, right = scene.driver(), scene.actor("Left"), scene.actor("Right")
    ping = scene.call(left, "ping", by=driver)
    pong = scene.call(right, "pong", by=left)
    driver.gets(ping)
    left.runs(ping).gets(pong)
    right.runs(pong).computes()
    scene.sample()

Samples are complete and consistent, unless a process ``is_unreachable`` (its worker answers no RPC), ``is_unreadable``
(its memory cannot be read) or ``has_no_stacks``, or a thread or coroutine ``is_unstable`` (it ran during its reading).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import count
from typing import Any

from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.graph.wait_graph import wait_for_graph
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.second_sample import plan_readings
from dstack.model.diagnosis import Diagnosis, Vertex, Wait
from dstack.model.snapshot import (
    Actor,
    AutoscalerState,
    Bundle,
    FailedTask,
    GoneWorker,
    Job,
    Node,
    PlacementGroup,
    PlatformEvent,
    RepeatedCall,
    Sample,
    Snapshot,
    Worker,
    job_of_task,
)
from dstack.model.vertex_keys import GroupKey, Key
from dstack.observed.node import Failure, Task, TaskKind
from dstack.observed.processes import Role
from tests.unit.scenes.calls import APP, JOB, Call
from tests.unit.scenes.processes import SceneCoroutine, SceneProcess, SceneThread
from tests.unit.scenes.worker_samples import WorkerSampler

TAKEN_AT = 1.7e9
Amounts = Mapping[str, float]
Waiter = SceneProcess | SceneThread | SceneCoroutine | Call | PlacementGroup


class Scene:
    """A cluster; by default each process is on the first node, and no resource is in use."""

    def __init__(self) -> None:
        self._number = count(1)
        self.nodes: list[Node] = []
        self.procs: list[SceneProcess] = []
        self.actors: list[Actor] = []
        self.groups: list[PlacementGroup] = []
        self.available: dict[str, dict[str, float]] = {}
        self.total: dict[str, dict[str, float]] = {}
        self.autoscaler: str | None = None
        self.autoscaler_state: AutoscalerState | None = None
        self.platform_events: tuple[PlatformEvent, ...] = ()
        self.is_of_one_driver = False
        self.jobs = [Job(job_id=JOB, entrypoint="python train.py", namespace="default")]
        self.failures: list[Failure] = []
        self.dead_workers: list[GoneWorker] = []
        self.samples: list[Sample] = []
        self.readings: list[Sample] = []
        self.repeated: list[RepeatedCall] = []
        self.failed: list[FailedTask] = []
        self._now_s = 0.0
        self._sampler = WorkerSampler()

    # Nodes, processes, actors and placement groups

    def node(self, free: Amounts | None = None, *, alive: bool = True, **resources: float) -> Node:
        """Adds a node; resources that are not ``free`` there are in use, by default all are free."""
        number = next(self._number)
        node = Node(node_id=f"{number:056x}", ip=f"10.0.0.{number}", alive=alive, resources=resources)
        self.nodes.append(node)
        self.available[node.node_id] = dict(resources if free is None else free)
        return node

    def joined(self, node: Node, ago_s: float, **known: Any) -> Node:
        """Changes when a node joined, by default a time that is not known, and other fields of it."""
        changed = replace(node, started_at=TAKEN_AT - ago_s, **known)
        self.nodes[self.nodes.index(node)] = changed
        return changed

    def lose(self, node: Node, ago_s: float) -> Node:
        """Lets a node die."""
        changed = replace(node, alive=False, ended_at=TAKEN_AT - ago_s)
        self.nodes[self.nodes.index(node)] = changed
        self.available.pop(node.node_id)
        return changed

    def driver(self, node: Node | None = None, job_id: str = JOB) -> SceneProcess:
        return self._proc("user", node, is_driver=True, job_id=job_id)

    def worker(self, node: Node | None = None) -> SceneProcess:
        return self._proc("task", node)

    def actor(self, class_name: str = "Actor", node: Node | None = None, **known: Any) -> SceneProcess:
        """Adds an actor that is alive, and returns its process."""
        proc = self._proc("task", node)
        actor = Actor(
            actor_id=f"{next(self._number):024x}{known.get('job_id', JOB)}",
            class_name=class_name,
            **{"job_id": JOB, "state": "ALIVE", "node_id": proc.worker.node_id, "worker_id": proc.worker_id} | known,
        )
        proc.actor, proc.worker = actor, replace(proc.worker, actor_id=actor.actor_id)
        self.actors.append(actor)
        return proc

    def threaded_actor(self, slots: int, class_name: str = "Actor", **known: Any) -> SceneProcess:
        """Adds an actor that runs its calls on this number of threads, none of them the main thread."""
        proc = self.actor(class_name, **known)
        proc.threads[0].role = "ray"
        for _ in range(slots):
            proc.thread()
        return proc

    def async_actor(self, class_name: str = "Actor", loops: int = 1, **known: Any) -> SceneProcess:
        """Adds an actor that runs its calls in coroutines on event loops, which are its last threads and idle."""
        proc = self.actor(class_name, **known)
        proc.threads[0].role = "ray"
        for number in range(loops):
            proc.thread("AsyncIO Thread: " + (f"group{number}" if number else "default"), "loop")
        return proc

    def pending_actor(self, class_name: str, by: SceneProcess, **needs: float) -> tuple[Actor, Call]:
        """Adds an actor that is not created yet, and its creation task."""
        actor = Actor(
            actor_id=f"{next(self._number):024x}{JOB}",
            job_id=JOB,
            class_name=class_name,
            state="PENDING_CREATION",
            owner_id=by.worker_id,
        )
        self.actors.append(actor)
        task_id = f"{'f' * 16}{actor.actor_id}"
        return actor, self._submitted(
            task_id, f"{class_name}.__init__", by, "ACTOR_CREATION_TASK", actor.actor_id, required_resources=needs
        )

    def group(self, state: str, *bundles: Bundle, **known: Any) -> PlacementGroup:
        number = next(self._number)
        group = PlacementGroup(
            placement_group_id=f"{number:036x}", state=state, **{"strategy": "PACK", "bundles": bundles} | known
        )
        self.groups.append(group)
        return group

    # Calls

    def call(self, actor: SceneProcess | Actor, method: str, by: SceneProcess, **known: Any) -> Call:
        """Submits a call of an actor's method."""
        called = actor.actor if isinstance(actor, SceneProcess) else actor
        assert called is not None
        task_id = f"{next(self._number):016x}{called.actor_id}"
        return self._submitted(task_id, f"{called.class_name}.{method}", by, "ACTOR_TASK", called.actor_id, **known)

    def task(self, name: str, by: SceneProcess, **known: Any) -> Call:
        """Submits a normal task."""
        task_id = f"{next(self._number):016x}{'f' * 24}{by.worker.job_id or JOB}"
        return self._submitted(task_id, name, by, "NORMAL_TASK", None, **known)

    def run(self, name: str, by: SceneProcess, node: Node | None = None, **needs: float) -> tuple[Call, SceneProcess]:
        """Submits a normal task, and adds the worker that runs it."""
        call = self.task(name, by, required_resources=needs)
        return call, self.worker(node).runs(call)

    def repeats(self, call: Call, by: Call | SceneProcess | str, **known: Any) -> RepeatedCall:
        """Reports that a task, or a driver's main thread, has repeated calls like this one."""
        parent = by if isinstance(by, str) else by.task.task_id if isinstance(by, Call) else f"{'f' * 40}{JOB}"
        repeated = RepeatedCall(
            name=call.task.name,
            actor_id=call.task.actor_id or "",
            job_id=call.task.job_id,
            parent_task_id=parent,
            calls=10,
            over_s=9.0,
            **known,
        )
        self.repeated.append(repeated)
        return repeated

    # Changes

    def dies(self, proc: SceneProcess, cause: str = "killed", ago_s: float = 600.0) -> None:
        """Kills a process, and the actor in it."""
        ended_at = TAKEN_AT - ago_s
        worker = proc.worker
        self.procs.remove(proc)
        self.dead_workers.append(
            GoneWorker(
                worker_id=worker.worker_id,
                node_id=worker.node_id,
                pid=worker.pid,
                is_driver=worker.is_driver,
                ended_at=ended_at,
                cause=cause,
            )
        )
        if proc.actor is not None:
            self.becomes(proc.actor, state="DEAD", death_cause=cause, ended_at=ended_at)

    def becomes(self, actor: Actor, **changes: Any) -> Actor:
        """Changes fields of an actor as the control plane reports them."""
        changed = replace(actor, **changes)
        self.actors[self.actors.index(actor)] = changed
        return changed

    # Samples

    def sample(self, only: Iterable[str] | None = None) -> Scene:
        """Samples the state of all workers, and the processes of all or ``only`` of these workers."""
        wanted = {proc.worker_id for proc in self.procs} if only is None else set(only)
        answering = [proc for proc in self.procs if not proc.is_unreachable]
        began_s = self._advance_clock(1.0)
        self.samples.append(
            Sample(
                began_s=began_s,
                ended_s=began_s + 0.5,
                workers=tuple(self._sampler.sample(proc, is_wanted=proc.worker_id in wanted) for proc in self.procs),
                tasks=tuple(call.task for proc in answering for call in proc.submitted),
                refs=tuple(ref for proc in answering for ref in proc.refs.values()),
                placement_groups=tuple(self.groups),
                total={node: dict(all_) for node, all_ in self.total.items()},
                available={node: dict(free) for node, free in self.available.items()},
                arrived={c.task.task_id: c.task.attempt for p in self.procs for c in p.submitted if c.has_arrived},
            )
        )
        return self

    def read(self, only: Iterable[SceneProcess] | None = None, every_s: float = 1.0) -> Scene:
        """Adds a quick reading of these processes, by default of those that may poll by the first sample."""
        of_these = {proc.worker_id for proc in only} if only is not None else plan_readings(self._first()).pollers
        wanted = [proc for proc in self.procs if proc.worker_id in of_these]
        began_s = self._advance_clock(every_s)
        self.readings.append(
            Sample(
                began_s=began_s,
                ended_s=began_s + 0.05,
                workers=tuple(map(self._sampler.sample, wanted)),
                tasks=tuple(call.task for proc in wanted if not proc.is_unreachable for call in proc.submitted),
            )
        )
        return self

    def watch(self, readings: int = 3, every_s: float = 1.0) -> Scene:
        """Takes a first sample, quick readings and a second sample, as dstack does where something may poll."""
        if not self.samples:
            self.sample()
        for _ in range(readings):
            self.read(every_s=every_s)
        return self.second_sample()

    def second_sample(self) -> Scene:
        """Takes a second sample as dstack does: of the workers of interest, if there are any."""
        wanted = plan_readings(self._first()).workers
        return self.sample(only=wanted) if wanted else self

    def _first(self) -> Snapshot:
        """The snapshot after the first sample."""
        return replace(self.snapshot(), samples=tuple(self.samples[:1]), readings=())

    def _advance_clock(self, seconds: float) -> float:
        """Returns the present time, and advances the clock by this duration."""
        now_s = self._now_s if self.samples else 0.0
        self._now_s = now_s + seconds
        return now_s

    def snapshot(self) -> Snapshot:
        """The snapshot of all samples; takes the first sample if there is none yet."""
        if not self.samples:
            self.sample()
        frames = tuple(self._sampler.frames)
        return Snapshot(
            dstack_version="0.1.0",
            taken_at=TAKEN_AT,
            address="10.0.0.1:6379",
            ray_version="2.60.0",
            nodes=tuple(self.nodes),
            autoscaler=self.autoscaler,
            autoscaler_state=self.autoscaler_state,
            platform_events=self.platform_events,
            is_of_one_driver=self.is_of_one_driver,
            jobs=tuple(self.jobs),
            actors=tuple(self.actors),
            workers=tuple(proc.worker for proc in self.procs),
            gone_workers=tuple(self.dead_workers),
            frames=frames,
            stacks=tuple(self._sampler.stacks),
            sources={APP: {frame.line: f"    return {frame.function}_of(me)" for frame in frames if frame.file == APP}},
            samples=tuple(self.samples),
            readings=tuple(self.readings),
            repeated_calls=tuple(self.repeated),
            failed_tasks=tuple(self.failed),
            failures=tuple(self.failures),
            total_s=1.25,
        )

    def graph(self) -> dict[Key, Vertex]:
        """The wait-for graph of the first sample."""
        snapshot = self.snapshot()
        return wait_for_graph(SampleIndex(snapshot, snapshot.samples[0]))

    def wait_of(self, waiter: Waiter) -> Wait:
        """The wait of this vertex in the first sample."""
        wait = self.graph()[key_of(waiter)].wait
        assert wait is not None, f"{waiter} does not wait"
        return wait

    def diagnose(self) -> Diagnosis:
        return diagnose(self.snapshot())

    def _proc(self, role: Role, node: Node | None, **known: Any) -> SceneProcess:
        number = next(self._number)
        place = node or (self.nodes[0] if self.nodes else self.node(CPU=4.0))
        worker = Worker(
            worker_id=f"{number:056x}",
            node_id=place.node_id,
            ip=place.ip,
            port=10_000 + number,
            pid=1000 * number,
            **known,
        )
        proc = SceneProcess(worker=worker)
        proc.thread("MainThread", role)
        self.procs.append(proc)
        return proc

    def _submitted(
        self, task_id: str, name: str, by: SceneProcess, kind: TaskKind, actor_id: str | None, **known: Any
    ) -> Call:
        task = partial(Task, state="SUBMITTED_TO_WORKER", job_id=job_of_task(task_id), actor_id=actor_id)
        call = Call(task(task_id=task_id, owner_id=by.worker_id, name=name, kind=kind, **known))
        by.submitted.append(call)
        return call


def key_of(waiter: Waiter) -> Key:
    return GroupKey(waiter.placement_group_id) if isinstance(waiter, PlacementGroup) else waiter.key


def groups_of(wait: Wait) -> list[tuple[int, list[Key]]]:
    """The groups of the wait: the number of targets that are needed, and the targets."""
    return [(group.needs, [target.vertex for target in group.targets]) for group in wait.groups]
