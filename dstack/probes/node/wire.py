"""Everything that crosses between a node's probe and its caller: plain data, checked by mypy on both sides.

The fields have the names and meanings of those in :mod:`dstack.observed`. The caller validates an answer against these
types. They are TypedDicts, since a probe has only the standard library.
"""

from __future__ import annotations

from typing import TypedDict, final

from dstack.observed_calls import Call, ProcessGroup, ServeRequest

# The request


class ThreadContext(TypedDict):
    """Where ``_raylet.so`` keeps a thread's task, from ``raylet_symbols``; offsets in bytes."""

    note_at: int
    note: str
    module_at: int
    offset: int


@final
class UnreadablePython(TypedDict):
    """A Python whose memory dstack cannot interpret, with the reason."""

    unreadable: str


@final
class ForeignPython(TypedDict):
    """The Python of a process that runs another build than the probe: minor version, and where ``_PyRuntime`` is."""

    version: tuple[int, int]
    runtime: int


class _Target(TypedDict):
    worker_id: str
    pid: int
    port: int
    is_driver: bool


class Target(_Target, total=False):
    """A process to read. ``python`` and ``thread_context`` are given where it runs another Python than the probe."""

    python: ForeignPython | UnreadablePython
    thread_context: ThreadContext | None


class _Options(TypedDict):
    native: bool
    locals: bool
    pause: bool
    children: bool
    deadline_s: float
    thread_context: ThreadContext | None


class Options(_Options, total=False):
    """How to read. ``pause`` stops running processes for exact stacks, ``deadline_s`` is seconds from now.

    ``setups_of`` are the ids of nodes whose runtime environments that are being installed are to be found.
    ``reach`` (default: true) searches for what reaches the objects that threads and coroutines wait on.
    """

    setups_of: list[str]
    reach: bool


class CoreWorker(TypedDict):
    """The address of a core worker on the probe's node, which a node probe asks for its tasks and refs."""

    worker_id: str
    ip: str
    port: int
    pid: int


class Questions(TypedDict):
    """How to ask core workers: at most ``limit`` tasks and refs of each, ``timeout_s`` for each reply.

    ``metadata`` is that of every gRPC call to the cluster. Without ``details``, a task is only its id and its state, as
    a poll needs it. ``with_refs`` adds the refs that the worker knows.
    """

    metadata: list[tuple[str, str]]
    timeout_s: float
    limit: int
    details: bool
    with_refs: bool


class NodeRequest(TypedDict):
    """One sample of a node: the core workers to ask, and the processes to read meanwhile.

    ``is_first`` says that a snapshot begins with it: figures are measured from here on.
    """

    is_first: bool
    workers: list[CoreWorker]
    questions: Questions
    targets: list[Target]
    options: Options


class RecordOptions(TypedDict):
    """How to record for ``seconds``, which :class:`dstack.recording.RecordingOptions` describes.

    ``is_last`` says that no further round follows, so that what still runs is ended.
    """

    rate_hz: float
    seconds: float
    idle: bool
    gil: bool
    native: bool
    is_last: bool


# The answer


class _FrameData(TypedDict):
    function: str
    file: str
    line: int
    origin: str


class FrameData(_FrameData, total=False):
    """A :class:`dstack.observed.Frame`."""

    loop: str


class ChannelData(TypedDict):
    """A :class:`dstack.observed.GraphChannel`."""

    writer: str
    readers: list[str]
    refs: list[str]
    buffers: int


class StageData(TypedDict):
    """A :class:`dstack.observed.GraphStage`."""

    method: str
    os_thread_id: int
    is_current: bool
    reader: str
    writer: str
    inputs: list[ChannelData]
    outputs: list[ChannelData]
    reads: int
    writes: int


class _ThreadData(TypedDict):
    os_thread_id: int
    name: str
    stack: int
    role: str


class ThreadData(_ThreadData, total=False):
    """A :class:`dstack.observed.Thread`; ``stack`` is an index into the answer's ``stacks``."""

    on_cpu: bool
    still: bool
    torn: bool
    sleeps: bool
    task_id: str | None
    call: Call
    locals: dict[str, dict[str, str]]


class _CoroutineData(TypedDict):
    coroutine_id: str
    name: str
    stack: int


class CoroutineData(_CoroutineData, total=False):
    """A :class:`dstack.observed.Coroutine`; ``stack`` is an index into the answer's ``stacks``."""

    os_thread_id: int | None
    task_id: str | None
    is_task: bool
    still: bool
    cancel_requests: int
    call: Call
    request: ServeRequest


class GpuUseData(TypedDict):
    """A :class:`dstack.observed.GpuUse`."""

    index: int
    memory_bytes: int | None


class _ProcessData(TypedDict):
    pid: int
    started_at: float
    threads: list[ThreadData]


