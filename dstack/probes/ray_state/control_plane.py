"""The GCS's tables: nodes, workers, actors, jobs, placement groups, resources. Seen on Ray 2.46 and 2.60.

Asked by gRPC, so neither the dashboard nor a driver is needed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from msgspec.structs import replace

from dstack.errors import ClusterError
from dstack.model.snapshot import (
    RAY_CLIENT_SERVER,
    Actor,
    AutoscalerState,
    Bundle,
    GoneWorker,
    Job,
    Node,
    PlacementGroup,
    Worker,
)
from dstack.observed.node import Failure, StartingWorker
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.hosts import canonical
from dstack.probes.connection.ray_stubs import common_pb2, gcs_pb2, gcs_service_pb2
from dstack.probes.connection.rpc import KV, CallFailure, Request, Service, UnaryCall, call_all, gcs_service
from dstack.probes.node.ray_messages import REMEDY, name_of
from dstack.probes.node.recorder_dumps import PREFIXES
from dstack.probes.node.redaction import masked_command
from dstack.probes.ray_state.autoscaler import AUTOSCALER_REQUESTS, active_autoscaler, autoscaler_state

PROBE_NAMESPACE = "_dstack"
"""Ray namespace of dstack's own drivers and probes; snapshots leave out everything in it."""

CHECK_GCS = "Check the gcs_server process on the head node."
AGAIN = "Run dstack again in some seconds. If it stays so, check the raylet and gcs_server processes on the head node."

GUESSES = " Some common causes include"
"""The rest of Ray's reason for a worker's death is always the same (seen on Ray 2.46 and 2.60)."""
MAX_CAUSE = 300


@dataclass
class Inventory:
    """The cluster as its control plane lists it; jobs and actors without dstack's own, which ``own_*`` name.

    ``raylets`` are host and port by node id. ``workers`` are those on live nodes: the GCS lists the workers of a node
    that died as alive for ever (seen on Ray 2.60). ``gone_workers`` are all others
    that it lists, by id. ``oldest_job_at`` is when the first of the live jobs began, by the clock of the head.
    ``dump_prefixes`` are what runtime environments say of the files into which torch dumps flight recorders.
    """

    nodes: tuple[Node, ...] = ()
    raylets: dict[str, tuple[str, int]] = field(default_factory=dict)
    jobs: tuple[Job, ...] = ()
    own_jobs: frozenset[str] = frozenset()
    own_drivers: frozenset[tuple[str, int]] = frozenset()
    actors: tuple[Actor, ...] = ()
    workers: tuple[Worker, ...] = ()
    gone_workers: dict[str, GoneWorker] = field(default_factory=dict)
    placement_groups: tuple[PlacementGroup, ...] = ()
    total: dict[str, dict[str, float]] = field(default_factory=dict)
    available: dict[str, dict[str, float]] = field(default_factory=dict)
    autoscaler: str | None = None
    autoscaler_state: AutoscalerState | None = None
    is_of_one_driver: bool = False
    oldest_job_at: float | None = None
    dump_prefixes: frozenset[str] = frozenset()
    failures: tuple[Failure, ...] = ()

    def is_unlisted(self, worker: StartingWorker) -> bool:
        """Whether a worker of an application is in no list, nor in that of dead ones, whose process may be ending."""
        is_listed = worker.worker_id in self._listed_ids or (worker.node_id, worker.process.pid) in self._listed_pids
        return not is_listed and (worker.job_id is None or any(job.job_id == worker.job_id for job in self.jobs))

    @cached_property
    def _listed_ids(self) -> set[str]:
        return {*self.gone_workers, *(worker.worker_id for worker in self.workers)}

    @cached_property
    def _listed_pids(self) -> set[tuple[str, int]]:
        return {(worker.node_id, worker.pid) for worker in self.workers}


