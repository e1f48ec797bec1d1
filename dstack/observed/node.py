"""The answers of a node's probe: its host, its processes, what its core workers reply, and what was not observed.

They travel as the values of :mod:`dstack.observed.processes`, with the same units and identifiers.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal, NamedTuple

# Travels without msgspec, see dstack.observed.processes.
from msgspec import Meta

from dstack.observed.calls import Holder, Int, Natural, UnixTime
from dstack.observed.frozen_dataclass import frozen_dataclass
from dstack.observed.ledgers import RecorderDump
from dstack.observed.outlines import ProgramOutline
from dstack.observed.processes import MAX_GPUS, Frame, Percent, Process

MAX_DISKS = 64
"""The most disks of one node."""
IN_STORE = 100 * 1024
"""The size from which a value is in the object store, in bytes; Ray's default (2.46 to 2.60)."""

WITHOUT_DIGITS = dict.fromkeys(map(ord, "0123456789"))
"""For ``str.translate``: lines of logs that differ in numbers only count as the same."""
MAX_LOG_LINES = 32
"""The most lines that are kept of one log."""

TaskKind = Literal["NORMAL_TASK", "ACTOR_CREATION_TASK", "ACTOR_TASK", "DRIVER_TASK"]
DiskUse = Literal["session", "spilled objects", "object store"]
GpuFault = Literal["lost", "needs a reset"]
RayletCount = Literal[
    "infeasible requests",
    "waiting for resources",
    "waiting for other nodes",
    "waiting for workers",
    "waiting for arguments",
    "late registrations",
    "starts over the limit",
    "failed environments",
    "pending starts",
    "pending registrations",
    "workers",
    "idle workers",
    "queued pulls",
    "pulled bytes",
    "pending restores",
    "pending spills",
    "bytes to spill",
    "spilled bytes",
    "pinned bytes",
]
"""What a raylet counts of its requests for workers, its worker processes and its objects.

"late registrations", "starts over the limit" and "failed environments" are totals since it started, all others are of
the moment. "late registrations" counts worker processes that died or took too long before they connected, "starts over
the limit" attempts to start one while ``maximum_startup_concurrency`` others were starting. "pending starts" are those
that wait for this limit, "pending registrations" those that were started and have not connected.
"""
Stage = Literal["control plane", "core worker", "node probe", "process", "stacks", "memory", "task events", "Ray"]
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
    "starting",
    "other",
]
"""The typed cause of a failure, for logic; ``Failure.reason`` is the text for users.

In this order: no answer in time; no connection; not allowed; the process or service has ended; the process has another
pid where dstack runs, as in a container; the pid belongs to another process; a tool is not installed, or Ray does not
have what a detail needs; an answer that cannot be parsed; only a part was given; memory, or a Ray, that cannot be
interpreted; it is starting; anything else.
"""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Task:
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
    required_resources: dict[str, float] = field(default_factory=dict)
    placement_group_id: str | None = None
    label_selector: dict[str, str] = field(default_factory=dict)
    environment: tuple[str, ...] = ()
    items: Natural = 0

    @property
    def method(self) -> str:
        """The method of an actor call, which Ray names ``Class.method`` unless its caller has named it."""
        return self.name.rpartition(".")[2]


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """An ObjectRef, as reported by a process that knows it. Only refs that are, or may be, awaited are included.

    ``size_bytes`` is -1 until the value is available. ``argument_uses`` counts the submitted tasks that take it,
    ``local_uses`` the variables of the process that hold it; ``is_contained`` says that it is inside another object.
    Handles of actors are refs too (:data:`ACTOR_HANDLE`). The rest is only known of values in the object store:
    ``inside`` are the owned objects that contain the ref, and ``call_site`` is where the process got it, if Ray
    records that (``RAY_record_ref_creation_sites=1``).
    """

    ref: str
    holder_id: str
    state: str | None = None
    size_bytes: Int = -1
    argument_uses: Int = 0
    local_uses: Int = 0
    is_contained: bool = False
    attempt: Int = 0
    inside: tuple[str, ...] = ()
    call_site: str = ""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPlace:
    """Where the owner of a value in the object store says that it is: on these nodes in memory, or spilled.

    ``spilled_on`` is the node on whose disk it is, None for storage outside of the cluster.
    """

    node_ids: tuple[str, ...] = ()
    is_spilled: bool = False
    spilled_on: str | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class CoreWorkerReply:
    """What a core worker replied. Tasks that ended are left out; ``refs`` are all it knows.

    ``held`` is what came with its last lease: in a placement group it names the bundle, which its task's entry does
    only where the task asked for one. A CPU that is lent back while the task waits is still in it. ``counters`` change
    whenever the worker does something; ``is_cut`` if it has more tasks than it listed. ``language`` is None for Python.
    ``argument_bytes`` are those of the objects in shared memory that its unfinished tasks take, or that are inside of
    their arguments. ``mapped`` are the objects there whose values the process uses, by id, with their sizes in bytes.
    ``makers`` are the names of ended tasks that made the largest values there, by id, and ``places`` says where some
    of the values are that it owns. A poll asks for no details: then there are no ``tasks``, but the state of each by
    its id in ``task_states``.
    """

    worker_id: str
    job_id: str | None = None
    actor_id: str | None = None
    running_task_ids: tuple[str, ...] = ()
    language: str | None = None
    held: dict[str, float] = field(default_factory=dict)
    executed_tasks: Natural = 0
    is_cut: bool = False
    argument_bytes: Natural = 0
    mapped: dict[str, Natural] = field(default_factory=dict)
    makers: dict[str, str] = field(default_factory=dict)
    places: dict[str, ObjectPlace] = field(default_factory=dict)
    counters: tuple[Int, ...] = ()
    tasks: tuple[Task, ...] = ()
    task_states: dict[str, str] = field(default_factory=dict)
    refs: tuple[Ref, ...] = ()


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A directory that Ray uses on a node, with the size and the free space of its file system."""

    use: DiskUse
    path: Annotated[str, Meta(max_length=4096)]
    total_bytes: Natural
    free_bytes: Natural


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU of a node, as NVIDIA's driver reports it; what the driver does not report is None.

    ``utilisation_percent`` is the share of the driver's last sample period, up to a second, in which a kernel ran.
    ``pci`` is its address, as ``0000:3b:00``. ``ecc_errors`` are the uncorrected errors of its memory since the driver
    was loaded. ``fault`` is why the driver does not answer for it.
    """

    index: Natural
    name: Annotated[str, Meta(max_length=256)] = ""
    memory_total_bytes: Natural | None = None
    memory_used_bytes: Natural | None = None
    utilisation_percent: Percent | None = None
    pci: Annotated[str, Meta(max_length=32)] = ""
    sm_clock_mhz: Natural | None = None
    temperature_c: Natural | None = None
    power_w: float | None = None
    ecc_errors: Natural | None = None
    fault: GpuFault | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """An error of the GPU at a PCI address that NVIDIA's driver wrote to the kernel's log, by its number.

    ``at`` is the time by the clock of its node; on one that runs for weeks it may be off by some seconds.
    """

    code: Natural
    pci: Annotated[str, Meta(max_length=32)]
    at: UnixTime


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class HostFigures:
    """Figures of a host; None where they are unknown.

    ``cpu_percent`` is the share of all CPUs of the host that was in use while it was read, None over too short a time.
    ``gpus`` are those of the host, None if it has no driver of NVIDIA, or the driver did not answer in time.
    ``nvml_silent_s`` is for how long the driver has not answered, None if it has. ``xids`` are the last errors of GPUs
    in the kernel's log, oldest first; none if that was not readable.
    ``oom_kills`` counts the processes that the kernel has killed for lack of memory in the cgroup of the raylet.
    """

    cpu_count: Int | None = None
    load_1m: float | None = None
    memory_total_bytes: Int | None = None
    memory_available_bytes: Int | None = None
    cpu_percent: Percent | None = None
    disks: Annotated[tuple[Disk, ...], Meta(max_length=MAX_DISKS)] = ()
    gpus: Annotated[tuple[Gpu, ...], Meta(max_length=MAX_GPUS)] | None = None
    nvml_silent_s: float | None = None
    xids: Annotated[tuple[Xid, ...], Meta(max_length=MAX_GPUS)] = ()
    oom_kills: Natural | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSetup:
    """A process that installs a runtime environment on a node, started by Ray's runtime environment agent.

    ``output`` is its last line of output, empty if unreadable.
    """

    node_id: str
    pid: Int
    command: str
    started_at: UnixTime
    output: str = ""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class RayletReport:
    """What a raylet has last written about its queues, by the clock of its host; it writes every 10 s.

    ``waiting_for_memory`` counts the requests for workers that have all resources, and wait for object store memory
    for the arguments of their tasks. ``argument_bytes`` are those of the arguments of the tasks that run there;
    ``argument_share`` is the share of the object store that these may take, None unless the raylet's environment
    states it. ``counts`` has what else it counts, without zeros. ``starting`` counts its worker processes that had
    not connected when dstack read the host, None in snapshots without it.
    """

    node_id: str
    written_at: UnixTime
    waiting_for_memory: Natural = 0
    argument_bytes: Natural = 0
    argument_share: float | None = None
    counts: dict[RayletCount, Natural] = field(default_factory=dict)
    starting: Natural | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class StartingWorker:
    """A worker process below a raylet that Ray does not list yet: it starts Python, imports, or connects.

    ``worker_id`` is a digest of its node, pid and start where its command line has none. ``job_id`` is None while it
    may run for any job.
    """

    worker_id: str
    node_id: str
    process: Process
    job_id: str | None = None


