"""A session with a cluster, in which all nodes are read: those of this host directly, others through probes there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from dstack.model.snapshot import Worker
from dstack.observed.node import Failure, NodeAnswer
from dstack.observed.reading_options import ReadingOptions
from dstack.probes.connection.background import begin, within
from dstack.probes.connection.cluster_ray import stubs_of
from dstack.probes.connection.connect import Cluster, connect
from dstack.probes.connection.hosts import ahead_s
from dstack.probes.node import wire
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node_access.answers import MALFORMED, MalformedAnswer, NodeFailure, NodeParts, validated
from dstack.probes.node_access.remote_probes import RemoteProbes
from dstack.probes.node_access.targets import log_targets, own_addresses, targets, with_environment
from dstack.probes.ray_state.control_plane import Inventory
from dstack.probes.ray_state.workers import Liveness, core_workers
from dstack.words import grouped, plural

RPC_TIMEOUT_S = 3.0
AGENTS_SHARE = 0.08
"""The part of a sample's time that is reserved for Ray's agents, which read unreadable processes."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Sample number ``sample``, counted from 1, from ``began`` to ``deadline``, both of ``time.monotonic()``."""

    sample: int
    began: float
    deadline: float

    @classmethod
    def of(cls, sample: int, seconds: float) -> Budget:
        """A sample that begins now."""
        began = time.monotonic()
        return cls(sample, began, began + seconds)

    def rpc_timeout_s(self) -> float:
        """The timeout of an RPC that is sent now."""
        return max(0.1, min(RPC_TIMEOUT_S, self.deadline - time.monotonic()))

    @property
    def processes_until(self) -> float:
        """The deadline for reading processes."""
        return self.deadline - (self.deadline - self.began) * AGENTS_SHARE


class ProbeSession:
    """A session with one cluster at a time; a context manager, which ends the probes.

    A cluster that was restarted, or another one, gets new probes. ``driver`` is the module of dstack's driver on the
    cluster.
    """

    def __init__(self, driver: str | None = None) -> None:
        self._driver = driver
        self._cluster: Cluster | None = None
        self._local: NodeProbe | None = None
        self._remote: RemoteProbes | None = None
        self._nodes: set[str] = set()

    def __enter__(self) -> ProbeSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def connect(self, address: str | None) -> Cluster:
        """The verified cluster at ``address``; raises what :func:`dstack.probes.connection.connect.connect` raises."""
        cluster = connect(address)
        if cluster != self._cluster:
            self.close()
        if self._cluster is not None and cluster.ray_version != self._cluster.ray_version:
            self._local = None  # it has the messages of another Ray
        self._cluster = cluster
        return cluster

    @property
    def has_probes(self) -> bool:
        """Whether there are probes on other nodes, which dstack's own job runs."""
        return self._remote is not None

    @property
    def local(self) -> NodeProbe:
        """Reads the nodes that are on this host."""
        if self._local is None:
            version = self._cluster.ray_version if self._cluster else ""
            self._local = NodeProbe(lambda: stubs_of(version), prepare=with_environment)
        return self._local

    def replace_local(self) -> None:
        """Leaves the current reader of this host to a reading that does not end."""
        self._local = None

    def remote(self, inventory: Inventory) -> RemoteProbes:
        """The probes on other nodes; new ones if the last ones have ended, or no node was there before."""
        assert self._cluster is not None
        alive = {node.node_id for node in inventory.nodes if node.alive}
        if self._remote is not None and (self._remote.has_ended or not alive & self._nodes):
            self.close()
        if self._remote is None:
            self._remote = RemoteProbes(self._cluster, self._driver)
        self._nodes = alive
        return self._remote

    def close(self) -> None:
        """Ends the probes on other nodes; a later request starts new ones."""
        if self._remote is not None:
            self._remote.close()
            self._remote = None


Progress = Callable[[str], None]
OVERRUN_S = 2.0
"""How long after its deadline the reading of this host's processes is awaited: it may block."""
TOO_LONG = NodeFailure("its probe timed out", "timeout")


