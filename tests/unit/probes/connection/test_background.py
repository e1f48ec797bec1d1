"""Calls that may hang have a timeout, and other readings of the cluster are kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from dstack.model.snapshot import Job, Node, Worker
from dstack.observed.reading_options import ReadingOptions
from dstack.probes import cluster
from dstack.probes.cluster import ClusterProbe
from dstack.probes.connection.background import begin, within
from dstack.probes.connection.connect import Cluster
from dstack.probes.node_access import node_readers
from dstack.probes.node_access.node_readers import ProbeSession
from dstack.probes.ray_state.control_plane import Inventory
from tests.unit.probes.replies import replied

LONG_S = 60.0
NODE, WORKER = "aa" * 28, "bb" * 28


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """An event for calls that hang until the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def test_a_call_that_ends_in_time_gives_its_result() -> None:
    assert within(begin(lambda: 7), LONG_S) == 7


def test_a_call_past_its_timeout_gives_none(released: threading.Event) -> None:
    assert within(begin(released.wait), 0.01) is None
    assert within(begin(released.wait), -1.0) is None


def test_an_exception_of_a_call_is_raised_even_if_it_is_a_timeout() -> None:
    future: Future[int] = Future()
    future.set_exception(TimeoutError("its own"))

    with pytest.raises(TimeoutError, match="its own"):
        within(future, LONG_S)


def test_a_blocked_reading_fails_only_its_node(released: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(worker_id=WORKER, node_id=NODE, ip="127.0.0.1", port=1, pid=1)
    inventory = Inventory(
        nodes=(Node(node_id=NODE, ip="127.0.0.1"),), jobs=(Job(job_id="01000000"),), workers=(worker,)
    )
    reply = replied(WORKER, "01000000", running="11" * 24)
    asked: list[int] = []

    class Blocked:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def answer(self, *_: Any) -> None:
            asked.append(1)
            released.wait()

    monkeypatch.setattr(node_readers, "connect", lambda address: Cluster("127.0.0.1:1", "2.60.0"))
    monkeypatch.setattr(cluster, "take_inventory", lambda *_, **__: inventory)
    monkeypatch.setattr(cluster, "take_roll", lambda *_: inventory)
    monkeypatch.setattr(cluster, "ask_core_workers", lambda *_: ({WORKER: reply}, []))
    monkeypatch.setattr(node_readers, "NodeProbe", Blocked)
    monkeypatch.setattr(node_readers, "OVERRUN_S", 0.1)

    probe = ClusterProbe(ProbeSession(), None, ReadingOptions(), lambda _: None)
    probe.take_first_sample(0.2)
    probe.take_second_sample([WORKER], 0.2)
    snapshot = probe.snapshot()

    assert [(one.stage, one.reason, one.node_id) for one in snapshot.failures] == [
        ("node probe", "its probe timed out", NODE)
    ]
    assert [sample.workers[0].running_task_ids for sample in snapshot.samples] == [("11" * 24,)] * 2
    assert len(asked) == 1, "it is not asked again"
