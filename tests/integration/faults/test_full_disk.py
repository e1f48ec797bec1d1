"""Where a disk is full, dstack tells what it saw, says what it could not write, and leaves nothing half."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

pytestmark = [pytest.mark.ray, pytest.mark.hosts, pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    """Where the disk is mounted; near the root, as paths of sockets must stay short, and beside the checkout."""
    with tempfile.TemporaryDirectory(prefix="df", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def told(hosts_possible: None, disk: Path) -> dict[str, Any]:
    """What was said on a cluster whose disk is full, and after that."""
    program = [sys.executable, "-m", "tests.integration.programs.tools.full_disk", str(disk)]
    command = ["unshare", "--mount", *program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_check_works_on_a_full_disk(told: dict[str, Any]) -> None:
    assert (told["full"]["verdict"], told["full"]["exit_code"]) == ("deadlock", 1)
    assert told["full"]["coverage"]["failures"] == []
    assert (told["after"]["verdict"], told["after"]["exit_code"]) == ("deadlock", 1)


@pytest.mark.parametrize("name", ["taken.json", "taken.json.gz"])
def test_an_unsaved_snapshot_is_still_reported(name: str, disk: Path, told: dict[str, Any]) -> None:
    output = told["outputs"][name]

    assert output["code"] == 3
    assert output["stderr"] == f"Error: Cannot write {disk / name}: No space left on device.\n"
    assert output["stdout"].startswith("DEADLOCK")


def test_no_partial_file_remains(told: dict[str, Any]) -> None:
    assert [name for name in told["left"] if not name.startswith("dsk")] == ["filled", "piped.json"]


def test_unwritable_output_is_an_error_of_one_line(told: dict[str, Any]) -> None:
    assert told["piped"]["code"] == 3
    assert told["piped"]["stderr"] == "Error: Cannot write to standard output: No space left on device.\n"
