"""The processes of one sample, indexed: threads, coroutines and child processes by worker and id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from dstack.analysis.index.ranks import Ranks, ranks_of
from dstack.model import Sample, WorkerSample
from dstack.observed import Access, Coroutine, Process, Role, Thread


class ProcessIndex:
    """Lookups in the processes of workers and drivers; a process that was not read has no threads."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self._ranks: dict[tuple[str, int | None], Ranks] = {}

    @cached_property
    def worker_samples(self) -> dict[str, WorkerSample]:
        """The sample of each worker, by its id."""
        return {worker.worker_id: worker for worker in self.sample.workers}

    def process(self, worker_id: str) -> Process | None:
        """A worker's process, if it was found."""
        worker = self.worker_samples.get(worker_id)
        return worker.process if worker else None

    def access(self, worker_id: str) -> Access:
        """How much of a worker could be read."""
        process = self.process(worker_id)
        return process.access if process and process.threads else "state only"

    def ranks(self, worker_id: str, child_pid: int | None = None) -> Ranks:
        """The ranks and labels of a worker's process, or of its child process; none if it was not read."""
        key = (worker_id, child_pid)
        if key not in self._ranks:
            process = self.process(worker_id) if child_pid is None else self.child(worker_id, child_pid)
            self._ranks[key] = ranks_of(process)
        return self._ranks[key]

    def has_read_coroutines(self, worker_id: str) -> bool:
        """Whether a worker's event loops were read, so that all of its suspended coroutines are known."""
        process = self.process(worker_id)
        return process is not None and process.coroutines_read

    def has_read_tasks(self, worker_id: str) -> bool:
        """Whether the task of each of a worker's threads was read."""
        process = self.process(worker_id)
        return process is not None and process.tasks_read

    # Threads

    def threads(self, worker_id: str) -> tuple[Thread, ...]:
        """A worker's threads."""
        process = self.process(worker_id)
        return process.threads if process else ()

    def threads_with_role(self, worker_id: str, role: Role) -> list[Thread]:
        """A worker's threads that have this role."""
        return self._threads_by_role.get((worker_id, role), [])

    def thread(self, worker_id: str | None, os_thread_id: int | None) -> Thread | None:
        """One thread of a worker, if it was read."""
        return self._thread_by_id.get((worker_id or "", os_thread_id or 0))

    @cached_property
    def _threads_by_role(self) -> dict[tuple[str, Role], list[Thread]]:
        by_role: dict[tuple[str, Role], list[Thread]] = defaultdict(list)
        for worker in self.sample.workers:
            for thread in self.threads(worker.worker_id):
                by_role[worker.worker_id, thread.role].append(thread)
        return by_role

    @cached_property
    def _thread_by_id(self) -> dict[tuple[str, int], Thread]:
        return {
            (worker.worker_id, thread.os_thread_id): thread
            for worker in reversed(self.sample.workers)
            for thread in reversed(self.threads(worker.worker_id))
        }

    # Coroutines

    def coroutines(self, worker_id: str) -> tuple[Coroutine, ...]:
        """A worker's suspended coroutines."""
        process = self.process(worker_id)
        return process.coroutines if process else ()

    def coroutine(self, worker_id: str | None, coroutine_id: str | None) -> Coroutine | None:
        """One coroutine of a worker, if it was read."""
        return self._coroutine_by_id.get((worker_id or "", coroutine_id or ""))

    @cached_property
    def _coroutine_by_id(self) -> dict[tuple[str, str], Coroutine]:
        return {(worker_id, coroutine.coroutine_id): coroutine for worker_id, coroutine in self.all_coroutines}

    @cached_property
    def all_coroutines(self) -> list[tuple[str, Coroutine]]:
        """All suspended coroutines, each with the id of its worker."""
        return [
            (one.worker_id, coroutine) for one in self.sample.workers for coroutine in self.coroutines(one.worker_id)
        ]

    # Child processes

    def child(self, worker_id: str | None, pid: int) -> Process | None:
        """A child process of a worker, if it was read."""
        process = self.process(worker_id or "")
        return next((child for child in process.children if child.pid == pid), None) if process else None

    def child_thread(self, worker_id: str | None, pid: int, os_thread_id: int) -> Thread | None:
        """One thread of a child process, if it was read."""
        child = self.child(worker_id, pid)
        threads = child.threads if child else ()
        return next((thread for thread in threads if thread.os_thread_id == os_thread_id), None)

    def children(self) -> Iterator[tuple[str, Process]]:
        """All child processes, each with the id of its worker."""
        processes = ((worker.worker_id, worker.process) for worker in self.sample.workers)
        return ((key, child) for key, process in processes if process for child in process.children)
