"""A followed job: it ends, it gets stuck, it has not begun, or its cluster is away."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from dstack.collecting.collector import Collector
from dstack.errors import ClusterError, DstackError, UsageError
from dstack.model.diagnosis import FailOn
from dstack.model.snapshot import ClusterPoll, Job, Snapshot, WorkerPoll
from dstack.watch import job_follower
from dstack.watch.job_follower import APPEARS_S, LOST_S, JobFollower
from tests.unit.scenes import JOB, Scene
from tests.unit.watch.test_alerts import Ring, began_at, sampled_once

RUNNING = Job(job_id=JOB, entrypoint="python train.py", submission_id="raysubmit_1")
ENDED = replace(RUNNING, is_dead=True)
STUCK_AFTER_S = 60.0
Answer = ClusterPoll | DstackError


class FakeCluster:
    """A collector with a clock: each poll takes a second, and each snapshot three."""

    def __init__(self, answers: Callable[[float], Answer], snapshot: Snapshot | None = None) -> None:
        self.now_s, self.taken = 1000.0, 0
        self._answers, self._snapshot = answers, snapshot

    def poll(self, timeout_s: float, *, with_jobs: bool) -> ClusterPoll:
        assert with_jobs
        self.now_s += 1
        answer = self._answers(self.now_s - 1000.0)
        if isinstance(answer, DstackError):
            raise answer
        return answer

    def take(self) -> Snapshot:
        self.now_s += 3
        self.taken += 1
        assert self._snapshot is not None
        return self._snapshot


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    def run(cluster: FakeCluster, job: str = "raysubmit_1", fail_on: FailOn = "deadlock") -> bool:
        """Whether the job gets stuck."""
        clock = SimpleNamespace(
            monotonic=lambda: cluster.now_s, sleep=lambda s: setattr(cluster, "now_s", cluster.now_s + s)
        )
        monkeypatch.setattr(job_follower, "time", clock)
        follower = JobFollower(
            cast(Collector, cluster), job, fail_on, every_s=10.0, stuck_after_s=STUCK_AFTER_S, say=lambda _: None
        )
        return follower.run() is not None

    return run


def polled(*jobs: Job, counter: int = 0) -> ClusterPoll:
    """A driver that runs a task and makes progress if the counter differs."""
    worker = WorkerPoll(worker_id="d" * 56, is_driver=True, counters=(counter,))
    return ClusterPoll(workers=(worker,), jobs=jobs)


def test_a_job_that_makes_progress_is_followed_to_its_end_without_a_snapshot(follow: Callable[..., bool]) -> None:
    cluster = FakeCluster(lambda s: polled(RUNNING if s < 3600 else ENDED, counter=int(s)))

    assert not follow(cluster)
    assert cluster.taken == 0
    assert cluster.now_s > 4600.0


def test_a_job_that_has_ended_before_is_no_error(follow: Callable[..., bool]) -> None:
    assert not follow(FakeCluster(lambda _: polled(ENDED)))


def test_a_confirmed_deadlock_ends_the_wait_at_once(follow: Callable[..., bool]) -> None:
    cluster = FakeCluster(lambda _: polled(RUNNING), began_at(Ring()))

    assert follow(cluster)
    assert cluster.taken == 1
    assert STUCK_AFTER_S < cluster.now_s - 1000.0 < 2 * STUCK_AFTER_S


def test_a_suspected_deadlock_must_last(follow: Callable[..., bool]) -> None:
    cluster = FakeCluster(lambda _: polled(RUNNING), sampled_once(Ring()))

    assert follow(cluster)
    assert cluster.taken == 2
    assert cluster.now_s - 1000.0 > 2 * STUCK_AFTER_S


def test_a_long_call_is_no_reason_to_end(follow: Callable[..., bool]) -> None:
    scene = Scene()
    call, _ = scene.run("work", by=scene.driver())
    scene.procs[0].gets(call)
    cluster = FakeCluster(lambda s: polled(RUNNING if s < 7200 else ENDED), began_at(scene))

    assert not follow(cluster)
    assert 1 <= cluster.taken < 20


def test_the_deadlock_of_another_job_is_no_reason_to_end(follow: Callable[..., bool]) -> None:
    scene = Ring()
    other = Job(job_id="07000000", entrypoint="python other.py")
    scene.jobs.append(other)
    cluster = FakeCluster(lambda s: polled(other if s < 3600 else replace(other, is_dead=True)), began_at(scene))

    assert not follow(cluster, job="other.py")
    assert cluster.taken > 0


def test_a_job_may_begin_later(follow: Callable[..., bool]) -> None:
    jobs = [(100.0, ()), (200.0, (RUNNING,)), (float("inf"), (ENDED,))]

    assert not follow(FakeCluster(lambda s: polled(*next(some for until, some in jobs if s < until), counter=int(s))))


def test_a_job_that_never_begins_is_an_error(follow: Callable[..., bool]) -> None:
    cluster = FakeCluster(lambda _: polled(replace(RUNNING, job_id="07000000", submission_id=None)))

    with pytest.raises(UsageError, match="No job is called raysubmit_1"):
        follow(cluster)
    assert cluster.now_s - 1000.0 > APPEARS_S


def test_a_wrong_address_is_an_error_at_once(follow: Callable[..., bool]) -> None:
    cluster = FakeCluster(lambda _: UsageError("'garbage' is not a valid address."))

    with pytest.raises(UsageError, match="garbage"):
        follow(cluster)
    assert cluster.now_s - 1000.0 < APPEARS_S


def test_a_cluster_may_be_away_while_its_gcs_restarts(follow: Callable[..., bool]) -> None:
    away = ClusterError("Nothing listens.")

    assert not follow(
        FakeCluster(
            lambda s: away if 50 < s < 50 + LOST_S / 2 else polled(RUNNING if s < 300 else ENDED, counter=int(s))
        )
    )


def test_a_cluster_that_is_gone_is_an_error(follow: Callable[..., bool]) -> None:
    away = ClusterError("Nothing listens.")
    cluster = FakeCluster(lambda s: away if s > 50 else polled(RUNNING, counter=int(s)))

    with pytest.raises(ClusterError):
        follow(cluster)
    assert cluster.now_s - 1000.0 > LOST_S
