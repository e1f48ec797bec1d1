"""How busy a cluster is, by polls and by one snapshot."""

from __future__ import annotations

from typing import Any

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.cluster_activity import ClusterActivity, Load, activity_of, jobs_in_words
from dstack.model.snapshot import ClusterPoll, Job, Node, WorkerPoll
from dstack.observed.node import Gpu, HostFigures
from tests.unit.support.large_histories import history_snapshot

GIB = 2**30


def polled(*workers: WorkerPoll, **fields: Any) -> ClusterPoll:
    return ClusterPoll(workers=workers, nodes=(Node(node_id="n1", ip="10.0.0.1"),), **fields)


def worker(name: str = "w", **fields: Any) -> WorkerPoll:
    return WorkerPoll(worker_id=name, **{"pending": {}, **fields})


def test_the_rate_counts_the_tasks_of_old_and_new_workers() -> None:
    activity = ClusterActivity()
    activity.add(polled(worker("a", finished=10)), 100.0)
    activity.add(polled(worker("a", finished=14), worker("b", finished=2)), 103.0)
    activity.add(polled(worker("b", finished=2)), 105.0)

    latest = activity.latest()

    assert latest
    assert latest.rates == [None, 2.0, 0.0]
    assert latest.per_s == 1.0
    assert (latest.at, latest.over_s, latest.workers) == (105.0, 5.0, 1)


def test_a_worker_that_answers_again_is_not_new() -> None:
    activity = ClusterActivity()
    activity.add(polled(worker("a", finished=1000)), 0.0)
    activity.add(polled(silent=("a",)), 1.0)
    activity.add(polled(worker("a", finished=1001)), 2.0)

    latest = activity.latest()

    assert latest
    assert latest.rates == [None, 0.0, 1.0]


def test_nothing_is_known_of_the_time_without_an_answer() -> None:
    activity = ClusterActivity()
    activity.add(polled(worker(finished=5)), 0.0)
    activity.interrupt()
    assert activity.latest() is None
    activity.add(polled(worker(finished=500)), 60.0)

    latest = activity.latest()

    assert latest
    assert latest.rates == [None, None]
    assert latest.per_s is None


def test_calls_that_run_are_not_pending() -> None:
    activity = ClusterActivity()
    states = {"t1": "RUNNING", "t2": "PENDING_NODE_ASSIGNMENT"}
    activity.add(polled(worker("d", is_driver=True, pending=states), worker("w", running=("t1",))), 0.0)

    latest = activity.latest()

    assert latest
    assert (latest.running, latest.pending, latest.workers) == (1, 1, 1)


@pytest.mark.parametrize(
    ("now", "has_changed"),
    [
        (polled(worker(running=("t1",), counters=(9,))), False),  # only a counter
        (polled(worker(running=("t2",))), True),
        (polled(worker(running=("t1",), pending={"t2": "X"})), True),
        (polled(worker(running=("t1",), finished=1)), True),
        (polled(worker(running=("t1",), pending=None, counters=(9,))), True),
        (polled(worker(running=("t1",)), worker("new")), True),
        (polled(silent=("w",)), True),
    ],
)
def test_a_change_is_one_of_tasks_workers_or_nodes(now: ClusterPoll, *, has_changed: bool) -> None:
    activity = ClusterActivity()
    activity.add(polled(worker(running=("t1",))), 0.0)
    assert not activity.has_changed
    activity.add(now, 1.0)
    assert activity.has_changed == has_changed
    activity.mark()
    assert not activity.has_changed


def test_the_load_of_a_node_is_that_of_its_host_and_gpus() -> None:
    gpus = tuple(
        Gpu(index=at, utilisation_percent=percent, memory_used_bytes=used * GIB, memory_total_bytes=80 * GIB)
        for at, (percent, used) in enumerate([(100.0, 80), (50.0, 40)])
    )
    host = HostFigures(cpu_percent=25.0, memory_total_bytes=8 * GIB, memory_available_bytes=2 * GIB, gpus=gpus)

    assert Load.of(Node(node_id="n", ip="10.0.0.1", is_head=True, host=host)) == Load(
        name="10.0.0.1 (head)", cpu=0.25, memory=0.75, gpu=0.75, gpu_memory=0.75
    )
    assert Load.of(Node(node_id="n", ip="10.0.0.1")) == Load(name="10.0.0.1")


def test_a_snapshot_has_the_rates_of_its_history() -> None:
    snapshot = history_snapshot(500, 10)
    activity = activity_of(AnalysedSnapshot.of(snapshot))
    ended = sum("FINISHED" in one.states or "FAILED" in one.states for one in snapshot.history.attempts)  # type: ignore[union-attr]

    assert sum(rate or 0 for rate in activity.rates) * activity.over_s / len(activity.rates) == pytest.approx(ended)


def test_jobs_have_the_names_of_their_scripts() -> None:
    jobs = [Job(job_id="01", entrypoint="python a/train.py --x"), Job(job_id="02")]
    assert jobs_in_words(jobs) == "train.py (01) and 1 more"
    assert jobs_in_words(jobs[1:]) == "02"
    assert jobs_in_words([]) == "none"
