"""A process to read: its identity and children, the request to read it, the reading, and what failed.

Requests and readings are the same for memory and for py-spy. A pid is validated to be that of the expected worker,
since pids in a container differ from those of the host.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from dstack.libraries.torch.ledgers import Ledgers
from dstack.observed.calls import Call, Timer
from dstack.observed.node import Cause, Failure, Stage
from dstack.observed.processes import Access, EndedChild, FinishedSpan, GraphStage, LibraryState, QueueEnd, Role, Span
from dstack.probes.node.asyncio.suspended_coroutines import LoopState
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.group_calls import Memberships
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.children import Families, is_fork, is_helper
from dstack.probes.node.procfs.open_files import KernelTables
from dstack.probes.node.procfs.permissions import DumpFailed
from dstack.probes.node.system_calls import Surroundings
from dstack.probes.node.thread_stacks import AnyThread
from dstack.probes.node.wire import ReadTarget, SampleOptions


@dataclass(frozen=True)
class ReadRequest:
    """A process to read, with what is ``around`` it; ``title`` is what it calls itself.

    ``is_child``: a worker or driver has started it. ``deadline`` is a ``time.monotonic()``.
    """

    pid: int
    title: str
    is_driver: bool
    is_child: bool
    around: Surroundings
    options: SampleOptions
    deadline: float


@dataclass(frozen=True)
class Problem:
    """What could not be read of a process, why, and the remedy."""

    stage: Stage
    reason: str
    cause: Cause = "other"
    remedy: str | None = None

    @staticmethod
    def of_memory(reason: object, cause: Cause) -> Problem:
        """Why memory was not read."""
        return Problem("memory", f"its memory could not be read: {reason}", cause)

    def failure(self, worker_id: str, pid: int, elapsed_s: float) -> Failure:
        """The problem of a process, as a caller knows it, after so many seconds."""
        return Failure(
            stage=self.stage,
            reason=self.reason,
            cause=self.cause,
            remedy=self.remedy,
            worker_id=worker_id,
            pid=pid,
            elapsed_s=round(elapsed_s, 2),
        )


@dataclass(frozen=True)
class ThreadReading:
    """A thread, its role, and the call that it is blocked in.

    ``is_stable``: it did not run while it was read. ``is_torn``: it ran during every reading, so its frames may not
    belong together. ``sleeps``: it was in ``time.sleep``, for ``sleep_left_s`` more. ``slices`` counts how often it was
    scheduled. ``written_bytes`` are those of :class:`dstack.observed.processes.Thread`. ``task_id`` is the Ray task
    that it runs. ``locals`` are the values of its locals by frame, if requested. ``timer`` is that of a
    ``threading.Timer``. ``spans`` are its open spans. ``texts`` are those of
    :class:`dstack.observed.processes.Thread`.
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
    spans: tuple[Span, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ProcessReading:
    """The threads and coroutines of a process.

    ``access`` is how they were read, see :class:`dstack.observed.processes.Process`. ``has_tasks``: the tasks of its
    threads could be read. ``loops`` and ``groups``, the concurrency groups of an actor's methods, are None where they
    were not read. ``graph_stages`` are those of compiled graphs, ``queue_ends`` those of vLLM's message queues.
    ``ended_children`` are the child processes that objects of the process show to have ended. ``finished_spans`` are
    empty unless they were requested. ``library_states`` are those of libraries of Ray whose loops run in it.
    """

    threads: Sequence[ThreadReading] = ()
    access: Access = "memory"
    has_tasks: bool = False
    loops: LoopState | None = None
    groups: dict[str, str] | None = None
    memberships: Memberships = field(default_factory=Memberships)
    ledgers: Ledgers = field(default_factory=Ledgers)
    labels: Mapping[str, str] = field(default_factory=dict)
    graph_stages: Sequence[GraphStage] = ()
    queue_ends: tuple[QueueEnd, ...] = ()
    ended_children: Sequence[EndedChild] = ()
    finished_spans: tuple[FinishedSpan, ...] = ()
    library_states: tuple[LibraryState, ...] = ()
    paused_ms: float = 0.0
    problems: Sequence[Problem] = ()


class NotThisWorker(Exception):
    """The pid belongs to another process; ``cause`` is one of :data:`dstack.observed.node.Cause`.

    It is ``namespace`` where the worker has another pid here, ``identity`` where it may have ended.
    """

    def __init__(self, reason: str, *, cause: Cause) -> None:
        super().__init__(reason)
        self.cause = cause


class PortOwners:
    """The processes that listen on TCP ports of this network namespace, as of the first use."""

    @cached_property
    def _sockets(self) -> Mapping[int, Collection[str]]:
        return proc.listening_sockets()

    def owns(self, pid: int, port: int) -> bool:
        """Whether a process visibly listens on a port."""
        return proc.has_socket(pid, self._sockets.get(port, ()))

    @cached_property
    def pids(self) -> Mapping[int, int | None]:
        """The pid by port, None if hidden from this user; empty if all are hidden; any one of several processes."""
        try:
            listening = _listening(psutil.net_connections("tcp"))
        except (psutil.Error, OSError):
            return {}
        return {one.laddr.port: one.pid for one in sorted(listening, key=lambda one: one.pid or 0)}


def require_worker(pid: int, port: int, owners: PortOwners) -> None:
    """Raise :class:`NotThisWorker` unless the process listens on the worker's port, as far as that is visible.

    Port 0 means none. Forks of a worker have its port, too. Raises ``psutil.NoSuchProcess`` if the worker has ended:
    the pid does not exist, and no process of another PID namespace listens on the port.
    """
    if not port or owners.owns(pid, port):
        return
    if not psutil.pid_exists(pid):
        error = _objection(pid, port, owners.pids)
        raise error if error.cause == "namespace" else psutil.NoSuchProcess(pid)
    if not owners.pids:
        return
    ports = _ports_of(pid)
    if port in (ports or ()) or (owners.pids.get(port) is None and ports is None):
        return
    raise _objection(pid, port, owners.pids)


def _objection(pid: int, port: int, owners: Mapping[int, int | None]) -> NotThisWorker:
    """Why the pid is not the worker's, by the process that listens on the worker's port."""
    if owners and port not in owners:
        reason = f"pid {pid} does not listen on the worker's port: it is another process, or it is ending"
        return NotThisWorker(reason, cause="identity")
    owner = owners.get(port)
    if owner is None:
        reason = f"pid {pid} is not the worker here: the worker seems to run in another PID namespace"
        return NotThisWorker(reason, cause="namespace")
    pids = proc.namespace_pids(owner)
    if pids[1:] and pids[-1] == pid:
        return NotThisWorker(f"it is pid {pid} in its container and pid {owner} here", cause="namespace")
    reason = f"pid {pid} is another process here: the worker's port belongs to pid {owner}"
    return NotThisWorker(reason, cause="namespace" if pids[1:] else "identity")


def _ports_of(pid: int) -> set[int] | None:
    """The ports that a process listens on, None where they are hidden from this user."""
    process = psutil.Process(pid)
    connections = getattr(process, "net_connections", None) or process.connections  # its name until psutil 6
    try:
        return {one.laddr.port for one in _listening(connections("tcp"))}
    except (psutil.AccessDenied, OSError):
        return None


def _listening(connections: Iterable[Any]) -> list[Any]:
    return [one for one in connections if one.status == psutil.CONN_LISTEN]


class TargetProcess:
    """A worker, a driver, or with a ``parent`` a process that one of these has started."""

    def __init__(
        self,
        target: ReadTarget,
        families: Families,
        tables: KernelTables,
        parent: TargetProcess | None = None,
        parent_pid: int | None = None,
    ) -> None:
        self.target = target
        self.pid = target["pid"]
        self.worker_id = target["worker_id"]
        self.parent = parent
        self.parent_pid = parent_pid
        self.title = ""
        self.figures: proc.ProcessFigures | None = None
        self.reading = ProcessReading()
        self.children: list[TargetProcess] = []
        self.ended_children: list[EndedChild] = []
        self.children_left_out = 0
        self.problems: list[Problem] = []
        self.elapsed_s = 0.0
        self._families = families
        self._tables = tables

    @cached_property
    def below(self) -> dict[int, int]:
        """The parent, by pid, of each of its descendants."""
        return self._families.below(self.pid)

    def identify(self, owners: PortOwners, verified: dict[int, tuple[proc.Birth, int]]) -> None:
        """Find its figures, and validate that the pid is this worker's.

        ``verified`` has births and ports by pid that were validated before. Raises :class:`NotThisWorker`, or
        ``psutil.NoSuchProcess`` where the process has ended.
        """
        figures = proc.figures(self.pid)
        identity = (figures.birth, self.target["port"]) if figures else None
        if identity is None or verified.get(self.pid) != identity:
            require_worker(self.pid, self.target["port"], owners)
        if figures is None or identity is None:
            raise psutil.NoSuchProcess(self.pid)
        verified[self.pid] = identity
        self.title = proc.title(self.pid)
        self.figures = figures

    def find_children(self, limit: int) -> list[TargetProcess]:
        """Find the processes below this one; returns the first ``limit`` of them, which are to be read."""
        found = []
        for pid, parent in self.below.items():
            if (exit_code := proc.exit_code(pid)) is not None:
                name = proc.name(pid)
                is_own = name != proc.name(parent)  # a fork has the name of its parent
                ended = EndedChild(
                    pid=pid, parent_pid=parent, name=name if is_own else "", exit_code=exit_code, is_zombie=True
                )
                self.ended_children.append(ended)
            elif not is_helper(pid, parent):
                found.append(pid)
        self.children_left_out = max(0, len(found) - limit)
        known = {self.pid: self}
        for pid in found[:limit]:
            target: ReadTarget = {"worker_id": self.worker_id, "pid": pid, "port": 0, "is_driver": True}
            parent_pid = self.below[pid]
            known[pid] = TargetProcess(target, self._families, self._tables, known.get(parent_pid), parent_pid)
            self.children.append(known[pid])
        if len(found) > limit:
            reason = f"it has too many child processes: {len(found) - limit} of {len(found)} were not read"
            self.problems.append(Problem("stacks", reason, "truncated"))
        return self.children

    def request(self, options: SampleOptions, deadline: float) -> ReadRequest:
        """The request to read it until ``deadline``, a ``time.monotonic()``."""
        return ReadRequest(
            pid=self.pid,
            title=self.title,
            is_driver=self.target["is_driver"],
            is_child=self.parent_pid is not None,
            around=Surroundings(lambda: self.below, self._tables, self._threads_of_parent()),
            options=options,
            deadline=deadline,
        )

    def _threads_of_parent(self) -> dict[int, int] | None:
        """The threads of the process that it was forked from, by their Python ids; None for any other process."""
        parent = self.parent
        if parent is None or parent.figures is None or self.figures is None:
            return None
        if not is_fork(self.figures.birth, parent.figures.birth):
            return None
        threads = (one.thread for one in parent.reading.threads)
        return {thread.thread_id: thread.os_thread_id for thread in threads}

    @property
    def is_gone(self) -> bool:
        """Whether the process ended while it was read, or before."""
        return any((problem.stage, problem.cause) == ("process", "ended") for problem in self.problems)

    def has_ended(self) -> None:
        """Record that the process has gone, which is why everything else failed."""
        self.problems = [Problem("process", "the process has ended", "ended")]

    def failures(self, problems: Iterable[Problem]) -> list[Failure]:
        """These problems of the process as failures."""
        return [problem.failure(self.worker_id, self.pid, self.elapsed_s) for problem in problems]

    @contextmanager
    def problems_of(self) -> Iterator[None]:
        """Record why its reading failed, and after how long."""
        began = time.monotonic()
        try:
            yield
        except psutil.NoSuchProcess:
            self.has_ended()
        except NotThisWorker as error:
            self.problems.append(Problem("process", str(error), error.cause))
            return
        except DumpFailed as error:
            self.problems.append(Problem("stacks", error.reason, error.cause, error.remedy))
        finally:
            self.elapsed_s = round(time.monotonic() - began, 2)
        if self.problems and not psutil.pid_exists(self.pid):  # the reason of whatever failed
            self.has_ended()
