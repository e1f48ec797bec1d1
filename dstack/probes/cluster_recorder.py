"""Records a running cluster: rounds of samples of all workers, on all nodes at once.

This host is recorded directly, other nodes through probes there.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dstack.errors import ClusterError
from dstack.model.snapshot import Snapshot, Worker
from dstack.observed.node import RecordedRound
from dstack.probes.connection.background import begin
from dstack.probes.connection.connect import Cluster, connect
from dstack.probes.connection.hosts import RayletAddress, unreachable
from dstack.probes.node import wire
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node_access import answers
from dstack.probes.node_access.node_readers import is_elsewhere, nodes_here
from dstack.probes.node_access.remote_probes import ClusterDriver
from dstack.probes.node_access.targets import targets, with_environment
from dstack.probes.ray_state.control_plane import AGAIN, Inventory, take_inventory
from dstack.probes.ray_state.workers import Liveness, ask_core_workers, questions
from dstack.version import __version__
from dstack.words import grouped


@dataclass(frozen=True, slots=True)
class NodeRound:
    """A round of these nodes, or why they are not recorded any more; None when their probe has started.

    ``recorder`` is the remote node that recorded it, empty for this host; ``is_last``: no further round of it follows.
    """

    recorder: str
    nodes: Sequence[str]
    result: RecordedRound | answers.NodeFailure | None
    is_last: bool


Receive = Callable[[NodeRound], None]


class LocalRecorder:
    """Records the processes of this host until ``end``, in a thread, in which ``receive`` is called."""

    def __init__(self, options: wire.RecordOptions, receive: Receive) -> None:
        self._options = options
        self._receive = receive
        self.end = 0.0
        self._by_node: dict[str, list[Worker]] = {}
        self._environments: dict[tuple[str, int], wire.ReadTarget] = {}
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
                result: RecordedRound | answers.NodeFailure = answers.validated_round(
                    self._probe.record(wanted, options)
                )
            except answers.MalformedAnswer:
                result = answers.MALFORMED
            except Exception as error:  # whatever a probe raises is the failure of its nodes
                result, is_last = answers.NodeFailure(f"its probe failed: {error}"), True
            self._receive(NodeRound("", nodes, result, is_last))

    def _target(self, worker: Worker) -> wire.ReadTarget:
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
        self._wanted: dict[str, list[wire.ReadTarget]] = {}
        self._over: set[str] = set()
        self._requests: queue.Queue[answers.RecordRequest] = queue.Queue()
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
        self._requests.put(answers.RecordRequest(self._wanted, self._options, self.end))

    def give_up_all(self) -> None:
        """Note every node that has not sent its last round as failed."""
        for node_id in self._wanted.keys() - self._over:
            self._note(node_id, self._driver.why_silent(), is_last=True)

    def _send(self) -> None:
        while True:
            self._driver.request(self._requests.get())

    def _give_up(self, raylets: Mapping[str, RayletAddress]) -> None:
        for node_id, reason in unreachable(raylets).items():
            self._note(node_id, answers.NodeFailure(reason, "unreachable"), is_last=True)

    def _receive(self, reply: answers.RoundReply | None) -> None:
        if reply is None:
            self.give_up_all()
        else:
            result = None if reply.round is None else answers.result_of(reply.round, answers.unpacked_round)
            self._note(reply.node_id, result, is_last=reply.is_last)

    def _note(self, node_id: str, result: RecordedRound | answers.NodeFailure | None, *, is_last: bool) -> None:
        if node_id in self._over:
            return
        if is_last:
            self._over.add(node_id)
        self._deliver(NodeRound(node_id, [node_id], result, is_last))


Progress = Callable[[str], None]
Chooses = Callable[[Snapshot], str | None]
"""Selects the job to record, None for all; it may raise."""
LISTED_EVERY_S = 3.0
"""How often the cluster's workers are listed."""
RPC_TIMEOUT_S = 3.0
LISTED_WITHIN_S = 10.0
"""How long all workers whose jobs are unknown may take to reply."""
START_S = 15.0
"""How long the start of the probes on other nodes is awaited before the recording begins."""
GRACE_S, NATIVE_GRACE_S = 3.0, 8.0
"""How long after the end of the recording the last rounds are awaited; py-spy takes longer with C frames."""
TURN_S = 0.1


