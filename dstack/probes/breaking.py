"""Requests that change a cluster: they cancel a task or kill an actor. Only ``dstack cure --break`` makes them.

The owner of a task cancels it, as for ``ray.cancel`` in a process that does not own the task. The control plane kills
an actor, as for ``ray.kill``. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

from typing import Any

import grpc

from dstack.errors import ClusterError
from dstack.probes.connection.connect import Cluster, connect, open_channel
from dstack.probes.connection.hosts import join_address
from dstack.probes.connection.ray_stubs import core_worker_pb2
from dstack.probes.connection.ray_stubs import gcs_service_pb2 as gcs
from dstack.probes.connection.ray_stubs import gcs_service_pb2_grpc as gcs_grpc

ANSWER_S = 5.0
FIRST_RETURN = "01000000"
"""What follows the id of a task in the id of its first value."""
AGAIN = "Run dstack cure again: the waits may have changed."
KILL_INSTEAD = "Name the actor instead, to kill it."
CANCEL = ("RequestOwnerToCancelTask", "RemoteCancelTask")
"""The request to an owner, by its names in Ray 2.60 and 2.46; its fields are the same."""


def cancel_task(address: str | None, task_id: str, owner: tuple[str, int]) -> None:
    """Ask the owner of a task, by host and port, to cancel it. Raises :class:`ClusterError` if it does not."""
    cluster, message = connect(address), _request_to_cancel(task_id)
    with open_channel(join_address(*owner)) as channel:
        for name in CANCEL:
            call: Any = channel.unary_unary(f"/ray.rpc.CoreWorkerService/{name}")
            try:
                call(message.SerializeToString(), timeout=ANSWER_S, metadata=cluster.metadata)
                return
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNIMPLEMENTED:
                    why, where = error.code().name.lower(), join_address(*owner)
                    raise ClusterError(f"The task was not cancelled by its owner at {where}: {why}.", AGAIN) from error
    raise ClusterError("This Ray has no request that cancels the task of another process.", KILL_INSTEAD)


def _request_to_cancel(task_id: str) -> Any:
    kinds = (getattr(core_worker_pb2, f"{name}Request", None) for name in CANCEL)
    kind = next(filter(None, kinds), None)
    if kind is None:
        raise ClusterError("The Ray beside dstack has no request that cancels a task.", KILL_INSTEAD)
    return kind(remote_object_id=bytes.fromhex(task_id + FIRST_RETURN), force_kill=False, recursive=False)


def kill_actor(address: str | None, actor_id: str) -> None:
    """Ask the control plane to kill an actor for good. Raises :class:`ClusterError` if it does not answer."""
    cluster: Cluster = connect(address)
    message = gcs.KillActorViaGcsRequest(actor_id=bytes.fromhex(actor_id), force_kill=True, no_restart=True)
    with open_channel(cluster.address) as channel:
        try:
            reply = gcs_grpc.ActorInfoGcsServiceStub(channel).KillActorViaGcs(
                message, timeout=ANSWER_S, metadata=cluster.metadata
            )
        except grpc.RpcError as error:
            why = error.code().name.lower()
            raise ClusterError(f"The actor was not killed by the GCS at {cluster.address}: {why}.", AGAIN) from error
    if reply.status.code:
        raise ClusterError(f"The actor was not killed: {reply.status.message}.", AGAIN)
