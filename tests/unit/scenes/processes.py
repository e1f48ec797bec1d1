"""Processes of a scene, their threads and their coroutines.

Methods in the third person describe the present state, for example ``driver.gets(call)``, and return the object again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from dstack.call_sites import kind_of
from dstack.libraries.serve import FREE_REPLICA
from dstack.model.snapshot import ACTOR_HANDLE, Actor, Worker
from dstack.model.vertex_keys import CoroutineKey, Key, ThreadKey
from dstack.observed.calls import (
    Awaitables,
    CallKind,
    Executions,
    Futures,
    HeldRefs,
    Inference,
    ProcessGroup,
    ProcessObject,
    QueuedRequest,
    Refs,
    ServeRequest,
    Timer,
    Unreadable,
)
from dstack.observed.calls import Call as BlockedCall
from dstack.observed.node import Ref
from dstack.observed.processes import Access, Frame, GraphStage, LoopBody, Role, StopCall
from tests.unit.scenes.calls import (
    APP,
    AWAITS,
    JOB,
    LEAVES,
    OTHER_LEAF,
    RAY_WORKER,
    SELECT,
    SLEEPS,
    Call,
    call_named,
    call_on,
    id_of,
    ids_of,
    owners_of,
)


@dataclass(eq=False)
class SceneThread:
    """A thread of a process in a scene; it computes until a method blocks it."""

    process: SceneProcess
    tid: int
    role: Role
    name: str
    call: BlockedCall | None = None
    function: str = "run"
    line: int = 1
    is_stable: bool = True
    is_torn: bool = False
    is_asleep: bool = False
    sleeps: bool = False
    """Whether the kernel shows the thread in ``time.sleep``."""
    is_in_loop: bool = False
    """Whether its own line is in a loop that only polls. In a wait with a timeout it is, unless a caller's is."""
    only_polls: bool = True
    """Whether the source of its own frame proves that this only polls; it may be ended by the flag ``until``."""
    until: str = ""
    stops: StopCall | None = None
    """The next call in the source of its own frame that cancels or kills something."""
    may_fail: bool = True
    """Whether its own frame may still raise an exception, by its source."""
    timer: Timer | None = None
    slices: int | None = None
    exits_in: str | None = None
    is_in_ray: bool = False
    leaf: Frame | None = None
    is_idle_loop: bool = False
    task_id: str | None = None
    texts: dict[str, str] = field(default_factory=dict)
    """The short texts in the locals of a function that calls ``ray.get_actor``."""
    outer: tuple[Frame, ...] = ()
    """The frames that called its own frame, innermost first."""

    @property
    def key(self) -> Key:
        return ThreadKey(self.process.worker_id, self.tid)

    def is_reached_by(self, *others: SceneThread | SceneCoroutine, actor: bool = False) -> SceneThread:
        """These, and the methods of the actor, can reach the object that its call waits on."""
        assert self.call is not None, "only a blocked call waits on an object"
        return self._is_in(_reached(self.call, others, actor))

    def gets(self, *refs: Call | str, timeout_s: float | None = None) -> SceneThread:
        """Is blocked in ``ray.get``."""
        ids, owners = ids_of(refs), owners_of(refs)
        need = Refs(refs=ids, owners=owners)
        return self._is_in(BlockedCall(site="ray.get", frame=0, need=need, timeout_s=timeout_s))

    def gets_held_refs(
        self, site: str = "ray.get", assumed: str | None = None, timeout_s: float | None = None
    ) -> SceneThread:
        """Is blocked in a call of Ray on unread refs, which are among the refs that its process holds."""
        need = HeldRefs(assumed=assumed)
        return self._is_in(BlockedCall(site=site, frame=0, need=need, timeout_s=timeout_s))

    def waits(self, *refs: Call | str, num_returns: int = 1, timeout_s: float | None = None) -> SceneThread:
        """Is blocked in ``ray.wait``."""
        ids, owners = ids_of(refs), owners_of(refs)
        need = Refs(refs=ids, owners=owners, count=num_returns)
        return self._is_in(BlockedCall(site="ray.wait", frame=0, need=need, timeout_s=timeout_s))

    def joins(self, other: SceneThread | int, timeout_s: float | None = None) -> SceneThread:
        """Is blocked in ``Thread.join`` on another thread, or on the thread with this OS thread id."""
        tid = other if isinstance(other, int) else other.tid
        return self._is_in(
            BlockedCall(site="thread.join", frame=0, need=Executions(threads=(tid,)), timeout_s=timeout_s)
        )

    def is_in(
        self, what: str, object_id: str | None = None, *, kind: CallKind = "other", timeout_s: float | None = None
    ) -> SceneThread:
        """Is blocked in a call with an unknown waker, for example ``threading.Condition.wait``."""
        return self._is_in(call_named(what, ProcessObject(object_id=object_id), kind, timeout_s))

    def wants_lock(
        self,
        lock: str,
        *holders: SceneThread | SceneCoroutine,
        timeout_s: float | None = None,
        inferred: Inference | None = None,
    ) -> SceneThread:
        """Is blocked on the lock with this id, which the holders hold or may hold."""
        return self._is_in(lock_of(lock, holders, "threading.Lock.acquire", timeout_s, inferred))

    def awaits_future(
        self, *runners: SceneThread, timeout_s: float | None = None, inferred: Inference | None = None
    ) -> SceneThread:
        """Is blocked in ``Future.result`` of a future that one of these threads runs or will run."""
        tids = tuple(runner.tid for runner in runners)
        need = Executions(threads=tids, inferred=inferred)
        return self._is_in(BlockedCall(site="Future.result", frame=0, need=need, timeout_s=timeout_s))

    def awaits_all(self, *futures: tuple[SceneThread, ...]) -> SceneThread:
        """Is blocked in ``concurrent.futures.wait``; each tuple holds the threads that can complete one future."""
        tids = tuple(tuple(runner.tid for runner in runners) for runners in futures)
        return self._is_in(BlockedCall(site="concurrent.futures.wait", frame=0, need=Futures(each=tids)))

    def gets_next_item(self, item: str, timeout_s: float | None = None) -> SceneThread:
        """Is blocked in the next step of a generator, on this ref."""
        return self._is_in(BlockedCall(site="generator", frame=0, need=Refs(refs=(item,)), timeout_s=timeout_s))

    def awaits(self, *things: Call | str | SceneCoroutine | tuple[SceneThread, ...], **known: Any) -> SceneThread:
        """Runs an event loop until these are available."""
        return self._is_in(await_for(*things, **known))

    def awaits_result(self, *coros: SceneCoroutine) -> SceneThread:
        """Is blocked in ``run_coroutine_threadsafe(...).result()`` of one of these coroutines."""
        ids = tuple(coro.coroutine_id for coro in coros)
        return self._is_in(BlockedCall(site="Future.result", frame=0, need=Executions(coroutines=ids)))

    def collects(self, operation: str, group: ProcessGroup, **known: Any) -> SceneThread:
        """Is blocked in a call on a process group; its mark stays the same by default."""
        return self._is_in(call_on(operation, group, **known))

    def waits_unreadably(self, why: str) -> SceneThread:
        """Is blocked in ``ray.get`` on refs that could not be read for this reason."""
        return self._is_in(BlockedCall(site="ray.get", frame=0, need=Unreadable(reason=why)))

    def computes(self) -> SceneThread:
        """Is not blocked."""
        self.call = None
        self.is_idle_loop = False
        return self

    def is_unstable(self) -> SceneThread:
        """Ran during its reading, so the reading is not proven consistent."""
        self.is_stable = False
        return self

    def frames(self) -> tuple[Frame, ...]:
        if self.is_in_ray:
            return (Frame(function="main_loop", file=RAY_WORKER, line=1000, origin="ray"),)
        if self.is_idle_loop:
            return (SELECT,)
        if self.leaf:
            return (self.leaf, *self.outer)
        is_in_loop = (self.is_in_loop or _is_timed(self.call)) and not any(frame.body for frame in self.outer)
        body = LoopBody(first_line=self.line, last_line=self.line, until=self.until) if is_in_loop else None
        own = Frame(
            function=self.function,
            file=APP,
            line=self.line,
            only_polls=self.only_polls,
            body=body,
            stops=self.stops,
            may_fail=self.may_fail,
        )
        return (LEAVES.get(kind_of(self.call), OTHER_LEAF), own, *self.outer) if self.call else (own, *self.outer)

    def _is_in(self, call: BlockedCall) -> SceneThread:
        self.call = call
        self.is_idle_loop = False
        return self


