"""Completion in real shells: a person types the beginning of a command, and presses Tab."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.clusters.dstack_command import dstack
from tests.tui.terminals import Terminal, terminal

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


@pytest.fixture(params=START)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    """A shell that completes dstack's commands."""
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"needs {name}")
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    with terminal(START[name], {"PATH": path, "HOME": str(tmp_path)}) as made:
        made.press(f"{SET_UP[name]}; echo is-{name}-ready", "Enter")
        made.wait_for(f"\nis-{name}-ready")
        yield made


def test_tab_completes_commands_and_options(shell: Terminal) -> None:
    shell.press("dstack time", "Tab")
    shell.wait_for("dstack timeline")  # and a space, which tmux does not show
    shell.press("--addr", "Tab")
    shell.wait_for("timeline --address")


def test_an_unknown_shell_is_an_error() -> None:
    done = dstack("completion", "tcsh")

    assert done.returncode == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in done.stderr
