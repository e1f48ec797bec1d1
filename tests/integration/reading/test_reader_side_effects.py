"""Reading does not stop, trace or signal a target, and starts no py-spy."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dstack.probes.node.probe import NodeProbe
from tests.integration.reading.test_reader_bounds import program
from tests.processes import wait_until
from tests.sampling import sample, target

MONITORED = """
import hashlib, signal, threading, time
def spin():
    while True: sum(range(100))
signals = []
for number in set(range(1, 65)) - {9, 19, 32, 33}:
    signal.signal(number, lambda number, frame: print("signal", number, flush=True))
threading.Thread(target=spin, daemon=True).start()
threading.Thread(target=time.sleep, args=(100_000,), daemon=True).start()
print("ready", flush=True)
while True:
    time.sleep(100_000)
"""
CALM = {"State": "RSD", "TracerPid": "0", "SigPnd": "0" * 16, "ShdPnd": "0" * 16}


class StatusMonitor:
    """Poll the status of all threads of a process for traces of a pause, a tracer or a signal."""

    def __init__(self, pid: int) -> None:
        self.polls = 0
        self.changes: list[str] = []
        self._pid = pid
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> StatusMonitor:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            for thread in os.listdir(f"/proc/{self._pid}/task"):
                self._poll(Path(f"/proc/{self._pid}/task/{thread}/status").read_text())
            self.polls += 1

    def _poll(self, status: str) -> None:
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        letter = fields["State"][0]
        calm = letter in CALM["State"] and all(fields[key] == CALM[key] for key in CALM if key != "State")
        if not calm:
            self.changes.append(f"{letter} {[fields[key] for key in CALM]}")


@contextmanager
def recorded_pyspy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file with a line for each start of py-spy: the script replaces py-spy here and on the PATH."""
    record = folder / "started"
    script = folder / "py-spy"
    script.write_text(f"#!/bin/sh\necho started >>{record}\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr("dstack.probes.node.probe.find_pyspy", lambda: str(script))
    yield record


def test_a_target_is_not_stopped_traced_or_signalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        program(MONITORED, tmp_path) as child,
        recorded_pyspy(tmp_path, monkeypatch) as record,
        StatusMonitor(child.pid) as monitor,
    ):
        probe = NodeProbe()
        answers = [sample(target(child.pid), probe=probe, locals=bool(number % 2)) for number in range(50)]
        wait_until(lambda: monitor.polls >= 50, deadline_s=60, what=lambda: f"50 polls, {monitor.polls} so far")
        output = child.log.read_text()

    assert [answer["failures"] for answer in answers] == [[]] * 50
    assert {answer["processes"]["w"]["paused_ms"] for answer in answers} == {0}
    assert monitor.changes == []
    assert output == "ready\n"
    assert not record.exists()


def test_the_monitor_detects_a_stopped_target(tmp_path: Path) -> None:
    with program(MONITORED, tmp_path) as child, StatusMonitor(child.pid) as monitor:
        os.kill(child.pid, signal.SIGSTOP)
        wait_until(lambda: monitor.changes, deadline_s=20, what=lambda: "a stop")