LogStream = Literal["stdout", "stderr", "core worker", "raylet", "agent", "GCS", "environment"]
LogKind = Literal[
    "plain",
    "warning",
    "error",
    "exception",
    "thread exception",
    "asyncio exception",
    "exit exception",
    "fatal error",
    "out of memory",
    "CUDA",
    "NCCL",
    "UCX",
    "disk full",
    "no descriptors",
    "name resolution",
    "refused connection",
    "lost connection",
    "no answer",
    "rate limit",
    "no access",
    "worker start",
    "object store",
]
"""What a line of a log is known to say; "plain" says nothing known."""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a log, or a traceback in one line, without secrets.

    ``writer`` is set in the log of a driver for what it prints for a worker: ``(Loader pid=7, ip=10.0.0.2)``.
    ``at`` is the time that the line states, None if it states none. ``count`` is how often the text repeats, but for
    numbers, in the part that was read, from ``first_at`` to ``at``. The file and line are those of a traceback's
    innermost frame outside of installed packages. ``lines_after`` counts the lines of the file that follow it.
    """

    text: Annotated[str, Meta(max_length=1_000)]
    kind: LogKind = "plain"
    writer: Annotated[str, Meta(max_length=300)] = ""
    at: UnixTime | None = None
    count: Natural = 1
    first_at: UnixTime | None = None
    file: Annotated[str, Meta(max_length=4096)] | None = None
    line: Int | None = None
    lines_after: Natural = 0


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class LogTail:
    """The end of a file that a process writes its output to: its last lines, and those of a known kind before them.

    ``worker_id`` is that of the worker or driver, also for its child process with this ``pid``; None for a log of the
    node ``node_id``. ``written_at`` is when the file last changed, by the clock of its host. ``is_cut`` says that the
    file has more than what was read.
    """

    path: Annotated[str, Meta(max_length=4096)]
    stream: LogStream
    written_at: UnixTime
    lines: Annotated[tuple[LogLine, ...], Meta(max_length=MAX_LOG_LINES)] = ()
    worker_id: str | None = None
    node_id: str | None = None
    pid: Int | None = None
    is_cut: bool = False


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Something that could not be observed: what, where, why, and after how long. ``sample`` counts from 1."""

    stage: Stage
    reason: Annotated[str, Meta(description="One sentence; the wording may change")]
    cause: Cause = "other"
    remedy: str | None = None
    node_id: str | None = None
    worker_id: str | None = None
    pid: Int | None = None
    elapsed_s: float = 0.0
    sample: Annotated[Int, Meta(description="Number of the sample, from 1")] = 1


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """One sample of one node.

    ``stacks`` are indices of ``frames``, leaf first, and ``sources`` lines of files by number. ``processes`` and
    ``core_workers`` are by worker id. ``host`` is None if no process was read. ``clock`` is the node's Unix time when
    the probe began and ended. ``setups`` and ``tcp_ends``, the holders of TCP sockets by the addresses of both ends,
    are only there if they were asked for. ``starting`` are the worker processes of the node that the request does not
    name, ``raylets`` the last reports of its raylets. ``log_tails``, ``outlines`` and ``recorder_dumps`` are only there
    if they were asked for.
    ``cannot_ask`` is the reason if the probe can ask no core worker, as without grpc: then the caller asks.
    ``unchanged`` are the workers whose process the caller has as it is now.
    """

    clock: tuple[UnixTime, UnixTime]
    frames: tuple[Frame, ...] = ()
    stacks: tuple[tuple[Natural, ...], ...] = ()
    sources: dict[str, dict[Int, str]] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    core_workers: dict[str, CoreWorkerReply] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    host: HostFigures | None = None
    setups: tuple[EnvironmentSetup, ...] = ()
    tcp_ends: dict[str, tuple[Holder, ...]] = field(default_factory=dict)
    starting: tuple[StartingWorker, ...] = ()
    raylets: tuple[RayletReport, ...] = ()
    log_tails: tuple[LogTail, ...] = ()
    outlines: tuple[ProgramOutline, ...] = ()
    recorder_dumps: tuple[RecorderDump, ...] = ()
    cannot_ask: str | None = None
    unchanged: tuple[str, ...] = ()


