"""`dstack check --wait` follows a job that was submitted: to its end, or until it is stuck."""

from __future__ import annotations

import json
import subprocess
import sys
from types import MappingProxyType

from tests.clusters.dstack_command import DSTACK, Result, dstack
from tests.clusters.ray_clusters import ray_cluster, run_example

SUBMISSION = "train-7"
SUBMITTED = MappingProxyType(
    {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"metadata": {"job_submission_id": SUBMISSION}})}
)
"""As `ray job submit` starts a driver (Ray 2.46 to 2.60); the server of jobs itself needs ray[default]."""
OPTIONS = ("--every", "1", "--stuck-after", "3")
PROGRAM = "import ray, time; ray.init(); ray.get(ray.remote(lambda: time.sleep(2)).remote())"


def follow(address: str, environment: dict[str, str]) -> Result:
    return dstack("check", "--address", address, "--job", SUBMISSION, "--wait", *OPTIONS, environment=environment)


def test_a_stuck_job_is_reported_and_its_deadlock_has_exit_code_1() -> None:
    with run_example("two_actors", variables=SUBMITTED) as example:
        done = follow(example.address, dict(example.environment))

    assert done.returncode == 1, done
    assert done.stdout.startswith("DEADLOCK  Cashier.order and Kitchen.cook wait for each other")


def test_the_command_waits_for_a_job_that_begins_later_and_ends_with_it() -> None:
    with ray_cluster(num_cpus=2) as cluster:
        command = [*DSTACK, "check", "--address", cluster.address, "--job", SUBMISSION, "--wait", *OPTIONS]
        with subprocess.Popen(command, env=cluster.environment, stderr=subprocess.PIPE, text=True) as follower:
            try:
                subprocess.run(
                    [sys.executable, "-c", PROGRAM], env={**cluster.joining, **SUBMITTED}, check=True, timeout=120
                )
                _, said = follower.communicate(timeout=120)
            finally:
                follower.kill()

    assert follower.returncode == 0
    assert said == f"The job {SUBMISSION} has ended.\n"
