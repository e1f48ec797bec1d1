"""Polls a cluster: the GCS's list of workers, and the counters, running tasks and submitted tasks of each worker.

It reads and pauses no process. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

from dstack.cluster_poll import ClusterPoll, WorkerPoll
from dstack.model import Worker
from dstack.probes.connection.connect import Cluster
from dstack.probes.node import wire
from dstack.probes.ray_state.control_plane import take_roll
from dstack.probes.ray_state.core_workers import ask_directly, questions

LIMIT = 5000
"""The most tasks that one worker lists. Ray cuts to an arbitrary subset, so above it only the counters are used."""
NOT_SILENT = ("ended", "truncated")
"""Causes of failures of workers that have ended, or that replied."""


def poll_cluster(cluster: Cluster, timeout_s: float) -> ClusterPoll:
    """Polls all workers. Raises :class:`dstack.ClusterError` if the GCS does not list them."""
    roll = take_roll(cluster, timeout_s)
    workers = [one for one in roll.workers if not (one.is_driver and (one.ip, one.pid) in roll.own_drivers)]
    asked = questions(cluster.metadata, timeout_s, with_refs=False, details=False, limit=LIMIT)
    found, failures = ask_directly(workers, asked)
    silent = {one["worker_id"] for one in failures if "worker_id" in one and one["cause"] not in NOT_SILENT}
    answered = [one for one in workers if one.worker_id in found]
    return ClusterPoll(
        workers=tuple(
            _worker(worker, found[worker.worker_id])
            for worker in answered
            if found[worker.worker_id]["job_id"] not in roll.own_jobs
        ),
        silent=tuple(worker.worker_id for worker in workers if worker.worker_id in silent),
        nodes=len(roll.nodes),
    )


def _worker(worker: Worker, data: wire.CoreWorkerData) -> WorkerPoll:
    pending = {task["task_id"]: task["state"] for task in data["tasks"]}
    return WorkerPoll(
        worker_id=worker.worker_id,
        is_driver=worker.is_driver,
        running=tuple(data["running_task_ids"]),
        pending=None if data["is_cut"] else pending,
        counters=tuple(data["counters"]),
    )