def take_inventory(cluster: Cluster, timeout_s: float, sample: int = 1) -> Inventory:
    """Reads all tables. Raises :class:`ClusterError` if the nodes or workers are unavailable."""
    requests = _requests()
    calls = [UnaryCall(cluster.address, *request, timeout_s) for request in requests.values()]
    answers = dict(zip(requests, call_all(calls, cluster.metadata), strict=True))
    for name in ("nodes", "workers"):
        if isinstance(answers[name], CallFailure):
            raise _no_table(name, answers[name])
    jobs = [_job(row) for row in _rows(answers["jobs"], "job_info_list")]
    own_jobs = [job for job in jobs if job.namespace == PROBE_NAMESPACE]
    own = frozenset(job.job_id for job in own_jobs)
    nodes = tuple(_node(row) for row in answers["nodes"].node_info_list)
    is_own = is_of_one_driver(answers["cluster's metadata"])
    alive = {node.node_id for node in nodes if node.alive}
    dead = {node.node_id: node for node in nodes if not node.alive}
    workers = live_workers(answers["workers"].worker_table_data, _rows(answers["jobs"], "job_info_list"))
    of_autoscaler = [answers[name] for name in AUTOSCALER_REQUESTS]
    autoscaler = None if is_own else active_autoscaler(*of_autoscaler)
    listed = (_gone_worker(row, dead) for row in answers["workers"].worker_table_data)
    gone = {worker.worker_id: worker for worker in listed if worker}
    return Inventory(
        nodes=nodes,
        raylets=_raylets(answers["nodes"].node_info_list),
        jobs=tuple(job for job in jobs if job.job_id not in own),
        own_jobs=own,
        own_drivers=frozenset((job.driver_ip, job.driver_pid) for job in own_jobs),
        actors=tuple(a for a in actors_of(_rows(answers["actors"], "actor_table_data"), gone) if a.job_id not in own),
        workers=tuple(worker for worker in workers if worker.node_id in alive),
        gone_workers=gone,
        placement_groups=tuple(
            _placement_group(row) for row in _rows(answers["placement groups"], "placement_group_table_data")
        ),
        total={
            row.node_id.hex(): dict(row.resources_total) for row in _rows(answers["total resources"], "resources_list")
        },
        available={
            row.node_id.hex(): dict(row.resources_available)
            for row in _rows(answers["available resources"], "resources_list")
        },
        autoscaler=autoscaler,
        autoscaler_state=autoscaler_state(*of_autoscaler) if autoscaler else None,
        is_of_one_driver=is_own,
        oldest_job_at=_oldest(row for row in _rows(answers["jobs"], "job_info_list") if row.job_id.hex() not in own),
        dump_prefixes=_dump_prefixes(
            *(row.serialized_runtime_env for row in _rows(answers["actors"], "actor_table_data")),
            *(row.config.runtime_env_info.serialized_runtime_env for row in _rows(answers["jobs"], "job_info_list")),
        ),
        failures=tuple(
            Failure(
                stage="control plane",
                reason=f"the GCS did not return its {name}: {reply.reason}",
                cause=reply.cause,
                sample=sample,
            )
            for name, reply in answers.items()
            if isinstance(reply, CallFailure)
        ),
    )


def _no_table(name: str, failure: CallFailure) -> ClusterError:
    remedy = REMEDY if failure.cause == "malformed" else CHECK_GCS
    return ClusterError(f"The GCS did not return its {name}: {failure.reason}.", remedy)


def _raylets(rows: Iterable[Any]) -> dict[str, tuple[str, int]]:
    return {row.node_id.hex(): (canonical(row.node_manager_address), row.node_manager_port) for row in rows}


def client_notes(jobs: Iterable[Job]) -> tuple[str, ...]:
    """Notes on the jobs that use Ray Client."""
    return tuple(
        f"Job {job.job_id} uses Ray Client: its driver here is a proxy. The program runs on an unknown host, and its"
        " own stack is not read."
        for job in jobs
        if RAY_CLIENT_SERVER in job.entrypoint and not job.is_dead
    )


