"""Small clusters told line by line, and looked at once or twice.

A scene is changed between looks as a cluster changes by itself::

    scene = Scene()
    driver, left, right = scene.driver(), scene.actor("Left"), scene.actor("Right")
    ping = scene.call(left, "ping", by=driver)
    pong = scene.call(right, "pong", by=left)
    driver.gets(ping)
    left.runs(ping).gets(pong)
    right.runs(pong).computes()
    scene.look()

What is looked at is exact unless the scene says that somebody was ``silent``, ``unseen`` or ``moving``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose, plan_readings
from dstack.analysis.graph.wait_graph import wait_for_graph
from dstack.analysis.index.sample_index import SampleIndex
from dstack.diagnosis import Diagnosis, Vertex, Wait
from dstack.model import (
    ACTOR_HANDLE,
    Access,
    Actor,
    BlockedCall,
    Bundle,
    CallKind,
    Coroutine,
    FailedTask,
    Failure,
    Frame,
    GoneWorker,
    GraphStage,
    GroupCall,
    Job,
    Node,
    PlacementGroup,
    Process,
    ProcessGroup,
    QueuedRequest,
    Ref,
    RepeatedCall,
    Role,
    Sample,
    ServeRequest,
    Snapshot,
    Task,
    TaskKind,
    Thread,
    Worker,
    WorkerSample,
    job_of_task,
)
from dstack.vertex_keys import CoroutineKey, GroupKey, Key, TaskKey, ThreadKey

JOB = "01000000"
TAKEN_AT = 1.7e9
APP = "/srv/app/app.py"
RAY_WORKER = "/usr/lib/python3/site-packages/ray/_private/worker.py"
RAY_GENERATOR = "/usr/lib/python3/site-packages/ray/_private/object_ref_generator.py"
LEAVES: dict[CallKind, Frame] = {
    "ray.get": Frame(function="get_objects", file=RAY_WORKER, line=900, origin="ray"),
    "ray.wait": Frame(function="wait", file=RAY_WORKER, line=3000, origin="ray"),
    "generator": Frame(function="_next_sync", file=RAY_GENERATOR, line=290, origin="ray"),
    "thread.join": Frame(function="join", file="/usr/lib/python3/threading.py", line=1100, origin="stdlib"),
    "future": Frame(function="result", file="/usr/lib/python3/concurrent/futures/_base.py", line=450, origin="stdlib"),
    "other": Frame(function="wait", file="/usr/lib/python3/threading.py", line=330, origin="stdlib"),
}
OTHER_LEAF = Frame(function="wait", file="/usr/lib/python3/threading.py", line=320, origin="stdlib")
AWAITS = Frame(function="wait", file="/usr/lib/python3/asyncio/locks.py", line=210, origin="stdlib")
SLEEPS = Frame(function="sleep", file="/usr/lib/python3/asyncio/tasks.py", line=650, origin="stdlib")
SELECT = Frame(function="select", file="/usr/lib/python3/selectors.py", line=460, origin="stdlib")
Amounts = Mapping[str, float]


@dataclass(eq=False)
class Call:
    """A task or actor call as its owner knows it, and the ref of its value; whether its actor has reported it."""

    task: Task
    has_arrived: bool = False

    @property
    def ref(self) -> str:
        return f"{self.task.task_id}01000000"

    @property
    def key(self) -> Key:
        """Its vertex while it does not run."""
        return TaskKey(self.task.task_id)

    def arrives(self) -> Call:
        """Is with its actor, with all arguments, by the actor's own report."""
        self.has_arrived = True
        return self

    def becomes(self, **changes: Any) -> Call:
        """Changes what its owner knows of it."""
        self.task = replace(self.task, **changes)
        return self


