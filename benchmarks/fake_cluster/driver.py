"""Stands in for dstack's driver on the cluster: sends each node's request to its made-up probe by gRPC.

See :mod:`dstack.probes.node_access.remote_driver`. A node that cannot be reached gives no answer, as with Ray.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import grpc
import msgspec

from benchmarks.fake_cluster.servers import SAMPLE
from dstack.probes.connection import ray_stubs
from dstack.probes.connection.connect import open_channel
from dstack.probes.node.core_worker_calls import CHANNEL_OPTIONS
from dstack.probes.node_access.answers import Reply, SampleRequest
from dstack.processes.child import Parent, outlive_parent


class Driver:
    """Keeps a channel to each probe."""

    def __init__(self, parent: Parent, address: str) -> None:
        self._parent = parent
        with open_channel(address) as channel:
            stub = ray_stubs.gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
            rows = stub.GetAllNodeInfo(ray_stubs.gcs_service_pb2.GetAllNodeInfoRequest()).node_info_list
        self._addresses = {row.node_id.hex(): f"{row.node_manager_address}:{row.node_manager_port}" for row in rows}
        self._calls: dict[str, Any] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def sample(self, request: SampleRequest) -> None:
        """Begins a request, which replaces the one before."""
        for task in self._tasks:
            task.cancel()
        self._tasks = [asyncio.create_task(self._ask(node_id, request)) for node_id in request.nodes]

    async def _ask(self, node_id: str, request: SampleRequest) -> None:
        left_s = request.deadline - time.monotonic()
        wanted = {
            "is_first": request.is_first,
            **request.nodes[node_id],
            "questions": request.questions,
            "options": request.options,
        }
        try:
            answer = await self._call(node_id)(
                msgspec.json.encode(wanted), timeout=max(0.1, left_s), metadata=(("node-id", node_id),)
            )
        except grpc.RpcError:
            return
        self._parent.send("reply", Reply(request.number, node_id, answer))

    def _call(self, node_id: str) -> Any:
        if node_id not in self._calls:
            channel = grpc.aio.insecure_channel(self._addresses[node_id], options=CHANNEL_OPTIONS)
            self._calls[node_id] = channel.unary_unary(SAMPLE)
        return self._calls[node_id]


def main(parent: Parent, address: str) -> None:
    """Serves requests until the parent sends no more."""
    asyncio.run(_serve(parent, address))


async def _serve(parent: Parent, address: str) -> None:
    driver, loop, is_over = Driver(parent, address), asyncio.get_running_loop(), asyncio.Event()
    outlive_parent()
    parent.send("joined")

    def read() -> None:
        for request in parent:
            loop.call_soon_threadsafe(driver.sample, request.value)
        loop.call_soon_threadsafe(is_over.set)

    threading.Thread(target=read, daemon=True).start()
    await is_over.wait()
