"""A real terminal in tmux: tests type keys and read the screen."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence

from tests.processes import wait_until


class Terminal:
    """A terminal that runs one program."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    def _tmux(self, *arguments: str) -> str:
        return subprocess.run(
            ["tmux", "-L", self._socket, *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout

    def screen(self) -> str:
        """The text on the screen."""
        return self._tmux("capture-pane", "-p", "-t", "0")

    def press(self, *keys: str) -> None:
        """Type keys, by their names in tmux."""
        self._tmux("send-keys", "-t", "0", "--", *keys)

    def resize(self, width: int, height: int) -> None:
        """Resize the terminal."""
        self._tmux("resize-window", "-t", "0", "-x", str(width), "-y", str(height))

    def wait_for(self, text: str, deadline_s: float = 60.0) -> str:
        """Wait for this text, and return the screen."""
        return wait_until(
            lambda: screen if text in (screen := self.screen()) else None,
            deadline_s=deadline_s,
            what=lambda: f"{text!r} on the screen:\n{self.screen()}",
        )

    def wait_until_absent(self, text: str, deadline_s: float = 60.0) -> None:
        """Wait until the text is no longer on the screen."""
        wait_until(lambda: text not in self.screen(), deadline_s=deadline_s, what=lambda: f"no {text!r}")


@contextlib.contextmanager
def terminal(
    command: Sequence[str], environment: Mapping[str, str], width: int = 100, height: int = 32
) -> Iterator[Terminal]:
    """Run a command in its own terminal, which prints ``ended N`` after it, and close the terminal at the end."""
    socket = f"dstack-{uuid.uuid4().hex[:12]}"
    script = f"{shlex.join(command)}; echo ended $?; exec sleep 600"
    argv = ["tmux", "-L", socket, "-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height)]
    subprocess.run([*argv, "sh", "-c", script], env={**environment, "TERM": "xterm-256color"}, check=True, timeout=30)
    try:
        yield Terminal(socket)
    finally:
        subprocess.run(["tmux", "-L", socket, "kill-server"], check=False, timeout=30)
