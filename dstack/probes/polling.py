"""Polls a cluster: the GCS's list of workers, and the counters, running tasks and submitted tasks of each worker.

The probes of a session ask the workers of their nodes; they read and pause no process. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

from collections.abc import Sequence

from dstack.model.snapshot import ClusterPoll, Worker, WorkerPoll
from dstack.observed.node import CoreWorkerReply, NodeAnswer
from dstack.probes.connection.connect import Cluster
from dstack.probes.node.wire import ReadingOptions
from dstack.probes.node_access.node_readers import Extras, NodeReaders, Wanted
from dstack.probes.node_access.session import Budget, ProbeSession
from dstack.probes.ray_state.control_plane import Inventory, take_roll
from dstack.probes.ray_state.core_workers import ask_core_workers, questions
from dstack.probes.ray_state.liveness import Liveness

LIMIT = 5000
"""The most tasks that one worker lists. Ray cuts to an arbitrary subset, so above it only the counters are used."""


def poll_cluster(
    session: ProbeSession, address: str | None, timeout_s: float, *, with_jobs: bool = False
) -> ClusterPoll:
    """Polls all workers, and lists jobs ``with_jobs``. Raises :class:`dstack.ClusterError` if the GCS lists none."""
    cluster, had_probes = session.connect(address), session.has_probes
    budget = Budget.of(1, timeout_s)
    roll = take_roll(cluster, budget.rpc_timeout_s(), with_jobs=with_jobs)
    workers = [one for one in roll.workers if not (one.is_driver and (one.ip, one.pid) in roll.own_drivers)]
    jobs = roll.jobs
    replies, ended = _replies(session, cluster, roll, workers, budget)
    if session.has_probes and not had_probes:
        roll = take_roll(cluster, budget.rpc_timeout_s())  # the job of the new probes is dstack's own
    return ClusterPoll(
        workers=tuple(
            _worker(one, replies[one.worker_id])
            for one in workers
            if one.worker_id in replies and replies[one.worker_id].job_id not in roll.own_jobs
        ),
        silent=tuple(one.worker_id for one in workers if one.worker_id not in replies.keys() | ended),
        jobs=jobs,
        nodes=len(roll.nodes),
    )


def _replies(
    session: ProbeSession, cluster: Cluster, roll: Inventory, workers: Sequence[Worker], budget: Budget
) -> tuple[dict[str, CoreWorkerReply], set[str]]:
    """The replies by worker id, and the workers that have ended; those that no probe can ask are asked from here."""
    liveness = Liveness()
    how = questions(cluster.metadata, budget.rpc_timeout_s(), limit=LIMIT, details=False, with_refs=False)
    readers = NodeReaders(session, ReadingOptions(), liveness, lambda _: None)
    answers: list[NodeAnswer] = []
    readers.read(Wanted(workers), how, roll, budget, Extras(), lambda reading: answers.append(reading.answer))
    replies = {worker_id: reply for answer in answers for worker_id, reply in answer.core_workers.items()}
    causes = {one.worker_id: one.cause for answer in answers for one in answer.failures if one.worker_id}
    unasked = [one for one in workers if one.worker_id not in replies.keys() | causes.keys()]
    if others := [one for one in unasked if one.node_id not in liveness.unreachable]:
        how["timeout_s"] = budget.rpc_timeout_s()
        found, failures = ask_core_workers(others, how, budget.deadline)
        replies |= found
        causes |= {one.worker_id or "": one.cause for one in failures}
    return replies, {worker_id for worker_id, cause in causes.items() if cause == "ended"}


def _worker(worker: Worker, reply: CoreWorkerReply) -> WorkerPoll:
    return WorkerPoll(
        worker_id=worker.worker_id,
        is_driver=worker.is_driver,
        running=reply.running_task_ids,
        pending=None if reply.is_cut else reply.task_states,
        counters=reply.counters,
    )
