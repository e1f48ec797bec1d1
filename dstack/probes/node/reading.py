"""The request to read one process and its result, the same for memory and for py-spy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dstack.observed.calls import Call, Timer
from dstack.observed.node import Cause, Stage
from dstack.observed.processes import Access, EndedChild, GraphStage, Role
from dstack.probes.node.asyncio.coroutine_samples import LoopState
from dstack.probes.node.blocked_calls.blocked_call import Surroundings
from dstack.probes.node.process_groups.memberships import Memberships
from dstack.probes.node.threads import AnyThread
from dstack.probes.node.wire import Options, ThreadContext


@dataclass(frozen=True)
class Request:
    """A process to read, with what is ``around`` it; ``title`` is what it calls itself.

    ``is_child``: a worker or driver has started it. ``deadline`` is a ``time.monotonic()``.
    """

    pid: int
    title: str
    is_driver: bool
    is_child: bool
    around: Surroundings
    thread_context: ThreadContext | None
    options: Options
    deadline: float


@dataclass(frozen=True)
class Problem:
    """What could not be read of a process, why, and the remedy."""

    stage: Stage
    reason: str
    cause: Cause = "other"
    remedy: str | None = None


@dataclass(frozen=True)
class ThreadReading:
    """A thread, its role, and the call that it is blocked in.

    ``is_stable``: it did not run while it was read. ``is_torn``: it ran during every reading, so its frames may not
    belong together. ``sleeps``: it was in ``time.sleep``, for ``sleep_left_s`` more. ``slices`` counts how often it was
    scheduled. ``written_bytes`` are those of :class:`dstack.observed.processes.Thread`. ``task_id`` is the Ray task
    that it runs. ``locals`` are the values of its locals by frame, if requested. ``timer`` is that of a
    ``threading.Timer``.
    """

    thread: AnyThread
    role: Role
    call: Call | None = None
    is_stable: bool = False
    is_torn: bool = False
    sleeps: bool = False
    sleep_left_s: float | None = None
    slices: int | None = None
    written_bytes: int | None = None
    task_id: str | None = None
    timer: Timer | None = None
    locals: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True)
class ProcessReading:
    """The threads and coroutines of a process.

    ``access`` is how they were read, see :class:`dstack.observed.processes.Process`. ``has_tasks``: the tasks of its
    threads could be read. ``loops`` and ``groups``, the concurrency groups of an actor's methods, are None where they
    were not read. ``graph_stages`` are those of compiled graphs. ``ended_children`` are the child processes that
    objects of the process show to have ended.
    """

    threads: Sequence[ThreadReading] = ()
    access: Access = "memory"
    has_tasks: bool = False
    loops: LoopState | None = None
    groups: dict[str, str] | None = None
    memberships: Memberships = field(default_factory=Memberships)
    labels: Mapping[str, str] = field(default_factory=dict)
    graph_stages: Sequence[GraphStage] = ()
    ended_children: Sequence[EndedChild] = ()
    paused_ms: float = 0.0
    problems: Sequence[Problem] = ()
