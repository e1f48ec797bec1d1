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

from dstack.observed.node import EnvironmentSetup, RayletReport, StartingWorker
from dstack.probes.node.probe import NodeProbe, Others
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.raylets import (
    WorkerProcess,
    environment_setups,
    raylet_reports,
    raylets,
    unlisted_workers,
)
from tests.processes import running, wait_until
from tests.sampling import OPTIONS

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


WORKER = "12" * 28
RAYLET_OF_WORKERS = """
import os, subprocess, sys
environment = {**os.environ, "RAY_JOB_ID": "01000000"}
child = subprocess.Popen(sys.argv[3:], env=environment)
print("ready", child.pid, flush=True)
child.wait()
"""
SCRIPT = """
import time


def connect():
    time.sleep(1000)


connect()
"""


def script(folder: Path, name: str = "default_worker.py") -> str:
    """A program at the end of a path like that of Ray's."""
    path = folder / "ray" / "_private" / "workers" / name
    path.parent.mkdir(parents=True)
    path.write_text(SCRIPT)
    return str(path)


@contextmanager
def starting(folder: Path, command: list[str], *, stays: bool = False) -> Iterator[int]:
    """A process named as a raylet that has started this command; yields the command's pid.

    Where it ``stays``, it does not wait for the command, as it is busy.
    """
    raylet = folder / "raylet"
    raylet.symlink_to(os.path.realpath(sys.executable))
    words = [str(raylet), "-c", RAYLET_OF_WORKERS, f"--node_id={NODE}", f"--log_dir={folder}", *command]
    words[2] = words[2].replace("child.wait()", SLEEP) if stays else words[2]
    with running(words, dict(os.environ), folder / "output") as child:
        child.wait_for_line("ready", deadline_s=30)
        line = child.line("ready ")
        assert line is not None
        yield int(line.split()[1])


def found(node_id: str = NODE, listed: tuple[str, ...] = (), known: tuple[int, ...] = ()) -> list[WorkerProcess]:
    return list(unlisted_workers(raylets([node_id], proc.children()), listed, known, proc.children()))


def test_a_worker_is_found_with_its_id_and_job_unless_it_is_listed(tmp_path: Path) -> None:
    with starting(tmp_path, [sys.executable, script(tmp_path), f"--worker-id={WORKER}"]) as pid:
        wait_until(found, deadline_s=20, what=lambda: "no worker")

        assert found() == [WorkerProcess(pid=pid, worker_id=WORKER, node_id=NODE, job_id="01000000")]
        assert found(OTHER) == found(listed=(WORKER,)) == found(known=(pid,)) == []


def test_a_worker_without_an_id_gets_one_that_stays(tmp_path: Path) -> None:
    with starting(tmp_path, [sys.executable, script(tmp_path, "setup_worker.py")]):
        wait_until(found, deadline_s=20, what=lambda: "no worker")
        first, second = found(), found()

    assert first == second
    assert len(first[0].worker_id) == 56


def test_a_worker_below_another_program_is_found(tmp_path: Path) -> None:
    shell = f"{sys.executable} {script(tmp_path)} --worker-id={WORKER}; true"
    with starting(tmp_path, ["/bin/sh", "-c", shell]) as shell_pid:
        (worker,) = wait_until(found, deadline_s=20, what=lambda: "no worker")

    assert worker.pid != shell_pid
    assert worker.worker_id == WORKER


@pytest.mark.parametrize("word", ["ray/dashboard/agent.py", "ray/_private/runtime_env/agent/main.py"])
def test_agents_and_workers_for_spilling_take_no_tasks(word: str, tmp_path: Path) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with starting(tmp_path, [*sleep, f"/x/{word}"]):
        assert found() == []


def test_a_worker_for_spilling_is_left_out(tmp_path: Path) -> None:
    with starting(tmp_path, [sys.executable, script(tmp_path), "--worker-type=SPILL_WORKER"]):
        assert found() == []


def test_a_probe_reads_what_a_starting_worker_does(tmp_path: Path) -> None:
    probe, others = NodeProbe(), Others(node_ids=[NODE])

    def read() -> list[StartingWorker]:
        """The workers whose interpreter has begun with the script."""
        starting = probe.sample([], OPTIONS, others).starting
        return [one for one in starting if one.process.main_thread is not None and one.process.starting == "start"]

    with starting(tmp_path, [sys.executable, script(tmp_path), f"--worker-id={WORKER}"]) as pid:
        (worker,) = wait_until(read, deadline_s=30, what=lambda: "no worker was read")

    main = worker.process.main_thread
    assert (worker.worker_id, worker.process.pid) == (WORKER, pid)
    assert main is not None
    assert main.role == "user"


REPORT = f"""NodeManager:
Node ID: {NODE}
num_waiting_for_resource: 0
num_waiting_for_plasma_memory: 1
num_tasks_waiting_for_workers: 2
Total size of pinned lease arguments: 83886080
WorkerPool:
- process_failed_rate_limited: 231
- process_failed_pending_registration: 4
- num PYTHON pending start requests: 3
- num idle workers: 0
"""


def test_the_report_of_a_raylet_is_read(tmp_path: Path) -> None:
    def reports() -> list[RayletReport]:
        return list(raylet_reports(raylets([NODE], proc.children()), proc.children()))

    with starting(tmp_path, [sys.executable, script(tmp_path)]):
        assert reports() == []
        (tmp_path / "debug_state.txt").write_text(REPORT)
        (report,) = reports()
        (tmp_path / "debug_state.txt").write_text(REPORT.replace("lease", "task"))
        (older,) = reports()
        (tmp_path / "debug_state.txt").write_text(REPORT.replace(NODE, OTHER))
        assert reports() == []

    assert (report.node_id, report.waiting_for_memory, report.argument_bytes) == (NODE, 1, 80 * 2**20)
    assert report.counts == {
        "waiting for workers": 2,
        "starts over the limit": 231,
        "pending starts": 3,
        "late registrations": 4,
    }
    assert report.starting == 1
    assert report.written_at == pytest.approx((tmp_path / "debug_state.txt").stat().st_mtime, abs=60)
    assert older.argument_bytes == report.argument_bytes


@pytest.mark.parametrize(
    ("words", "starting_workers"),
    [
        (["/bin/sh", "-c", "sleep 1000; exit", "SCRIPT"], 1),
        ([sys.executable, "-c", SLEEP, "ray::IDLE"], 0),
        (["/bin/sh", "-c", "exit 3", "SCRIPT"], 0),
    ],
    ids=["a program that is to run a worker", "another process", "a program that has ended"],
)
def test_worker_processes_that_have_not_connected_are_counted(
    words: list[str], starting_workers: int, tmp_path: Path
) -> None:
    path = script(tmp_path)
    (tmp_path / "debug_state.txt").write_text(REPORT)
    with starting(tmp_path, [path if word == "SCRIPT" else word for word in words], stays=True):

        def count() -> int | None:
            (report,) = raylet_reports(raylets([NODE], proc.children()), proc.children())
            return report.starting

        wait_until(lambda: count() == starting_workers, deadline_s=20, what=lambda: f"{count()}")