@dataclass(eq=False)
class SceneCoroutine:
    """A suspended coroutine of a process in a scene; it sleeps until a method blocks it."""

    process: SceneProcess
    number: int
    loop: SceneThread | None
    task: Call | None = None
    is_task: bool = False
    call: BlockedCall | None = None
    function: str = "work"
    is_stable: bool = True
    is_library: bool = False
    line: int = 0
    label: str = ""
    may_fail: bool = True
    """Whether its own frame may still raise an exception, by its source."""
    outer: tuple[Frame, ...] = ()
    """The frames that called its own frame, innermost first."""
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

    def awaits(self, *things: Call | str | SceneCoroutine | tuple[SceneThread, ...], **known: Any) -> SceneCoroutine:
        """Awaits refs, coroutines and futures; each tuple holds the threads that can complete one future."""
        return self._is_in(await_for(*things, **known))

    def wants_lock(
        self,
        lock: str,
        *holders: SceneCoroutine | SceneThread,
        what: str = "asyncio.Lock.acquire",
        timeout_s: float | None = None,
        inferred: Inference | None = None,
    ) -> SceneCoroutine:
        """Awaits the lock with this id, which the holders hold or may hold."""
        return self._is_in(lock_of(lock, holders, what, timeout_s, inferred))

    def is_in(self, what: str, object_id: str | None = None, *, timeout_s: float | None = None) -> SceneCoroutine:
        """Awaits an object with an unknown waker, for example ``asyncio.Event.wait``."""
        return self._is_in(call_named(what, ProcessObject(object_id=object_id), timeout_s=timeout_s))

    def is_reached_by(self, *others: SceneThread | SceneCoroutine, actor: bool = False) -> SceneCoroutine:
        """These, and the methods of the actor, can reach the object that its call waits on."""
        assert self.call is not None, "only a blocked call waits on an object"
        return self._is_in(_reached(self.call, others, actor))

    def collects(self, operation: str, group: ProcessGroup, **known: Any) -> SceneCoroutine:
        """Awaits the other members of a process group, as the member of this rank."""
        return self._is_in(call_on(operation, group, **known))

    def waits_unreadably(self, why: str) -> SceneCoroutine:
        """Awaits an object that could not be read for this reason."""
        return self._is_in(BlockedCall(site="await", frame=0, need=Unreadable(reason=why)))

    def is_cut_short_by(self, *others: SceneCoroutine | SceneThread) -> SceneCoroutine:
        """These hold its asyncio task, and will cancel it."""
        assert self.call is not None, "only a blocked call is cut short"
        coroutines = tuple(one.coroutine_id for one in others if isinstance(one, SceneCoroutine))
        threads = tuple(one.tid for one in others if isinstance(one, SceneThread))
        return self._is_in(dataclasses.replace(self.call, cut_short_by=coroutines, cut_short_by_threads=threads))

    def is_in_scope(self, timer: Timer) -> SceneCoroutine:
        """This timer cancels its wait."""
        assert self.call is not None, "only a blocked call is cut short"
        return self._is_in(dataclasses.replace(self.call, timer=timer, timeout_s=timer.left_s))

    def is_queued(self, queued: QueuedRequest) -> SceneCoroutine:
        """Waits in a Serve router until a replica has room for this request."""
        return self._is_in(BlockedCall(site=FREE_REPLICA.id, frame=0, need=queued))

    def executes(self, request: ServeRequest) -> SceneCoroutine:
        """Executes a part of a request to a deployment."""
        self.request = request
        return self

    def sleeps(self) -> SceneCoroutine:
        """Awaits a timer only."""
        return self._is_in(None)

    def is_unstable(self) -> SceneCoroutine:
        """Ran during its reading."""
        self.is_stable = False
        return self

    def frames(self) -> tuple[Frame, ...]:
        leaf = AWAITS if self.call else SLEEPS
        line = self.line or self.process.worker.pid // 10 + self.number
        body = LoopBody(first_line=line, last_line=line) if _is_timed(self.call) else None
        own = Frame(function=self.function, file=APP, line=line, only_polls=True, body=body, may_fail=self.may_fail)
        return (leaf, *self.outer) if self.is_library else (leaf, own, *self.outer)

    def _is_in(self, call: BlockedCall | None) -> SceneCoroutine:
        self.call = call
        return self


