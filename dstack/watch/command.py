"""Runs the user's command once per finding, one at a time, in another thread than the watch."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import subprocess
import threading
import time
from dataclasses import dataclass

from dstack.probes.connection.background import begin
from dstack.watch.events import Events

TIMEOUT_S = 60.0
"""A command that takes longer is killed, with its process group."""
MAX_QUEUED = 100
"""The most findings that wait for the command."""
MAX_OUTPUT = 400
"""The most bytes of the command's output that are reported."""


@dataclass(frozen=True, slots=True)
class _Result:
    """How a command ended; ``code`` is None if it had to be killed."""

    code: int | None
    output: bytes


class Command:
    """A shell command that gets each finding as JSON on its standard input."""

    def __init__(self, command: str, events: Events, timeout_s: float = TIMEOUT_S) -> None:
        self._command = command
        self._events = events
        self._timeout_s = timeout_s
        self._queued: queue.Queue[bytes] = queue.Queue(MAX_QUEUED)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        begin(self._serve)

    def queue(self, document: bytes) -> None:
        """Queues a finding for the command."""
        try:
            self._queued.put_nowait(document)
        except queue.Full:
            self._events.emit("command", f"not run for a finding: {MAX_QUEUED} findings are already queued")

    def stop(self) -> None:
        """Kills the running command, and starts no more."""
        with self._lock:
            self._is_stopped = True
            if self._process is not None:
                _kill_group(self._process)

    def _serve(self) -> None:
        while True:
            document = self._queued.get()
            try:
                ended = self._run(document)
            except OSError as error:
                self._events.emit("command", f"could not be started: {error.strerror}")
                continue
            if not self._is_stopped:
                self._report(ended)

    def _report(self, ended: _Result) -> None:
        output = ended.output.decode(errors="replace").strip()
        said = f"; output: {output}" if output else ""
        how = f"timed out after {self._timeout_s:g} s and was killed"
        if ended.code is not None:
            how = f"was ended by signal {-ended.code}" if ended.code < 0 else f"exited with code {ended.code}"
        self._events.emit("command", how + said, exit_code=ended.code, output=output)

    def _run(self, document: bytes) -> _Result:
        deadline = time.monotonic() + self._timeout_s
        with os.fdopen(os.memfd_create("finding"), "w+b") as given:
            given.write(document)
            given.seek(0)
            with self._lock:
                if self._is_stopped:
                    return _Result(None, b"")
                self._process = subprocess.Popen(
                    self._command,
                    shell=True,
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        with self._process as process:
            return _awaited(process, deadline)


def _awaited(process: subprocess.Popen[bytes], deadline: float) -> _Result:
    """The result of the command. It is reaped last, so that no other process group can get its number before."""
    assert process.stdout is not None
    output, is_all = _drain(process.stdout.fileno(), deadline)
    if is_all:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return _Result(process.wait(max(0.0, deadline - time.monotonic())), output)
    _kill_group(process)
    return _Result(None, output)


def _drain(stream: int, deadline: float) -> tuple[bytes, bool]:
    """The beginning of the output until the deadline, and whether the output has ended."""
    poll = select.poll()
    poll.register(stream)
    kept = b""
    while (left_s := deadline - time.monotonic()) > 0 and poll.poll(left_s * 1000):
        data = os.read(stream, 65536)
        if not data:
            return kept, True
        kept = (kept + data)[:MAX_OUTPUT]
    return kept, False


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