@dataclass(eq=False)
class Strand:
    """A thread of a process in a scene."""

    process: Proc
    tid: int
    role: Role
    name: str
    call: BlockedCall | None = None
    function: str = "run"
    line: int = 1
    is_still: bool = True
    is_torn: bool = False
    is_asleep: bool = False
    sleeps: bool = False
    """Whether the kernel shows it in ``time.sleep``."""
    is_in_ray: bool = False
    leaf: Frame | None = None
    is_idle_loop: bool = False
    task_id: str | None = None
    outer: tuple[Frame, ...] = ()
    """The frames that called its own one, innermost first."""

    @property
    def key(self) -> Key:
        return ThreadKey(self.process.worker_id, self.tid)

    def is_reached_by(self, *others: Strand | Coro, actor: bool = False) -> Strand:
        """What its call waits on can be reached by these, and by the methods of the actor."""
        assert self.call is not None, "only what a call waits on is reached"
        return self._is_in(_reached(self.call, others, actor))

    def gets(self, *refs: Call | str, timeout_s: float | None = None) -> Strand:
        """Is blocked in ``ray.get``."""
        ids, owners = _ids(refs), _owners(refs)
        return self._is_in(BlockedCall(kind="ray.get", frame=0, refs=ids, owners=owners, timeout_s=timeout_s))

    def gets_what_it_holds(self, kind: CallKind = "ray.get", **terms: Any) -> Strand:
        """Is blocked in ``ray.get``, or another call of Ray's, for refs that could not be read."""
        return self._is_in(BlockedCall(kind=kind, frame=0, held=True, **terms))

    def waits(self, *refs: Call | str, num_returns: int = 1, timeout_s: float | None = None) -> Strand:
        """Is blocked in ``ray.wait``."""
        ids, owners = _ids(refs), _owners(refs)
        return self._is_in(
            BlockedCall(kind="ray.wait", frame=0, refs=ids, owners=owners, num_returns=num_returns, timeout_s=timeout_s)
        )

    def joins(self, other: Strand | int, timeout_s: float | None = None) -> Strand:
        """Is blocked in ``Thread.join`` for another strand, or for one of this OS thread id."""
        tid = other if isinstance(other, int) else other.tid
        return self._is_in(BlockedCall(kind="thread.join", frame=0, threads=(tid,), timeout_s=timeout_s))

    def is_in(
        self, what: str, object_id: str | None = None, *, kind: CallKind = "other", timeout_s: float | None = None
    ) -> Strand:
        """Is blocked in a call that somebody must end of whom nothing is known, as ``threading.Condition.wait``."""
        call = BlockedCall(kind=kind, frame=0, what=what, object_id=object_id, timeout_s=timeout_s)
        return self._is_in(call)

    def wants_lock(self, lock: str, *holders: Strand | Coro, timeout_s: float | None = None, **known: Any) -> Strand:
        """Is blocked on a lock of this name, which these hold or may hold."""
        tids = tuple(holder.tid for holder in holders if isinstance(holder, Strand))
        ids = tuple(holder.coroutine_id for holder in holders if isinstance(holder, Coro))
        call = BlockedCall(kind="lock", frame=0, what="threading.Lock.acquire", object_id=lock, threads=tids, **known)
        return self._is_in(replace(call, coroutines=ids, timeout_s=timeout_s))

    def awaits_future(self, *runners: Strand, timeout_s: float | None = None, inferred: str | None = None) -> Strand:
        """Is blocked in ``Future.result`` of what one of these runs, or will."""
        tids = tuple(runner.tid for runner in runners)
        call = BlockedCall(kind="future", frame=0, what="Future.result", threads=tids)
        return self._is_in(replace(call, timeout_s=timeout_s, inferred=inferred))

    def awaits_all(self, *futures: tuple[Strand, ...]) -> Strand:
        """Is blocked in ``concurrent.futures.wait``, where each future is given by one of its strands."""
        tids = tuple(tuple(runner.tid for runner in runners) for runners in futures)
        return self._is_in(BlockedCall(kind="future", frame=0, what="concurrent.futures.wait", all_of=tids))

    def takes_next(self, item: str, timeout_s: float | None = None) -> Strand:
        """Is blocked in the next of a generator, for this ref."""
        return self._is_in(BlockedCall(kind="generator", frame=0, refs=(item,), timeout_s=timeout_s))

    def awaits(self, *things: Call | str | Coro | tuple[Strand, ...], **known: Any) -> Strand:
        """Runs an event loop until these are there."""
        return self._is_in(await_for(*things, **known))

    def awaits_result(self, *coros: Coro) -> Strand:
        """Is blocked in ``run_coroutine_threadsafe(...).result()`` of one of these."""
        ids = tuple(coro.coroutine_id for coro in coros)
        return self._is_in(BlockedCall(kind="future", frame=0, what="Future.result", coroutines=ids))

    def collects(self, operation: str, group: ProcessGroup, **known: Any) -> Strand:
        """Is blocked in a call on a process group; its mark stays the same unless said otherwise."""
        return self._is_in(call_on(operation, group, **known))

    def waits_unreadably(self, why: str) -> Strand:
        """Is blocked in ``ray.get`` for refs that could not be read."""
        return self._is_in(BlockedCall(kind="ray.get", frame=0, unread=why))

    def computes(self) -> Strand:
        """Is not blocked."""
        self.call = None
        self.is_idle_loop = False
        return self

    def is_moving(self) -> Strand:
        """Ran while it was read, so that its reading is not proven."""
        self.is_still = False
        return self

    def frames(self) -> tuple[Frame, ...]:
        if self.is_in_ray:
            return (Frame(function="main_loop", file=RAY_WORKER, line=1000, origin="ray"),)
        if self.is_idle_loop:
            return (SELECT,)
        if self.leaf:
            return (self.leaf,)
        own = (Frame(function=self.function, file=APP, line=self.line), *self.outer)
        return (LEAVES.get(self.call.kind, OTHER_LEAF), *own) if self.call else own

    def _is_in(self, call: BlockedCall) -> Strand:
        self.call = call
        self.is_idle_loop = False
        return self


