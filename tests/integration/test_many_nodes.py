"""Snapshots of a made-up cluster of real servers: lost nodes delay none, and the caller keeps few descriptors."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

import psutil
import pytest

from benchmarks.fake_cluster.cluster import DRIVER, FakeCluster
from dstack.analysis.diagnose import diagnose
from dstack.collecting.collector import Collector, Terms
from dstack.model.snapshot import Snapshot

NODES = 30
TIMEOUT_S = 30.0
MAX_DESCRIPTORS = 60 + 4 * NODES
"""Of all processes of dstack together; there are ten workers on each node."""
MAX_THREADS = 80
"""Of all processes of dstack together, whatever the number of nodes and workers."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(NODES) as made:
        yield made


def test_lost_nodes_are_named_and_delay_no_snapshot(cluster: FakeCluster) -> None:
    before = psutil.Process().children()
    with Collector(cluster.address, Terms(TIMEOUT_S), driver=DRIVER) as collector:
        for _ in range(2):
            began = time.monotonic()
            snapshot = collector.take()

            assert time.monotonic() - began < TIMEOUT_S / 2, "the timeout was awaited"
            assert_whole_but_for_lost_nodes(cluster, snapshot)
        threads, descriptors = used_by_children(without=before)

    assert threads <= MAX_THREADS
    assert descriptors <= MAX_DESCRIPTORS


def assert_whole_but_for_lost_nodes(cluster: FakeCluster, snapshot: Snapshot) -> None:
    lost = {*cluster.dead, *cluster.slow}
    assert len(snapshot.nodes) == cluster.nodes
    assert {failure.node_id for failure in snapshot.failures} == lost
    causes = {failure.node_id: failure.cause for failure in snapshot.failures if failure.stage == "node probe"}
    assert causes == {**dict.fromkeys(cluster.dead, "unreachable"), **dict.fromkeys(cluster.slow, "timeout")}
    of_nodes = {worker.worker_id: worker.node_id for worker in snapshot.workers}
    read = {one.worker_id for one in snapshot.samples[0].workers if one.process and one.process.threads}
    assert read == {worker_id for worker_id, node_id in of_nodes.items() if node_id not in lost}
    stuck = [one for one in diagnose(snapshot).findings if one.kind in ("deadlock", "hang")]
    assert [(one.kind, one.confirmed, len(one.members)) for one in stuck] == [("deadlock", True, 4)]


def used_by_children(without: Collection[psutil.Process]) -> tuple[int, int]:
    """The threads and descriptors of the processes that this one has started since then, and of their children."""
    started = [child for child in psutil.Process().children() if child not in without]
    own = [*started, *(one for child in started for one in child.children(recursive=True))]
    return sum(one.num_threads() for one in own), sum(one.num_fds() for one in own)
