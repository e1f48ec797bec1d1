"""dstack in its own environment reads a cluster that runs another version of Ray, with other numbers of fields.

Not collected by ``make test``, which has one Ray: :mod:`tests.versions.compatibility` names the cluster's Python.
"""

import os
import subprocess
import sys

import pytest

from tests.clusters.dstack_command import dstack, settled_check
from tests.clusters.ray_clusters import run_example
from tests.versions.compatibility import CLUSTER

pytestmark = pytest.mark.ray


def version_of(python: str) -> str:
    return subprocess.run(
        [python, "-c", "import ray; print(ray.__version__)"], capture_output=True, text=True, check=True
    ).stdout


def test_a_deadlock_on_another_ray_is_found() -> None:
    with run_example("two_actors", python=os.environ[CLUSTER]) as example:
        document = settled_check(example.address, example.environment, lambda found: found["verdict"] == "deadlock")
        timeline = dstack("timeline", "--address", example.address, environment=example.environment)
        doctor = dstack("doctor", "--address", example.address, environment=example.environment)

    assert not document["coverage"]["failures"]
    assert "2 running, 1 pending; 3 of them can never proceed" in timeline.stdout
    text = " ".join(doctor.stdout.split())
    assert ("of this cluster's Ray" in text) == (version_of(os.environ[CLUSTER]) != version_of(sys.executable)), text
    assert (doctor.returncode, doctor.stderr) == (0, "")