class ProcessData(_ProcessData, total=False):
    """A :class:`dstack.observed.Process`; ``children`` are processes below it."""

    parent_pid: int | None
    name: str
    access: str
    cpu_s: float
    rss_bytes: int
    num_threads: int
    state: str
    paused_ms: float
    tasks_read: bool
    coroutines_read: bool
    concurrency_groups: dict[str, str] | None
    coroutines: list[CoroutineData]
    children: list[ProcessData]
    children_left_out: int
    is_cut_off: bool
    process_groups: list[ProcessGroup]
    rank: int | None
    local_rank: int | None
    world_size: int | None
    labels: dict[str, str]
    graph_stages: list[StageData]
    cpu_percent: float
    cpu_over_s: float
    gpus: list[GpuUseData]


class _FailureData(TypedDict):
    stage: str
    reason: str
    cause: str


class FailureData(_FailureData, total=False):
    """A :class:`dstack.observed_node.Failure`."""

    remedy: str | None
    pid: int
    worker_id: str
    elapsed_s: float


class DiskData(TypedDict):
    """A :class:`dstack.observed_node.Disk`."""

    use: str
    path: str
    total_bytes: int
    free_bytes: int


class _GpuData(TypedDict):
    index: int


class GpuData(_GpuData, total=False):
    """A :class:`dstack.observed_node.Gpu`."""

    name: str
    memory_total_bytes: int
    memory_used_bytes: int
    utilisation_percent: int


class HostData(TypedDict, total=False):
    """Figures of the host, as :class:`dstack.model.Node` has them; the caller adds ``clock_ahead_s``."""

    cpu_count: int | None
    load_1m: float
    memory_total_bytes: int
    memory_available_bytes: int
    clock_ahead_s: float | None
    cpu_percent: float | None
    disks: list[DiskData]
    gpus: list[GpuData]


class SetupData(TypedDict):
    """A :class:`dstack.observed_node.EnvironmentSetup`."""

    node_id: str
    pid: int
    command: str
    started_at: float
    output: str


class _TaskData(TypedDict):
    task_id: str
    state: str


class TaskData(_TaskData, total=False):
    """A :class:`dstack.observed_node.Task` without its owner, the worker that lists it; defaults are left out."""

    name: str
    kind: str
    job_id: str
    actor_id: str | None
    parent_task_id: str | None
    node_id: str | None
    attempt: int
    required_resources: dict[str, float]
    placement_group_id: str | None
    label_selector: dict[str, str]
    environment: list[str]
    items: int


class _RefData(TypedDict):
    ref: str


class RefData(_RefData, total=False):
    """A :class:`dstack.observed_node.Ref` without its holder, the worker that lists it; defaults are left out."""

    state: str | None
    size_bytes: int
    argument_uses: int
    local_uses: int
    is_contained: bool
    attempt: int


class _CoreWorkerData(TypedDict):
    job_id: str | None
    actor_id: str | None
    running_task_ids: list[str]
    held: dict[str, float]
    executed_tasks: int
    is_cut: bool
    counters: list[int]
    tasks: list[TaskData]
    refs: list[RefData]


class CoreWorkerData(_CoreWorkerData, total=False):
    """The reply of a core worker; tasks that ended are left out.

    ``counters`` change whenever the worker does something; ``is_cut`` if it has more tasks than it listed. ``language``
    is only there if it is not Python.
    """

    language: str


class _Answer(TypedDict):
    frames: list[FrameData]
    stacks: list[list[int]]
    sources: dict[str, dict[int, str]]
    processes: dict[str, ProcessData]
    failures: list[FailureData]
    host: HostData
    clock: tuple[float, float]


class Answer(_Answer, total=False):
    """One sample of one node. ``stacks`` are indices of ``frames``, leaf first; ``sources`` are lines by file, number.

    ``processes`` are by worker id, ``clock`` is the node's Unix time when the probe began and ended. ``setups`` are
    only there where they were asked for. ``core_workers`` are the replies by worker id; ``cannot_ask`` is the reason
    if the probe can ask no core worker, as without grpc: then the caller asks.
    """

    setups: list[SetupData]
    core_workers: dict[str, CoreWorkerData]
    cannot_ask: str


class SampledThreadData(TypedDict):
    """A thread of a worker; the fields are those of :class:`dstack.recording.RecordedThread`."""

    worker_id: str
    os_thread_id: int
    thread_name: str


class SampledProcessData(TypedDict):
    """The coverage of one process, see :class:`dstack.recording.Coverage`, and its rank in a distributed run."""

    wanted: int
    taken: int
    torn: int
    cut: int
    rank: int | None


class RecordedRound(TypedDict):
    """One round of a recording on one node. ``stacks`` are indices of ``frames``, leaf first.

    ``counts`` are :class:`dstack.recording.Count`, ``processes`` are by worker id. ``cpu_s`` is the CPU time that the
    round took, ``rate_hz`` the rate at which samples were taken.
    """

    frames: list[FrameData]
    stacks: list[list[int]]
    threads: list[SampledThreadData]
    counts: list[tuple[int, int, int, bool]]
    processes: dict[str, SampledProcessData]
    failures: list[FailureData]
    cpu_s: float
    rate_hz: float
    seconds: float
