"""Reads all nodes: those of this host directly, others through probes on their nodes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from msgspec import ValidationError

from dstack.model import Failure, Worker
from dstack.probes.budget import Budget
from dstack.probes.connection.background import begin, within
from dstack.probes.connection.clocks import ahead_s
from dstack.probes.node import wire
from dstack.probes.node_access.answers import MALFORMED, MalformedAnswer, NodeFailure, validated
from dstack.probes.node_access.raylet_symbols import thread_context_layout
from dstack.probes.node_access.session import ProbeSession
from dstack.probes.node_access.targets import own_addresses, targets, with_environment
from dstack.probes.ray_state.control_plane import Inventory
from dstack.probes.ray_state.core_workers import CoreWorkerStats, core_workers, stats_of
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
class Wanted:
    """The workers to ask for their tasks, and those whose processes to read."""

    to_ask: Sequence[Worker] = ()
    to_read: Sequence[Worker] = ()

    def by_node(self, others: Iterable[str] = ()) -> dict[str, Wanted]:
        """What is wanted of each node, also of ``others``."""
        asked, read = _by_node(self.to_ask), _by_node(self.to_read)
        nodes = dict.fromkeys((*asked, *read, *others))
        return {node: Wanted(asked.get(node, ()), read.get(node, ())) for node in nodes}

    @staticmethod
    def sum(parts: Iterable[Wanted]) -> Wanted:
        """All of these together."""
        parts = list(parts)
        asked, read = ([*chain.from_iterable(one)] for one in zip(*((p.to_ask, p.to_read) for p in parts), strict=True))
        return Wanted(asked, read)


@dataclass(frozen=True, slots=True)
class Reading:
    """A probe's answer about some nodes, and by how much their clock is ahead of ours.

    ``stats`` are the replies of core workers in it, by worker id.
    """

    nodes: Sequence[str]
    answer: wire.Answer
    stats: Mapping[str, CoreWorkerStats]
    clock_ahead_s: float | None = None


@dataclass
class Readings:
    """The answers of nodes, and the failures of other nodes."""

    answers: list[Reading] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def stats(self) -> dict[str, CoreWorkerStats]:
        """The replies of all core workers, by worker id."""
        return dict(chain.from_iterable(one.stats.items() for one in self.answers))

    def add(self, other: Readings) -> None:
        """Adds other readings."""
        self.answers += other.answers
        self.failures += other.failures


class NodeReaders:
    """Reads the nodes of one snapshot, with the probes of a session. The liveness has the nodes that are not asked."""

    def __init__(self, session: ProbeSession, options: Options, liveness: Liveness, progress: Progress) -> None:
        self._session = session
        self._options = options
        self._liveness = liveness
        self._progress = progress
        self._thread_context = begin(thread_context_layout)

    def read(
        self, wanted: Wanted, how: wire.Questions, inventory: Inventory, budget: Budget, extras: Extras
    ) -> Readings:
        """Asks core workers and reads processes; those of nodes that were given up are left out."""
        by_node = {node: its for node, its in wanted.by_node(extras.setups_of).items() if self._is_asked(node)}
        here = self._nodes_here(by_node, inventory)
        local_nodes = {node: by_node.pop(node) for node in here}
        remote = begin(lambda: self._read_remote(by_node, how, inventory, budget, extras))
        local = self._read_local(local_nodes, how, budget, extras)
        failures = [failure for one in local.answers for failure in one.answer["failures"]]
        elsewhere = {node: its for node, its in local_nodes.items() if is_elsewhere(its.to_read, failures)}
        self._liveness.elsewhere.update(elsewhere)
        local.answers = [
            replace(one, nodes=[node for node in one.nodes if node not in elsewhere]) for one in local.answers
        ]
        local.add(remote.result())
        local.add(self._read_remote(elsewhere, how, inventory, budget, extras))
        return local

    def _is_asked(self, node_id: str) -> bool:
        return node_id not in self._liveness.given_up

    def _nodes_here(self, node_ids: Iterable[str], inventory: Inventory) -> list[str]:
        """The nodes whose processes are probably this host's."""
        here = nodes_here(inventory) - self._liveness.elsewhere
        return [node_id for node_id in node_ids if node_id in here]

    def _read_local(self, by_node: dict[str, Wanted], how: wire.Questions, budget: Budget, extras: Extras) -> Readings:
        if not by_node:
            return Readings()
        all_here = Wanted.sum(by_node.values())
        self._progress(f"reading {plural(len(all_here.to_read), 'process', 'processes')} on this host")
        began = time.monotonic()
        result = self._local_answer(all_here, how, budget, extras)
        return self._readings(by_node, result, time.monotonic() - began, budget)

    def _local_answer(
        self, wanted: Wanted, how: wire.Questions, budget: Budget, extras: Extras
    ) -> wire.Answer | NodeFailure:
        request: wire.NodeRequest = {
            "is_first": budget.sample == 1,
            "workers": core_workers(wanted.to_ask),
            "questions": how,
            "targets": [with_environment(target) for target in targets(wanted.to_read)],
            "options": self._wire_options(budget, extras),
        }
        reader = self._session.local
        reading = begin(lambda: reader.sample(request))
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
    ) -> Readings:
        readings = Readings()
        if not by_node:
            return readings
        began, asked_at = time.monotonic(), time.time()
        results = self._session.remote(inventory).sample(
            {
                node: {"workers": core_workers(its.to_ask), "targets": targets(its.to_read)}
                for node, its in by_node.items()
            },
            how,
            self._wire_options(budget, extras),
            {node: address for node, address in inventory.raylets.items() if node in by_node},
            budget.processes_until,
            is_first=budget.sample == 1,
        )
        for done, (node, result) in enumerate(results, 1):
            self._progress(f"{done} of {len(by_node)} other nodes answered")
            elapsed_s, now = time.monotonic() - began, time.time()
            readings.add(self._readings({node: by_node[node]}, result, elapsed_s, budget, (asked_at, now)))
        return readings

    def _readings(
        self,
        wanted: Mapping[str, Wanted],
        result: wire.Answer | NodeFailure,
        elapsed_s: float,
        budget: Budget,
        between: tuple[float, float] | None = None,
    ) -> Readings:
        """The answer of these nodes' probe, or their failures; another host answered ``between`` two times of ours."""
        if not isinstance(result, NodeFailure):
            asked = {worker.worker_id for its in wanted.values() for worker in its.to_ask}
            try:
                stats = {key: stats_of(key, data) for key, data in result["core_workers"].items() if key in asked}
                ahead = ahead_s(result["clock"], *between) if between else None
                return Readings([Reading(list(wanted), result, stats, ahead)])
            except ValidationError:
                result = MALFORMED
        return Readings(failures=[self._give_up(node, result, elapsed_s, budget) for node in wanted])

    def _give_up(self, node_id: str, why: NodeFailure, elapsed_s: float, budget: Budget) -> Failure:
        self._liveness.given_up.add(node_id)
        if why.cause == "unreachable":
            self._liveness.unreachable.add(node_id)
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


def _by_node(workers: Iterable[Worker]) -> dict[str, list[Worker]]:
    found: dict[str, list[Worker]] = defaultdict(list)
    for worker in workers:
        found[worker.node_id].append(worker)
    return found


def is_elsewhere(workers: Iterable[Worker], failures: Iterable[wire.FailureData]) -> bool:
    """Whether no process of a node was found here, and one is in another PID namespace, as in a container."""
    causes = {failure.get("worker_id"): failure["cause"] for failure in failures if failure["stage"] == "process"}
    missing = [causes.get(worker.worker_id) for worker in workers]
    return all(missing) and "namespace" in missing