class ClusterRecorder:
    """Records one cluster until ``duration_s`` have passed, or :meth:`stop`; a context manager, which ends its probes.

    Raises :class:`dstack.errors.ClusterError` on construction when the cluster cannot be reached, and what ``choose``
    raises.
    """

    def __init__(
        self, address: str | None, options: wire.RecordOptions, duration_s: float, choose: Chooses, progress: Progress
    ) -> None:
        progress("connecting")
        self.cluster: Cluster = connect(address)
        self._options = options
        self._liveness = Liveness()
        self._inventory = Inventory()
        self._asked: set[str] = set()
        self._job_id: str | None = None
        self._rounds: queue.Queue[NodeRound] = queue.Queue()
        self._running: set[str] = set()
        progress("reading the control plane")
        self._list()
        if not self._inventory.nodes:
            raise ClusterError("No node has joined the cluster yet: it is starting.", AGAIN)
        self._job_id = choose(self.snapshot())
        self._is_stopped = False
        self._local = LocalRecorder(options, self._rounds.put)
        self._remote: RemoteRecorder | None = None
        self._early: list[NodeRound] = []
        self._start_probes(progress)
        self.began_at, self._end = time.time(), time.monotonic() + duration_s

    def __enter__(self) -> ClusterRecorder:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._remote is not None:
            self._remote.close()

    def stop(self) -> None:
        """End the recording after the current round; another thread may call this."""
        self._is_stopped = True

    @property
    def job_id(self) -> str | None:
        """The only job that is recorded, None for all."""
        return self._job_id

    def rounds(self) -> Iterator[NodeRound]:
        """The rounds of all nodes as they end; those of a node in order."""
        yield from self._early
        grace_s = NATIVE_GRACE_S if self._options["native"] else GRACE_S
        self._set_end(self._end)
        self._assign()
        listing, listed_at = None, time.monotonic()
        while (now := time.monotonic()) < self._end or (self._running and now < self._end + grace_s):
            if self._is_stopped:
                self._end_now()
            with contextlib.suppress(queue.Empty):
                found = self._rounds.get(timeout=TURN_S)
                self._note(found)
                if found.result is not None:
                    yield found
            now = time.monotonic()
            if listing is None and now - listed_at > LISTED_EVERY_S and now < self._end:
                listing = begin(self._list)
            elif listing is not None and listing.done():
                listing, listed_at = None, now
                self._assign()
        if self._remote is not None:
            self._remote.give_up_all()
        while not self._rounds.empty():
            if (found := self._rounds.get()).result is not None:
                yield found

    def _end_now(self) -> None:
        now = time.monotonic()
        if self._end <= now:
            return
        self._set_end(now)
        if self._remote is not None:
            self._remote.request()

    def _set_end(self, end: float) -> None:
        self._end = self._local.end = end
        if self._remote is not None:
            self._remote.end = end

    def _start_probes(self, progress: Progress) -> None:
        """Start the probes on other nodes, so that all nodes record the same time; late ones begin later."""
        remote = self._elsewhere(self._workers())
        if not remote:
            return
        progress("starting probes on other nodes")
        self._remote = RemoteRecorder(self.cluster, self._options, self._rounds.put)
        self._remote.record(remote, self._inventory.raylets)
        missing, deadline = set(remote), time.monotonic() + START_S
        while missing and (left_s := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                found = self._rounds.get(timeout=left_s)
                missing.discard(found.recorder)
                self._note(found)
                self._early += [found] if found.result is not None else []

    def _note(self, found: NodeRound) -> None:
        """Note nodes that have ended, and those whose processes turn out to be in a container."""
        if found.is_last:
            self._running.discard(found.recorder)
        if found.result is None:
            return
        if isinstance(found.result, answers.NodeFailure):
            self._liveness.given_up.update(found.nodes)
            return
        known = self._workers()
        for node in found.nodes:
            if known.get(node) and is_elsewhere(known[node], found.result.failures):
                self._liveness.elsewhere.add(node)
                self._assign()

    # The cluster

    def _list(self) -> None:
        """List the workers, and ask the new ones and the idle ones for their jobs; nothing changes if this fails."""
        try:
            inventory = take_inventory(self.cluster, RPC_TIMEOUT_S)
        except ClusterError:
            if not self._inventory.nodes:
                raise
            return
        self._liveness.note_listed(inventory)
        ids = {worker.worker_id: self._liveness.with_ids(worker) for worker in inventory.workers}
        unknown = [one for one in inventory.workers if ids[one.worker_id].job_id is None]
        how = questions(self.cluster.metadata, RPC_TIMEOUT_S, limit=1, with_refs=False)
        replies, failures = ask_core_workers(self._liveness.to_ask(unknown), how, time.monotonic() + LISTED_WITHIN_S)
        self._liveness.note_answers(replies)
        self._liveness.note_silent(failures)
        self._inventory = inventory

    def _workers(self) -> dict[str, list[Worker]]:
        """The workers to record, by node, without nodes that were given up."""
        present = self._liveness.present(self._inventory.workers)
        wanted = (one for one in present if self._job_id in (None, self._liveness.with_ids(one).job_id))
        return grouped((one.node_id, one) for one in wanted if one.node_id not in self._liveness.given_up)

    def _assign(self) -> None:
        """Have the recorders record the current workers."""
        by_node = self._workers()
        remote = self._elsewhere(by_node)
        local = {node: workers for node, workers in by_node.items() if node not in remote}
        self._local.record(local)
        if remote and self._remote is None:
            self._remote = RemoteRecorder(self.cluster, self._options, self._rounds.put)
            self._remote.end = self._end
        if self._remote is not None:
            self._remote.record(remote, self._inventory.raylets)
        if time.monotonic() < self._end:
            self._running.update(remote.keys(), [""] if local else [])

    def _elsewhere(self, by_node: Mapping[str, list[Worker]]) -> dict[str, list[Worker]]:
        """The workers of other hosts."""
        here = nodes_here(self._inventory) - self._liveness.elsewhere
        return {node: workers for node, workers in by_node.items() if node not in here}

    def snapshot(self) -> Snapshot:
        """The cluster without samples: its nodes, jobs, actors and workers."""
        inventory = self._inventory
        return Snapshot(
            dstack_version=__version__,
            taken_at=time.time(),
            address=self.cluster.address,
            ray_version=self.cluster.ray_version,
            nodes=inventory.nodes,
            jobs=inventory.jobs,
            actors=inventory.actors,
            workers=tuple(map(self._liveness.with_ids, self._liveness.present(inventory.workers))),
            notes=self.cluster.notes,
        )
