"""Polls a cluster: the GCS's list of workers, and the counters, running tasks and submitted tasks of each worker.

It starts nothing on the nodes, and reads and pauses no process. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

from typing import Any

from dstack.cluster_poll import ClusterPoll, WorkerPoll
from dstack.model import Worker
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.ray_stubs import common_pb2
from dstack.probes.connection.rpc import CallFailure, call_all
from dstack.probes.ray_state.control_plane import Inventory, take_roll
from dstack.probes.ray_state.core_workers import ENDED, is_from, stats_call

LIMIT = 5000
"""The most tasks that one worker lists. Ray cuts to an arbitrary subset, so above it only the counters are used."""


def poll_cluster(cluster: Cluster, timeout_s: float) -> ClusterPoll:
    """Polls all workers. Raises :class:`dstack.ClusterError` if the GCS does not list them."""
    roll = take_roll(cluster, timeout_s)
    workers = [worker for worker in roll.workers if not _is_own_driver(worker, roll)]
    calls = [stats_call(worker, timeout_s, with_refs=False, limit=LIMIT) for worker in workers]
    replies = list(zip(workers, call_all(calls, cluster.metadata), strict=True))
    answered = [(worker, reply) for worker, reply in replies if is_from(worker, reply)]
    return ClusterPoll(
        workers=tuple(_worker(*one) for one in answered if one[1].core_worker_stats.job_id.hex() not in roll.own_jobs),
        silent=tuple(worker.worker_id for worker, reply in replies if isinstance(reply, CallFailure)),
        nodes=len(roll.nodes),
    )


def _is_own_driver(worker: Worker, roll: Inventory) -> bool:
    return worker.is_driver and (worker.ip, worker.pid) in roll.own_drivers


def _worker(worker: Worker, reply: Any) -> WorkerPoll:
    entries, stats = reply.owned_task_info_entries, reply.core_worker_stats
    states = {entry.task_id.hex(): common_pb2.TaskStatus.Name(entry.scheduling_state) for entry in entries}
    pending = {task_id: state for task_id, state in states.items() if state not in ENDED}
    return WorkerPoll(
        worker_id=worker.worker_id,
        is_driver=worker.is_driver,
        running=tuple(task_id.hex() for task_id in reply.running_task_ids),
        pending=pending if len(entries) >= reply.tasks_total else None,
        counters=(
            reply.tasks_total,
            stats.num_pending_tasks,
            stats.num_executed_tasks,
            stats.num_running_tasks,
            stats.task_queue_length,
            stats.num_owned_objects,
            stats.num_owned_actors,
            stats.num_object_refs_in_scope,
            stats.num_local_objects,
        ),
    )
