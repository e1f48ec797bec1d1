"""Records on all nodes: those of this host directly, others through probes on their nodes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dstack.model.snapshot import Worker
from dstack.observed.node import RecordedRound
from dstack.probes.connection.background import begin
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.hosts import RayletAddress, unreachable
from dstack.probes.node import wire
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node_access.answers import (
    MALFORMED,
    MalformedAnswer,
    NodeFailure,
    result_of,
    unpacked_round,
    validated_round,
)
from dstack.probes.node_access.driver_messages import RecordRequest, RoundReply
from dstack.probes.node_access.remote_probes import ClusterDriver
from dstack.probes.node_access.targets import targets, with_environment


@dataclass(frozen=True, slots=True)
class NodeRound:
    """A round of these nodes, or why they are not recorded any more; None when their probe has started.

    ``recorder`` is the remote node that recorded it, empty for this host; ``is_last``: no further round of it follows.
    """

    recorder: str
    nodes: Sequence[str]
    result: RecordedRound | NodeFailure | None
    is_last: bool


Receive = Callable[[NodeRound], None]


class LocalRecorder:
    """Records the processes of this host until ``end``, in a thread, in which ``receive`` is called."""

    def __init__(self, options: wire.RecordOptions, receive: Receive) -> None:
        self._options = options
        self._receive = receive
        self.end = 0.0
        self._by_node: dict[str, list[Worker]] = {}
        self._environments: dict[tuple[str, int], wire.Target] = {}
        self._probe = NodeProbe()
        self._is_started = False

    def record(self, by_node: Mapping[str, Sequence[Worker]]) -> None:
        """Record these workers from the next round on, by node."""
        self._by_node = {node: list(workers) for node, workers in by_node.items()}
        if by_node and not self._is_started:
            self._is_started = True
            threading.Thread(target=self._run, name="dstack-recorder", daemon=True).start()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            nodes, now = list(self._by_node), time.monotonic()
            seconds = max(0.0, min(self._options["seconds"], self.end - now))
            is_last = now + seconds >= self.end
            wanted = [self._target(worker) for node in nodes for worker in self._by_node.get(node, ())]
            options: wire.RecordOptions = {**self._options, "seconds": seconds, "is_last": is_last}
            try:
                result: RecordedRound | NodeFailure = validated_round(self._probe.record(wanted, options))
            except MalformedAnswer:
                result = MALFORMED
            except Exception as error:  # whatever a probe raises is the failure of its nodes
                result, is_last = NodeFailure(f"its probe failed: {error}"), True
            self._receive(NodeRound("", nodes, result, is_last))

    def _target(self, worker: Worker) -> wire.Target:
        """The target of a worker; its environment is found once."""
        key = worker.worker_id, worker.pid
        if key not in self._environments:
            self._environments[key] = with_environment(targets([worker])[0])
        return self._environments[key]


class RemoteRecorder:
    """Records on other nodes, through probe actors of dstack's driver; rounds begin when ``end`` is set."""

    def __init__(self, cluster: Cluster, options: wire.RecordOptions, receive: Receive) -> None:
        self._options = options
        self._deliver = receive
        self._wanted: dict[str, list[wire.Target]] = {}
        self._over: set[str] = set()
        self._requests: queue.Queue[RecordRequest] = queue.Queue()
        self.end = 0.0
        self._driver = ClusterDriver(cluster, self._receive)
        begin(self._send)

    def close(self) -> None:
        """Ends the probes, without blocking."""
        self._driver.close()

    def record(self, by_node: Mapping[str, Sequence[Worker]], raylets: Mapping[str, RayletAddress]) -> None:
        """Record these workers from the next round on, by node; new nodes that are unreachable fail soon."""
        new = {node: address for node, address in raylets.items() if node in by_node and node not in self._wanted}
        self._wanted = {node: targets(workers) for node, workers in by_node.items()}
        self.request()
        if new:
            begin(lambda: self._give_up(new))

    def request(self) -> None:
        """Send the current targets and the current end."""
        self._requests.put(RecordRequest(self._wanted, self._options, self.end))

    def give_up_all(self) -> None:
        """Note every node that has not sent its last round as failed."""
        for node_id in self._wanted.keys() - self._over:
            self._note(node_id, self._driver.why_silent(), is_last=True)

    def _send(self) -> None:
        while True:
            self._driver.request(self._requests.get())

    def _give_up(self, raylets: Mapping[str, RayletAddress]) -> None:
        for node_id, reason in unreachable(raylets).items():
            self._note(node_id, NodeFailure(reason, "unreachable"), is_last=True)

    def _receive(self, reply: RoundReply | None) -> None:
        if reply is None:
            self.give_up_all()
        else:
            result = None if reply.round is None else result_of(reply.round, unpacked_round)
            self._note(reply.node_id, result, is_last=reply.is_last)

    def _note(self, node_id: str, result: RecordedRound | NodeFailure | None, *, is_last: bool) -> None:
        if node_id in self._over:
            return
        if is_last:
            self._over.add(node_id)
        self._deliver(NodeRound(node_id, [node_id], result, is_last))
