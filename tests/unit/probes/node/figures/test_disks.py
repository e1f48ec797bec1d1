"""The disks that a raylet's command line names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from dstack.probes.node.figures import disks as module
from dstack.probes.node.figures.disks import disks

RENAMED = "import ctypes; ctypes.CDLL(None).prctl(15, b'raylet'); print(flush=True); input()"


@contextmanager
def raylet(*options: str, script: str = RENAMED) -> Iterator[int]:
    """The pid of a process with the name and these options of a raylet."""
    command = [sys.executable, "-c", script, *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def test_the_session_the_spilling_and_the_store_have_their_file_systems(tmp_path: Path) -> None:
    options = [
        f"--raylet_socket_name={tmp_path}/sockets/raylet",
        "--python_worker_command=python --plasma_directory=/elsewhere " + "x" * 9_000,
        "--plasma_directory=/dev/shm",
        f"--fallback_directory={tmp_path}",
    ]
    with raylet(*options) as pid:
        found = disks([pid, pid, 1])

    assert [(disk["use"], disk["path"]) for disk in found] == [
        ("session", str(tmp_path)),
        ("object store", "/dev/shm"),
        ("spilled objects", str(tmp_path)),
    ]
    assert [disk["total_bytes"] for disk in found] == [psutil.disk_usage(disk["path"]).total for disk in found]
    assert all(0 <= disk["free_bytes"] <= disk["total_bytes"] for disk in found)


def test_directories_that_do_not_exist_or_make_no_sense_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_DISKS", 2)
    folders = [f"--fallback_directory={path}" for path in ("relative", "/no/such", "/" + "x" * 5_000, "")]
    good = [tmp_path / str(number) for number in range(4)]
    for folder in good:
        folder.mkdir()
    with raylet(*folders, *(f"--fallback_directory={folder}" for folder in good)) as pid:
        found = disks([pid])

    assert [disk["path"] for disk in found] == [str(folder) for folder in good[:2]]


def test_only_raylets_are_asked() -> None:
    with raylet("--plasma_directory=/dev/shm", script="print(flush=True); input()") as pid:
        assert disks([pid]) == []
    assert disks([pid]) == []
