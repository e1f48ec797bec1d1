"""Probes on other nodes, through a child process that is the only Ray driver that dstack starts.

The child can be killed at any time, so every call to Ray has a deadline; Ray then ends the probe actors. It ends by
itself when its standard input closes, and while it joins the cluster the kernel kills it with dstack, so nothing
stays if dstack is killed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future

import msgspec

from dstack.child import Messages, send, start_child
from dstack.probes.connection.background import begin
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.reach import Address, unreachable
from dstack.probes.node import wire
from dstack.probes.node_access.answers import NodeFailure
from dstack.probes.node_access.driver_messages import Reply, Request

Result = wire.Answer | NodeFailure
LAST_WORD_S = 0.15
"""How long before the deadline the child stops waiting, to report the nodes that did not answer."""
RUN_ON_A_NODE = "Run dstack on a node of the cluster, with the cluster's own Ray and Python versions."
END_S = 1.0
"""How long the child may take to end in order; longer than its own limit."""


class RemoteProbes:
    """Probe actors on the other nodes of a cluster; starting is immediate, the first sample waits for the start."""

    DRIVER = "dstack.probes.node_access.remote_driver"
    """The module that the child runs."""

    def __init__(self, cluster: Cluster) -> None:
        self._results: queue.Queue[tuple[int, str, Result] | None] = queue.Queue()
        self._requests = 0
        self._joined = False
        self._ended: NodeFailure | None = None
        started: Future[subprocess.Popen[bytes]] = Future()
        begin(lambda: self._serve(cluster, started))
        self._process = started.result()

    def sample(
        self,
        targets: dict[str, list[wire.Target]],
        options: wire.Options,
        raylets: Mapping[str, Address],
        deadline: float,
    ) -> Iterator[tuple[str, Result]]:
        """The validated answers of the nodes as they arrive, or their failures.

        ``targets`` and the addresses of their ``raylets`` are by node id. Every node yields once: unreachable ones
        soon, the others by ``deadline``, a ``time.monotonic()``.
        """
        self._requests += 1
        number = self._requests
        last_word = max(time.monotonic(), deadline - LAST_WORD_S)
        request: Request = {"number": number, "targets": targets, "options": options, "deadline": last_word}
        begin(lambda: self._ask("sample", request))
        begin(lambda: self._give_up_unreachable(number, raylets))
        missing = set(targets)
        while missing and self._ended is None:
            try:
                received = self._results.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if received is None:
                break
            of_request, node_id, result = received
            if of_request == number and node_id in missing:
                missing.discard(node_id)
                yield node_id, result
        for node_id in sorted(missing):
            yield node_id, self.why_silent()

    def close(self) -> None:
        """Ends the child, by a signal if it has not ended by itself within a second; Ray then ends its actors.

        This does not block: if this process ends at once, the child ends by itself. But while it joins the
        cluster it may hang in C++ that lets no Python run, and has no actors yet: then it is killed.
        """
        if not self._joined:
            self._process.kill()
        begin(self._end)

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def why_silent(self) -> NodeFailure:
        """Why a node without a reply did not reply."""
        remedy = None if self._joined else RUN_ON_A_NODE
        if self._ended:
            return msgspec.structs.replace(self._ended, remedy=remedy)
        reason = "dstack's driver timed out when it joined the cluster: this host is slow, or its raylet is stopped"
        if self._joined:
            reason = "dstack's driver on the cluster timed out"
        return NodeFailure(reason, "timeout", remedy)

    def _ask(self, kind: str, request: object) -> None:
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            send(self._process.stdin, kind, msgspec.json.encode(request))

    def _serve(self, cluster: Cluster, started: Future[subprocess.Popen[bytes]]) -> None:
        """Starts the child and receives its messages; it ends with this thread."""
        try:
            process = start_child(
                self.DRIVER,
                cluster.address,
                stdin=subprocess.PIPE,
                environment=_environment(cluster),
                start_new_session=True,  # Ctrl-C goes to dstack, which ends the child in order
            )
        except OSError as error:
            started.set_exception(error)
            return
        started.set_result(process)
        assert process.stdout is not None
        with process.stdout as stream:
            for message in Messages(stream):
                match message.kind:
                    case "joined":
                        self._joined = True
                    case "ended":
                        self._ended = msgspec.json.decode(message.payload, type=NodeFailure)
                    case "reply":
                        self._receive(message.payload)
        self._ended = self._ended or NodeFailure("dstack's driver on the cluster ended", "ended")
        self._finish()

    def _receive(self, payload: bytes) -> None:
        """Take the reply of a node."""
        reply = msgspec.json.decode(payload, type=Reply)
        self._results.put((reply.number, reply.node_id, reply.result()))

    def _finish(self) -> None:
        """Note that no reply follows."""
        self._results.put(None)

    def _give_up_unreachable(self, number: int, raylets: Mapping[str, Address]) -> None:
        for node_id, reason in unreachable(raylets).items():
            self._results.put((number, node_id, NodeFailure(reason, "unreachable")))


def _environment(cluster: Cluster) -> dict[str, str]:
    """The child's environment. Ray does not load a token for an explicit address unless the mode says so."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment["RAY_AUTH_MODE"] = "token" if cluster.token else "disabled"
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return environment
