"""Samples of a cluster from simulated answers of its probes and core workers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from dstack.files.snapshot_file import dumps, loads
from dstack.model.snapshot import Job, Node, Snapshot, Worker
from dstack.observed.node import Cause, CoreWorkerReply, Failure, HostFigures, NodeAnswer
from dstack.observed.reading_options import ReadingOptions
from dstack.probes import cluster as probes
from dstack.probes.cluster import ClusterProbe
from dstack.probes.connection.connect import Cluster
from dstack.probes.node import wire
from dstack.probes.node.core_worker_calls import CoreWorkers, Replies
from dstack.probes.node_access import node_readers
from dstack.probes.node_access.answers import MALFORMED, NodeFailure, NodeParts
from dstack.probes.node_access.ray_agents import Agents
from dstack.probes.node_access.remote_probes import Result
from dstack.probes.ray_state.control_plane import Inventory
from tests.unit.probes.replies import replied

DEADLINE_S = 60.0
NODE, OTHER = "aa" * 28, "ab" * 28
NO_RIGHT = "no permission: dstack runs without the capability SYS_PTRACE, as in a container"
DEFAULT = ReadingOptions()


class Simulated:
    """A simulated cluster: the GCS's lists, failures of core workers, and answers of remote probes."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.causes: dict[str, Cause] = {}
        self.asked: list[set[str]] = []
        self.asked_from_here: list[set[str]] = []
        self.remote: list[set[str]] = []
        self.rolls = 0
        self.unlisted: set[str] = set()
        self.agents = {OTHER}
        self.asked_agents: list[set[str]] = []
        self.remote_failures: dict[str, Failure] = {}
        self.remote_failure: NodeFailure | None = None
        self.remote_clock = (0.0, 0.0)

    def inventory(self, *_: Any, **__: Any) -> Inventory:
        nodes = (Node(node_id=NODE, ip="127.0.0.1"), Node(node_id=OTHER, ip="192.0.2.9"))
        return Inventory(nodes=nodes, jobs=(Job(job_id="01000000"),), workers=tuple(self.workers))

    def roll(self, *_: Any) -> Inventory:
        self.rolls += 1
        listed = tuple(worker for worker in self.workers if worker.worker_id not in self.unlisted)
        return Inventory(workers=listed)

    def stacks(self, workers: Sequence[Worker], *_: Any) -> tuple[NodeAnswer, list[Failure]]:
        self.asked_agents.append({worker.worker_id for worker in workers})
        return NodeAnswer(clock=(0.0, 0.0)), []

    def ask(self, workers: Sequence[wire.CoreWorker]) -> Replies:
        """The replies to a node's probe."""
        ids = [worker["worker_id"] for worker in workers]
        self.asked.append(set(ids))
        failures = [
            Failure(stage="core worker", reason="any", cause=self.causes[one], worker_id=one)
            for one in ids
            if one in self.causes
        ]
        return Replies({one: replied(one, "01000000") for one in ids if one not in self.causes}, failures)

    def ask_from_here(
        self, workers: Sequence[Worker], how: wire.Questions, deadline: float, sample: int = 1
    ) -> tuple[dict[str, CoreWorkerReply], list[Failure]]:
        self.asked_from_here.append({worker.worker_id for worker in workers})
        return {one.worker_id: replied(one.worker_id, "01000000") for one in workers}, []

    def worker(self, pid: int, port: int, node_id: str = NODE) -> str:
        """Add a worker and return its id."""
        worker_id = f"{len(self.workers):056x}"
        self.workers.append(Worker(worker_id=worker_id, node_id=node_id, ip="127.0.0.1", port=port, pid=pid))
        return worker_id


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    simulated = Simulated()

    class Remote:
        has_ended = False

        def __init__(self, *_: Any) -> None:
            pass

        def sample(self, nodes: dict[str, NodeParts], *_: Any, **__: Any) -> Iterator[tuple[str, Result]]:
            simulated.remote.append(set(nodes))
            for node_id, parts in nodes.items():
                found = [simulated.remote_failures.get(target["worker_id"]) for target in parts["targets"]]
                replies = simulated.ask(parts["workers"])
                answer = NodeAnswer(
                    core_workers=replies.found,
                    failures=(*(one for one in found if one), *replies.failures),
                    host=HostFigures(cpu_count=1),
                    clock=simulated.remote_clock,
                )
                yield node_id, simulated.remote_failure or answer

        def close(self) -> None:
            pass

    monkeypatch.setattr(node_readers, "connect", lambda address: Cluster("127.0.0.1:1", "2.60.0"))
    monkeypatch.setattr(probes, "take_inventory", simulated.inventory)
    monkeypatch.setattr(probes, "take_roll", simulated.roll)
    monkeypatch.setattr(probes, "ask_core_workers", simulated.ask_from_here)
    monkeypatch.setattr(CoreWorkers, "ask", lambda _, workers, how, deadline=0.0, more=None: simulated.ask(workers))
    monkeypatch.setattr(Agents, "stacks_of", simulated.stacks)
    monkeypatch.setattr(Agents, "present_on", lambda _, nodes, timeout_s: nodes & simulated.agents)
    monkeypatch.setattr(node_readers, "RemoteProbes", Remote)
    return simulated