_LISTS: dict[str, tuple[Service, str]] = {
    "nodes": (gcs_service("NodeInfo"), "GetAllNodeInfo"),
    "workers": (gcs_service("WorkerInfo"), "GetAllWorkerInfo"),
    "actors": (gcs_service("ActorInfo"), "GetAllActorInfo"),
    "jobs": (gcs_service("JobInfo"), "GetAllJobInfo"),
    "placement groups": (gcs_service("PlacementGroupInfo"), "GetAllPlacementGroup"),
    "total resources": (gcs_service("NodeResourceInfo"), "GetAllTotalResources"),
    "available resources": (gcs_service("NodeResourceInfo"), "GetAllAvailableResources"),
}


def take_roll(cluster: Cluster, timeout_s: float, *, with_jobs: bool = False) -> Inventory:
    """Reads only live nodes, workers and dstack's jobs, or all ``with_jobs``. Raises as :func:`take_inventory`."""
    calls = [UnaryCall(cluster.address, *request, timeout_s) for request in _roll_requests()]
    nodes, workers, jobs = call_all(calls, cluster.metadata)
    for name, reply in (("nodes", nodes), ("workers", workers), ("jobs", jobs)):
        if isinstance(reply, CallFailure):
            raise _no_table(name, reply)
    alive = tuple(node for node in map(_node, nodes.node_info_list) if node.alive)
    ids = {node.node_id for node in alive}
    own = [row for row in jobs.job_info_list if row.config.ray_namespace == PROBE_NAMESPACE]
    others = (row for row in jobs.job_info_list if row.config.ray_namespace != PROBE_NAMESPACE)
    listed = live_workers(workers.worker_table_data, jobs.job_info_list)
    return Inventory(
        nodes=alive,
        raylets=_raylets(nodes.node_info_list),
        workers=tuple(worker for worker in listed if worker.node_id in ids),
        jobs=tuple(map(_job, others)) if with_jobs else (),
        own_jobs=frozenset(row.job_id.hex() for row in own),
        own_drivers=frozenset((canonical(row.driver_ip_address), row.driver_pid) for row in own),
    )


def _roll_requests() -> list[Request]:
    """Requests that cost the GCS little: without dead workers, and without requests from the GCS to every driver."""

    def live_workers() -> Any:
        request = gcs_service_pb2.GetAllWorkerInfoRequest()
        request.filters.is_alive = True
        return request

    def jobs() -> Any:
        leave_out = {"skip_submission_job_info_field": True, "skip_is_running_tasks_field": True}
        return gcs_service_pb2.GetAllJobInfoRequest(**leave_out)

    messages: dict[str, Callable[[], Any]] = {
        "nodes": partial(_empty, "GetAllNodeInfo"),
        "workers": live_workers,
        "jobs": jobs,
    }
    return [(*_LISTS[name], message) for name, message in messages.items()]


def _requests() -> dict[str, Request]:
    """The requests to the GCS by the name of their table."""
    lists: dict[str, Request] = {
        name: (service, method, partial(_empty, method)) for name, (service, method) in _LISTS.items()
    }
    return {**lists, **AUTOSCALER_REQUESTS, "cluster's metadata": METADATA_REQUEST}


def _empty(method: str) -> Any:
    return getattr(gcs_service_pb2, f"{method}Request")()


def _rows(reply: Any, name: str) -> Iterable[Any]:
    return () if isinstance(reply, CallFailure) else getattr(reply, name)


def _id(data: bytes) -> str | None:
    """An id in hex; None for no id, which Ray writes as nothing or as all ones."""
    return None if not data or data == b"\xff" * len(data) else data.hex()


def _node_of(address: Any) -> bytes:
    """The node in a worker's address; the field was called raylet_id in Ray 2.46."""
    return bytes(address.node_id if hasattr(address, "node_id") else address.raylet_id)


def _node(row: Any) -> Node:
    return Node(
        node_id=row.node_id.hex(),
        ip=canonical(row.node_manager_address),
        hostname=row.node_manager_hostname,
        alive=row.state == gcs_pb2.GcsNodeInfo.ALIVE,
        is_head=row.is_head_node,
        resources=dict(row.resources_total),
        labels=dict(row.labels),
        started_at=_seconds(row.start_time_ms),
        ended_at=_seconds(row.end_time_ms),
        death_cause=_sentence(row.death_info.reason_message),
    )


