"""Processes of dstack's own import dstack and the standard library, wherever they are started."""

import subprocess
import sys
from pathlib import Path

import psutil

from dstack.child import child_command
from tests.processes import wait_until


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


MORTAL = (
    "import time; from dstack.child import die_with; die_with({parent}); print('alive', flush=True); time.sleep(60)"
)
STARTS_ONE = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {program!r}.format(parent=os.getpid())], stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
"""


def test_a_child_is_killed_with_its_parent() -> None:
    command = [sys.executable, "-c", STARTS_ONE.format(program=MORTAL)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        lines = {parent.stdout.readline().strip() for _ in range(2)}
        child = psutil.Process(int((lines - {"alive"}).pop()))
        parent.kill()
        wait_until(lambda: not child.is_running(), deadline_s=20, what=lambda: f"end of {child}")


def test_a_child_whose_parent_has_ended_does_not_begin() -> None:
    program = MORTAL.format(parent=1)

    done = subprocess.run([sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, check=False)

    assert (done.returncode, done.stdout) == (1, b"")