def began_at(
    again: Callable[[Simulated], set[str]] | None = None, *, of: Simulated, options: ReadingOptions = DEFAULT
) -> Snapshot:
    probe = ClusterProbe(node_readers.ProbeSession(), None, options, lambda text: None)
    probe.take_first_sample(DEADLINE_S)
    if again:
        probe.take_second_sample(again(of), DEADLINE_S)
    return probe.snapshot()


@pytest.fixture
def ended() -> int:
    """The pid of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def contained(hosts_possible: None) -> Iterator[tuple[int, int]]:
    """The inner pid and the port of a process in a container that shares this host's address."""
    program = (
        "import os, socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    )
    command = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c")
    with subprocess.Popen(
        [*command, f"{program}; sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        yield 1, int(process.stdout.readline())


@pytest.mark.hosts
def test_processes_unreadable_by_the_probe_in_a_container_are_failures(
    simulated: Simulated, contained: tuple[int, int]
) -> None:
    worker_id = simulated.worker(*contained)
    failure = Failure(stage="stacks", reason=NO_RIGHT, cause="permission", worker_id=worker_id, pid=1)
    simulated.remote_failures[worker_id] = failure

    snapshot = began_at(of=simulated)

    assert simulated.remote == [{NODE}]
    assert [(one.stage, one.cause, one.reason, one.node_id) for one in snapshot.failures] == [
        ("stacks", "permission", NO_RIGHT, NODE)
    ]


@pytest.mark.hosts
def test_processes_absent_outside_of_a_container_are_no_failures(
    simulated: Simulated, contained: tuple[int, int]
) -> None:
    simulated.worker(*contained)

    assert began_at(of=simulated).failures == ()


def test_a_node_whose_only_worker_has_ended_gets_no_remote_probe(simulated: Simulated, ended: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    simulated.worker(ended, port)

    snapshot = began_at(lambda one: {worker.worker_id for worker in one.workers}, of=simulated)

    assert simulated.remote == []
    assert snapshot.workers == ()
    assert snapshot.failures == ()


@pytest.mark.parametrize(
    "why",
    [NodeFailure("no connection", "unreachable"), NodeFailure("not joined", "timeout", "Run it there."), MALFORMED],
)
def test_a_node_without_an_answer_is_a_failure_with_its_cause(simulated: Simulated, why: NodeFailure) -> None:
    simulated.worker(1, 0, node_id=OTHER)
    simulated.remote_failure = why
    simulated.agents = set()

    snapshot = began_at(of=simulated)

    worker_id = simulated.workers[0].worker_id
    assert simulated.asked_from_here == ([] if why.cause == "unreachable" else [{worker_id}])
    found = [(one.stage, one.reason, one.cause, one.remedy, one.node_id) for one in snapshot.failures]
    assert found == [("node probe", why.reason, why.cause, why.remedy, OTHER)]
    assert loads(dumps(snapshot)) == snapshot


def test_a_node_whose_clock_is_ahead_is_named_with_the_difference(simulated: Simulated) -> None:
    simulated.worker(1, 0, node_id=OTHER)
    simulated.remote_clock = (time.time() + 100, time.time() + 101)

    snapshot = began_at(of=simulated)

    (node,) = [node for node in snapshot.nodes if node.node_id == OTHER]
    assert node.clock_ahead_s is not None
    assert 50 < node.clock_ahead_s <= 101
    assert [note.partition(" ahead of")[0] for note in snapshot.notes] == [
        f"The clock of node 192.0.2.9 is {node.clock_ahead_s:.0f} s"
    ]


def test_workers_that_timed_out_are_not_asked_again(simulated: Simulated, used_port: int) -> None:
    slow, broken, good = (simulated.worker(os.getpid(), used_port) for _ in range(3))
    simulated.causes = {slow: "timeout", broken: "unreachable"}

    began_at(lambda _: set(), of=simulated)

    assert slow in simulated.asked[0]
    assert [ids for ids in simulated.asked if slow in ids] == simulated.asked[:1]
    assert {broken, good} in simulated.asked


@pytest.mark.parametrize(
    "options", [DEFAULT, ReadingOptions(pause=True), ReadingOptions(native=True)], ids=["default", "pause", "native"]
)
def test_agents_that_pause_processes_are_asked_only_with_permission(
    simulated: Simulated, options: ReadingOptions
) -> None:
    unread = simulated.worker(1, 0, node_id=OTHER)
    failure = Failure(stage="stacks", reason=NO_RIGHT, cause="permission", worker_id=unread, pid=1)
    simulated.remote_failures[unread] = failure

    snapshot = began_at(lambda _: {unread}, of=simulated, options=options)

    assert simulated.asked_agents == ([{unread}] * 2 if options.pauses else [])
    suggested = (
        None
        if options.pauses
        else "Use --pause: Ray's agent can read the stacks while it pauses the process for some ms."
    )
    assert [one.remedy for one in snapshot.failures] == [suggested] * 2
    assert simulated.rolls == 0, "the process is there, and the GCS need not be asked for it"


def test_a_worker_that_the_gcs_no_longer_lists_has_ended(simulated: Simulated) -> None:
    ended, there = simulated.worker(1, 0, node_id=OTHER), simulated.worker(2, 0, node_id=OTHER)
    simulated.causes = {ended: "unreachable", there: "unreachable"}
    simulated.unlisted = {ended}

    snapshot = began_at(of=simulated)

    assert simulated.rolls == 1
    assert [worker.worker_id for worker in snapshot.workers] == [there]
    assert [one.worker_id for one in snapshot.failures] == [there]
