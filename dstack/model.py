"""The observed values: frozen, typed structs that all other parts of dstack use.

A :class:`Snapshot` has only observations: processes, threads, task states, and failures to read them. It holds no Ray
object and does no I/O. Conclusions are in :mod:`dstack.diagnosis`.

Identifiers are lower-case hex strings as Ray prints them: node and worker 56 digits, actor 32, job 8, task 48,
ObjectRef 56. Times that end in ``_at`` are Unix seconds; ``_s`` are seconds, ``_ms`` milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct
from msgspec.structs import replace

SCHEMA = "dstack.snapshot"
VERSION = (1, 6)
"""Major and minor version of the file format. A reader takes any minor of its own major."""

ACTOR_HANDLE = "f" * 16
"""The beginning of the id of a ref that is an actor handle; no task produces its value."""

RAY_CLIENT_SERVER = " -m ray.util.client.server "
"""Part of the entrypoint of a Ray Client job: its driver is a server that acts for a remote program."""

CLOCKS_AGREE_S = 2.0
"""The maximum difference of clocks that count as equal."""

Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
UnixTime = Annotated[float, Meta(ge=0, lt=253_370_764_800)]
"""Seconds since 1970, before the year 9999, as calendars require; the bounds are checked in files."""
Percent = Annotated[float, Meta(ge=0, le=1e12)]
"""A share in percent; of several CPUs it may exceed 100."""
MAX_GPUS, MAX_DISKS = 1_024, 64
"""The most GPUs and disks of one node or process."""

Origin = Literal["user", "library", "ray", "stdlib"]
Loop = Literal["plain", "busy", "bounded"]
Role = Literal["task", "loop", "user", "ray"]
CallKind = Literal["ray.get", "ray.wait", "generator", "thread.join", "future", "lock", "await", "other"]
TaskKind = Literal["NORMAL_TASK", "ACTOR_CREATION_TASK", "ACTOR_TASK", "DRIVER_TASK"]
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
Stage = Literal["control plane", "core worker", "node probe", "process", "stacks", "memory"]
Cause = Literal[
    "timeout",
    "unreachable",
    "permission",
    "ended",
    "namespace",
    "identity",
    "missing",
    "malformed",
    "truncated",
    "unreadable",
    "other",
]
"""The typed cause of a failure, for logic; ``Failure.reason`` is the text for users.

