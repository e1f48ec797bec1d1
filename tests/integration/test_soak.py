"""A quarter of a minute of the soak: progressing programs are never called stuck."""

import subprocess
import sys

import pytest

from tests.paths import ROOT

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]

HOURS = "0.004"
WORKLOADS = "generators,placement_groups,queues,scarce_resources,threads"
"""The workloads most prone to false alarms; those that need more than Ray itself run in ``make soak``."""


def test_progressing_programs_are_not_called_stuck() -> None:
    command = [sys.executable, "-m", "benchmarks.soak", HOURS, "--workloads", WORKLOADS, "--together", "5"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "false alarms: 0" in done.stdout
    print(done.stdout)
