from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from dstack.probes.node.procfs.permissions import DumpFailed
from dstack.probes.node.pyspy import PySpy
from dstack.probes.node.sampling.pyspy_recorder import PySpyRecorder, position_of
from tests.processes import wait_until
from tests.sampling import RECORD_OPTIONS


@pytest.mark.parametrize(
    ("text", "file", "qualified", "line", "module"),
    [
        ("Trainer.step (/app/train.py:7)", "/app/train.py", "Trainer.step", 7, None),
        ("<module> (<string>:1)", "<string>", "<module>", 1, None),
        ("f (/app/a (copy).py:7)", "/app/a (copy).py", "f", 7, None),
        ("ray::Get(int, char (*)[4]) (core.cc:12)", "core.cc", "ray::Get(int, char (*)[4])", 12, "core.cc"),
        ("clock_nanosleep (libc.so.6)", "libc.so.6", "clock_nanosleep", 0, "libc.so.6"),
        ("execute (ray/_raylet.pyx:17)", "ray/_raylet.pyx", "execute", 17, "ray/_raylet.pyx"),
        ("nonsense", "", "nonsense", 0, "unknown"),
    ],
)
def test_a_frame_is_parsed(text: str, file: str, qualified: str, line: int, module: str | None) -> None:
    found = position_of(text)

    assert (found.file, found.qualified, found.line, found.module) == (file, qualified, line, module)


def recorder(script: str, folder: Path) -> PySpyRecorder:
    """A recorder whose py-spy is a script."""
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return PySpyRecorder(PySpy(str(path)), os.getpid(), RECORD_OPTIONS)


def ended(one: PySpyRecorder) -> None:
    wait_until(lambda: one._child is not None and one._child.poll() is not None, deadline_s=30, what=lambda: "its end")


def test_counts_are_read_and_the_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lines = f"thread ({os.getpid()}): MainThread;main (a.py:1);f (a.py:2) 5\\nthread (1): x;main (a.py:1) 2\\nodd"
    one = recorder(f'while [ "$1" != --output ]; do shift; done; printf "{lines}" > "$2"', tmp_path)
    one.begin()
    ended(one)
    found = one.collect(is_last=False)

    assert found is not None
    stacks = {(tid, tuple(position.function for position in stack)): n for (tid, stack, _), n in found.counts.items()}
    assert stacks == {(os.getpid(), ("f", "main")): 5, (0, ("main",)): 2}
    assert list(tmp_path.glob("*.folded")) == []
    assert one.collect(is_last=False) is None


def test_a_failed_pyspy_is_reported(tmp_path: Path) -> None:
    one = recorder("echo 'Error: Permission denied' >&2; exit 1", tmp_path)
    one.begin()
    ended(one)

    with pytest.raises(DumpFailed):
        one.collect(is_last=False)


def test_a_missing_pyspy_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DumpFailed):
        PySpyRecorder(PySpy(str(tmp_path / "none")), os.getpid(), RECORD_OPTIONS).begin()


def test_it_is_killed_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    one = PySpyRecorder(PySpy(shutil.which("sleep") or sys.executable), os.getpid(), RECORD_OPTIONS)
    one.begin()
    one.close()

    assert list(tmp_path.glob("*.folded")) == []
