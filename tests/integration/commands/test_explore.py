"""``dstack explore`` on real clusters: it finds hangs that show on another schedule only, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from dstack.cli.snapshots import STUCK
from dstack.explore.family import VARIABLE
from tests.clusters.dstack_command import DSTACK, dstack
from tests.clusters.ray_clusters import own_environment
from tests.paths import ROOT
from tests.processes import Tag, carrying, kill_all, wait_until

pytestmark = pytest.mark.ray

PROGRAMS = ROOT / "tests" / "explore_programs"
CAN_HANG = sorted(path.stem for path in PROGRAMS.glob("*.py") if path.stem != "__init__")
HEALTHY = sorted(path.stem for path in (PROGRAMS / "healthy").glob("*.py") if path.stem != "__init__")
SEARCH_S = 3000.0
RESTARTING = """
import ray, time
ray.init(num_cpus=2, include_dashboard=False)
@ray.remote(max_restarts=-1, max_task_retries=-1)
class Steady:
    def step(self):
        time.sleep(0.2)
actors = [Steady.remote() for _ in range(2)]
until = time.monotonic() + 6
while time.monotonic() < until:
    ray.get([one.step.remote() for one in actors])
"""
"""Its actors start again, and its calls are repeated."""


def test_a_program_hangs_under_a_setting_and_its_snapshot_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "hang.json.gz"
    with own_environment() as environment:
        repeated = ("--repeat", "PushTask=300ms", "--runs", "1", "-o", str(file))
        done = dstack(
            "explore", *repeated, "--", sys.executable, str(PROGRAMS / "two_actors.py"), environment=environment
        )
    assert done.returncode == STUCK, done
    assert done.stdout.startswith("DEADLOCK  Peer.work of actor")
    assert "It hangs with calls delayed by 300 ms (PushTask) alone: 1 of 1 run.\n" in done.stdout
    assert "again: hung after" in done.stderr
    assert "DEADLOCK  Peer.work of actor" in dstack("show", str(file)).stdout


@pytest.mark.exhaustive
def test_workers_are_killed_and_a_program_that_expects_it_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "restarting.py"
    program.write_text(RESTARTING)
    tag: Tag = ("DSTACK_TEST_TAG", uuid4().hex)
    with own_environment() as environment:
        arguments = ("explore", "--repeat", "kill=2#7", "--runs", "2", "-v", "--", sys.executable, str(program))
        done = dstack(*arguments, environment={**environment, tag[0]: tag[1]}, timeout_s=SEARCH_S)

    assert (done.returncode, done.stdout) == (0, "None of 2 runs hung: 2 passed.\n"), done
    assert re.findall(r"killed (\w+)[.\w]* and (\w+)", done.stderr) == [("Steady", "Steady")] * 2
    assert not carrying(tag)


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in (signal.SIGTERM, signal.SIGINT))],
)
def test_nothing_is_left_when_the_search_is_ended(number: signal.Signals) -> None:
    tag: Tag = ("DSTACK_TEST_TAG", uuid4().hex)
    with own_environment() as environment:
        command = [*DSTACK, "explore", "--repeat", "plain", "--", sys.executable, str(PROGRAMS / "two_actors.py")]
        search = subprocess.Popen(command, env={**environment, tag[0]: tag[1]}, stderr=subprocess.PIPE, text=True)
        try:
            folder = wait_until(lambda: folder_of(tag, "raylet"), deadline_s=60, what=lambda: "the raylet of a run")
            search.send_signal(number)
            _, said = search.communicate(timeout=60)
            wait_until(lambda: not carrying(tag), deadline_s=60, what=lambda: f"end of {carrying(tag)}")
            wait_until(lambda: not os.path.exists(folder), deadline_s=60, what=lambda: f"end of {folder}")
        finally:
            search.kill()
            kill_all(lambda: carrying(tag))
    assert search.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert said == {signal.SIGKILL: "", signal.SIGTERM: "Terminated.\n", signal.SIGINT: "Interrupted.\n"}[number]


def folder_of(tag: Tag, name: str) -> str | None:
    """The folder of a run that has a process of this name."""
    for process in carrying(tag):
        try:
            if process.name() == name:
                return process.environ().get(VARIABLE)
        except psutil.Error:
            continue
    return None


@pytest.mark.exhaustive
@pytest.mark.timeout(SEARCH_S)
@pytest.mark.parametrize("program", CAN_HANG)
def test_a_program_that_can_hang_is_made_to_hang_in_20_runs(program: str, tmp_path: Path) -> None:
    done = explored(PROGRAMS / f"{program}.py", tmp_path, "--runs", "20")
    assert done.returncode == STUCK, done
    found = re.search(r"Found in run (\d+)[:,]", done.stdout)
    assert found is not None, done.stdout
    print(program, found[1])


@pytest.mark.exhaustive
@pytest.mark.timeout(SEARCH_S)
@pytest.mark.parametrize("program", HEALTHY)
def test_a_healthy_program_never_hangs_in_50_runs(program: str, tmp_path: Path) -> None:
    done = explored(PROGRAMS / "healthy" / f"{program}.py", tmp_path, "--runs", "50")
    assert done.returncode == 0, done
    assert "None of 51 runs hung: " in done.stdout


def explored(program: Path, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    with own_environment() as environment:
        arguments = ("explore", "--no-shrink", "-o", str(tmp_path / "hang.json.gz"), *options)
        return dstack(*arguments, "--", sys.executable, str(program), environment=environment, timeout_s=SEARCH_S)