@dataclass(frozen=True)
class Extras:
    """Optional parts of a reading, besides threads and coroutines.

    ``children`` reads child processes, ``starting`` the worker processes that are starting. ``reach`` finds references
    to objects that threads wait on, which takes long. On the nodes ``setups_of`` it finds runtime environments that are
    being installed, and on all nodes the holders of ``tcp_ends``. ``logs_of_nodes`` reads the
    ends of the logs of raylets and agents, ``finished_spans`` the spans of ``dstack.span`` that have ended,
    ``figures`` those of the hosts where no process is read.
    ``outlines`` are the drivers whose programs are read, by worker id, with their jobs. ``dumps`` are those of flight
    recorders, also on the nodes ``dumps_of``.
    ``kept`` and ``owners`` are those of a round of a profile, see :class:`dstack.probes.node.wire.SampleOptions`.
    """

    children: bool = False
    starting: bool = False
    reach: bool = False
    finished_spans: bool = False
    setups_of: Sequence[str] = ()
    tcp_ends: Sequence[str] = ()
    logs_of_nodes: bool = False
    figures: bool = False
    outlines: Mapping[str, str] = field(default_factory=dict)
    dumps: wire.DumpRequest | None = None
    dumps_of: Sequence[str] = ()
    kept: Sequence[str] | None = None
    owners: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The workers to ask for their tasks, those whose processes to read, and those whose logs to read."""

    to_ask: Sequence[Worker] = ()
    to_read: Sequence[Worker] = ()
    to_log: Sequence[Worker] = ()

    def by_node(self, others: Iterable[str] = ()) -> dict[str, Wanted]:
        """What is wanted of each node, also of ``others``."""
        asked, read, logged = map(_by_node, (self.to_ask, self.to_read, self.to_log))
        nodes = dict.fromkeys((*asked, *read, *logged, *others))
        return {node: Wanted(*(part.get(node, ()) for part in (asked, read, logged))) for node in nodes}

    @staticmethod
    def sum(parts: Iterable[Wanted]) -> Wanted:
        """All of these together."""
        columns = zip(*((one.to_ask, one.to_read, one.to_log) for one in parts), strict=True)
        return Wanted(*([*chain.from_iterable(column)] for column in columns))


@dataclass(frozen=True, slots=True)
class Reading:
    """A probe's answer about some nodes, and by how much their clock is ahead of ours."""

    nodes: Sequence[str]
    answer: NodeAnswer
    clock_ahead_s: float | None = None

    @property
    def middle_at(self) -> float:
        """The middle of the time that the probe took, by our clock."""
        return sum(self.answer.clock) / 2 - (self.clock_ahead_s or 0.0)


Receive = Callable[[Reading], None]
"""Takes an answer when it arrives. Raises :class:`MalformedAnswer`."""


