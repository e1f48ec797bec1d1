"""Which workers, jobs and nodes of a cluster to read: not dstack's own, those that ended, or those that timed out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from dstack.model.snapshot import GoneWorker, Worker
from dstack.observed.node import Cause, CoreWorkerReply, Failure
from dstack.probes.ray_state.control_plane import Inventory

OF_LIVE_PROCESSES: frozenset[Cause] = frozenset({"permission", "missing", "truncated", "unreadable"})
"""Causes of failures with a process that exists."""


class Liveness:
    """The state of workers, jobs and nodes in one snapshot, by the GCS and by their replies.

    ``given_up`` are the ids of nodes whose probe failed: its failure is known, and may have taken long. To the
    ``unreachable`` ones among them no connection could be made. ``elsewhere`` are those whose processes are not this
    host's, though the address is, as in a container. ``requested_jobs`` began after an inventory,
    and were requested from the GCS.
    """

    def __init__(self) -> None:
        self.given_up: set[str] = set()
        self.unreachable: set[str] = set()
        self.elsewhere: set[str] = set()
        self.requested_jobs: set[str] = set()
        self._listed_jobs: set[str] = set()
        self._own_jobs: set[str] = set()
        self._own_drivers: set[tuple[str, int]] = set()
        self._job_of: dict[str, str | None] = {}
        self._actor_of: dict[str, str | None] = {}
        self._silent: set[str | None] = set()
        self._ended: set[str | None] = set()
        self._gone: dict[str, GoneWorker] = {}

    # What is noted

    def note_listed(self, inventory: Inventory) -> None:
        """Notes the jobs, those jobs and drivers that are dstack's own, and dead workers, by an inventory or a roll."""
        self._listed_jobs.update(job.job_id for job in inventory.jobs)
        self._own_jobs |= inventory.own_jobs
        self._own_drivers |= inventory.own_drivers
        self._gone.update(inventory.gone_workers)

    def note_answers(self, answers: Mapping[str, CoreWorkerReply]) -> None:
        """Notes which job and actor each worker runs for."""
        for worker_id, answer in answers.items():
            self._job_of[worker_id], self._actor_of[worker_id] = answer.job_id, answer.actor_id

    def note_silent(self, failures: Iterable[Failure]) -> None:
        """Notes the workers whose RPC timed out; the second sample does not ask them again."""
        found = (one for one in failures if one.stage == "core worker" and one.cause == "timeout")
        self._silent |= {failure.worker_id for failure in found}

    def note_ended(self, failures: Iterable[Failure]) -> None:
        """Notes the workers whose process has ended: they are absent, not unread."""
        self._ended |= {one.worker_id for one in failures if one.stage == "process" and one.cause == "ended"}

    def note_alive(self, failures: Iterable[Failure], roll: Inventory) -> None:
        """Notes as ended the workers with a failure that the GCS does not list any more."""
        self._ended |= {failure.worker_id for failure in failures} - {worker.worker_id for worker in roll.workers}

    # What follows

    def unlisted_jobs(self, answers: Mapping[str, CoreWorkerReply]) -> set[str]:
        """The jobs of these workers that began after the inventory was taken, except those that were requested."""
        jobs = {answer.job_id for answer in answers.values() if answer.job_id}
        return jobs - self._listed_jobs - self._own_jobs - self.requested_jobs

    def may_have_ended(self, failures: Iterable[Failure]) -> bool:
        """Whether one of the failures may be that a worker has ended, which only the GCS can tell."""
        found = (one for one in failures if one.worker_id and one.worker_id not in self._ended)
        return any(one.cause not in OF_LIVE_PROCESSES for one in found)

    def is_own(self, worker: Worker) -> bool:
        """Whether the worker is known to be dstack's own."""
        is_own_driver = worker.is_driver and (worker.ip, worker.pid) in self._own_drivers
        return is_own_driver or self.is_own_job(self._job_of.get(worker.worker_id))

    def is_own_job(self, job_id: str | None) -> bool:
        """Whether a job is known to be one of dstack's own."""
        return job_id in self._own_jobs

    def to_ask(self, workers: Iterable[Worker]) -> list[Worker]:
        """The workers to ask for tasks and refs."""
        return [worker for worker in workers if worker.worker_id not in self._silent]

    def present(self, workers: Iterable[Worker]) -> list[Worker]:
        """The live workers of the application."""
        return [worker for worker in workers if not self.is_own(worker) and worker.worker_id not in self._ended]

    def with_ids(self, worker: Worker) -> Worker:
        """The worker with the job and the actor for which it runs."""
        worker_id = worker.worker_id
        return replace(worker, job_id=self._job_of.get(worker_id), actor_id=self._actor_of.get(worker_id))

    def gone_among(self, worker_ids: Iterable[str]) -> tuple[GoneWorker, ...]:
        """The dead workers among these ids."""
        return tuple(self._gone[worker_id] for worker_id in sorted({*worker_ids} & self._gone.keys()))

    def concern(self, failures: Iterable[Failure], workers: Iterable[Worker]) -> tuple[Failure, ...]:
        """The failures without those of workers that have ended or are dstack's own."""
        hidden = {worker.worker_id for worker in workers if self.is_own(worker)} | self._ended
        return tuple(failure for failure in failures if failure.worker_id not in hidden)
