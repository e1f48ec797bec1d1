"""The long session as a child of the soak: starts it, reads what it prints, and ends it."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from benchmarks.soak.resources import Resources
from tests.hosts import Hosts
from tests.paths import ROOT
from tests.processes import wait_until

QUIT_S = 30.0
"""Deadline for the end of the session; it is measured."""


class SessionReader:
    """A session on the head's host, with snapshots saved in a directory of all hosts."""

    def __init__(self, hosts: Hosts, timeout_s: float, pause_s: float, keep: Path) -> None:
        self._directory = hosts.shared / "snapshots"
        self._directory.mkdir()
        self._keep = keep
        argv = [sys.executable, "-m", "benchmarks.soak.session", hosts.address, f"{timeout_s:g}", f"{pause_s:g}"]
        self._stack = ExitStack()
        starting = hosts.start(1, [*argv, str(self._directory)], PYTHONPATH=str(ROOT))
        self._child = self._stack.enter_context(starting)
        self._read = 0
        self.resources = Resources()

    def __enter__(self) -> SessionReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def step(self) -> Iterator[dict[str, Any]]:
        """What it printed since the last call."""
        self.resources.step(self._child.pid)
        with self._child.log.open("rb") as log:
            log.seek(self._read)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            if line.startswith(b"{"):
                yield json.loads(line)
            else:
                yield {"printed": line.decode(errors="replace")}

    @property
    def has_ended(self) -> bool:
        return self._child.process.poll() is not None

    def kept(self, saved: str) -> tuple[Path, str]:
        """A snapshot that it saved, moved to the directory that remains, and its report."""
        source = Path(saved)
        target = self._keep / source.name
        shutil.move(source, target)
        report = source.with_suffix(".txt")
        shutil.move(report, target.with_suffix(".txt"))
        return target, target.with_suffix(".txt").read_text()

    def end(self) -> float:
        """End it by SIGTERM; returns how long that took in seconds."""
        began = time.monotonic()
        for process in psutil.Process(self._child.pid).children():  # the child itself is nsenter
            process.send_signal(signal.SIGTERM)
        wait_until(lambda: self.has_ended, deadline_s=QUIT_S, what=lambda: f"end of the session: {self._child}")
        return time.monotonic() - began
