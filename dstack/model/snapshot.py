"""The snapshot: frozen, typed structs around the observed values, which all other parts of dstack use.

A :class:`Snapshot` has only observations: processes, threads, task states, and failures to read them. It holds no Ray
object and does no I/O. What the probes of nodes observe is in :mod:`dstack.observed.processes` and
:mod:`dstack.observed.node`, which say what units and identifiers are. Conclusions are in :mod:`dstack.model.diagnosis`.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from dstack.observed.calls import NEEDS, Holder, Int, Natural, Need, UnixTime
from dstack.observed.ledgers import RecorderDump
from dstack.observed.node import (
    IN_STORE,
    EnvironmentSetup,
    Failure,
    HostFigures,
    LogTail,
    ObjectPlace,
    RayletReport,
    Ref,
    Task,
    TaskKind,
)
from dstack.observed.outlines import ProgramOutline
from dstack.observed.processes import Coroutine, EndedTask, Frame, Process, Thread

SCHEMA = "dstack.snapshot"
VERSION = (2, 5)
"""Major and minor version of the file format. A reader takes any minor of its own major."""

ACTOR_HANDLE = "f" * 16
"""The beginning of the id of a ref that is an actor handle; no task produces its value."""

RAY_CLIENT_SERVER = " -m ray.util.client.server "
"""Part of the entrypoint of a Ray Client job: its driver is a server that acts for a remote program."""

CLOCKS_AGREE_S = 2.0
"""The maximum difference of clocks that count as equal."""


class Model(Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, gc=False):
    """Base of the values of a snapshot and of a diagnosis: immutable, hashable by content where their fields are.

    No value refers to one that contains it, so the garbage collector need not follow them.
    """


class TaskTimes(Model, frozen=True):
    """The times at which a task entered its states, by the clocks of the hosts that reported them.

    ``states`` maps Ray's TaskStatus by name to the time when the latest ``attempt`` entered it. ``submitted_at`` is
    when the first attempt was submitted, None if the GCS has dropped it. ``label_options`` are the label selectors of
    the task, which it asks for in this order.
    """

    attempt: Int = 0
    submitted_at: UnixTime | None = None
    states: dict[str, UnixTime] = {}
    label_options: tuple[dict[str, str], ...] = ()


class WorkerSample(Model, frozen=True):
    """One worker or driver at one time.

    ``running_task_ids`` is None if its core worker did not answer; ``process`` is None if its process was not found.
    ``held`` are the resources of its current task, or of its actor for life, by the resource names of its node; an idle
    worker may show former ones. ``executed_tasks`` counts all tasks that it has finished since its start.
    ``argument_bytes`` is that of :class:`dstack.observed.node.CoreWorkerReply`.
    """

    worker_id: str
    running_task_ids: tuple[str, ...] | None = None
    process: Process | None = None
    held: dict[str, float] = {}
    executed_tasks: Natural | None = None
    argument_bytes: Natural = 0


class Bundle(Model, frozen=True):
    """One bundle of a placement group; ``node_id`` is None until it is placed."""

    resources: dict[str, float]
    node_id: str | None = None
    label_selector: dict[str, str] = {}


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


class Node(Model, frozen=True):
    """A Ray node. The figures of its ``host`` are unknown if no probe reached it.

    A dead node keeps its ``resources`` and ``labels``. ``started_at`` is by its own clock. ``ended_at``, by the head's
    clock, and ``death_cause`` are None unless it died. ``clock_ahead_s`` is the minimum by which its clock is ahead of
    the clock of dstack, or behind it if negative. It is 0 if the time of a request may explain the difference.
    """

    node_id: str
    ip: str
    hostname: str = ""
    alive: bool = True
    is_head: bool = False
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}
    host: HostFigures = HostFigures()
    started_at: UnixTime | None = None
    ended_at: UnixTime | None = None
    death_cause: str | None = None
    clock_ahead_s: float | None = None

    @property
    def has_another_time(self) -> bool:
        """Whether its clock is known to differ from dstack's."""
        return abs(self.clock_ahead_s or 0.0) > CLOCKS_AGREE_S