class Count(NamedTuple):
    """The number of samples of a thread with a stack; both are indices. ``is_running`` says that the thread ran then.

    A sample that stands for several, because the rate was lowered, counts as many.
    """

    thread: Natural
    stack: Natural
    samples: Natural
    is_running: bool = True


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class RecordingCoverage:
    """How much was recorded, summed over processes: ``wanted`` samples at the wanted rate, and those ``taken``.

    ``torn`` counts readings of running threads that were dropped, because two copies of their frames did not agree.
    ``cut`` counts those of which only the outer calls agreed: these were recorded. ``left_out`` counts samples that
    were dropped at the limit of distinct stacks. ``sampler_cpu_s`` is the CPU time of dstack's samplers on the nodes.
    ``lowest_rate_hz`` is the lowest rate of any round on any node, 0 if unknown: a node lowers it if its sampler uses
    too much CPU time. Then each sample counts for several.
    """

    processes: Natural = 0
    wanted: Natural = 0
    taken: Natural = 0
    torn: Natural = 0
    cut: Natural = 0
    left_out: Natural = 0
    sampler_cpu_s: float = 0.0
    lowest_rate_hz: float = 0.0


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class SampledThread:
    """A thread of a worker in a round of a recording; ``os_thread_id`` is 0 if unknown."""

    worker_id: str
    os_thread_id: Int = 0
    thread_name: str = ""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRound:
    """One round of a recording on one node, of ``seconds``. ``stacks`` are indices of ``frames``, leaf first.

    ``ranks`` has the processes that were sampled, by worker id, with their rank in a distributed run.
    """

    frames: tuple[Frame, ...] = ()
    stacks: tuple[tuple[Natural, ...], ...] = ()
    threads: tuple[SampledThread, ...] = ()
    counts: tuple[Count, ...] = ()
    ranks: dict[str, Natural | None] = field(default_factory=dict)
    coverage: RecordingCoverage = RecordingCoverage()
    failures: tuple[Failure, ...] = ()
    seconds: float = 0.0
