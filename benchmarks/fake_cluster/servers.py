"""A process of servers of a made-up cluster; its argument is a JSON document, see :mod:`cluster`.

One process is the GCS; each other one serves a share of the nodes, of which it is every probe and core worker. They
listen on all addresses of this host, such as 127.1.0.1. A process prints `ready` when it serves.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from benchmarks.fake_cluster.copies import Copies
from dstack.probes.connection import ray_stubs
from dstack.probes.node.core_worker_calls import CHANNEL_OPTIONS

SLOW_S = 10.0
NETWORK_S = (0.001, 0.005)
"""The least and the longest time in which a network delays an answer."""
SAMPLE = "/dstack.Probe/Sample"
_STATS = "/ray.rpc.CoreWorkerService/GetCoreWorkerStats"
Handler = Callable[[bytes, Any], Awaitable[bytes]]


class Gcs:
    """Answers with tables; task events are filtered as far as dstack asks."""

    def __init__(self, copies: Copies, ports: dict[str, int]) -> None:
        self._tables = copies.tables(ports)
        self._events = list(copies.rows("GetTaskEvents", ports))
        self._replies: dict[bytes, bytes] = {}

    def handlers(self) -> dict[str, Handler]:
        """The methods by name."""
        found = {name: _constant(data) for name, data in self._tables.items()}
        found["/ray.rpc.autoscaler.AutoscalerStateService/GetClusterStatus"] = _constant(b"")
        return {**found, "/ray.rpc.TaskInfoGcsService/GetTaskEvents": self._task_events}

    async def _task_events(self, request: bytes, _: Any) -> bytes:
        await _delay()
        if request not in self._replies:
            self._replies[request] = self._filtered(request)
        return self._replies[request]

    def _filtered(self, data: bytes) -> bytes:
        request = ray_stubs.gcs_service_pb2.GetTaskEventsRequest.FromString(data)
        states = {one.state for one in request.filters.state_filters}
        tasks = {one.task_id for one in request.filters.task_filters}
        reply = ray_stubs.gcs_service_pb2.GetTaskEventsReply()
        limit = request.limit if request.HasField("limit") else len(self._events)
        for row in self._events:
            if (not states or _state(row) in states) and (not tasks or row.task_id in tasks):
                reply.events_by_task.append(row)
                if len(reply.events_by_task) >= limit:
                    break
        return bytes(reply.SerializeToString())


class Nodes:
    """The probes and core workers of some nodes."""

    def __init__(self, copies: Copies, node_ids: list[str], slow: set[str]) -> None:
        self._slow = slow
        self._took_s = {node_id: copies.took_s[copies.nodes[node_id][0]] for node_id in node_ids}
        self._asked: set[str] = set()
        self._answers = {
            node_id: [_without_clock(copies.answer(node_id, sample)) for sample in (0, 1)] for node_id in node_ids
        }
        self._stats = {worker: data for node_id in node_ids for worker, data in copies.stats(node_id).items()}

    def handlers(self) -> dict[str, Handler]:
        """The methods by name."""
        return {SAMPLE: self._sample, _STATS: self._stats_of}

    async def _sample(self, request: bytes, context: Any) -> bytes:
        node_id = dict(context.invocation_metadata())["node-id"]
        sample = 0 if json.loads(request)["is_first"] else 1
        cold_s, *warm_s = self._took_s[node_id]
        took_s = warm_s[sample] if node_id in self._asked else cold_s
        self._asked.add(node_id)
        await _delay(SLOW_S if node_id in self._slow else took_s)
        return _with_clock(*self._answers[node_id][sample])

    async def _stats_of(self, data: bytes, _: Any) -> bytes:
        await _delay()
        request = ray_stubs.core_worker_pb2.GetCoreWorkerStatsRequest.FromString(data)
        return self._stats[request.intended_worker_id.hex()]


def _without_clock(answer: str) -> tuple[bytes, Any]:
    """An answer as its probe packs it, but for its last field, and what is to pack that."""
    fields = json.loads(answer)
    del fields["clock"]
    packing = zlib.compressobj()
    begun = json.dumps(fields, separators=(",", ":"))[:-1].encode()
    return packing.compress(begun) + packing.flush(zlib.Z_FULL_FLUSH), packing


def _with_clock(begun: bytes, packing: Any) -> bytes:
    last, now = packing.copy(), time.time()
    return begun + bytes(last.compress(f',"clock":[{now},{now}]}}'.encode()) + last.flush())


def _constant(data: bytes) -> Handler:
    async def handler(*_: Any) -> bytes:
        await _delay()
        return data

    return handler


async def _delay(seconds: float = 0.0) -> None:
    await asyncio.sleep(seconds + random.uniform(*NETWORK_S))


def _state(row: Any) -> str:
    """The latest state of a task."""
    name = ray_stubs.common_pb2.TaskStatus.Name
    reached = row.state_updates.state_ts_ns
    return str(name(max(reached, key=lambda state: reached[state]))) if reached else ""


async def serve(port: int, handlers: dict[str, Handler]) -> None:
    """Serves until the process is killed."""
    server = grpc.aio.server(options=(*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)))
    by_service: dict[str, dict[str, Any]] = {}
    for path, handler in handlers.items():
        _, service, method = path.split("/")
        by_service.setdefault(service, {})[method] = grpc.unary_unary_rpc_method_handler(handler)
    generic = [grpc.method_handlers_generic_handler(name, methods) for name, methods in by_service.items()]
    server.add_generic_rpc_handlers(tuple(generic))
    server.add_insecure_port(f"0.0.0.0:{port}")
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


def main() -> None:
    layout = json.loads(sys.argv[1])
    copies = Copies(layout["pairs"])
    ports: dict[str, int] = layout["ports"]
    port = layout["port"]
    if layout["is_gcs"]:
        handlers = Gcs(copies, ports).handlers()
    else:
        handlers = Nodes(copies, [node for node, its in ports.items() if its == port], set(layout["slow"])).handlers()
    swallowing = [swallows(copies.address(node_id), ports[node_id]) for node_id in layout["swallowing"]]
    asyncio.run(serve(port, handlers))
    del swallowing


def swallows(ip: str, port: int) -> list[socket.socket]:
    """A port that drops every further packet: its queue of connections is full."""
    server = socket.create_server((ip, port), backlog=0)
    full = []
    for _ in range(4):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex((ip, port))
        full.append(one)
    return [server, *full]


if __name__ == "__main__":
    main()
