"""What the GCS knows: nodes, workers, actors, jobs, placement groups, resources. Seen on Ray 2.46 and 2.60.

Asked by gRPC, so neither the dashboard nor a driver is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ray.core.generated import common_pb2, gcs_pb2, gcs_service_pb2, gcs_service_pb2_grpc

from dstack.errors import ClusterError
from dstack.model import Actor, Bundle, Failure, Job, Node, PlacementGroup, Worker
from dstack.probes.connect import Cluster
from dstack.probes.rpc import Call, Refused, call_all

PROBE_NAMESPACE = "_dstack"
"""Ray namespace of dstack's own drivers and probes; whatever is in it is left out of every picture."""


@dataclass
class Inventory:
    """The cluster as its control plane lists it; jobs and actors without dstack's own, which ``own_*`` name.

    ``raylets`` are host and port by node id. ``workers`` are those on live nodes: the GCS lists the workers of a node
    that died as alive for ever, though everybody has given them up (seen on Ray 2.60).
    """

    nodes: tuple[Node, ...] = ()
    raylets: dict[str, tuple[str, int]] = field(default_factory=dict)
    jobs: tuple[Job, ...] = ()
    own_jobs: frozenset[str] = frozenset()
    own_drivers: frozenset[tuple[str, int]] = frozenset()
    actors: tuple[Actor, ...] = ()
    workers: tuple[Worker, ...] = ()
    placement_groups: tuple[PlacementGroup, ...] = ()
    available: dict[str, dict[str, float]] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()


def take_inventory(cluster: Cluster, timeout_s: float, sample: int = 1) -> Inventory:
    """All that the GCS tells. Raises :class:`ClusterError` when it does not tell the nodes and workers."""
    answers = dict(zip(_REQUESTS, call_all(_calls(cluster, timeout_s), cluster.metadata), strict=True))
    for name in ("nodes", "workers"):
        if isinstance(answers[name], Refused):
            remedy = "Check the gcs_server process on the head node."
            raise ClusterError(f"The GCS does not list its {name}: {answers[name].reason}.", remedy)
    jobs = [_job(row) for row in _rows(answers["jobs"], "job_info_list")]
    own_jobs = [job for job in jobs if job.namespace == PROBE_NAMESPACE]
    own = frozenset(job.job_id for job in own_jobs)
    nodes = tuple(_node(row) for row in answers["nodes"].node_info_list)
    alive = {node.node_id for node in nodes if node.alive}
    workers = (_worker(row) for row in answers["workers"].worker_table_data if row.is_alive)
    return Inventory(
        nodes=nodes,
        raylets={
            row.node_id.hex(): (row.node_manager_address, row.node_manager_port)
            for row in answers["nodes"].node_info_list
        },
        jobs=tuple(job for job in jobs if job.job_id not in own),
        own_jobs=own,
        own_drivers=frozenset((job.driver_ip, job.driver_pid) for job in own_jobs),
        actors=tuple(a for a in map(_actor, _rows(answers["actors"], "actor_table_data")) if a.job_id not in own),
        workers=tuple(worker for worker in workers if worker.node_id in alive),
        placement_groups=tuple(
            _placement_group(row) for row in _rows(answers["placement groups"], "placement_group_table_data")
        ),
        available={
            row.node_id.hex(): dict(row.resources_available)
            for row in _rows(answers["available resources"], "resources_list")
        },
        failures=tuple(
            Failure(stage="control plane", reason=f"the GCS does not list its {name}: {reply.reason}", sample=sample)
            for name, reply in answers.items()
            if isinstance(reply, Refused)
        ),
    )


_REQUESTS = {
    "nodes": ("NodeInfo", "GetAllNodeInfo"),
    "workers": ("WorkerInfo", "GetAllWorkerInfo"),
    "actors": ("ActorInfo", "GetAllActorInfo"),
    "jobs": ("JobInfo", "GetAllJobInfo"),
    "placement groups": ("PlacementGroupInfo", "GetAllPlacementGroup"),
    "available resources": ("NodeResourceInfo", "GetAllAvailableResources"),
}