class NodeReaders:
    """Reads the nodes of one snapshot, with the probes of a session. The liveness has the nodes that are not asked."""

    def __init__(self, session: ProbeSession, options: ReadingOptions, liveness: Liveness, progress: Progress) -> None:
        self._session = session
        self._options = options
        self._liveness = liveness
        self._progress = progress
        self._receiving = threading.Lock()

    def read(
        self,
        wanted: Wanted,
        how: wire.Questions,
        inventory: Inventory,
        budget: Budget,
        extras: Extras,
        receive: Receive,
    ) -> list[Failure]:
        """Asks core workers and reads processes; the failures are those of nodes without a valid answer.

        Nodes that were given up are left out. ``receive`` is called from several threads, but from one at a time.
        """
        given_up = self._liveness.given_up
        by_node = {
            node: its
            for node, its in wanted.by_node((*extras.setups_of, *extras.dumps_of)).items()
            if node not in given_up
        }
        here = nodes_here(inventory) - self._liveness.elsewhere  # probably
        local_nodes = {node: by_node.pop(node) for node in list(by_node) if node in here}
        remote = begin(lambda: self._read_remote(by_node, how, inventory, budget, extras, receive))
        elsewhere, failures = self._read_local(local_nodes, how, budget, extras, receive)
        self._liveness.elsewhere.update(elsewhere)
        failures += remote.result()
        return failures + self._read_remote(elsewhere, how, inventory, budget, extras, receive)

    def _read_local(
        self, by_node: dict[str, Wanted], how: wire.Questions, budget: Budget, extras: Extras, receive: Receive
    ) -> tuple[dict[str, Wanted], list[Failure]]:
        """Reads the nodes of this host; returns those that are elsewhere after all, and the failures of the others."""
        if not by_node:
            return {}, []
        all_here = Wanted.sum(by_node.values())
        self._progress(f"reading {plural(len(all_here.to_read), 'process', 'processes')} on this host")
        began = time.monotonic()
        result = self._local_answer(list(by_node), all_here, how, budget, extras)
        failed = () if isinstance(result, NodeFailure) else result.failures
        elsewhere = {node: its for node, its in by_node.items() if is_elsewhere(its.to_read, failed)}
        here = [node for node in by_node if node not in elsewhere]
        return elsewhere, self._received(here, result, began, budget, receive)

    def _local_answer(
        self, nodes: list[str], wanted: Wanted, how: wire.Questions, budget: Budget, extras: Extras
    ) -> NodeAnswer | NodeFailure:
        parts = self._parts(wanted, extras)
        request: wire.NodeRequest = {
            **parts,
            "is_first": budget.sample == 1,
            "nodes": nodes,
            "questions": how,
            "targets": list(map(with_environment, parts["targets"])),
            "options": self._wire_options(budget, extras),
        }
        reader = self._session.local
        reading = begin(lambda: reader.answer(request))
        answer = within(reading, budget.processes_until + OVERRUN_S - time.monotonic())
        if answer is None:
            self._session.replace_local()
            return TOO_LONG
        try:
            return validated(answer)
        except MalformedAnswer:
            return MALFORMED

    def _read_remote(
        self,
        by_node: dict[str, Wanted],
        how: wire.Questions,
        inventory: Inventory,
        budget: Budget,
        extras: Extras,
        receive: Receive,
    ) -> list[Failure]:
        failures: list[Failure] = []
        if not by_node:
            return failures
        began, asked_at = time.monotonic(), time.time()
        results = self._session.remote(inventory).sample(
            {node: self._parts(its, extras) for node, its in by_node.items()},
            how,
            self._wire_options(budget, extras),
            {node: address for node, address in inventory.raylets.items() if node in by_node},
            budget.processes_until,
            is_first=budget.sample == 1,
        )
        for done, (node, result) in enumerate(results, 1):
            self._progress(f"{done} of {len(by_node)} other nodes answered")
            ahead = None if isinstance(result, NodeFailure) else ahead_s(result.clock, asked_at, time.time())
            failures += self._received([node], result, began, budget, receive, ahead)
        return failures

    def _received(
        self,
        nodes: list[str],
        result: NodeAnswer | NodeFailure,
        began: float,
        budget: Budget,
        receive: Receive,
        clock_ahead_s: float | None = None,
    ) -> list[Failure]:
        """Hands over the answer of these nodes' probe; gives them up if there is none, or a malformed one."""
        elapsed_s = time.monotonic() - began
        if not isinstance(result, NodeFailure):
            try:
                with self._receiving:
                    receive(Reading(nodes, result, clock_ahead_s))
                return []
            except MalformedAnswer:
                result = MALFORMED
        return [self._give_up(node, result, elapsed_s, budget) for node in nodes]

    def _give_up(self, node_id: str, why: NodeFailure, elapsed_s: float, budget: Budget) -> Failure:
        self._liveness.given_up.add(node_id)
        if why.cause == "unreachable":
            self._liveness.unreachable.add(node_id)
        return node_failure(node_id, why, budget.sample, elapsed_s)

    def _parts(self, wanted: Wanted, extras: Extras) -> NodeParts:
        parts: NodeParts = {"workers": core_workers(wanted.to_ask), "targets": targets(wanted.to_read)}
        if self._options.logs != "none" and (wanted.to_log or extras.logs_of_nodes):
            parts["logs"] = {"workers": log_targets(wanted.to_log), "of_nodes": extras.logs_of_nodes}
        read = {one.worker_id for one in wanted.to_read}
        if outlines := {id: job for id, job in extras.outlines.items() if id in read}:
            parts["outlines"] = outlines
        if extras.dumps is not None:
            parts["dumps"] = extras.dumps
        return parts

    def _wire_options(self, budget: Budget, extras: Extras) -> wire.SampleOptions:
        options: wire.SampleOptions = {
            "native": self._options.native,
            "locals": self._options.locals,
            "pause": self._options.pause,
            "children": extras.children,
            "starting": extras.starting,
            "reach": extras.reach,
            "finished_spans": extras.finished_spans,
            "figures": extras.figures,
            "deadline_s": max(0.1, budget.processes_until - time.monotonic()),
            "setups_of": list(extras.setups_of),
            "tcp_ends": list(extras.tcp_ends),
        }
        if extras.kept is not None:
            options |= {"reuse": True, "kept": list(extras.kept), "owners": list(extras.owners)}
        return options


def nodes_here(inventory: Inventory) -> set[str]:
    """The nodes with an address of this host."""
    own = own_addresses()
    return {node.node_id for node in inventory.nodes if node.ip in own}


def node_failure(node_id: str, why: NodeFailure, sample: int, elapsed_s: float = 0.0) -> Failure:
    """The failure of a node's probe."""
    return Failure(
        stage="node probe",
        reason=why.reason,
        cause=why.cause,
        remedy=why.remedy,
        node_id=node_id,
        elapsed_s=round(elapsed_s, 2),
        sample=sample,
    )


def _by_node(workers: Iterable[Worker]) -> dict[str, list[Worker]]:
    return grouped((worker.node_id, worker) for worker in workers)


def is_elsewhere(workers: Iterable[Worker], failures: Iterable[Failure]) -> bool:
    """Whether no process of a node was found here, and one is in another PID namespace, as in a container."""
    causes = {failure.worker_id: failure.cause for failure in failures if failure.stage == "process"}
    missing = [causes.get(worker.worker_id) for worker in workers]
    return all(missing) and "namespace" in missing
