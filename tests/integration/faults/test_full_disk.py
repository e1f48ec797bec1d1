"""On a full disk dstack reports its findings and what it could not write, and leaves no partial file."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dstack.files.file_output import CHECK_STDOUT, WRITE_ELSEWHERE
from tests.paths import ROOT

pytestmark = [pytest.mark.ray, pytest.mark.hosts, pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    """The mount point of the disk; outside of the checkout, with a short path for sockets."""
    with tempfile.TemporaryDirectory(prefix="df", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def outcome(hosts_possible: None, disk: Path) -> dict[str, Any]:
    """The outputs of dstack on a cluster with a full disk, and afterwards."""
    program = [sys.executable, "-m", "tests.integration.programs.tools.full_disk", str(disk)]
    command = ["unshare", "--mount", *program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_check_works_on_a_full_disk(outcome: dict[str, Any]) -> None:
    assert (outcome["full"]["verdict"], outcome["full"]["exit_code"]) == ("deadlock", 1)
    assert outcome["full"]["coverage"]["failures"] == []
    assert (outcome["after"]["verdict"], outcome["after"]["exit_code"]) == ("deadlock", 1)


@pytest.mark.parametrize("name", ["snapshot.json", "snapshot.json.gz"])
def test_an_unsaved_snapshot_is_still_reported(name: str, disk: Path, outcome: dict[str, Any]) -> None:
    output = outcome["outputs"][name]

    assert output["code"] == 3
    assert output["stderr"] == f"Error: Cannot write {disk / name}: No space left on device.\n{WRITE_ELSEWHERE}\n"
    assert output["stdout"].startswith("DEADLOCK")


def test_no_partial_file_remains(outcome: dict[str, Any]) -> None:
    assert [name for name in outcome["files"] if not name.startswith("dsk")] == ["filled", "piped.json"]


def test_unwritable_output_is_an_error_with_a_remedy(outcome: dict[str, Any]) -> None:
    assert outcome["piped"]["code"] == 3
    assert (
        outcome["piped"]["stderr"]
        == f"Error: Cannot write to standard output: No space left on device.\n{CHECK_STDOUT}\n"
    )