@dataclass(eq=False)
class Coro:
    """A suspended coroutine of a process in a scene, asleep until it is told to wait."""

    process: Proc
    number: int
    loop: Strand | None
    task: Call | None = None
    is_task: bool = False
    call: BlockedCall | None = None
    function: str = "work"
    is_still: bool = True
    is_library: bool = False
    line: int = 0
    label: str = ""
    outer: tuple[Frame, ...] = ()
    """The frames that called its own one, innermost first."""
    request: ServeRequest | None = None

    @property
    def coroutine_id(self) -> str:
        return f"0x{self.number:x}"

    @property
    def name(self) -> str:
        return self.label or f"Task-{self.number}"

    @property
    def key(self) -> Key:
        return CoroutineKey(self.process.worker_id, self.coroutine_id)

    def awaits(self, *things: Call | str | Coro | tuple[Strand, ...], **known: Any) -> Coro:
        """Awaits refs, coroutines and futures, each future given by one of its strands."""
        return self._is_in(await_for(*things, **known))

    def wants_lock(self, lock: str, *holders: Coro | Strand, what: str = "asyncio.Lock.acquire", **known: Any) -> Coro:
        """Awaits a lock of this name, which these hold or may hold."""
        call = BlockedCall(
            kind="lock",
            frame=0,
            what=what,
            object_id=lock,
            threads=tuple(one.tid for one in holders if isinstance(one, Strand)),
            coroutines=tuple(one.coroutine_id for one in holders if isinstance(one, Coro)),
            **known,
        )
        return self._is_in(call)

    def is_in(self, what: str, object_id: str | None = None, *, timeout_s: float | None = None) -> Coro:
        """Awaits what somebody must end of whom nothing is known, as ``asyncio.Event.wait``."""
        call = BlockedCall(kind="await", frame=0, what=what, object_id=object_id, others=1, timeout_s=timeout_s)
        return self._is_in(call)

    def is_reached_by(self, *others: Strand | Coro, actor: bool = False) -> Coro:
        """What its call waits on can be reached by these, and by the methods of the actor."""
        assert self.call is not None, "only what a call waits on is reached"
        return self._is_in(_reached(self.call, others, actor))

    def collects(self, operation: str, group: ProcessGroup, **known: Any) -> Coro:
        """Awaits the other members of a process group, for the one of this rank."""
        return self._is_in(replace(call_on(operation, group, **known), kind="await", others=1))

    def waits_unreadably(self, why: str) -> Coro:
        """Awaits what could not be read."""
        return self._is_in(BlockedCall(kind="await", frame=0, unread=why))

    def is_queued(self, queued: QueuedRequest) -> Coro:
        """Waits in a router of Serve until a replica has room for this request."""
        return self._is_in(BlockedCall(kind="other", frame=0, what="Serve's wait for a free replica", queued=queued))

    def executes(self, request: ServeRequest) -> Coro:
        """Is a part of the execution of a request to a deployment."""
        self.request = request
        return self

    def sleeps(self) -> Coro:
        """Awaits nothing but that time goes by."""
        return self._is_in(None)

    def is_moving(self) -> Coro:
        """Ran while it was read."""
        self.is_still = False
        return self

    def frames(self) -> tuple[Frame, ...]:
        leaf = AWAITS if self.call else SLEEPS
        line = self.line or self.process.worker.pid // 10 + self.number
        own = Frame(function=self.function, file=APP, line=line)
        return (leaf, *self.outer) if self.is_library else (leaf, own, *self.outer)

    def _is_in(self, call: BlockedCall | None) -> Coro:
        self.call = call
        return self


