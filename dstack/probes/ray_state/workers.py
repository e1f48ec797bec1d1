"""The workers of a cluster: what they reply about tasks and refs, and which of them to ask and to read.

The probe of each node asks them (:mod:`dstack.probes.node.core_worker_calls`). This host asks only those of nodes whose
probe cannot. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from msgspec import structs

from dstack.model.snapshot import ACTOR_HANDLE, GoneWorker, Worker, is_at_hand, producer_task_id
from dstack.observed.node import Cause, CoreWorkerReply, Failure, Ref
from dstack.probes.connection import ray_stubs
from dstack.probes.connection.connect import Metadata
from dstack.probes.node import wire
from dstack.probes.node.core_worker_calls import CannotAsk, CoreWorkers, Replies
from dstack.probes.node.core_worker_replies import ENDED, STAGE
from dstack.probes.node.ray_messages import REMEDY
from dstack.probes.node.target_process import Problem
from dstack.probes.ray_state.control_plane import Inventory

LIMIT = 2_000_000
"""The most tasks and refs that one worker lists. Ray cuts to an arbitrary subset, so a cut is always reported."""


def core_workers(workers: Iterable[Worker]) -> list[wire.CoreWorker]:
    """The workers as a probe asks them."""
    return [{"worker_id": one.worker_id, "ip": one.ip, "port": one.port, "pid": one.pid} for one in workers]


def questions(
    metadata: Metadata,
    timeout_s: float,
    *,
    limit: int = LIMIT,
    details: bool = True,
    with_refs: bool = True,
    places: int = 0,
) -> wire.Questions:
    """How core workers are asked."""
    return {
        "metadata": list(metadata),
        "timeout_s": timeout_s,
        "limit": limit,
        "details": details,
        "with_refs": with_refs,
        "places": places,
    }


def ask_core_workers(
    workers: Sequence[Worker], how: wire.Questions, deadline: float, sample: int = 1
) -> tuple[dict[str, CoreWorkerReply], list[Failure]]:
    """The replies by worker id to questions from this host, and a failure for each missing or incomplete one.

    Workers that were not reached by ``deadline``, a ``time.monotonic()``, are among the failures.
    """
    asking = CoreWorkers(lambda: ray_stubs, kept=0)
    try:
        replies = asking.ask(core_workers(workers), how, deadline)
    except CannotAsk as error:
        problem = Problem(STAGE, f"it was not asked: {error}", "malformed", REMEDY)
        replies = Replies(failures=[problem.failure(worker.worker_id, worker.pid, 0.0) for worker in workers])
    asking.close()
    node_of = {worker.worker_id: worker.node_id for worker in workers}
    failures = [replace(one, node_id=node_of.get(one.worker_id or ""), sample=sample) for one in replies.failures]
    return replies.found, failures


def relevant_refs(answers: Iterable[CoreWorkerReply], awaited: set[str], unread: Collection[str] = ()) -> list[Ref]:
    """The refs that waits depend on, possible missing arguments of pending tasks, and handles of actors.

    With them are the refs of running tasks in variables, as their holders can cancel these. A worker in ``unread`` may
    wait for any absent ref that it holds; one present ref represents all refs that would have to be fetched.
    """
    answers = list(answers)
    awaited = awaited | _held_by(answers, unread)
    running = {task_id for answer in answers for task_id in answer.running_task_ids}
    return [
        ref
        for answer in answers
        for ref in answer.refs
        if ref.ref in awaited
        or ref.ref.startswith(ACTOR_HANDLE)
        or _may_be_a_missing_argument(ref)
        or (_may_be_cancelled(ref) and producer_task_id(ref.ref) in running)
    ]


def _held_by(answers: Sequence[CoreWorkerReply], unread: Collection[str]) -> set[str]:
    if not unread:
        return set()
    refs = (ref for answer in answers for ref in answer.refs)
    given = {ref.ref for ref in refs if (ref.size_bytes >= 0 or ref.state in ENDED) and not ref.attempt}
    found: set[str] = set()
    for answer in answers:
        if answer.worker_id in unread:
            held = [ref for ref in answer.refs if ref.local_uses and not ref.ref.startswith(ACTOR_HANDLE)]
            to_fetch = (ref.ref for ref in held if ref.ref in given and not is_at_hand(ref))
            found.update((*(ref.ref for ref in held if ref.ref not in given), *islice(to_fetch, 1)))
    return found


def _may_be_cancelled(ref: Ref) -> bool:
    """Whether a variable holds a return value that is not known to exist; what a task puts counts from 100,000,001."""
    return bool(ref.local_uses) and ref.size_bytes < 0 and ref.ref.endswith("0000")


def _may_be_a_missing_argument(ref: Ref) -> bool:
    """Whether a submitted task takes the ref and its value is unknown here, or is made again because it was lost.

    Borrowers know neither the value nor its state.
    """
    is_missing = ref.size_bytes < 0 or (ref.attempt > 0 and ref.state is not None)
    return bool(ref.argument_uses) and is_missing and ref.state not in ENDED


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
        return structs.replace(worker, job_id=self._job_of.get(worker_id), actor_id=self._actor_of.get(worker_id))

    def gone_among(self, worker_ids: Iterable[str]) -> tuple[GoneWorker, ...]:
        """The dead workers among these ids."""
        return tuple(self._gone[worker_id] for worker_id in sorted({*worker_ids} & self._gone.keys()))

    def concern(self, failures: Iterable[Failure], workers: Iterable[Worker]) -> tuple[Failure, ...]:
        """The failures without those of workers that have ended or are dstack's own."""
        hidden = {worker.worker_id for worker in workers if self.is_own(worker)} | self._ended
        return tuple(failure for failure in failures if failure.worker_id not in hidden)
