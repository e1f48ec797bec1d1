"""dstack in an environment of its own, beside a cluster that runs another minor version of Python.

Not collected by ``make test``, which has one Python with Ray: :mod:`tests.versions.compatibility` names the cluster's.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dstack import load
from tests.clusters.dstack_command import dstack, settled_check
from tests.clusters.ray_clusters import run_example
from tests.examples.expected import expected_of
from tests.paths import EXAMPLES
from tests.versions.compatibility import CLUSTER

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def python() -> str:
    """The cluster's Python, of another minor version."""
    python = os.environ[CLUSTER]
    told = subprocess.run([python, "-V"], check=True, capture_output=True, text=True).stdout
    assert told.split()[1].split(".")[:2] != [str(number) for number in sys.version_info[:2]]
    return python


@pytest.mark.parametrize("name", ["lock_and_callback", "rlock_and_callback", "pool_waits_for_itself"])
def test_waits_and_tasks_of_threads_are_read(name: str, python: str, tmp_path: Path) -> None:
    path = EXAMPLES / "hangs" / f"{name}.py"
    expected = expected_of(path)
    file = str(tmp_path / "taken.json")

    with run_example(path, python=python) as example:
        told = settled_check(example.address, example.environment, expected.is_met_by)
        dstack("snapshot", "--address", example.address, "-o", file, environment=example.environment)

    assert not told["coverage"]["failures"]
    snapshot = load(file)
    processes = [worker.process for worker in snapshot.samples[0].workers if worker.process]
    assert processes
    assert all(process.tasks_read for process in processes)