@dataclass(eq=False)
class Proc:
    """A worker's or driver's process in a scene; what it is told of blocking is about its first strand."""

    worker: Worker
    actor: Actor | None = None
    started_at: float = 1.7e9
    strands: list[Strand] = field(default_factory=list)
    coros: list[Coro] = field(default_factory=list)
    running: list[Call] = field(default_factory=list)
    submitted: list[Call] = field(default_factory=list)
    refs: dict[str, Ref] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)
    """Further fields of its process."""
    held: dict[str, float] = field(default_factory=dict)
    is_silent: bool = False
    is_unseen: bool = False
    has_no_stacks: bool = False
    access: Access = "memory"
    groups: dict[str, str] | None = None
    tasks_read: bool = False
    coroutines_read: bool = False
    graph_stages: list[GraphStage] = field(default_factory=list)
    executed: int | None = None
    """How many tasks it has ended, by its own count."""
    cpu_s: float = 0.0
    state: str = "S"
    memberships: list[ProcessGroup] = field(default_factory=list)
    rank: int | None = None
    """Its rank by its environment."""

    @property
    def worker_id(self) -> str:
        return self.worker.worker_id

    @property
    def key(self) -> Key:
        """The vertex of its first strand."""
        return self.strands[0].key

    @property
    def slots(self) -> list[Strand]:
        """The strands that run tasks."""
        return [strand for strand in self.strands if strand.role == "task"]

    @property
    def actor_id(self) -> str:
        assert self.actor is not None
        return self.actor.actor_id

    def works_for(self, job_id: str = JOB) -> Proc:
        """Is listed as a worker of this job."""
        self.worker = replace(self.worker, job_id=job_id)
        return self

    def strand(self, name: str = "", role: Role = "task") -> Strand:
        """One more thread."""
        tid = self.worker.pid + len(self.strands)
        line = tid // 100 + len(self.strands)
        strand = Strand(process=self, tid=tid, role=role, name=name, line=line, is_idle_loop=role == "loop")
        self.strands.append(strand)
        return strand

    def coroutine(self, of: Call | None = None, *, loop: Strand | None = None, is_library: bool = False) -> Coro:
        """One more coroutine that is none of Ray's tasks, begun by one perhaps; on the last strand if not said."""
        number = 1 + max((one.number for one in self.coros), default=0)
        self.coroutines_read = True
        coro = Coro(self, number, loop or self.strands[-1], of, is_library=is_library)
        self.coros.append(coro)
        return coro

    def begins(self, call: Call, loop: Strand | None = None) -> Coro:
        """Runs this call, too, as a coroutine that is suspended now."""
        self.running.append(call)
        coro = self.coroutine(call, loop=loop)
        coro.is_task, coro.function = True, call.task.name.rpartition(".")[2]
        return coro

    def runs(self, *calls: Call) -> Proc:
        """Runs these calls now, the first on its first strand that runs tasks."""
        self.running = list(calls)
        for strand in self.slots:
            strand.task_id = None
        for strand, call in zip(self.slots, calls, strict=False):
            strand.task_id = call.task.task_id
            strand.function = call.task.name.rpartition(".")[2]
            strand.computes()
        return self

    def gets(self, *refs: Call | str, timeout_s: float | None = None) -> Proc:
        self.strands[0].gets(*refs, timeout_s=timeout_s)
        return self

    def waits(self, *refs: Call | str, num_returns: int = 1, timeout_s: float | None = None) -> Proc:
        self.strands[0].waits(*refs, num_returns=num_returns, timeout_s=timeout_s)
        return self

    def joins(self, other: Strand | int, timeout_s: float | None = None) -> Proc:
        self.strands[0].joins(other, timeout_s=timeout_s)
        return self

    def is_in(self, what: str, object_id: str | None = None, *, timeout_s: float | None = None) -> Proc:
        self.strands[0].is_in(what, object_id, timeout_s=timeout_s)
        return self

    def is_reached_by(self, *others: Strand | Coro, actor: bool = False) -> Proc:
        self.strands[0].is_reached_by(*others, actor=actor)
        return self

    def computes(self) -> Proc:
        self.strands[0].computes()
        return self

    def has(self, ref: Call | str, size_bytes: int = 8) -> Proc:
        """Knows the value of a ref to be there."""
        return self.knows(ref, size_bytes=size_bytes)

    def keeps(self, *refs: Call | str, **known: Any) -> Proc:
        """Has refs in variables; as long as nothing else is said, without their values."""
        for ref in refs:
            self.knows(ref, local_uses=1, **known)
        return self

    def holds_what_is_awaited(self, call: BlockedCall) -> Proc:
        """Has the refs of a call in variables, as every process has whose call is for them."""
        for ref in call.refs:
            self.refs[ref] = replace(self.refs.get(ref, Ref(ref=ref, holder_id=self.worker_id)), local_uses=1)
        return self

    def passes(self, *refs: Call | str) -> Proc:
        """Has passed refs that have no value yet as arguments."""
        for ref in refs:
            self.knows(ref, state="SUBMITTED_TO_WORKER", argument_uses=1)
        return self

    def holds(self, actor: Proc | Actor, **known: Any) -> Proc:
        """Has a handle of an actor, in a variable if nothing else is known."""
        whose = actor.actor if isinstance(actor, Proc) else actor
        assert whose is not None
        return self.knows(f"{ACTOR_HANDLE}{whose.actor_id}01000000", **{"local_uses": 1} | known)

    def idles(self) -> Proc:
        """Runs nothing: its main thread waits for calls."""
        self.running = []
        for strand in self.strands:
            strand.role = "ray"
            strand.name = "MainThread"
            strand.computes()
        return self

    def knows(self, ref: Call | str, **known: Any) -> Proc:
        self.refs[_id(ref)] = Ref(ref=_id(ref), holder_id=self.worker_id, **known)
        return self

    def is_member(self, *groups: ProcessGroup) -> Proc:
        """Is a member of these process groups, too, with the rank that each of them says."""
        self.memberships += groups
        return self

    def collects(self, operation: str, group: ProcessGroup, **known: Any) -> Proc:
        self.strands[0].collects(operation, group, **known)
        return self

    def puts(self, size_bytes: int = 8) -> str:
        """The ref of a value that the running call has stored by ``ray.put``."""
        ref = f"{self.running[0].task.task_id}{len(self.refs) + 100:02x}000000"
        self.has(ref, size_bytes)
        return ref

    def is_restarted(self) -> Proc:
        """Is another process of the same pid."""
        self.started_at += 60
        return self


