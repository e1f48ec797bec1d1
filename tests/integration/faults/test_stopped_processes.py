"""The duration and the content of a snapshot when a process that it needs is stopped."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import psutil
import pytest

from dstack.analysis.diagnose import diagnose
from dstack.collecting.collector import LATE_S, Collector, Terms
from dstack.model.snapshot import Snapshot
from tests.clusters.dstack_command import DSTACK, check, dstack, settled_check
from tests.clusters.ray_clusters import RayCluster, ray_cluster
from tests.processes import carrying, command_line, stopped, wait_until

pytestmark = pytest.mark.ray

ENDS_S = 120.0
"""A deadline that only a hang exceeds, however busy the machine is."""


@pytest.fixture(scope="module")
def deadlock() -> Iterator[RayCluster]:
    """A cluster with a deadlock on it."""
    with ray_cluster(1, num_cpus=2) as cluster, cluster.run_example("two_actors"):
        settled_check(cluster.address, cluster.environment, lambda answer: answer["exit_code"] == 1)
        yield cluster


def process_of(cluster: RayCluster, program: str) -> psutil.Process:
    family = carrying(("RAY_TMPDIR", str(cluster.directory)))
    return next(one for one in family if next(iter(command_line(one)), "").endswith(program))


def collector_of(pid: int) -> psutil.Process | None:
    """The child that takes snapshots, once it runs its own program."""
    children = psutil.Process(pid).children()
    return next((one for one in children if "dstack.collecting.capture" in " ".join(command_line(one))), None)


def test_a_gcs_stopped_before_a_check_is_reported(deadlock: RayCluster) -> None:
    with stopped(process_of(deadlock, "gcs_server")):
        done = dstack("check", "--address", deadlock.address, environment=deadlock.environment, timeout_s=ENDS_S)

    assert (done.returncode, done.stdout) == (3, "")
    assert "its GCS did not answer within 2 s" in done.stderr


def test_a_gcs_stopped_between_two_samples_is_reported(deadlock: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in deadlock.environment.items():
        monkeypatch.setenv(name, value)
    gcs = process_of(deadlock, "gcs_server")
    first: list[Snapshot] = []

    def stop(early: Snapshot) -> None:
        first.append(early)
        gcs.suspend()

    try:
        with Collector(deadlock.address, Terms(ENDS_S)) as collector:
            snapshot = collector.take(lambda _: None, stop)
    finally:
        gcs.resume()

    assert snapshot.samples == first[0].samples
    assert [failure.stage for failure in snapshot.failures] == ["control plane"]
    assert "no answer within" in snapshot.failures[0].reason
    diagnosis = diagnose(snapshot)
    assert (diagnosis.verdict, diagnosis.findings[0].confirmed) == ("deadlock", False)


def test_a_stopped_raylet_is_not_needed_on_its_own_host(deadlock: RayCluster) -> None:
    with stopped(process_of(deadlock, "raylet")):
        answer = check(deadlock.address, deadlock.environment)

    assert (answer["exit_code"], answer["findings"][0]["confirmed"]) == (1, True)


@pytest.mark.exhaustive
def test_a_stopped_worker_is_named_where_it_does_not_answer(deadlock: RayCluster) -> None:
    worker = process_of(deadlock, "Kitchen.cook")
    with stopped(worker):
        done = dstack("check", "--address", deadlock.address, environment=deadlock.environment, timeout_s=ENDS_S)

    assert "(after 3.0 s); its process is stopped by a signal until SIGCONT." in " ".join(done.stdout.split())


def test_a_stopped_collector_is_killed(deadlock: RayCluster) -> None:
    command = [*DSTACK, "check", "--address", deadlock.address, "--timeout", "1"]
    with subprocess.Popen(
        command, env=deadlock.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        collector = wait_until(
            lambda: collector_of(process.pid), deadline_s=ENDS_S, what=lambda: "the process that takes snapshots"
        )
        collector.suspend()
        out, err = process.communicate(timeout=ENDS_S)

    assert (process.returncode, out) == (3, "")
    assert f"The snapshot timed out after {1 + LATE_S:g} s; the last step was: " in err
    assert "Use a longer timeout" in err
    assert not collector.is_running()
