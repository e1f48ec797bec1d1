"""Records a running cluster: rounds of samples of all workers, on all nodes at once."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator, Mapping

from dstack.errors import ClusterError
from dstack.model.snapshot import Snapshot, Worker
from dstack.probes.connection.background import begin
from dstack.probes.connection.connect import Cluster, connect
from dstack.probes.node import wire
from dstack.probes.node_access.answers import NodeFailure
from dstack.probes.node_access.node_readers import is_elsewhere, nodes_here
from dstack.probes.node_access.node_recorders import LocalRecorder, NodeRound, RemoteRecorder
from dstack.probes.ray_state.control_plane import AGAIN, Inventory, take_inventory
from dstack.probes.ray_state.core_workers import ask_core_workers, questions
from dstack.probes.ray_state.liveness import Liveness
from dstack.version import __version__
from dstack.words import grouped

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
        if isinstance(found.result, NodeFailure):
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