class Scene:
    """A cluster; everything is on its first node and unplaced until said otherwise."""

    def __init__(self) -> None:
        self._number = count(1)
        self.nodes: list[Node] = []
        self.procs: list[Proc] = []
        self.actors: list[Actor] = []
        self.groups: list[PlacementGroup] = []
        self.available: dict[str, dict[str, float]] = {}
        self.total: dict[str, dict[str, float]] = {}
        self.autoscaler: str | None = None
        self.jobs = [Job(job_id=JOB, entrypoint="python train.py", namespace="default")]
        self.failures: list[Failure] = []
        self.gone: list[GoneWorker] = []
        self.samples: list[Sample] = []
        self.readings: list[Sample] = []
        self.repeated: list[RepeatedCall] = []
        self.failed: list[FailedTask] = []
        self._now_s = 0.0
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}

    # Who is there

    def node(self, free: Amounts | None = None, *, alive: bool = True, **resources: float) -> Node:
        """One more node; all that is not ``free`` there is taken, all is free by default."""
        number = next(self._number)
        node = Node(node_id=f"{number:056x}", ip=f"10.0.0.{number}", alive=alive, resources=resources)
        self.nodes.append(node)
        self.available[node.node_id] = dict(resources if free is None else free)
        return node

    def driver(self, node: Node | None = None, job_id: str = JOB) -> Proc:
        return self._proc("user", node, is_driver=True, job_id=job_id)

    def worker(self, node: Node | None = None) -> Proc:
        return self._proc("task", node)

    def actor(self, class_name: str = "Actor", node: Node | None = None, **known: Any) -> Proc:
        """An actor that is alive, with its process."""
        proc = self._proc("task", node)
        actor = Actor(
            actor_id=f"{next(self._number):024x}{known.get('job_id', JOB)}",
            class_name=class_name,
            **{"job_id": JOB, "state": "ALIVE", "node_id": proc.worker.node_id, "worker_id": proc.worker_id} | known,
        )
        proc.actor, proc.worker = actor, replace(proc.worker, actor_id=actor.actor_id)
        self.actors.append(actor)
        return proc

    def threaded_actor(self, slots: int, class_name: str = "Actor", **known: Any) -> Proc:
        """An actor that runs its calls on so many threads of their own, none of them the main thread."""
        proc = self.actor(class_name, **known)
        proc.strands[0].role = "ray"
        for _ in range(slots):
            proc.strand()
        return proc

    def async_actor(self, class_name: str = "Actor", loops: int = 1, **known: Any) -> Proc:
        """An actor that runs its calls in coroutines on event loops, its last strands, all of them idle."""
        proc = self.actor(class_name, **known)
        proc.strands[0].role = "ray"
        for number in range(loops):
            proc.strand("AsyncIO Thread: " + (f"group{number}" if number else "default"), "loop")
        return proc

    def pending_actor(self, class_name: str, by: Proc, **needs: float) -> tuple[Actor, Call]:
        """An actor that is not created yet, and its creation."""
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

    # What was submitted

    def call(self, actor: Proc | Actor, method: str, by: Proc, **known: Any) -> Call:
        """A call of an actor's method, sent to it."""
        called = actor.actor if isinstance(actor, Proc) else actor
        assert called is not None
        task_id = f"{next(self._number):016x}{called.actor_id}"
        return self._submitted(task_id, f"{called.class_name}.{method}", by, "ACTOR_TASK", called.actor_id, **known)

    def task(self, name: str, by: Proc, **known: Any) -> Call:
        """A normal task, sent to a worker."""
        task_id = f"{next(self._number):016x}{'f' * 24}{by.worker.job_id or JOB}"
        return self._submitted(task_id, name, by, "NORMAL_TASK", None, **known)

    def run(self, name: str, by: Proc, node: Node | None = None, **needs: float) -> tuple[Call, Proc]:
        """A normal task that runs, and the worker that runs it."""
        call = self.task(name, by, required_resources=needs)
        return call, self.worker(node).runs(call)

    def repeats(self, call: Call, by: Call | Proc | str, **known: Any) -> RepeatedCall:
        """Calls like this one are made again and again, in a task or on a driver's main thread."""
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

    # Who dies

    def dies(self, proc: Proc, cause: str = "killed", ago_s: float = 600.0) -> None:
        """Ends a process, and the actor in it."""
        ended_at = TAKEN_AT - ago_s
        worker = proc.worker
        self.procs.remove(proc)
        self.gone.append(
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
        """Changes what the control plane knows of an actor."""
        changed = replace(actor, **changes)
        self.actors[self.actors.index(actor)] = changed
        return changed

    # What was seen

    def look(self, only: Iterable[str] | None = None) -> Scene:
        """Takes a sample: the state of all workers, and the processes of all or of ``only`` those."""
        wanted = {proc.worker_id for proc in self.procs} if only is None else set(only)
        answering = [proc for proc in self.procs if not proc.is_silent]
        began_s = self._passes(1.0)
        self.samples.append(
            Sample(
                began_s=began_s,
                ended_s=began_s + 0.5,
                workers=tuple(self._seen(proc, is_wanted=proc.worker_id in wanted) for proc in self.procs),
                tasks=tuple(call.task for proc in answering for call in proc.submitted),
                refs=tuple(ref for proc in answering for ref in proc.refs.values()),
                placement_groups=tuple(self.groups),
                total={node: dict(all_) for node, all_ in self.total.items()},
                available={node: dict(free) for node, free in self.available.items()},
                arrived={c.task.task_id: c.task.attempt for p in self.procs for c in p.submitted if c.has_arrived},
            )
        )
        return self

    def read(self, only: Iterable[Proc] | None = None, every_s: float = 1.0) -> Scene:
        """Takes a quick reading of these processes, or of all that may poll by the first sample."""
        of_these = {proc.worker_id for proc in only} if only is not None else plan_readings(self._first()).pollers
        wanted = [proc for proc in self.procs if proc.worker_id in of_these]
        began_s = self._passes(every_s)
        self.readings.append(
            Sample(
                began_s=began_s,
                ended_s=began_s + 0.05,
                workers=tuple(map(self._seen, wanted)),
                tasks=tuple(call.task for proc in wanted if not proc.is_silent for call in proc.submitted),
            )
        )
        return self

    def watch(self, readings: int = 3, every_s: float = 1.0) -> Scene:
        """Takes a sample, so many quick readings and a second sample, as a snapshot does where something may poll."""
        if not self.samples:
            self.look()
        for _ in range(readings):
            self.read(every_s=every_s)
        return self.look_again()

    def look_again(self) -> Scene:
        """Takes a second sample, as a snapshot does: none where no worker is of interest."""
        wanted = plan_readings(self._first()).workers
        return self.look(only=wanted) if wanted else self

    def _first(self) -> Snapshot:
        """What is known after the first sample."""
        return replace(self.snapshot(), samples=tuple(self.samples[:1]), readings=())

    def _passes(self, seconds: float) -> float:
        """What the clock shows now; it goes on by so much."""
        now_s = self._now_s if self.samples else 0.0
        self._now_s = now_s + seconds
        return now_s

    def snapshot(self) -> Snapshot:
        """All that was seen; the scene is looked at once if it was not yet."""
        if not self.samples:
            self.look()
        frames = tuple(self._frames)
        return Snapshot(
            dstack_version="0.1.0",
            taken_at=TAKEN_AT,
            address="10.0.0.1:6379",
            ray_version="2.60.0",
            nodes=tuple(self.nodes),
            autoscaler=self.autoscaler,
            jobs=tuple(self.jobs),
            actors=tuple(self.actors),
            workers=tuple(proc.worker for proc in self.procs),
            gone_workers=tuple(self.gone),
            frames=frames,
            stacks=tuple(self._stacks),
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

    def wait_of(self, who: Proc | Strand | Coro | Call | PlacementGroup) -> Wait:
        """What somebody waits for in the first sample."""
        wait = self.graph()[key_of(who)].wait
        assert wait is not None, f"{who} does not wait"
        return wait

    def diagnose(self) -> Diagnosis:
        return diagnose(self.snapshot())

    def _proc(self, role: Role, node: Node | None, **known: Any) -> Proc:
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
        proc = Proc(worker=worker)
        proc.strand("MainThread", role)
        self.procs.append(proc)
        return proc

    def _submitted(self, task_id: str, name: str, by: Proc, kind: TaskKind, actor_id: str | None, **known: Any) -> Call:
        task = partial(Task, state="SUBMITTED_TO_WORKER", job_id=job_of_task(task_id), actor_id=actor_id)
        call = Call(task(task_id=task_id, owner_id=by.worker_id, name=name, kind=kind, **known))
        by.submitted.append(call)
        return call

    def _seen(self, proc: Proc, *, is_wanted: bool = True) -> WorkerSample:
        process = Process(
            pid=proc.worker.pid,
            started_at=proc.started_at,
            cpu_s=proc.cpu_s,
            state=proc.state,
            tasks_read=proc.tasks_read,
            coroutines_read=proc.coroutines_read,
            concurrency_groups=proc.groups,
            access=proc.access,
            threads=() if proc.has_no_stacks else tuple(map(self._thread, proc.strands)),
            coroutines=tuple(map(self._coroutine, proc.coros)) if self._shows_coroutines(proc) else (),
            graph_stages=tuple(proc.graph_stages),
            process_groups=() if proc.has_no_stacks else tuple(proc.memberships),
            rank=proc.rank,
        )
        return WorkerSample(
            worker_id=proc.worker_id,
            running_task_ids=None if proc.is_silent else tuple(call.task.task_id for call in proc.running),
            process=replace(process, **proc.known) if is_wanted and not proc.is_unseen else None,
            held=dict(proc.held),
            executed_tasks=None if proc.is_silent else proc.executed,
        )

    def _shows_coroutines(self, proc: Proc) -> bool:
        return proc.coroutines_read and not proc.has_no_stacks

    def _stack(self, of: Strand | Coro) -> int:
        frames = tuple(self._frames.setdefault(frame, len(self._frames)) for frame in of.frames())
        return self._stacks.setdefault(frames, len(self._stacks))

    def _coroutine(self, coro: Coro) -> Coroutine:
        return Coroutine(
            coroutine_id=coro.coroutine_id,
            name=coro.name,
            stack=self._stack(coro),
            os_thread_id=coro.loop.tid if coro.loop else None,
            task_id=coro.task.task.task_id if coro.task else None,
            is_task=coro.is_task,
            still=coro.is_still,
            call=coro.call if coro.is_still else None,
            request=coro.request,
        )

    def _thread(self, strand: Strand) -> Thread:
        return Thread(
            os_thread_id=strand.tid,
            name=strand.name,
            stack=self._stack(strand),
            role=strand.role,
            on_cpu=strand.call is None and not strand.is_asleep and not strand.sleeps,
            sleeps=strand.sleeps,
            still=strand.is_still,
            torn=strand.is_torn,
            task_id=strand.task_id,
            call=strand.call,
        )


def group_of(rank: int, *ranks: int, name: str = "0", description: str = "default_pg", **known: Any) -> ProcessGroup:
    """The membership of a rank in a process group of torch.distributed with these ranks."""
    known = {"library": "torch.distributed", "world": "tcp://10.0.0.1:29500"} | known
    return ProcessGroup(name=name, description=description, rank=rank, ranks=ranks, **known)


def call_on(operation: str, group: ProcessGroup, **known: Any) -> BlockedCall:
    """The call of who is in this operation of a process group."""
    what = f"{operation} of {group.library}"
    return BlockedCall(
        kind="other", frame=0, what=what, of_group=GroupCall(operation=operation, group=group, **{"mark": "7"} | known)
    )


def await_for(*things: Call | str | Coro | tuple[Strand, ...], **known: Any) -> BlockedCall:
    """The call of who awaits these."""
    refs = [one for one in things if isinstance(one, Call | str)]
    futures = (one for one in things if isinstance(one, tuple))
    return BlockedCall(
        kind="await",
        frame=0,
        refs=_ids(refs),
        owners=_owners(refs),
        coroutines=tuple(one.coroutine_id for one in things if isinstance(one, Coro)),
        all_of=tuple(tuple(strand.tid for strand in strands) for strands in futures),
        **known,
    )


def _reached(call: BlockedCall, others: Iterable[Strand | Coro], actor: bool) -> BlockedCall:
    return replace(
        call,
        reached_by=tuple(one.tid for one in others if isinstance(one, Strand)),
        reached_by_coroutines=tuple(one.coroutine_id for one in others if isinstance(one, Coro)),
        reached_by_actor=actor,
    )


def key_of(who: Proc | Strand | Coro | Call | PlacementGroup) -> Key:
    return GroupKey(who.placement_group_id) if isinstance(who, PlacementGroup) else who.key


def groups_of(wait: Wait) -> list[tuple[int, list[Key]]]:
    """The wait's groups: how many are needed of which vertices."""
    return [(group.needs, [target.vertex for target in group.targets]) for group in wait.groups]


def _ids(refs: Iterable[Call | str]) -> tuple[str, ...]:
    return tuple(map(_id, refs))


def _owners(refs: Iterable[Call | str]) -> tuple[str, ...]:
    return tuple(ref.task.owner_id if isinstance(ref, Call) else "" for ref in refs)


def _id(ref: Call | str) -> str:
    return ref.ref if isinstance(ref, Call) else ref