In this order: no answer in time; no connection; not allowed; the process or service has ended; the process has another
pid where dstack runs, as in a container; the pid belongs to another process; a tool is not installed; an answer that
cannot be parsed; only a part was given; memory that cannot be interpreted; anything else.
"""


class Model(Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, gc=False):
    """Base of every observed value: immutable, hashable by content where its fields are.

    No value refers to one that contains it, so the garbage collector need not follow them.
    """


class Frame(Model, frozen=True):
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


class ProcessGroup(Model, frozen=True):
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


class GroupCall(Model, frozen=True):
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


class ServeRequest(Model, frozen=True):
    """A request to a method of a Ray Serve deployment; ``app`` is the application of the deployment."""

    app: str
    deployment: str
    method: str

    @property
    def name(self) -> str:
        """``Kitchen.cook``: the deployment and the method."""
        return f"{self.deployment}.{self.method}"


class QueuedRequest(Model, frozen=True):
    """A request that waits in a router or replica, until a replica is below its limit of ongoing requests.

    ``replicas`` are the limits (``max_ongoing_requests``) of the replicas that may serve it, by the id of the replica,
    which ends the name of its actor. ``most_replicas`` is the maximum number of replicas of the deployment, None if
    unreadable. No other replica can serve a request that is ``in_replica``. ``made_at`` is its start, by the clock of
    its host.
    """

    request: ServeRequest
    made_at: UnixTime = 0.0
    replicas: dict[str, Natural] = {}
    most_replicas: Natural | None = None
    in_replica: bool = False


class GraphChannel(Model, frozen=True):
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


class GraphStage(Model, frozen=True):
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


class ChannelCall(Model, frozen=True):
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


class BlockedCall(Model, frozen=True):
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


class Thread(Model, frozen=True):
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


class Coroutine(Model, frozen=True):
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


class GpuUse(Model, frozen=True):
    """What a process uses of the GPU with this ``index``; ``memory_bytes`` is None if unknown."""

    index: Natural
    memory_bytes: Natural | None = None


class Process(Model, frozen=True):
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
    labels: dict[str, str] = {}
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


class Task(Model, frozen=True):
    """A task, as reported by its owner.

    ``state`` is Ray's TaskStatus by name. It does not distinguish running from queued: only the executing worker does
    (``WorkerSample.running_task_ids``). ``items`` counts the values that a streaming generator has returned and its
    owner still has; other tasks return their values when they end. ``environment`` names the parts of its runtime
    environment, such as ``pip``.
    """

    task_id: str
    owner_id: str
    name: str
    kind: TaskKind
    state: str
    job_id: str
    actor_id: str | None = None
    parent_task_id: str | None = None
    node_id: str | None = None
    attempt: Int = 0
    required_resources: dict[str, float] = {}
    placement_group_id: str | None = None
    label_selector: dict[str, str] = {}
    environment: tuple[str, ...] = ()
    items: Natural = 0

    @property
    def method(self) -> str:
        """The method of an actor call, which Ray names ``Class.method`` unless its caller has named it."""
        return self.name.rpartition(".")[2]


class TaskTimes(Model, frozen=True):
    """The times at which a task entered its states, by the clocks of the hosts that reported them.

    ``states`` maps Ray's TaskStatus by name to the time when the latest ``attempt`` entered it. ``submitted_at`` is
    when the first attempt was submitted, None if the GCS has dropped it.
    """

    attempt: Int = 0
    submitted_at: UnixTime | None = None
    states: dict[str, UnixTime] = {}


class Ref(Model, frozen=True):
    """An ObjectRef, as reported by a process that knows it. Only refs that are, or may be, awaited are included.

    ``size_bytes`` is -1 until the value is available. ``argument_uses`` counts the submitted tasks that take it,
    ``local_uses`` the variables of the process that hold it; ``is_contained`` says that it is inside another object.
    Handles of actors are refs too (:data:`ACTOR_HANDLE`).
    """

    ref: str
    holder_id: str
    state: str | None = None
    size_bytes: Int = -1
    argument_uses: Int = 0
    local_uses: Int = 0
    is_contained: bool = False
    attempt: Int = 0


class WorkerSample(Model, frozen=True):
    """One worker or driver at one time.

    ``running_task_ids`` is None if its core worker did not answer; ``process`` is None if its process was not found.
    ``held`` are the resources of its current task, or of its actor for life, by the resource names of its node; an idle
    worker may show former ones. ``executed_tasks`` counts all tasks that it has finished since its start.
    """

    worker_id: str
    running_task_ids: tuple[str, ...] | None = None
    process: Process | None = None
    held: dict[str, float] = {}
    executed_tasks: Natural | None = None


class Bundle(Model, frozen=True):
    """One bundle of a placement group; ``node_id`` is None until it is placed."""

    resources: dict[str, float]
    node_id: str | None = None


class PlacementGroup(Model, frozen=True):
    """A placement group; ``scheduling_state`` is Ray's reason while it is pending. Times are those of the GCS."""

    placement_group_id: str
    state: str
    strategy: str
    name: str = ""
    namespace: str = ""
    bundles: tuple[Bundle, ...] = ()
    job_id: str | None = None
    creator_actor_id: str | None = None
    is_detached: bool = False
    scheduling_state: str | None = None
    requested_at: UnixTime | None = None


class Sample(Model, frozen=True):
    """One pass of reading. The second sample covers only the workers that may be stuck.

    ``began_s`` and ``ended_s`` count from the start of the snapshot, by dstack's clock. ``total`` maps a node to all
    its resources, including those of the placement groups on it, and ``available`` to the free ones. ``arrived`` are
    the actor calls that arrived with all their arguments, and do not run yet, as their executor reported: task id to
    attempt. It is read only if a call may be queued.
    """

    began_s: float
    ended_s: float
    workers: tuple[WorkerSample, ...] = ()
    tasks: tuple[Task, ...] = ()
    refs: tuple[Ref, ...] = ()
    placement_groups: tuple[PlacementGroup, ...] = ()
    total: dict[str, dict[str, float]] = {}
    available: dict[str, dict[str, float]] = {}
    arrived: dict[str, Int] = {}