def _calls(cluster: Cluster, timeout_s: float) -> list[Call]:
    return [
        Call(
            cluster.address,
            getattr(gcs_service_pb2_grpc, f"{service}GcsServiceStub"),
            method,
            getattr(gcs_service_pb2, f"{method}Request")(),
            timeout_s,
        )
        for service, method in _REQUESTS.values()
    ]


def _rows(reply: Any, name: str) -> Iterable[Any]:
    return () if isinstance(reply, Refused) else getattr(reply, name)


def _id(data: bytes) -> str | None:
    """An id in hex; None where Ray has none, which it writes as nothing or as all ones."""
    return None if not data or data == b"\xff" * len(data) else data.hex()


def _node_of(address: Any) -> bytes:
    """The node in a worker's address; the field was called raylet_id in Ray 2.46."""
    return bytes(address.node_id if hasattr(address, "node_id") else address.raylet_id)


def _node(row: Any) -> Node:
    return Node(
        node_id=row.node_id.hex(),
        ip=row.node_manager_address,
        hostname=row.node_manager_hostname,
        alive=row.state == gcs_pb2.GcsNodeInfo.ALIVE,
        is_head=row.is_head_node,
        resources=dict(row.resources_total),
        labels=dict(row.labels),
    )


def _job(row: Any) -> Job:
    return Job(
        job_id=row.job_id.hex(),
        entrypoint=row.entrypoint,
        namespace=row.config.ray_namespace,
        driver_ip=row.driver_ip_address,
        driver_pid=row.driver_pid,
        is_dead=row.is_dead,
    )


def _worker(row: Any) -> Worker:
    address = row.worker_address
    return Worker(
        worker_id=address.worker_id.hex(),
        node_id=_node_of(address).hex(),
        ip=address.ip_address,
        port=address.port,
        pid=row.pid,
        is_driver=row.worker_type == common_pb2.DRIVER,
    )


def _actor(row: Any) -> Actor:
    return Actor(
        actor_id=row.actor_id.hex(),
        job_id=row.job_id.hex(),
        class_name=row.class_name,
        state=gcs_pb2.ActorTableData.ActorState.Name(row.state),
        name=row.name,
        namespace=row.ray_namespace,
        node_id=_id(_node_of(row.address)),
        worker_id=_id(row.address.worker_id),
        owner_id=_id(row.owner_address.worker_id),
        pid=row.pid,
        is_detached=row.is_detached,
        required_resources=dict(row.required_resources),
        placement_group_id=_id(row.placement_group_id),
        num_restarts=row.num_restarts,
        max_restarts=row.max_restarts,
        death_cause=_death_cause(row.death_cause),
    )


def _death_cause(cause: Any) -> str | None:
    kind = cause.WhichOneof("context")
    if kind is None:
        return None
    context = getattr(cause, kind)
    text = getattr(context, "error_message", "") or getattr(context, "formatted_exception_string", "")
    return (text.strip().splitlines() or [kind.replace("_", " ")])[0][:300]


def _placement_group(row: Any) -> PlacementGroup:
    states = gcs_pb2.PlacementGroupTableData.PlacementGroupState
    return PlacementGroup(
        placement_group_id=row.placement_group_id.hex(),
        name=row.name,
        state=states.Name(row.state),
        strategy=common_pb2.PlacementStrategy.Name(row.strategy),
        bundles=tuple(Bundle(resources=dict(b.unit_resources), node_id=_id(b.node_id)) for b in row.bundles),
        job_id=_id(row.creator_job_id),
        creator_actor_id=_id(row.creator_actor_id),
        is_detached=row.is_detached,
        scheduling_state=gcs_pb2.PlacementGroupStats.SchedulingState.Name(row.stats.scheduling_state),
    )