@dataclass(eq=False)
class SceneProcess:
    """The process of a worker or driver in a scene; its blocking methods apply to its first thread."""

    worker: Worker
    actor: Actor | None = None
    started_at: float = 1.7e9
    threads: list[SceneThread] = field(default_factory=list)
    coros: list[SceneCoroutine] = field(default_factory=list)
    running: list[Call] = field(default_factory=list)
    submitted: list[Call] = field(default_factory=list)
    refs: dict[str, Ref] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)
    """Further fields of the model's ``Process``."""
    held: dict[str, float] = field(default_factory=dict)
    is_unreachable: bool = False
    is_unreadable: bool = False
    has_no_stacks: bool = False
    access: Access = "memory"
    groups: dict[str, str] | None = None
    tasks_read: bool = False
    coroutines_read: bool = False
    graph_stages: list[GraphStage] = field(default_factory=list)
    executed: int | None = None
    """How many tasks it has executed, by its own count."""
    cpu_s: float = 0.0
    state: str = "S"
    memberships: list[ProcessGroup] = field(default_factory=list)
    rank: int | None = None
    """The rank from its environment variables."""

    @property
    def worker_id(self) -> str:
        return self.worker.worker_id

    @property
    def key(self) -> Key:
        """The vertex of its first thread."""
        return self.threads[0].key

    @property
    def slots(self) -> list[SceneThread]:
        """The threads that run tasks."""
        return [thread for thread in self.threads if thread.role == "task"]

    @property
    def actor_id(self) -> str:
        assert self.actor is not None
        return self.actor.actor_id

    def works_for(self, job_id: str = JOB) -> SceneProcess:
        """Is listed as a worker of this job."""
        self.worker = replace(self.worker, job_id=job_id)
        return self

    def thread(self, name: str = "", role: Role = "task") -> SceneThread:
        """Adds a thread."""
        tid = self.worker.pid + len(self.threads)
        line = tid // 100 + len(self.threads)
        thread = SceneThread(process=self, tid=tid, role=role, name=name, line=line, is_idle_loop=role == "loop")
        self.threads.append(thread)
        return thread

    def coroutine(
        self, of: Call | None = None, *, loop: SceneThread | None = None, is_library: bool = False
    ) -> SceneCoroutine:
        """Adds a coroutine that is not a Ray task itself but may be ``of`` one; by default on the last thread."""
        number = 1 + max((one.number for one in self.coros), default=0)
        self.coroutines_read = True
        coro = SceneCoroutine(self, number, loop or self.threads[-1], of, is_library=is_library)
        self.coros.append(coro)
        return coro

    def begins(self, call: Call, loop: SceneThread | None = None) -> SceneCoroutine:
        """Starts this call as a suspended coroutine, besides the calls that run already."""
        self.running.append(call)
        coro = self.coroutine(call, loop=loop)
        coro.is_task, coro.function = True, call.task.name.rpartition(".")[2]
        return coro

    def runs(self, *calls: Call) -> SceneProcess:
        """Runs exactly these calls, in order on the threads that run tasks."""
        self.running = list(calls)
        for thread in self.slots:
            thread.task_id = None
        for thread, call in zip(self.slots, calls, strict=False):
            thread.task_id = call.task.task_id
            thread.function = call.task.name.rpartition(".")[2]
            thread.computes()
        return self

    def gets(self, *refs: Call | str, timeout_s: float | None = None) -> SceneProcess:
        self.threads[0].gets(*refs, timeout_s=timeout_s)
        return self

    def waits(self, *refs: Call | str, num_returns: int = 1, timeout_s: float | None = None) -> SceneProcess:
        self.threads[0].waits(*refs, num_returns=num_returns, timeout_s=timeout_s)
        return self

    def joins(self, other: SceneThread | int, timeout_s: float | None = None) -> SceneProcess:
        self.threads[0].joins(other, timeout_s=timeout_s)
        return self

    def is_in(self, what: str, object_id: str | None = None, *, timeout_s: float | None = None) -> SceneProcess:
        self.threads[0].is_in(what, object_id, timeout_s=timeout_s)
        return self

    def is_reached_by(self, *others: SceneThread | SceneCoroutine, actor: bool = False) -> SceneProcess:
        self.threads[0].is_reached_by(*others, actor=actor)
        return self

    def computes(self) -> SceneProcess:
        self.threads[0].computes()
        return self

    def has(self, ref: Call | str, size_bytes: int = 8) -> SceneProcess:
        """Reports that the value of a ref is available."""
        return self.knows(ref, size_bytes=size_bytes)

    def keeps(self, *refs: Call | str, **known: Any) -> SceneProcess:
        """Has refs in variables; by default without their values."""
        for ref in refs:
            self.knows(ref, local_uses=1, **known)
        return self

    def holds_refs_of(self, call: BlockedCall) -> SceneProcess:
        """Has the refs of a blocked call in variables, as any process that is blocked on them does."""
        for ref in call.refs:
            self.refs[ref] = dataclasses.replace(
                self.refs.get(ref, Ref(ref=ref, holder_id=self.worker_id)), local_uses=1
            )
        return self

    def passes(self, *refs: Call | str) -> SceneProcess:
        """Has passed refs as arguments of calls that are pending; the refs have no value yet."""
        for ref in refs:
            self.knows(ref, state="SUBMITTED_TO_WORKER", argument_uses=1)
        return self

    def holds(self, actor: SceneProcess | Actor, **known: Any) -> SceneProcess:
        """Has a handle of an actor, by default in a variable."""
        held = actor.actor if isinstance(actor, SceneProcess) else actor
        assert held is not None
        return self.knows(f"{ACTOR_HANDLE}{held.actor_id}01000000", **{"local_uses": 1} | known)

    def idles(self) -> SceneProcess:
        """Runs no call; its threads wait for calls."""
        self.running = []
        for thread in self.threads:
            thread.role = "ray"
            thread.name = "MainThread"
            thread.computes()
        return self

    def knows(self, ref: Call | str, **known: Any) -> SceneProcess:
        self.refs[id_of(ref)] = Ref(ref=id_of(ref), holder_id=self.worker_id, **known)
        return self

    def is_member(self, *groups: ProcessGroup) -> SceneProcess:
        """Joins these process groups, with the rank that each of them gives."""
        self.memberships += groups
        return self

    def collects(self, operation: str, group: ProcessGroup, **known: Any) -> SceneProcess:
        self.threads[0].collects(operation, group, **known)
        return self

    def puts(self, size_bytes: int = 8) -> str:
        """Stores a value by ``ray.put`` in the running call, and returns its ref."""
        ref = f"{self.running[0].task.task_id}{len(self.refs) + 100:02x}000000"
        self.has(ref, size_bytes)
        return ref

    def is_restarted(self) -> SceneProcess:
        """Becomes another process with the same pid."""
        self.started_at += 60
        return self