DiskUse = Literal["session", "spilled objects", "object store"]


class Disk(Model, frozen=True):
    """A directory that Ray uses on a node, with the size and the free space of its file system."""

    use: DiskUse
    path: Annotated[str, Meta(max_length=4096)]
    total_bytes: Natural
    free_bytes: Natural


class Gpu(Model, frozen=True):
    """A GPU of a node, as NVIDIA's driver reports it; what the driver does not report is None.

    ``utilisation_percent`` is the share of the driver's last sample period, up to a second, in which a kernel ran.
    """

    index: Natural
    name: Annotated[str, Meta(max_length=256)] = ""
    memory_total_bytes: Natural | None = None
    memory_used_bytes: Natural | None = None
    utilisation_percent: Percent | None = None


class Node(Model, frozen=True):
    """A Ray node. Host figures are None if no probe reached it; ``ended_at`` and ``death_cause`` unless it died.

    ``cpu_percent`` is the share of all CPUs of the host that was in use while it was read, None over too short a time.
    ``gpus`` are those of the host, None if it has no driver of NVIDIA, or the driver did not answer in time.

    ``clock_ahead_s`` is the minimum by which its clock is ahead of the clock of dstack, or behind it if negative. It is
    0 if the time of a request may explain the difference.
    """

    node_id: str
    ip: str
    hostname: str = ""
    alive: bool = True
    is_head: bool = False
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}
    cpu_count: Int | None = None
    load_1m: float | None = None
    memory_total_bytes: Int | None = None
    memory_available_bytes: Int | None = None
    ended_at: UnixTime | None = None
    death_cause: str | None = None
    clock_ahead_s: float | None = None
    cpu_percent: Percent | None = None
    disks: Annotated[tuple[Disk, ...], Meta(max_length=MAX_DISKS)] = ()
    gpus: Annotated[tuple[Gpu, ...], Meta(max_length=MAX_GPUS)] | None = None

    @property
    def has_another_time(self) -> bool:
        """Whether its clock is known to differ from dstack's."""
        return abs(self.clock_ahead_s or 0.0) > CLOCKS_AGREE_S


class Job(Model, frozen=True):
    """A Ray job: one driver and all tasks and actors that descend from it.

    ``submission_id`` is set if ``ray job submit`` started the job.
    """

    job_id: str
    entrypoint: str = ""
    namespace: str = ""
    driver_ip: str = ""
    driver_pid: Int = 0
    is_dead: bool = False
    submission_id: str | None = None


class Actor(Model, frozen=True):
    """An actor in the control plane; ``state`` is Ray's ActorState by name.

    ``held`` is what it holds for life, by the resource names of its node. ``death_reason`` is Ray's reason by name,
    such as ``RAY_KILL``, or the kind of the cause if Ray gives no reason; None if unknown. ``last_error`` is the reason
    why its previous process ended, if it was restarted; Ray 2.60 reports it, 2.46 does not.
    """

    actor_id: str
    job_id: str
    class_name: str
    state: str
    name: str = ""
    namespace: str = ""
    node_id: str | None = None
    worker_id: str | None = None
    owner_id: str | None = None
    pid: Int = 0
    is_detached: bool = False
    required_resources: dict[str, float] = {}
    held: dict[str, float] = {}
    label_selector: dict[str, str] = {}
    placement_group_id: str | None = None
    num_restarts: Int = 0
    max_restarts: Int = 0
    death_cause: str | None = None
    death_reason: str | None = None
    ended_at: UnixTime | None = None
    last_error: str | None = None


class Worker(Model, frozen=True):
    """A live worker or driver process that the control plane lists."""

    worker_id: str
    node_id: str
    ip: str
    port: Int
    pid: Int
    is_driver: bool = False
    job_id: str | None = None
    actor_id: str | None = None


class GoneWorker(Model, frozen=True):
    """A dead worker or driver that owned an awaited ref.

    A worker is dead if the control plane reports that it, or its node, died. ``cause`` is Ray's cause, in one sentence.
    """

    worker_id: str
    node_id: str
    pid: Int
    is_driver: bool = False
    ended_at: UnixTime | None = None
    cause: str | None = None


