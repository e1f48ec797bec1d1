"""Real gRPC servers in this process that answer as core workers do."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from ray.core.generated import core_worker_pb2, core_worker_pb2_grpc

from dstack.probes.node.wire import CoreWorker, Questions

JOB, ACTOR = "01000000", "0a" * 12 + "01000000"
NIL_JOB, NODE = b"\xff" * 4, b"n" * 28
QUESTIONS: Questions = {
    "metadata": [],
    "timeout_s": 60.0,
    "limit": 100,
    "details": True,
    "with_refs": True,
    "places": 0,
}
Fill = Callable[[Any, Any], None]
"""Fills a reply of ``GetCoreWorkerStats``; its arguments are the request and the reply."""


@dataclass
class CoreWorkerServer(core_worker_pb2_grpc.CoreWorkerServiceServicer):  # type: ignore[misc]
    """Answers as any worker that is asked for, after ``delay_s``, and records what arrives.

    ``peers`` are the connections of the requests, ``most_at_once`` is the most requests that it handled at once.
    """

    fill: Fill = lambda request, reply: None
    delay_s: float = 0.0
    port: int = 0
    peers: list[str] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    most_at_once: int = 0
    has_no_places: bool = False
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def GetCoreWorkerStats(self, request: Any, context: Any) -> Any:
        with self._lock:
            self.peers.append(context.peer())
            self.metadata.append(dict(context.invocation_metadata()))
            self.requests.append(request)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        time.sleep(self.delay_s)
        reply = core_worker_pb2.GetCoreWorkerStatsReply()
        stats = reply.core_worker_stats
        stats.worker_id, stats.job_id, stats.actor_id = (
            request.intended_worker_id,
            bytes.fromhex(JOB),
            bytes.fromhex(ACTOR),
        )
        try:
            self.fill(request, reply)
        except PermissionError:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no")
        with self._lock:
            self._at_once -= 1
        return reply

    def GetObjectLocationsOwner(self, request: Any, context: Any) -> Any:
        """Every object is spilled to the disk of its node, and the first one in memory, too."""
        with self._lock:
            self.requests.append(request)
        if self.has_no_places:
            context.abort(grpc.StatusCode.UNAVAILABLE, "no")
        reply = core_worker_pb2.GetObjectLocationsOwnerReply()
        for number, _ in enumerate(request.object_ids):
            node_ids = [] if number else [NODE]
            reply.object_location_infos.add(spilled_url="/disk/a", spilled_node_id=NODE, node_ids=node_ids)
        return reply

    def worker(self, number: int = 0, ip: str = "127.0.0.1") -> CoreWorker:
        """A core worker at this server."""
        return {"worker_id": f"{number:056x}", "ip": ip, "port": self.port, "pid": 1000 + number}


@contextmanager
def serving(servicer: CoreWorkerServer, *, threads: int = 4, port: int = 0) -> Iterator[CoreWorkerServer]:
    """Serves on a port of this host; ends without waiting for requests."""
    server = grpc.server(futures.ThreadPoolExecutor(threads), options=[("grpc.so_reuseport", 0)])
    core_worker_pb2_grpc.add_CoreWorkerServiceServicer_to_server(servicer, server)
    servicer.port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield servicer
    finally:
        server.stop(0).wait()


@contextmanager
def silent_port() -> Iterator[int]:
    """A port at which connections are accepted and nothing answers, as of a stopped process."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]
