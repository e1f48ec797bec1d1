"""`dstack check --wait` follows a job that was submitted: to its end, or until it is stuck."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.clusters.dstack_command import DSTACK, dstack
from tests.clusters.shared_cluster import SharedCluster

pytestmark = pytest.mark.ray

OPTIONS = ("--every", "1", "--stuck-after", "3")
PROGRAM = "import ray, time; ray.init(); ray.get(ray.remote(lambda: time.sleep(2)).remote())"


def submitted(job: str) -> dict[str, str]:
    """As `ray job submit` starts a driver (Ray 2.46 to 2.60); the server of jobs itself needs ray[default]."""
    return {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"metadata": {"job_submission_id": job}})}


def following(address: str, job: str) -> list[str]:
    return ["check", "--address", address, "--job", job, "--wait", *OPTIONS]


def test_a_stuck_job_is_reported_and_its_deadlock_has_exit_code_1(shared: SharedCluster) -> None:
    with shared.in_use() as cluster:
        joining = replace(cluster, environment={**cluster.environment, **submitted("stuck")})
        with joining.run_example("two_actors"):
            done = dstack(*following(cluster.address, "stuck"), environment=cluster.environment)

    assert done.returncode == 1, done
    assert done.stdout.startswith("DEADLOCK  Cashier.order and Kitchen.cook wait for each other")


def test_the_command_waits_for_a_job_that_begins_later_and_ends_with_it(shared: SharedCluster) -> None:
    with shared.in_use() as cluster:
        command = [*DSTACK, *following(cluster.address, "later")]
        with subprocess.Popen(command, env=cluster.environment, stderr=subprocess.PIPE, text=True) as follower:
            try:
                subprocess.run(
                    [sys.executable, "-c", PROGRAM],
                    env={**cluster.joining, **submitted("later")},
                    check=True,
                    timeout=120,
                )
                _, said = follower.communicate(timeout=120)
            finally:
                follower.kill()

    assert follower.returncode == 0
    assert said == "The job later has ended.\n"
