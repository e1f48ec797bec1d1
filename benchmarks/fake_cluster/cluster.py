"""Starts and ends a made-up cluster."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import ExitStack

from benchmarks.fake_cluster.copies import ONCE, REPEATED, Copies
from tests.paths import ROOT

SHARES = 2
"""The number of processes that serve nodes."""
DRIVER = "benchmarks.fake_cluster.driver"


class FakeCluster:
    """A cluster with at least this many nodes, of which a hundredth is dead and a hundredth slow; a context manager.

    Half of the dead nodes refuse connections, the others drop packets.
    """

    def __init__(self, nodes: int) -> None:
        pairs = -(-(nodes - len(ONCE)) // len(REPEATED))
        self.nodes = len(ONCE) + len(REPEATED) * pairs
        ids = list(Copies(pairs).nodes)
        per_cent = max(1, nodes // 100)
        self.dead, self.slow = ids[10 : 10 + per_cent], ids[50 : 50 + per_cent]
        self._gcs_port, *ports, self._refused, self._swallowed = (free_port() for _ in range(SHARES + 3))
        self.address = f"127.0.0.1:{self._gcs_port}"
        of_nodes = {node_id: ports[index % SHARES] for index, node_id in enumerate(ids)}
        swallowing, refusing = self.dead[::2], self.dead[1::2]
        of_nodes |= dict.fromkeys(swallowing, self._swallowed) | dict.fromkeys(refusing, self._refused)
        self._layout = {"pairs": pairs, "ports": of_nodes, "slow": self.slow}
        self._swallowing, self._ports = swallowing, ports
        self._stack = ExitStack()

    def __enter__(self) -> FakeCluster:
        layouts = [{**self._layout, "is_gcs": False, "port": port, "swallowing": []} for port in self._ports]
        layouts.append({**self._layout, "is_gcs": True, "port": self._gcs_port, "swallowing": self._swallowing})
        servers = [self._stack.enter_context(_Server(json.dumps(layout))) for layout in layouts]
        for server in servers:
            server.await_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class _Server:
    """A process that serves."""

    def __init__(self, layout: str) -> None:
        self._layout = layout

    def __enter__(self) -> _Server:
        command = [sys.executable, "-m", "benchmarks.fake_cluster.servers", self._layout]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def await_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
