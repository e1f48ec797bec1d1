"""The observed values of nodes: their hosts, what their core workers reply, and what could not be observed.

They travel as those of :mod:`dstack.observed`, with the same units and identifiers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

# Travels without msgspec, see dstack.observed.
from msgspec import Meta

from dstack.observed import Percent
from dstack.observed_calls import Int, Natural, UnixTime

MAX_DISKS = 64
"""The most disks of one node."""

TaskKind = Literal["NORMAL_TASK", "ACTOR_CREATION_TASK", "ACTOR_TASK", "DRIVER_TASK"]
DiskUse = Literal["session", "spilled objects", "object store"]
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


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A directory that Ray uses on a node, with the size and the free space of its file system."""

    use: DiskUse
    path: Annotated[str, Meta(max_length=4096)]
    total_bytes: Natural
    free_bytes: Natural


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU of a node, as NVIDIA's driver reports it; what the driver does not report is None.

    ``utilisation_percent`` is the share of the driver's last sample period, up to a second, in which a kernel ran.
    """

    index: Natural
    name: Annotated[str, Meta(max_length=256)] = ""
    memory_total_bytes: Natural | None = None
    memory_used_bytes: Natural | None = None
    utilisation_percent: Percent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSetup:
    """A process that installs a runtime environment on a node, started by Ray's runtime environment agent.

    ``output`` is its last line of output, empty if unreadable.
    """

    node_id: str
    pid: Int
    command: str
    started_at: UnixTime
    output: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
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
