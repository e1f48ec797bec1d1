"""Reads the processes of all nodes: those of this host directly, others through probes on their nodes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from dstack.model import Failure, Worker
from dstack.probes.budget import Budget
from dstack.probes.connection.background import begin, within
from dstack.probes.connection.clocks import ahead_s
from dstack.probes.connection.connect import Cluster
from dstack.probes.node import wire
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node_access.answers import MALFORMED, MalformedAnswer, NodeFailure, validated
from dstack.probes.node_access.raylet_symbols import thread_context_layout
from dstack.probes.node_access.remote_probes import RemoteProbes
from dstack.probes.node_access.targets import own_addresses, targets, with_environment
from dstack.probes.ray_state.control_plane import Inventory
from dstack.probes.ray_state.liveness import Liveness
from dstack.words import plural

Progress = Callable[[str], None]
OVERRUN_S = 2.0
"""How long after its deadline the reading of this host's processes is awaited: it may block."""
TOO_LONG = NodeFailure("its probe timed out", "timeout")


@dataclass(frozen=True)
class Options:
    """How to read processes.

    ``native`` adds C frames (pauses each target over 100 ms), ``locals`` keeps the values of locals, ``pause`` stops
    running targets for exact stacks of running threads. Without ``native`` or ``pause`` no process is paused, traced or
    signalled.
    """

    native: bool = False
    locals: bool = False
    pause: bool = False

    @property
    def pauses(self) -> bool:
        """Whether a process may be paused."""
        return self.native or self.pause


@dataclass(frozen=True)
class Extras:
    """Optional parts of a reading, besides threads and coroutines.

    ``children`` reads child processes. ``reach`` finds references to objects that threads wait on, which takes long. On
    the nodes ``setups_of`` it finds runtime environments that are being installed.
    """

    children: bool = False
    reach: bool = False
    setups_of: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """A probe's answer about some nodes, and by how much their clock is ahead of ours."""

    nodes: Sequence[str]
    answer: wire.Answer
    clock_ahead_s: float | None = None


@dataclass
class Readings:
    """The answers of nodes, and the failures of other nodes."""

    answers: list[Reading] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Readings) -> None:
        """Adds other readings."""
        self.answers += other.answers
        self.failures += other.failures


class NodeReaders:
    """The probes of one cluster, one on this host and one on each other node, started when they are needed.

    They are slow to start, so they are kept between samples. The liveness has the nodes that are not asked.
    """

    def __init__(self, cluster: Cluster, options: Options, liveness: Liveness, progress: Progress) -> None:
        self._cluster = cluster
        self._options = options
        self._liveness = liveness
        self._progress = progress
        self._thread_context = begin(thread_context_layout)
        self._local = NodeProbe()
        self._remote: RemoteProbes | None = None

    def close(self) -> None:
        """Ends the probes on other nodes."""
        if self._remote is not None:
            self._remote.close()

    def read(self, workers: Iterable[Worker], inventory: Inventory, budget: Budget, extras: Extras) -> Readings:
        """Reads the workers' processes; those of nodes that were given up are left out."""
        by_node: dict[str, list[Worker]] = defaultdict(list)
        for worker in workers:
            if worker.node_id not in self._liveness.given_up:
                by_node[worker.node_id].append(worker)
        for node_id in extras.setups_of:
            if node_id not in self._liveness.given_up:
                by_node[node_id] += []
        here = self._nodes_here(by_node, inventory)
        local_workers = {node: by_node.pop(node) for node in here}
        remote = begin(lambda: self._read_remote(by_node, inventory, budget, extras))
        local = self._read_local(local_workers, budget, extras)
        failures = [failure for one in local.answers for failure in one.answer["failures"]]
        elsewhere = {node: its for node, its in local_workers.items() if is_elsewhere(its, failures)}
        self._liveness.elsewhere.update(elsewhere)
        local.answers = [
            replace(one, nodes=[node for node in one.nodes if node not in elsewhere]) for one in local.answers
        ]
        local.add(remote.result())
        local.add(self._read_remote(elsewhere, inventory, budget, extras))
        return local

    def _nodes_here(self, node_ids: Iterable[str], inventory: Inventory) -> list[str]:
        """The nodes whose processes are probably this host's."""
        here = nodes_here(inventory) - self._liveness.elsewhere
        return [node_id for node_id in node_ids if node_id in here]

    def _read_local(self, by_node: dict[str, list[Worker]], budget: Budget, extras: Extras) -> Readings:
        workers = [worker for node in by_node for worker in by_node[node]]
        if not by_node:
            return Readings()
        self._progress(f"reading {plural(len(workers), 'process', 'processes')} on this host")
        began = time.monotonic()
        result = self._local_answer(workers, budget, extras)
        if isinstance(result, NodeFailure):
            elapsed_s = time.monotonic() - began
            return Readings(failures=[self._give_up(node, result, elapsed_s, budget) for node in by_node])
        return Readings([Reading(list(by_node), result)])

    def _local_answer(self, workers: Iterable[Worker], budget: Budget, extras: Extras) -> wire.Answer | NodeFailure:
        options = self._wire_options(budget, extras)
        wanted = [with_environment(target) for target in targets(workers)]
        reading = begin(lambda: self._local.sample(wanted, options))
        answer = within(reading, budget.processes_until + OVERRUN_S - time.monotonic())
        try:
            return TOO_LONG if answer is None else validated(answer)
        except MalformedAnswer:
            return MALFORMED

    def _read_remote(
        self, by_node: dict[str, list[Worker]], inventory: Inventory, budget: Budget, extras: Extras
    ) -> Readings:
        readings = Readings()
        if not by_node:
            return readings
        if self._remote is None:
            self._remote = RemoteProbes(self._cluster)
        began, asked_at = time.monotonic(), time.time()
        wanted = {node: targets(workers) for node, workers in by_node.items()}
        raylets = {node: address for node, address in inventory.raylets.items() if node in wanted}
        results = self._remote.sample(wanted, self._wire_options(budget, extras), raylets, budget.processes_until)
        for done, (node, result) in enumerate(results, 1):
            self._progress(f"{done} of {len(by_node)} other nodes answered")
            if isinstance(result, NodeFailure):
                readings.failures.append(self._give_up(node, result, time.monotonic() - began, budget))
            else:
                ahead = ahead_s(result["clock"], asked_at, time.time())
                readings.answers.append(Reading([node], result, ahead))
        return readings

    def _give_up(self, node_id: str, why: NodeFailure, elapsed_s: float, budget: Budget) -> Failure:
        self._liveness.given_up.add(node_id)
        return node_failure(node_id, why, budget.sample, elapsed_s)

    def _wire_options(self, budget: Budget, extras: Extras) -> wire.Options:
        return {
            "native": self._options.native,
            "locals": self._options.locals,
            "pause": self._options.pauses,
            "children": extras.children,
            "reach": extras.reach,
            "deadline_s": max(0.1, budget.processes_until - time.monotonic()),
            "thread_context": within(self._thread_context, budget.deadline - time.monotonic()),
            "setups_of": list(extras.setups_of),
        }


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


def is_elsewhere(workers: Iterable[Worker], failures: Iterable[wire.FailureData]) -> bool:
    """Whether no process of a node was found here, and one is in another PID namespace, as in a container."""
    causes = {failure.get("worker_id"): failure["cause"] for failure in failures if failure["stage"] == "process"}
    missing = [causes.get(worker.worker_id) for worker in workers]
    return all(missing) and "namespace" in missing