class FailedTask(Model, frozen=True):
    """A task whose last attempt failed, from the task events of the GCS (Ray 2.46 to 2.60). Clocks are the owner's.

    ``error`` is the exception with the first line of its message. ``file``, ``line`` and ``source`` are where the
    user's code raised it. ``is_held`` says that a process still holds its result, which may never have been fetched;
    ``holders`` are the ids of those workers. Tasks also fail in healthy programs, which handle the exception.
    """

    task_id: str
    name: str
    job_id: str
    error_type: str = ""
    error: str = ""
    failed_at: UnixTime | None = None
    attempt: Int = 0
    actor_id: str | None = None
    parent_task_id: str | None = None
    worker_id: str | None = None
    node_id: str | None = None
    pid: Int | None = None
    file: str | None = None
    line: Int | None = None
    source: str | None = None
    is_held: bool = False
    holders: tuple[str, ...] = ()


class RepeatedCall(Model, frozen=True):
    """Repeated short calls of one caller to one method of one actor: perhaps a poll or heartbeat.

    ``parent_task_id`` is the task that makes the calls (a driver's own task for its main thread). ``calls`` is their
    number in the last 10 s, according to the task events; the last was made ``over_s`` after the first. ``first_at`` is
    when the first known call of the series was made, ``last_at`` when the newest ended, and ``longest_s`` the longest
    duration of one call. ``other_calls`` counts the other finished calls of the same caller in these 10 s. A caller
    that computes between two calls has the same events; only its state shows its other work. Clocks are the caller's.
    """

    name: str
    actor_id: str
    job_id: str
    parent_task_id: str
    calls: Natural
    over_s: float
    first_at: UnixTime | None = None
    last_at: UnixTime | None = None
    longest_s: float = 0.0
    other_calls: Natural = 0


class TaskEventWindow(Model, frozen=True):
    """The part of the GCS's task events of finished tasks that was read.

    The GCS has ``kept`` tasks; the newest ``read`` finished ones of live jobs were read. ``is_limited`` says that there
    are older ones, and ``oldest_at`` is when the first of those read ended. ``last_ended_at`` is, by job, when the
    newest task ended that is in no :attr:`Snapshot.repeated_calls`, by the clock of its owner's host. Workers report an
    end up to a second late. A job without finished tasks is missing.
    """

    kept: Natural
    read: Natural
    is_limited: bool = False
    oldest_at: UnixTime | None = None
    last_ended_at: dict[str, UnixTime] = {}


class TaskAttempt(Model, frozen=True):
    """One attempt of a task, from the task events of the GCS (Ray 2.46 to 2.60).

    ``states`` maps Ray's TaskStatus by name to the time when the attempt entered it. The worker that runs it reports
    ``RUNNING`` and the states of an actor's queue by the clock of its host, its caller reports all others by its own.
    ``worker_id``, ``node_id`` and ``pid`` are those of the worker that ran it, None before. ``error`` is the exception
    of a failed attempt with the first line of its message. Workers report once a second.
    """

    task_id: str
    name: str
    kind: TaskKind
    job_id: str
    attempt: Int = 0
    actor_id: str | None = None
    parent_task_id: str | None = None
    worker_id: str | None = None
    node_id: str | None = None
    pid: Int | None = None
    states: dict[str, UnixTime] = {}
    required_resources: dict[str, float] = {}
    placement_group_id: str | None = None
    error_type: str = ""
    error: str = ""


class TaskHistory(Model, frozen=True):
    """What happened before: the attempts of tasks that the GCS keeps, oldest first.

    The GCS has ``kept`` attempts, by default at most 100,000 of all jobs. ``left_out`` are those of them that were not
    requested, the oldest ones; ``dropped`` counts attempts whose events the GCS or their workers had no room for.
    ``object_bytes`` are, by task id, the sizes of the live objects that the task has made, as core workers report.
    """

    asked_at: UnixTime
    attempts: tuple[TaskAttempt, ...] = ()
    kept: Natural = 0
    left_out: Natural = 0
    dropped: Natural = 0
    object_bytes: dict[str, Natural] = {}


