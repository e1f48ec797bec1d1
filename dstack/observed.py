"""The observed values of processes: what a probe reads of them, as it travels and as a snapshot has it.

Each is defined once, here and in :mod:`dstack.observed_node`. Identifiers are lower-case hex strings as Ray prints
them: node and worker 56 digits, actor 32, job 8, task 48, ObjectRef 56. Times that end in ``_at`` are Unix seconds;
``_s`` are seconds, ``_ms`` milliseconds. ``dataclasses.replace`` of such a value takes 3 us, ten times as
long as that of a struct.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, get_args

# These modules travel to nodes without msgspec. Annotations are strings that only the caller evaluates, and the classes
# are pickled by value, so no node imports it. The bounds are checked where answers and files are decoded.
from msgspec import Meta

Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
UnixTime = Annotated[float, Meta(ge=0, lt=253_370_764_800)]
"""Seconds since 1970, before the year 9999, as calendars require; the bounds are checked in files."""
Percent = Annotated[float, Meta(ge=0, le=1e12)]
"""A share in percent; of several CPUs it may exceed 100."""
MAX_GPUS = 1_024
"""The most GPUs of one node or process."""

Origin = Literal["user", "library", "ray", "stdlib"]
Loop = Literal["plain", "busy", "bounded"]
Role = Literal["task", "loop", "user", "ray"]
CallKind = Literal["ray.get", "ray.wait", "generator", "thread.join", "future", "lock", "await", "other"]
REF_CALLS: tuple[CallKind, ...] = ("ray.get", "ray.wait", "generator")
"""The calls that wait for values of ObjectRefs."""
GroupLibrary = Literal["torch.distributed", "ray.util.collective", "ray.train", "ray.data"]
TORCH: GroupLibrary = "torch.distributed"
RAY: GroupLibrary = "ray.util.collective"
TRAIN: GroupLibrary = "ray.train"
DATA: GroupLibrary = "ray.data"
"""The libraries whose calls on a group of processes end when all members, or one other member, have made them."""
Access = Literal["memory", "py-spy", "setuid py-spy", "py-spy via sudo", "text stack", "jstack", "gdb", "state only"]
ACCESSES: tuple[Access, ...] = get_args(Access)
"""How a process was read, best first: with waits of its threads, with stacks only, without stacks."""
OTHER_LANGUAGE_ACCESSES: tuple[Access, ...] = ("jstack", "gdb")
"""How processes in other languages than Python are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One Python frame. ``origin`` says whether the code is the user's, Ray's, or another library's.

    ``loop`` is the kind of the innermost loop around the line, in code of the user or of Ray, from its source:
    ``bounded`` if it ends by itself, because it counts or compares the time; ``busy`` if it makes other calls while the
    polled value is missing; else ``plain``. It is None outside of loops, or if the source is unreadable.
    """

    function: str
    file: str
    line: Int
    origin: Origin = "user"
    loop: Loop | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """The membership of a process in a group of processes, read from its memory.

    ``world`` identifies the set of processes that ranks refer to: the rendezvous address of torch.distributed, such as
    ``tcp://10.0.0.1:29500``, or what distinguishes the runs of another library; empty if unknown. ``name`` is unique in
    that world, and ``description`` is the program's name of the group, such as ``default_pg`` or ``mesh_tp``. ``rank``
    is the rank of the process in the world; ``ranks`` are those of all members, in the order of their ranks in the
    group. ``has_left`` says that the process has ended its part of the run, for example because its training function
    returned: it makes no more calls on the group.
    """

    library: GroupLibrary
    world: str
    name: str
    rank: Natural
    ranks: tuple[Natural, ...]
    description: str = ""
    has_left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCall:
    """The dependencies of a blocked call on a process group: the calls of its other members.

    ``operation`` is the library's name of the call, such as ``all_reduce``. ``group`` is the membership of the caller;
    while the group is being created, as in ``init_process_group`` and ``new_group``, its ``ranks`` are those that must
    join. ``peer`` is the other member of a send or recv, or the root of a broadcast, reduce, gather or scatter, by its
    rank in the world. ``transfer`` is the id of the object whose tensors Ray Direct Transport sends or receives in the
    call. ``mark`` changes whenever the thread of the caller runs, so equal marks belong to one call; it is empty if the
    library polls inside the call. ``fails_at`` is when the library will end the call with an error, if readable.
    """

    operation: str
    group: ProcessGroup
    peer: Natural | None = None
    transfer: str = ""
    mark: str = ""
    fails_at: UnixTime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest:
    """A request to a method of a Ray Serve deployment; ``app`` is the application of the deployment."""

    app: str
    deployment: str
    method: str

    @property
    def name(self) -> str:
        """``Kitchen.cook``: the deployment and the method."""
        return f"{self.deployment}.{self.method}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRequest:
    """A request that waits in a router or replica, until a replica is below its limit of ongoing requests.

    ``replicas`` are the limits (``max_ongoing_requests``) of the replicas that may serve it, by the id of the replica,
    which ends the name of its actor. ``most_replicas`` is the maximum number of replicas of the deployment, None if
    unreadable. No other replica can serve a request that is ``in_replica``. ``made_at`` is its start, by the clock of
    its host.
    """

    request: ServeRequest
    made_at: UnixTime = 0.0
    replicas: dict[str, Natural] = field(default_factory=dict)
    most_replicas: Natural | None = None
    in_replica: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphChannel:
    """A channel of a compiled graph (``ray.dag``): one actor writes values to it, which other actors read in turn.

    ``writer`` and ``readers`` are ids of actors. The writer is empty for the driver, the process that compiled the
    graph. As a reader, the driver is represented by a small actor that it created. ``refs`` are objects in shared
    memory that hold the values; both ends of a channel share some of them. ``buffers`` is the maximum number of unread
    values, 0 if unknown.
    """

    writer: str
    readers: tuple[str, ...] = ()
    refs: tuple[str, ...] = ()
    buffers: Natural = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStage:
    """A method that a thread of an actor runs in a compiled graph; with an empty ``method``, the driver of the graph.

    ``os_thread_id`` is that thread, 0 for a driver; ``is_current`` says that the thread is in this stage. ``reader``
    and ``writer`` identify the ends of its channels in the process, see :class:`ChannelCall`. ``reads`` and ``writes``
    count the executions whose input it has read, and whose output it has written. A driver reads the outputs of the
    graph.
    """

    method: str
    os_thread_id: Int
    reader: str
    writer: str
    is_current: bool = False
    inputs: tuple[GraphChannel, ...] = ()
    outputs: tuple[GraphChannel, ...] = ()
    reads: Natural = 0
    writes: Natural = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCall:
    """The dependency of a wait in a channel of a compiled graph.

    ``end`` is the ``reader`` or ``writer`` of one :class:`GraphStage` of the process. ``pending`` are the positions of
    its inputs that have no value yet, or of the output that has no room. ``count`` is the number of earlier reads or
    writes there, or for a coroutine the number of the execution whose result it awaits. ``fails_after_s`` is the
    timeout of Ray after which an error ends the wait.
    """

    end: str
    is_write: bool
    count: Natural
    pending: tuple[Natural, ...] = ()
    fails_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedCall:
    """A blocking call of a thread or coroutine, with its dependencies.

    ``frame`` is the index, from the leaf, of the frame that called into Ray or the standard library. ``refs`` are
    ObjectRefs in the order of the call; for a generator, the ref of the next item. ``owners`` are the ids of the
    workers that own them, in the same order, ``""`` if unknown; or empty. ``threads`` are OS ids of threads of this
    process, one of which must proceed: the joined thread, those that may run the future, or the holder of the lock;
    empty if unknown. If several futures are needed at once, ``all_of`` has such threads for each of them.
    ``coroutines`` are ids of coroutines of this process: one of these, or of ``threads``, must proceed.

    An ``await`` needs ``num_returns`` (None for all) of ``refs``, ``coroutines``, the futures in ``all_of``, and
    ``others``, which counts dependencies that are unknown. ``child_pids`` are processes below this one, one of which
    must end or write. ``reached_by`` are OS ids of other threads of this process, and ``reached_by_coroutines`` ids of
    its coroutines, whose frames hold the object of the wait, so they may end the call. ``reached_by_actor`` says that
    the instance of the actor holds it, so its methods may end the call. All three come from a bounded search: they are
    candidates, perhaps not all. ``inferred`` is the reason for ``threads``, or for the number of refs, if it is not
    exact. ``object_id`` distinguishes two locks, futures or queues of one process. ``held`` says that the refs were
    unreadable, and are among those that the process holds; ``assumed`` are then further assumptions about the call.
    ``what`` is the user's name of the call if its kind is not enough, such as ``queue.Queue.get`` or ``all_reduce of
    torch.distributed``. ``of_group`` are the dependencies of a call on a process group, if readable. ``queued`` is the
    request to a Serve deployment that waits for a replica, and ``channel`` the dependency of a wait in a compiled
    graph. ``unread`` is the reason why the dependencies are unreadable; ``refs`` and ``threads`` are then empty.
    """

    kind: CallKind
    frame: Natural
    refs: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    num_returns: Natural | None = None
    timeout_s: float | None = None
    threads: tuple[Int, ...] = ()
    all_of: tuple[tuple[Int, ...], ...] = ()
    coroutines: tuple[str, ...] = ()
    others: Natural = 0
    child_pids: tuple[Int, ...] = ()
    reached_by: tuple[Int, ...] = ()
    reached_by_coroutines: tuple[str, ...] = ()
    reached_by_actor: bool = False
    inferred: str | None = None
    held: bool = False
    assumed: str | None = None
    object_id: str | None = None
    what: str | None = None
    of_group: GroupCall | None = None
    queued: QueuedRequest | None = None
    channel: ChannelCall | None = None
    unread: str | None = None

    def is_same_as(self, other: BlockedCall) -> bool:
        """Whether both are the same wait, regardless of the reachable objects and of clock differences."""
        return self._without_reach() == other._without_reach()

    def _without_reach(self) -> BlockedCall:
        of_group = replace(self.of_group, fails_at=None) if self.of_group else None
        return replace(self, reached_by=(), reached_by_coroutines=(), reached_by_actor=False, of_group=of_group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """One thread of a process.

    ``os_thread_id`` is the pid for the thread that runs the program's main function: that of Java is started by the
    first thread, which then only waits for it. ``stack`` is an index into ``Snapshot.stacks``. ``role`` is the purpose
    of the thread: ``task`` executes Ray tasks, ``loop`` runs the event loop of an async actor, ``user`` was started by
    user code (or is the main thread of a driver), ``ray`` belongs to Ray or to a library. ``still`` is true if the
    thread did not run while its stack and refs were read, as the operating system shows: the reading is exact. ``torn``
    is true if the thread ran during every reading of its stack: its frames may not belong together, and its wait is
    unknown. ``sleeps`` is true if the thread is in ``time.sleep``, as the kernel shows. ``task_id`` is the Ray task
    that it runs, None for none; it is valid only if ``Process.tasks_read`` is true.
    """

    os_thread_id: Int
    name: str
    stack: Natural
    role: Role
    on_cpu: bool = False
    still: bool = False
    torn: bool = False
    sleeps: bool = False
    task_id: str | None = None
    call: BlockedCall | None = None
    locals: dict[str, dict[str, str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Coroutine:
    """A suspended asyncio task of a process, with its await chain instead of a stack.

    ``coroutine_id`` is the address of the asyncio task, in hex, and ``name`` its name. ``stack`` is an index into
    ``Snapshot.stacks``: the innermost coroutine first. ``os_thread_id`` is the thread that runs its event loop, None if
    there is none or it is unknown. ``task_id`` is the Ray task in whose context it was created; ``is_task`` says that
    it is this task itself, not one that the task started. ``still`` is true if two readings agreed, or its event loop
    did not run meanwhile; only then it has a ``call``. ``request`` is the request to a Serve deployment that it
    executes in a replica. ``cancel_requests`` counts its cancellations, for example by ``ray.cancel``, which it may
    have caught (CPython 3.11 and later).
    """

    coroutine_id: str
    name: str
    stack: Natural
    os_thread_id: Int | None = None
    task_id: str | None = None
    is_task: bool = False
    still: bool = False
    cancel_requests: Natural = 0
    call: BlockedCall | None = None
    request: ServeRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """What a process uses of the GPU with this ``index``; ``memory_bytes`` is None if unknown."""

    index: Natural
    memory_bytes: Natural | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The process of a worker or driver, or a Python process below it.

    ``access`` is how its threads were read, if there are any. Figures are 0 if only its stacks are known, as text.
    ``paused_ms`` is the maximum time for which dstack paused it: 0 unless ``--pause`` or ``--native`` was used.
    ``tasks_read`` says whether the task of each thread could be read. ``coroutines_read`` says whether its event loops
    could be read, if it has any: then all of their suspended coroutines are included. ``concurrency_groups`` are those
    of an actor's methods, by the method's name, as its class declares them; None if unreadable.

    ``children`` are all Python processes below it, such as those of multiprocessing, in one list. Their ``parent_pid``
    is the process that started each, None for a worker or driver, and ``name`` is that of the operating system. They
    are read in the first sample, and in the second one if the wait of a child may matter. ``children_left_out`` counts
    the other children, which do not run Python or are over the limit. ``is_cut_off`` marks a child that was forked from
    a process connected to Ray, without the threads of that connection: Ray does not work in it.

    ``process_groups`` are its memberships. ``rank``, ``local_rank`` and ``world_size`` are those of its distributed
    run, from its default group or from the environment variables of its launcher. ``labels`` are those that the program
    set with ``dstack.label``. ``graph_stages`` are its stages in compiled graphs.

    ``cpu_percent`` is its use of CPU, of which 100 is one CPU, over the ``cpu_over_s`` before its reading ended; None
    if it was not measured. ``gpus`` are the GPUs that it uses, by NVIDIA's driver; None if unknown.
    """

    pid: Int
    started_at: UnixTime
    parent_pid: Int | None = None
    name: str = ""
    access: Access = "memory"
    cpu_s: float = 0.0
    rss_bytes: Int = 0
    num_threads: Int = 0
    state: str = ""
    paused_ms: float = 0.0
    tasks_read: bool = False
    coroutines_read: bool = False
    concurrency_groups: dict[str, str] | None = None
    threads: tuple[Thread, ...] = ()
    coroutines: tuple[Coroutine, ...] = ()
    children: tuple[Process, ...] = ()
    children_left_out: Natural = 0
    is_cut_off: bool = False
    process_groups: tuple[ProcessGroup, ...] = ()
    rank: Natural | None = None
    local_rank: Natural | None = None
    world_size: Natural | None = None
    labels: dict[str, str] = field(default_factory=dict)
    graph_stages: tuple[GraphStage, ...] = ()
    cpu_percent: Percent | None = None
    cpu_over_s: float = 0.0
    gpus: Annotated[tuple[GpuUse, ...], Meta(max_length=MAX_GPUS)] | None = None

    @property
    def main_thread(self) -> Thread | None:
        """The thread that it began with, if its stack was read."""
        return next((thread for thread in self.threads if thread.os_thread_id == self.pid), None)

    def executions(self) -> tuple[Thread | Coroutine, ...]:
        """Its own threads and coroutines."""
        return (*self.threads, *self.coroutines)

    def calls(self) -> Iterator[BlockedCall]:
        """The calls that its own threads and coroutines are blocked in."""
        return (execution.call for execution in self.executions() if execution.call)

    def with_stacks(self) -> Iterator[Thread | Coroutine]:
        """Everything that has a stack: the threads and coroutines of the process and of its children."""
        for process in (self, *self.children):
            yield from process.threads
            yield from process.coroutines
