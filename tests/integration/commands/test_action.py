"""The action for GitHub: a command that does not end is inspected, and ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dstack import load
from tests.clusters.ray_clusters import run_example
from tests.paths import ROOT
from tests.processes import wait_until

pytestmark = pytest.mark.ray


@pytest.mark.exhaustive
def test_a_command_that_does_not_end_leaves_a_snapshot_of_the_cluster(tmp_path: Path) -> None:
    folder = tmp_path / "hangs"
    with run_example("two_actors") as example:
        variables = {"RUN": "sleep 1001 & sleep 1001", "TEST_TIMEOUT": "60", "TIMEOUT": "1", "DIRECTORY": str(folder)}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**example.environment, **variables, "RAY_ADDRESS": example.address, "PATH": path}
        done = subprocess.run(
            [ROOT / "action" / "run.sh"], env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    assert done.returncode == 124, done.stderr
    assert "::error title=dstack::The command has not ended within 1 s" in done.stdout
    assert "DEADLOCK  Cashier.order and Kitchen.cook wait for each other" in done.stdout
    assert load(folder / "command.json.gz").address == example.address
    assert (folder / "command.html").read_text().startswith("<!doctype html>")
    wait_until(lambda: not sleeping(), deadline_s=20, what=lambda: f"no process of the command: {sleeping()}")


def sleeping() -> list[psutil.Process]:
    """The processes of the command."""
    return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", "1001"]]