class EnvironmentSetup(Model, frozen=True):
    """A process that installs a runtime environment on a node, started by Ray's runtime environment agent.

    ``output`` is its last line of output, empty if unreadable.
    """

    node_id: str
    pid: Int
    command: str
    started_at: UnixTime
    output: str = ""


class Failure(Model, frozen=True):
    """Something that could not be observed: what, where, why, and after how long. ``sample`` counts from 1."""

    stage: Stage
    reason: str
    cause: Cause = "other"
    remedy: str | None = None
    node_id: str | None = None
    worker_id: str | None = None
    pid: Int | None = None
    elapsed_s: float = 0.0
    sample: Int = 1


class Snapshot(Model, frozen=True, kw_only=True, omit_defaults=False):
    """All that dstack observed of one cluster in one run.

    ``stacks`` are tuples of indices into ``frames``, leaf first; each distinct frame and stack is stored once.
    ``sources`` maps a file to line numbers to text, for the lines around user frames, read on the nodes.
    ``task_times`` are the times of some of the waiting and awaited tasks, by id, if the GCS has them.
    ``task_event_window`` describes the ended tasks that ``repeated_calls`` is based on; None if they were not read.
    ``autoscaler`` names the autoscaler that can add nodes; None if there is none. ``readings`` are partial samples
    between the two samples, only of processes that seem to poll, without refs. ``history`` is None if it was not
    requested, or the GCS did not answer.
    """

    schema: str = SCHEMA
    version: tuple[Int, Int] = VERSION
    dstack_version: str
    taken_at: UnixTime
    address: str
    ray_version: str
    autoscaler: str | None = None
    nodes: tuple[Node, ...] = ()
    jobs: tuple[Job, ...] = ()
    actors: tuple[Actor, ...] = ()
    workers: tuple[Worker, ...] = ()
    gone_workers: tuple[GoneWorker, ...] = ()
    frames: tuple[Frame, ...] = ()
    stacks: tuple[tuple[Natural, ...], ...] = ()
    sources: dict[str, dict[Int, str]] = {}
    samples: tuple[Sample, ...] = ()
    readings: tuple[Sample, ...] = ()
    failed_tasks: tuple[FailedTask, ...] = ()
    repeated_calls: tuple[RepeatedCall, ...] = ()
    task_event_window: TaskEventWindow | None = None
    history: TaskHistory | None = None
    environment_setups: tuple[EnvironmentSetup, ...] = ()
    task_times: dict[str, TaskTimes] = {}
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    total_s: float = 0.0

    @property
    def has_one_time(self) -> bool:
        """Whether times of different hosts are comparable: no node's clock is known to differ."""
        return not any(node.has_another_time for node in self.nodes)

    def frames_of(self, execution: Thread | Coroutine) -> tuple[Frame, ...]:
        """The frames of a thread or coroutine, leaf first."""
        return tuple(self.frames[i] for i in self.stacks[execution.stack])

    def source_line(self, file: str, line: int) -> str | None:
        """The source text of a line without indentation, None if no node has the file."""
        text = self.sources.get(file, {}).get(line)
        return text.strip() if text else None


def is_at_hand(ref: Ref) -> bool:
    """Whether the holder of the ref has the value itself, so fetching it there does not block.

    Values below 100 KiB stay in the memory of their owner, which alone knows their state; Ray's default (2.46 to 2.60).
    """
    return ref.state in ("FINISHED", "FAILED") and 0 <= ref.size_bytes < 100 * 1024


def producer_task_id(ref: str) -> str:
    """The id of the task that makes ``ref``.

    An ObjectRef's 28 bytes are a TaskID (24) and an index (4, little endian); seen on Ray 2.46 to 2.60. Refs made
    by ``ray.put`` carry the id of the task that called it.
    """
    return ref[:48]


def actor_of_task(task_id: str) -> str | None:
    """The actor in a task id, or None for a normal task, whose actor part is all ``f`` except its job."""
    actor = task_id[16:48]
    return None if actor[:24] == "f" * 24 else actor


def job_of_task(task_id: str) -> str:
    """The job in a task id: its last 4 bytes."""
    return task_id[40:48]
