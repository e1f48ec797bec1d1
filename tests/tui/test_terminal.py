"""The whole program, in a real terminal, against a real cluster that hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dstack.files.sampled_file import RECORDINGS
from tests.clusters.dstack_command import dstack
from tests.clusters.ray_clusters import run_example
from tests.tui.sources import RECORDED
from tests.tui.terminals import terminal
from tests.unit.analysis.stacks.recordings import frame, recording, thread

HANG = Path(__file__).resolve().parents[2] / "examples" / "hangs" / "async_lock.py"
pytestmark = pytest.mark.terminal

TUI = (sys.executable, "-m", "dstack", "tui")


@pytest.mark.ray
def test_a_hang_is_shown_and_all_views_are_visited() -> None:
    with (
        run_example(HANG) as running,
        terminal([*TUI, "--address", running.address], running.environment) as screen,
    ):
        screen.wait_for("DEADLOCK")
        screen.wait_for("Vault.open")
        screen.press("?")
        screen.wait_for("Look closer")
        screen.press("Escape")
        screen.wait_until_absent("Look closer")  # otherwise the terminal reads Esc and r as one key
        screen.wait_for(f" s old  live, 15 s  {running.address}")  # no step is in progress
        screen.press("r")
        screen.wait_for("#2")
        screen.press("/")
        screen.wait_for("Words to find")
        screen.press("-l", "fix:")
        screen.press("Enter")
        screen.wait_for("found")
        screen.press("Escape")
        screen.wait_until_absent("found")
        screen.resize(80, 24)
        screen.wait_for("observed 3/3 workers")
        for key in "123456":
            screen.press(key)
            screen.wait_for("DEADLOCK")
        screen.press("7")  # these views request the history of the running cluster
        screen.wait_for("attempts")
        screen.wait_for("Vault")
        screen.press("8")
        screen.wait_for("calls within")
        screen.press("4")
        screen.press("d")
        screen.wait_for("Task time")
        screen.wait_for("Vault.open")
        screen.press("q")
        screen.wait_for("ended 0", deadline_s=20)


def test_a_saved_snapshot_is_shown_without_a_cluster(tmp_path: Path) -> None:
    (file,) = RECORDED.glob("tune-hang*")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "NO_COLOR": "1"}

    with terminal([*TUI, str(file)], environment, 80, 24) as screen:
        screen.wait_for("observed 4/4 workers")
        screen.press("q")
        screen.wait_for("ended 0", deadline_s=20)


def test_a_recording_is_shown_without_a_snapshot(tmp_path: Path) -> None:
    file = tmp_path / "recording.json.gz"
    RECORDINGS.save(recording({(thread(0), (frame("train", 5), frame("step", 10))): 30}), file)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "NO_COLOR": "1"}

    with terminal([*TUI, str(file)], environment, 80, 24) as screen:
        screen.wait_for("Recording recording.json.gz")
        screen.wait_for("step:10 30")
        screen.press("1")
        screen.wait_for("No snapshot: only recordings or profiles were opened.")
        screen.press("q")
        screen.wait_for("ended 0", deadline_s=20)


def test_a_signal_restores_the_terminal_even_a_tiny_one(tmp_path: Path) -> None:
    (file,) = RECORDED.glob("tune-hang*")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "NO_COLOR": "1"}
    pid = tmp_path / "pid"
    script = f'echo $$ > {pid}; exec "$@"'

    with terminal(["sh", "-c", script, "sh", *TUI, str(file)], environment, 20, 6) as screen:
        screen.wait_for("RUNNING")
        os.kill(int(pid.read_text()), signal.SIGTERM)
        shown = screen.wait_for("ended 143", deadline_s=20)

    assert shown.split() == ["Terminated.", "ended", "143"]


def test_without_a_cluster_the_reason_and_the_remedy_are_shown(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}

    with terminal([*TUI, "--address", "127.0.0.1:1"], environment) as screen:
        screen.wait_for("No snapshot")
        screen.press("q")
        screen.wait_for("ended 0", deadline_s=20)


def test_the_program_can_be_served_to_a_browser(tmp_path: Path) -> None:
    (file,) = RECORDED.glob("tune-hang*")
    served = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver"}

    with subprocess.Popen([*TUI, str(file)], env=served, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout
        assert program.stdout.readline() == b"__GANGLION__\n"
        drawn = b""
        while b"RUNNING" not in drawn:
            more = program.stdout.read1(65536)  # type: ignore[attr-defined]
            assert more, drawn
            drawn += more
        program.kill()


def test_without_a_terminal_the_error_names_an_alternative() -> None:
    for command in ("tui", "top"):
        result = dstack(command)

        assert result.returncode == 2
        assert "dstack snapshot" in result.stderr