def _job(row: Any) -> Job:
    return Job(
        job_id=row.job_id.hex(),
        entrypoint=masked_command(row.entrypoint),
        namespace=row.config.ray_namespace,
        driver_ip=canonical(row.driver_ip_address),
        driver_pid=row.driver_pid,
        is_dead=row.is_dead,
        submission_id=dict(row.config.metadata).get("job_submission_id"),
        started_at=_seconds(row.start_time),
        ended_at=_seconds(row.end_time),
    )


def _dump_prefixes(*environments: str) -> frozenset[str]:
    """Where the variables of runtime environments say that torch dumps flight recorders."""
    found: set[str] = set()
    for text in {one for one in environments if any(name in one for name in PREFIXES)}:
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            variables = json.loads(text)["env_vars"]
            found.update(variables[name] for name in PREFIXES if variables.get(name, "").startswith("/"))
    return frozenset(found)


def _oldest(jobs: Iterable[Any]) -> float | None:
    return min(filter(None, (_seconds(job.start_time) for job in jobs if not job.is_dead)), default=None)


def _worker(row: Any) -> Worker:
    return _worker_at(row.worker_address, row.pid, is_driver=row.worker_type == common_pb2.DRIVER)


def _worker_at(address: Any, pid: int, *, is_driver: bool) -> Worker:
    return Worker(
        worker_id=address.worker_id.hex(),
        node_id=_node_of(address).hex(),
        ip=canonical(address.ip_address),
        port=address.port,
        pid=pid,
        is_driver=is_driver,
    )


def live_workers(rows: Iterable[Any], jobs: Iterable[Any]) -> Iterator[Worker]:
    """The workers that are alive, by their rows and those of the jobs.

    A driver with an uncaught exception replaces its row by one with the exception, without an address and a pid, before
    it exits (``custom_excepthook`` of Ray 2.46 and 2.60). The row of its job still has both.
    """
    drivers = {row.driver_address.worker_id: row for row in jobs}
    for row in rows:
        job = None if row.pid else drivers.get(row.worker_address.worker_id)
        if row.is_alive:
            yield _worker_at(job.driver_address, job.driver_pid, is_driver=True) if job else _worker(row)


def _gone_worker(row: Any, dead_nodes: Mapping[str, Node]) -> GoneWorker | None:
    """The worker, if it or its node is dead; a driver is dead when its job has ended."""
    worker = _worker(row)
    node = dead_nodes.get(worker.node_id)
    if row.is_alive and node is None:
        return None
    cause, ended_at = _sentence(row.exit_detail), _seconds(row.end_time_ms)
    if row.is_alive and node is not None:
        cause, ended_at = f"its node died: {node.death_cause or 'no cause given'}", node.ended_at
    return GoneWorker(
        worker_id=worker.worker_id,
        node_id=worker.node_id,
        pid=worker.pid,
        is_driver=worker.is_driver,
        ended_at=ended_at,
        cause=cause,
    )


def _actor(row: Any) -> Actor:
    return Actor(
        actor_id=row.actor_id.hex(),
        job_id=row.job_id.hex(),
        class_name=row.class_name,
        state=name_of(gcs_pb2.ActorTableData.ActorState, row.state),
        name=row.name,
        namespace=row.ray_namespace,
        node_id=_id(_node_of(row.address)),
        worker_id=_id(row.address.worker_id),
        owner_id=_id(row.owner_address.worker_id),
        pid=row.pid,
        is_detached=row.is_detached,
        required_resources=dict(row.required_resources),
        held={held.name: sum(part.quantity for part in held.resource_ids) for held in row.resource_mapping},
        label_selector=dict(getattr(row, "label_selector", {})),
        fallback_labels=label_options(row)[1:],
        placement_group_id=_id(row.placement_group_id),
        num_restarts=row.num_restarts,
        max_restarts=row.max_restarts,
        death_cause=_death_cause(row.death_cause),
        death_reason=_death_reason(row.death_cause),
        ended_at=_seconds(row.end_time),
    )