class Job(Model, frozen=True):
    """A Ray job: one driver and all tasks and actors that descend from it.

    ``submission_id`` is set if ``ray job submit`` started the job. It ran from ``started_at`` to ``ended_at``, by the
    clock of the head.
    """

    job_id: str
    entrypoint: str = ""
    namespace: str = ""
    driver_ip: str = ""
    driver_pid: Int = 0
    is_dead: bool = False
    submission_id: str | None = None
    started_at: UnixTime | None = None
    ended_at: UnixTime | None = None


class Actor(Model, frozen=True):
    """An actor in the control plane; ``state`` is Ray's ActorState by name.

    ``held`` is what it holds for life, by the resource names of its node. Without a worker, ``node_id`` is the node
    whose raylet has the request for it. ``fallback_labels`` are asked for where no node satisfies the
    ``label_selector``. ``death_reason`` is Ray's reason by name,
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
    fallback_labels: tuple[dict[str, str], ...] = ()
    placement_group_id: str | None = None
    num_restarts: Int = 0
    max_restarts: Int = 0
    death_cause: str | None = None
    death_reason: str | None = None
    ended_at: UnixTime | None = None
    last_error: str | None = None


class Worker(Model, frozen=True):
    """A live worker or driver process that the control plane lists, or a worker that is starting and in no list yet.

    The latter has no ``port`` yet: that is 0.
    """

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


class RecentEnds(Model, frozen=True):
    """How many tasks of a job ended in the last ``over_s`` seconds."""

    tasks: Natural
    over_s: float


class FunctionTimes(Model, frozen=True):
    """How many ended ``calls`` of a function or method were read, and the median of their run times.

    A run begins by the clock of its worker's host, and ends by that of its owner's.
    """

    calls: Natural
    usual_s: float


class TaskEventWindow(Model, frozen=True):
    """The part of the GCS's task events of finished tasks that was read.

    The GCS has ``kept`` tasks; the newest ``read`` finished ones of live jobs were read. ``is_limited`` says that there
    are older ones, and ``oldest_at`` is when the first of those read ended. ``last_ended_at`` is, by job, when the
    newest task ended that is in no :attr:`Snapshot.repeated_calls`, by the clock of its owner's host. Workers report an
    end up to a second late. A job without finished tasks is missing. ``recent`` counts the same tasks by job, and
    ``functions`` has, by job and name, the run times of all.
    """

    kept: Natural
    read: Natural
    is_limited: bool = False
    oldest_at: UnixTime | None = None
    last_ended_at: dict[str, UnixTime] = {}
    recent: dict[str, RecentEnds] = {}
    functions: dict[str, dict[str, FunctionTimes]] = {}


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


class ObjectUse(Model, frozen=True):
    """How a process keeps an object: ``local`` variables, ``argument`` of unfinished tasks, ``is_mapped`` in use.

    ``call_site`` is where the process got its ref, empty unless Ray records that.
    """

    worker_id: str
    local: Natural = 0
    argument: Natural = 0
    is_mapped: bool = False
    call_site: str = ""


class StoredObject(Model, frozen=True):
    """A value in the object store, as processes report it, with their ``uses``.

    ``owner_id`` is the worker that made the ref, None if it did not answer. ``maker`` is the name of the task that has
    returned the value, or that has put it there if ``is_put``; empty if no owner of the task names it. ``inside`` are
    objects that contain it. ``place`` is None if its owner was not asked, or did not say.
    """

    ref: str
    size_bytes: Natural
    owner_id: str | None = None
    maker: str = ""
    is_put: bool = False
    uses: tuple[ObjectUse, ...] = ()
    inside: tuple[str, ...] = ()
    place: ObjectPlace | None = None


class ObjectSum(Model, frozen=True):
    """The values in the object store that one function has returned or put there, or one owner if none is known."""

    objects: Natural
    size_bytes: Natural
    maker: str = ""
    is_put: bool = False
    owner_id: str | None = None


class KeptSum(Model, frozen=True):
    """The values in the object store that one process keeps; of these, ``mapped_bytes`` are in use by it."""

    worker_id: str
    objects: Natural
    size_bytes: Natural
    mapped_bytes: Natural = 0


class StoredObjects(Model, frozen=True):
    """The values in the object store that processes know, of 100 KiB and more; smaller ones are in their owners.

    ``total`` of them have ``size_bytes``, each counted once, wherever its copies are. The largest ones are listed, and
    the largest sums ``by_maker`` and ``by_process``.
    """

    total: Natural
    size_bytes: Natural
    largest: tuple[StoredObject, ...] = ()
    by_maker: tuple[ObjectSum, ...] = ()
    by_process: tuple[KeptSum, ...] = ()


class TcpEnd(Model, frozen=True):
    """The processes that have one end of a TCP connection open, on their node."""

    node_id: str
    holders: tuple[Holder, ...] = ()


class PendingNodes(Model, frozen=True):
    """Nodes of one type that the autoscaler has requested, and that have not joined; ``status`` is its word for that.

    ``since`` is by the head's clock; the first version of the autoscaler does not report it.
    """

    node_type: str
    count: Natural
    status: str = ""
    since: UnixTime | None = None


class FailedLaunches(Model, frozen=True):
    """Launches of nodes of one type that failed for one ``reason``, the last one at ``last_at`` by the head's clock.

    ``times`` is 0 if the number is unknown, and the reason empty if the autoscaler does not report it.
    """

    node_type: str
    times: Natural = 0
    reason: str = ""
    last_at: UnixTime | None = None


class AutoscalerState(Model, frozen=True):
    """What the autoscaler reports that it does.

    ``refused`` are the requests that it can add no node for now: no type has enough, or a limit of nodes is reached.
    ``refused_groups`` are the placement groups of that kind, by id. The first version of the autoscaler (Ray 2.46 and
    2.60) reports neither, the second no ``reported_at``, which is by the head's clock. ``error`` is why it has ended.
    """

    pending: tuple[PendingNodes, ...] = ()
    failed: tuple[FailedLaunches, ...] = ()
    refused: tuple[dict[str, float], ...] = ()
    refused_groups: tuple[str, ...] = ()
    reported_at: UnixTime | None = None
    error: str = ""


class PlatformEvent(Model, frozen=True):
    """The newest event of an object of the platform, as of a pod of Kubernetes, that is a warning.

    ``kind`` and ``name`` are the object's. ``at`` is by the platform's clock. It has occurred ``count`` times.
    """

    kind: str
    name: str
    reason: str
    message: str = ""
    at: UnixTime | None = None
    count: Natural = 1


class Snapshot(Model, frozen=True, kw_only=True, omit_defaults=False):
    """All that dstack observed of one cluster in one run.

    ``stacks`` are tuples of indices into ``frames``, leaf first; each distinct frame and stack is stored once.
    ``sources`` maps a file to line numbers to text, for the lines around user frames, read on the nodes.
    ``task_times`` are the times of some of the waiting and awaited tasks, by id, if the GCS has them.
    ``task_event_window`` describes the ended tasks that ``repeated_calls`` is based on; None if they were not read.
    ``autoscaler`` names the autoscaler that can add nodes; None if there is none. ``autoscaler_state`` is what it
    reports; None if that is unknown. ``platform_events`` are warnings of the platform, such as of pods that are
    pending; read only if something waits for a node, from a head that collects them. ``is_of_one_driver`` says that a
    driver made the cluster for itself, by ``ray.init()``: no other node is meant to join. ``readings`` are partial
    samples between the two samples, only of processes that seem to poll, without refs. ``history`` is None if it was
    not requested, or the GCS did not answer. ``tcp_ends`` are those of connections to which threads of other nodes wait
    at the other end, by their addresses, the local one first. ``stored`` is what the last sample shows of the object
    store, None if no process reported a value there. ``outlines`` are what the source of jobs says, where a history was
    requested. ``earlier_waits`` are pairs of tasks: earlier samples have shown the first in a wait for the second.
    ``recorder_dumps`` are the files of torch's flight recorders that were written while a job ran.
    """

    schema: str = SCHEMA
    version: tuple[Int, Int] = VERSION
    dstack_version: str
    taken_at: UnixTime
    address: str
    ray_version: str
    autoscaler: str | None = None
    autoscaler_state: AutoscalerState | None = None
    platform_events: tuple[PlatformEvent, ...] = ()
    is_of_one_driver: bool = False
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
    tcp_ends: dict[str, TcpEnd] = {}
    raylet_reports: tuple[RayletReport, ...] = ()
    log_tails: tuple[LogTail, ...] = ()
    outlines: tuple[ProgramOutline, ...] = ()
    recorder_dumps: tuple[RecorderDump, ...] = ()
    earlier_waits: tuple[tuple[str, str], ...] = ()
    stored: StoredObjects | None = None
    task_times: dict[str, TaskTimes] = {}
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    total_s: float = 0.0

    @property
    def has_one_time(self) -> bool:
        """Whether times of different hosts are comparable: no node's clock is known to differ."""
        return not any(node.has_another_time for node in self.nodes)

    @property
    def lack_of_events(self) -> Failure | None:
        """Why there are no task events, or which of them are missing; None if that is not known."""
        return next((failure for failure in reversed(self.failures) if failure.stage == "task events"), None)

    def frames_of(self, execution: Thread | Coroutine | EndedTask) -> tuple[Frame, ...]:
        """The frames of a thread, a coroutine or the exception of an ended task, leaf first."""
        return tuple(self.frames[i] for i in self.stacks[execution.stack])

    def source_line(self, file: str, line: int) -> str | None:
        """The source text of a line without indentation, None if no node has the file."""
        text = self.sources.get(file, {}).get(line)
        return text.strip() if text else None


