"""Processes of dstack's own import dstack and the standard library, wherever they are started."""

import subprocess
import sys
from pathlib import Path

from dstack.child import child_command


def test_what_lies_in_the_working_directory_is_not_imported(tmp_path: Path) -> None:
    for name in ("queue.py", "json.py", "dstack.py"):
        (tmp_path / name).write_text("raise SystemExit('this is the job, not the standard library')\n")

    told = subprocess.run(
        child_command("dstack", "--version"), cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert told.stdout.startswith("dstack, version")


def test_arguments_arrive_as_with_python_m() -> None:
    command = child_command("dstack", "show", "there is no such file.json")

    told = subprocess.run(command, capture_output=True, text=True, check=False)

    assert command[0] == sys.executable
    assert told.returncode == 3
    assert "there is no such file.json" in told.stderr