def label_options(row: Any) -> tuple[dict[str, str], ...]:
    """The label selector of an actor or task, then those of its fallback strategy; Ray 2.46 has neither."""
    options = row.fallback_strategy.options if hasattr(row, "fallback_strategy") else ()
    others = ({c.label_key: _condition(c) for c in option.label_selector.label_constraints} for option in options)
    found = (dict(getattr(row, "label_selector", {})), *others)
    return found if any(found) else ()


def _condition(constraint: Any) -> str:
    """``eu``, ``in(eu,us)`` or ``!in(eu,us)``, as Ray writes one in a selector."""
    values = ",".join(constraint.label_values)
    inside = values if len(constraint.label_values) == 1 else f"in({values})"
    return f"!{inside}" if constraint.operator == common_pb2.LABEL_OPERATOR_NOT_IN else inside


def actors_of(rows: Iterable[Any], gone: Mapping[str, GoneWorker]) -> Iterator[Actor]:
    """All actors; restarted ones have the reason for the end of their earlier processes."""
    for row in rows:
        before = [one.worker_id.hex() for one in getattr(row, "previous_incarnations", ())]
        last = gone.get(before[-1]) if before else None
        yield replace(_actor(row), last_error=last.cause) if last else _actor(row)


def _death_cause(cause: Any) -> str | None:
    kind = cause.WhichOneof("context")
    if kind is None:
        return None
    context = getattr(cause, kind)
    text = getattr(context, "error_message", "") or getattr(context, "formatted_exception_string", "")
    return _sentence(text) or kind.replace("_", " ")


def _death_reason(cause: Any) -> str | None:
    kind: str | None = cause.WhichOneof("context")
    if kind is None or kind != "actor_died_error_context":
        return kind
    return name_of(common_pb2.ActorDiedErrorContext.Reason, cause.actor_died_error_context.reason) or None


def _sentence(text: str) -> str | None:
    """The first line, without the list of possible causes and without a full stop."""
    line = (text.strip().splitlines() or [""])[0].partition(GUESSES)[0]
    return line.strip()[:MAX_CAUSE].rstrip(".") or None


def _seconds(milliseconds: int) -> float | None:
    """Unix seconds; None for no time, which Ray writes as 0."""
    return milliseconds / 1000 if milliseconds > 0 else None


def _placement_group(row: Any) -> PlacementGroup:
    states = gcs_pb2.PlacementGroupTableData.PlacementGroupState
    return PlacementGroup(
        placement_group_id=row.placement_group_id.hex(),
        name=row.name,
        namespace=row.ray_namespace,
        state=name_of(states, row.state),
        strategy=name_of(common_pb2.PlacementStrategy, row.strategy),
        bundles=tuple(map(_bundle, row.bundles)),
        job_id=_id(row.creator_job_id),
        creator_actor_id=_id(row.creator_actor_id),
        is_detached=row.is_detached,
        scheduling_state=name_of(gcs_pb2.PlacementGroupStats.SchedulingState, row.stats.scheduling_state),
        requested_at=max(0.0, row.stats.creation_request_received_ns / 1e9) or None,
    )


def _bundle(row: Any) -> Bundle:
    labels = dict(getattr(row, "label_selector", {}))
    return Bundle(resources=dict(row.unit_resources), node_id=_id(row.node_id), label_selector=labels)


METADATA_REQUEST: Request = (
    KV,
    "InternalKVGet",
    lambda: gcs_service_pb2.InternalKVGetRequest(namespace=b"cluster", key=b"CLUSTER_METADATA"),
)
"""What Ray keeps for its usage reports, also if these are off. The head writes it before a driver can connect."""


def is_of_one_driver(metadata: Any) -> bool:
    """Whether ``ray.init()`` made the cluster, by the reply to that request; False if that is unknown.

    It is not so for the clusters of ``ray start`` and of ``cluster_utils.Cluster``. Seen on Ray 2.46 and 2.60.
    """
    if isinstance(metadata, CallFailure):
        return False
    try:
        return json.loads(metadata.value)["ray_init_cluster"] is True
    except (ValueError, KeyError, TypeError):
        return False
