"""Completion in real shells: a person types the beginning of a command, and presses Tab."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.clusters.dstack_command import dstack
from tests.processes import wait_until

SHELL_S = 30.0
"""Deadline for what a shell prints."""
START: Mapping[str, list[str]] = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
SET_UP: Mapping[str, str] = {
    "bash": 'eval "$(dstack completion bash)"',
    "zsh": 'autoload -Uz compinit && compinit -u -D; eval "$(dstack completion zsh)"',
    "fish": "dstack completion fish | source",
}


class Terminal:
    """A shell in a terminal of its own."""

    def __init__(self, shell: str, folder: Path) -> None:
        self._socket = ["tmux", "-L", f"dstack-{folder.name}-{shell}"]
        path = f"PATH={Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        size = ["-x", "120", "-y", "40"]
        home = f"HOME={folder}"
        self._run("-f", "/dev/null", "new-session", "-d", *size, "env", path, home, *START[shell])

    def type(self, *keys: str) -> None:
        self._run("send-keys", "--", *keys)

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.screen(), deadline_s=SHELL_S, what=lambda: f"{text!r} on:\n{self.screen()}")

    def screen(self) -> str:
        return self._run("capture-pane", "-p")

    def close(self) -> None:
        self._run("kill-server")

    def _run(self, *arguments: str) -> str:
        command = [*self._socket, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout


@pytest.fixture(params=START)
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    shell: str = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    terminal = Terminal(shell, tmp_path)
    try:
        terminal.type(f"{SET_UP[shell]}; echo is-{shell}-ready", "Enter")
        terminal.wait_for(f"\nis-{shell}-ready")
        yield terminal
    finally:
        terminal.close()


def test_tab_completes_commands_and_options(terminal: Terminal) -> None:
    terminal.type("dstack time", "Tab")
    terminal.wait_for("dstack timeline")  # and a space, which tmux does not show
    terminal.type("--addr", "Tab")
    terminal.wait_for("timeline --address")


def test_an_unknown_shell_is_an_error() -> None:
    done = dstack("completion", "tcsh")

    assert done.returncode == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in done.stderr
