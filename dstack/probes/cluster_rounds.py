"""Samples of one cluster in quick succession, for a profile.

The control plane is read once a second; in between it counts as unchanged. A node's probe reads only the threads that
have run, and answers with the processes that changed. Core workers are asked again when their process changed, or when
the state of a task of theirs may have.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace

import psutil

from dstack.errors import ClusterError
from dstack.model.snapshot import Job, Snapshot
from dstack.observed.node import CoreWorkerReply
from dstack.observed.processes import Process
from dstack.observed.reading_options import ReadingOptions
from dstack.probes.cluster import Answers, ClusterProbe, Progress
from dstack.probes.connection.background import begin
from dstack.probes.connection.connect import connect
from dstack.probes.connection.own_cluster import addresses_below
from dstack.probes.node_access.node_readers import RPC_TIMEOUT_S, Budget, Extras, ProbeSession
from dstack.probes.node_access.targets import own_addresses
from dstack.probes.observations import Assembly, MergedAnswers, Observations
from dstack.probes.ray_state.control_plane import Inventory, take_inventory

LISTED_EVERY_S = 1.0
"""How often the control plane is read."""
FORGOTTEN_EVERY_S = 10.0
"""How often the probes forget processes that have ended, and read sources anew."""
MAX_STACKS = 20_000
"""With more different stacks, all processes are read anew, so that the tables do not grow for ever."""


PROGRAM_TURN_S = 0.1
"""How often a program is asked for its cluster until it has one."""


def cluster_of_program(pid: int, address: str | None) -> str:
    """The address of the cluster that a process of this host starts, or that it joins at ``address``.

    Blocks until there is one. Raises :class:`ClusterError` if the process ends before.
    """
    while True:
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                raise psutil.NoSuchProcess(pid)
            started = addresses_below(process)
        except psutil.NoSuchProcess:
            raise ClusterError("The program ended before it used a cluster.", "Check that it calls ray.init.") from None
        with contextlib.suppress(ClusterError):
            if started:
                return connect(min(started)).address
            if address or os.environ.get("RAY_ADDRESS"):
                cluster = connect(address)
                if job_of_process(take_inventory(cluster, RPC_TIMEOUT_S).jobs, pid):
                    return cluster.address
        time.sleep(PROGRAM_TURN_S)


def job_of_process(jobs: Iterable[Job], pid: int) -> str | None:
    """The id of the job whose driver is a process of this host, or one below it; None if there is none."""
    with contextlib.suppress(psutil.NoSuchProcess):
        pids = {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
        own = own_addresses()
        return next((job.job_id for job in jobs if job.driver_pid in pids and job.driver_ip in own), None)
    return None


class ClusterRounds(ClusterProbe):
    """Takes one sample after another, with the probes of a session.

    ``changed`` are the replies of the last round that show other tasks or refs than before, ``spread_ms`` the time
    between the first and the last reading of any node in it. Raises :class:`dstack.errors.ClusterError` on construction
    when the cluster cannot be reached.
    """

    def __init__(self, session: ProbeSession, address: str | None, progress: Progress) -> None:
        progress("connecting")
        super().__init__(
            session, address, ReadingOptions(), lambda _: None, objects=0
        )  # its steps would hide those of the caller
        self._listed_at = 0.0
        self._listing: Future[Inventory] | None = None
        self._nodes: set[str] = set()
        self._forgotten_at = 0.0
        self._arrived: dict[str, int] = {}
        self._arrived_at = 0.0
        self._assembly = Assembly()
        self._kept: dict[str, Process] = {}
        self._replied: dict[str, CoreWorkerReply] = {}
        self.changed: tuple[CoreWorkerReply, ...] = ()
        self._has_changed = True
        self._last: Snapshot | None = None
        self.spread_ms = 0.0

    def cluster_without_samples(self) -> Snapshot:
        """A snapshot of the control plane alone. Raises :class:`ClusterError` if it cannot be read."""
        self._list(Budget.of(1, RPC_TIMEOUT_S))
        return self.snapshot()

    def take(self, deadline_s: float) -> Snapshot:
        """A snapshot with one sample, the same object as the last one if nothing has changed.

        Raises :class:`ClusterError` if the control plane cannot be read at first, or is that of another cluster.
        """
        budget = self._budget(deadline_s)
        if len(self._assembly.stacks) > MAX_STACKS:
            self._assembly, self._kept = Assembly(), {}
        self._observed = Observations(assembly=self._assembly)
        owners = list(self._unsettled(after_change=self._has_changed))
        self._has_changed = self._list(budget)
        extras = Extras(children=True, starting=True, kept=list(self._kept), owners=owners)
        self._sample(self._inventory, {worker.worker_id for worker in self._inventory.workers}, budget, extras)
        if self._has_changed or self._last is None or self._observed.failures:
            self._last = self.snapshot()
        return self._last

    def _unsettled(self, *, after_change: bool) -> Iterator[str]:
        """The owners of unfinished tasks that may have got into another state although no process seems changed.

        A task that runs does so until its process changes.
        """
        running = {task_id for reply in self._replied.values() for task_id in reply.running_task_ids}
        for worker_id, reply in self._replied.items():
            if (after_change and reply.tasks) or any(task.task_id not in running for task in reply.tasks):
                yield worker_id

    def _budget(self, deadline_s: float) -> Budget:
        """That of a first sample from time to time, so that the probes forget what has ended."""
        is_first = time.monotonic() - self._forgotten_at > FORGOTTEN_EVERY_S
        if is_first:
            self._forgotten_at = time.monotonic()
        return Budget.of(1 if is_first else 2, deadline_s)

    def _list(self, budget: Budget) -> bool:
        """Note the current inventory, or keep the last one if there is no newer one yet; whether it is another.

        Raises :class:`ClusterError` if it is that of another cluster.
        """
        before = self._inventory
        if not self._listed_at:
            self._inventory, self._listed_at = take_inventory(self.cluster, budget.rpc_timeout_s()), time.monotonic()
        if self._listing is None and time.monotonic() - self._listed_at > LISTED_EVERY_S:
            self._listing = begin(lambda: take_inventory(self.cluster, budget.rpc_timeout_s()))
        if self._listing is not None and self._listing.done():
            listing, self._listing, self._listed_at = self._listing, None, time.monotonic()
            try:
                self._inventory = listing.result()
            except ClusterError as error:
                self._observed.notes[f"The control plane could not be read for a time: {error.message}"] = None
        if nodes := {node.node_id for node in self._inventory.nodes}:  # a GCS that has just begun has none yet
            if self._nodes and not nodes & self._nodes:
                raise ClusterError("Another cluster has begun at the address of this one.", "Profile it again.")
            self._nodes = nodes
        return self._inventory != before

    def _take_over(self, found: MergedAnswers) -> None:
        """Add the processes and replies that are as they were, and keep all for the next round."""
        self.spread_ms = found.spread_ms
        silent = {failure.worker_id for failure in found.failures_of(self._replied.keys())}
        changed = {worker_id for worker_id, reply in found.replies.items() if self._is_new(reply)}
        self._has_changed |= bool(found.processes or changed or found.starting)
        self._has_changed |= found.processes.keys() | found.unchanged != self._kept.keys()
        for worker_id in found.unchanged:
            found.processes[worker_id] = self._kept[worker_id]
        for worker_id in found.unchanged - found.replies.keys() - silent:
            if worker_id in self._replied:
                found.replies[worker_id] = self._replied[worker_id]
        for worker_id, process in found.processes.items():
            if reply := found.replies.get(worker_id):
                found.replies[worker_id] = with_tasks_in_memory(reply, process)
        self._kept, self._replied = {**found.processes}, {**found.replies}
        self.changed = tuple(self._replied[worker_id] for worker_id in changed)

    def _arrived_calls(self, answers: Answers, budget: Budget) -> dict[str, int]:
        """Those of the last second: workers report them once a second, and the GCS searches all of its events."""
        if time.monotonic() - self._arrived_at > LISTED_EVERY_S:
            self._arrived, self._arrived_at = super()._arrived_calls(answers, budget), time.monotonic()
        return self._arrived

    def _is_new(self, reply: CoreWorkerReply) -> bool:
        """Whether a reply shows other tasks or refs than the last one of its worker."""
        last = self._replied.get(reply.worker_id)
        return last is None or (last.running_task_ids, last.tasks, last.refs) != (
            reply.running_task_ids,
            reply.tasks,
            reply.refs,
        )


def with_tasks_in_memory(reply: CoreWorkerReply, process: Process) -> CoreWorkerReply:
    """The reply with the tasks that the threads of its process run, which may have begun after it was made."""
    if not process.tasks_read:
        return reply
    read = (one.task_id for one in process.threads if one.task_id and one.role == "task")
    new = tuple(task_id for task_id in dict.fromkeys(read) if task_id not in reply.running_task_ids)
    return replace(reply, running_task_ids=(*reply.running_task_ids, *new)) if new else reply