def _is_timed(call: BlockedCall | None) -> bool:
    return call is not None and call.timeout_s is not None


def await_for(
    *things: Call | str | SceneCoroutine | tuple[SceneThread, ...],
    what: str | None = None,
    timeout_s: float | None = None,
    **known: Any,
) -> BlockedCall:
    """A blocked call that awaits these."""
    refs = [one for one in things if isinstance(one, Call | str)]
    futures = (one for one in things if isinstance(one, tuple))
    need = Awaitables(
        refs=ids_of(refs),
        owners=owners_of(refs),
        coroutines=tuple(one.coroutine_id for one in things if isinstance(one, SceneCoroutine)),
        futures=tuple(tuple(thread.tid for thread in threads) for threads in futures),
        **known,
    )
    return call_named(what or "await", need, "await", timeout_s)


def lock_of(
    lock: str,
    holders: Iterable[SceneThread | SceneCoroutine],
    what: str,
    timeout_s: float | None,
    inferred: Inference | None,
) -> BlockedCall:
    """A blocked call that acquires a lock."""
    threads = tuple(one.tid for one in holders if isinstance(one, SceneThread))
    coroutines = tuple(one.coroutine_id for one in holders if isinstance(one, SceneCoroutine))
    held = Executions(threads=threads, coroutines=coroutines, object_id=lock, inferred=inferred)
    need = held if threads or coroutines else ProcessObject(object_id=lock)
    return call_named(what, need, "lock", timeout_s)


def _reached(call: BlockedCall, others: Iterable[SceneThread | SceneCoroutine], actor: bool) -> BlockedCall:
    assert isinstance(call.need, ProcessObject), "only a wait on an object of the process is reached"
    need = ProcessObject(
        object_id=call.need.object_id,
        reached_by=tuple(one.tid for one in others if isinstance(one, SceneThread)),
        reached_by_coroutines=tuple(one.coroutine_id for one in others if isinstance(one, SceneCoroutine)),
        reached_by_actor=actor,
    )
    return dataclasses.replace(call, need=need)
