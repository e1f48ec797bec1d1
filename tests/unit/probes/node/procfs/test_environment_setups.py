"""Processes that install runtime environments are found below the agents of the requested nodes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dstack.observed.node import EnvironmentSetup
from dstack.probes.node.procfs.environment_setups import environment_setups
from tests.processes import running, wait_until

NODE, OTHER = "ab" * 28, "cd" * 28
SLEEP = "import time; time.sleep(1000)"
AGENT = f"""
import json, subprocess, sys, time
log, command, to_file = json.loads(sys.argv[1])
output = open(log, "a") if to_file else subprocess.DEVNULL
held = open(log, "a")
held.write("Cloning virtualenv\\nRun cmd[2] token=abc123\\n\\n")
held.flush()
child = subprocess.Popen(command, stdout=output)
print("ready", child.pid, flush=True)
{SLEEP}
"""
RAYLET = """
import subprocess, sys
sys.exit(subprocess.call([sys.executable, "-c", *sys.argv[2:]]))
"""


@contextmanager
def installing(
    folder: Path, command: list[str], *, title: str = "agent/main.py", to_file: bool = False
) -> Iterator[int]:
    """A process named as a raylet, whose agent runs this command; yields the command's pid."""
    raylet = folder / "raylet"
    raylet.symlink_to(os.path.realpath(sys.executable))
    log = folder / "runtime_env_setup-01000000.log"
    known = json.dumps([str(log), command, to_file])
    words = [str(raylet), "-c", RAYLET, f"--node_id={NODE}", AGENT, known, f"/x/ray/_private/runtime_env/{title}"]
    with running(words, dict(os.environ), folder / "output") as child:
        child.wait_for_line("ready", deadline_s=30)
        line = child.line("ready ")
        assert line is not None
        yield int(line.split()[1])


PIP = [sys.executable, "-c", SLEEP, "install", "torch", "--index-url", "https://me:secret@index.test/simple"]


def test_an_installation_is_found_with_its_command_start_and_last_line_without_secrets(tmp_path: Path) -> None:
    with installing(tmp_path, PIP) as pid:
        (setup,) = environment_setups([NODE])

        assert environment_setups([OTHER]) == []

    assert (setup.node_id, setup.pid) == (NODE, pid)
    assert setup.command.startswith(os.path.basename(sys.executable))
    assert setup.command.endswith("install torch --index-url https://***@index.test/simple")
    assert abs(time.time() - setup.started_at) < 60
    assert setup.output == "Run cmd[2] token=***"


def test_the_command_of_a_shell_replaces_the_shell(tmp_path: Path) -> None:
    shell = ["/bin/sh", "-c", f"{sys.executable} -c '{SLEEP}' install numpy; true"]
    with installing(tmp_path, shell, to_file=True) as shell_pid:

        def program() -> EnvironmentSetup | None:
            (setup,) = environment_setups([NODE])
            return setup if setup.pid != shell_pid and "numpy" in setup.command else None

        setup = wait_until(program, deadline_s=20, what=lambda: f"{environment_setups([NODE])}")

    assert setup.command.endswith("install numpy")


@pytest.mark.parametrize("title", ["dashboard.py", "agent/other.py"])
def test_children_of_other_raylet_processes_are_no_installation(title: str, tmp_path: Path) -> None:
    with installing(tmp_path, PIP, title=title):
        assert environment_setups([NODE]) == []