def is_at_hand(ref: Ref) -> bool:
    """Whether the holder of the ref has the value itself, so fetching it there does not block.

    Values that are not in the object store stay in the memory of their owner, which alone knows their state.
    """
    return ref.state in ("FINISHED", "FAILED") and 0 <= ref.size_bytes < IN_STORE


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


def is_of_driver(task_id: str) -> bool:
    """Whether it is the id of a driver's own task: all bits are set except those of the job."""
    return not task_id[:40].strip("f")


def job_of_task(task_id: str) -> str:
    """The job in a task id: its last 4 bytes."""
    return task_id[40:48]


def need_of(kind: type, value: object) -> Need:
    """A need of a call from its decoded fields, for msgspec's ``dec_hook``. Raises ``ValidationError``."""
    assert kind is Need, "no other type is decoded by a hook"
    need = NEEDS.get(str(value.get("kind"))) if isinstance(value, dict) else None
    if need is None:
        raise msgspec.ValidationError("an unknown kind of need")
    return msgspec.convert(value, need)


class WorkerPoll(Model, frozen=True):
    """One worker's or driver's answer.

    ``running`` are the tasks that it runs. ``pending`` are the tasks that it has submitted and that have not ended,
    with their states; None if they are too many to be listed. ``finished`` counts those that it has run to their end.
    ``counters`` change whenever the worker does something.
    """

    worker_id: str
    is_driver: bool = False
    running: tuple[str, ...] = ()
    pending: dict[str, str] | None = None
    finished: int = 0
    counters: tuple[int, ...] = ()


class ClusterPoll(Model, frozen=True):
    """One poll of a cluster.

    ``silent`` are the workers that exist and did not answer. ``nodes`` are alive. ``jobs``, which may have ended, and
    the figures of hosts are only there if asked for.
    """

    workers: tuple[WorkerPoll, ...] = ()
    silent: tuple[str, ...] = ()
    jobs: tuple[Job, ...] = ()
    nodes: tuple[Node, ...] = ()
