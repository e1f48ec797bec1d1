"""The cluster of a process is read from Ray's loaded modules, without importing Ray."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

import dstack
from dstack.api import resolved
from dstack.model.snapshot import Snapshot, Worker
from dstack.probes.connection.own_cluster import OwnCluster, before_disconnecting, connected_cluster, own_worker

NODE = SimpleNamespace(gcs_address="10.0.0.1:6379", node_ip_address="10.0.0.2", head=False)
CONNECTED = SimpleNamespace(global_worker=SimpleNamespace(connected=True), _global_node=NODE)


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray._private.worker", CONNECTED)


def a_worker(worker_id: str, ip: str, pid: int) -> Worker:
    return Worker(worker_id=worker_id, node_id="n", ip=ip, port=1, pid=pid, is_driver=True)


def a_snapshot(*workers: Worker) -> Snapshot:
    return Snapshot(dstack_version="0", taken_at=1.7e9, address="10.0.0.1:6379", ray_version="2.60.0", workers=workers)


@pytest.mark.usefixtures("connected")
def test_a_driver_knows_its_cluster_and_itself() -> None:
    own = a_worker("own", "10.0.0.2", os.getpid())

    assert connected_cluster() == OwnCluster("10.0.0.1:6379", "10.0.0.2", is_begun_here=False)
    assert resolved("auto") == resolved(None) == "10.0.0.1:6379"
    assert resolved("10.0.0.9:1") == "10.0.0.9:1"
    assert own_worker(a_snapshot(own, a_worker("other", "10.0.0.3", os.getpid()))) == own


@pytest.mark.usefixtures("connected")
def test_addresses_are_compared_in_one_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NODE, "node_ip_address", "2001:DB8:0::2")
    own = a_worker("own", "2001:db8::2", os.getpid())

    assert own_worker(a_snapshot(own)) == own


@pytest.mark.usefixtures("connected")
def test_an_ambiguous_driver_is_not_selected() -> None:
    similar = [a_worker(name, "10.0.0.2", os.getpid()) for name in "ab"]

    assert own_worker(a_snapshot(*similar)) is None


def test_a_process_without_a_connection_has_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray._private.worker", raising=False)

    assert connected_cluster() is None
    assert resolved("auto") is None
    assert own_worker(a_snapshot(a_worker("w", "10.0.0.2", os.getpid()))) is None


def test_ray_client_asks_for_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.util.client", SimpleNamespace(num_connected_contexts=lambda: 1))

    with pytest.raises(dstack.UsageError, match="uses Ray Client"):
        resolved("auto")
    assert resolved("10.0.0.9:1") == "10.0.0.9:1"


def test_something_is_done_before_a_program_disconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    ray = SimpleNamespace(shutdown=lambda **_: done.append("shutdown"))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delitem(sys.modules, "ray._private.worker", raising=False)
    original = ray.shutdown

    with before_disconnecting(lambda: done.append("before")):
        ray.shutdown()
        monkeypatch.setitem(sys.modules, "ray._private.worker", CONNECTED)
        ray.shutdown(wait_for_processes=True)

    assert done == ["shutdown", "before", "shutdown"]
    assert ray.shutdown is original
