"""Stands in for dstack's driver on the cluster: sends each node's request to its made-up probe by gRPC.

See :mod:`dstack.probes.node_access.remote_driver`. A node that cannot be reached gives no answer, as with Ray.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import IO, Any

import grpc
import msgspec

from benchmarks.fake_cluster.servers import SAMPLE
from dstack.probes.connection import ray_stubs
from dstack.probes.connection.connect import open_channel
from dstack.probes.node.core_worker_calls import CHANNEL_OPTIONS
from dstack.probes.node_access.driver_messages import Reply, Request, encoded
from dstack.processes.child import Messages, outlive_parent, send


class Driver:
    """Keeps a channel to each probe."""

    def __init__(self, answers: IO[bytes], address: str) -> None:
        self._answers = answers
        with open_channel(address) as channel:
            stub = ray_stubs.gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
            rows = stub.GetAllNodeInfo(ray_stubs.gcs_service_pb2.GetAllNodeInfoRequest()).node_info_list
        self._addresses = {row.node_id.hex(): f"{row.node_manager_address}:{row.node_manager_port}" for row in rows}
        self._calls: dict[str, Any] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def sample(self, request: Request) -> None:
        """Begins a request, which replaces the one before."""
        for task in self._tasks:
            task.cancel()
        self._tasks = [asyncio.create_task(self._ask(node_id, request)) for node_id in request["nodes"]]

    async def _ask(self, node_id: str, request: Request) -> None:
        left_s = request["deadline"] - time.monotonic()
        wanted = {
            "is_first": request["is_first"],
            **request["nodes"][node_id],
            "questions": request["questions"],
            "options": request["options"],
        }
        try:
            answer = await self._call(node_id)(
                msgspec.json.encode(wanted), timeout=max(0.1, left_s), metadata=(("node-id", node_id),)
            )
        except grpc.RpcError:
            return
        send(self._answers, "reply", encoded(Reply(number=request["number"], node_id=node_id, answer=answer)))

    def _call(self, node_id: str) -> Any:
        if node_id not in self._calls:
            channel = grpc.aio.insecure_channel(self._addresses[node_id], options=CHANNEL_OPTIONS)
            self._calls[node_id] = channel.unary_unary(SAMPLE)
        return self._calls[node_id]


def main(answers: IO[bytes], arguments: list[str]) -> None:
    """Serves requests until standard input ends."""
    asyncio.run(_serve(answers, arguments[0]))


async def _serve(answers: IO[bytes], address: str) -> None:
    driver, loop, is_over = Driver(answers, address), asyncio.get_running_loop(), asyncio.Event()
    outlive_parent()
    send(answers, "joined")

    def read() -> None:
        for message in Messages(sys.stdin.buffer):
            loop.call_soon_threadsafe(driver.sample, msgspec.json.decode(message.payload))
        loop.call_soon_threadsafe(is_over.set)

    threading.Thread(target=read, daemon=True).start()
    await is_over.wait()
