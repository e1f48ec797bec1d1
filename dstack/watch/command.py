"""Runs the user's command once per finding, one after the other, beside the watch and never in its way."""

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

DEADLINE_S = 60.0
"""A command that takes longer is killed, with all of its process group."""
MOST_WAITING = 100
"""So many findings wait for the command at most."""
MOST_OUTPUT = 400
"""So many bytes of what it writes are told."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a command ended; ``code`` is None if it had to be killed."""

    code: int | None
    output: bytes


class Command:
    """A shell command that gets each finding as JSON on its standard input."""

    def __init__(self, command: str, events: Events, deadline_s: float = DEADLINE_S) -> None:
        self._command = command
        self._events = events
        self._deadline_s = deadline_s
        self._waiting: queue.Queue[bytes] = queue.Queue(MOST_WAITING)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        begin(self._serve)

    def give(self, document: bytes) -> None:
        """Has the command run for a finding, after all that were given before."""
        try:
            self._waiting.put_nowait(document)
        except queue.Full:
            self._events.tell("command", f"not run for a finding: {MOST_WAITING} findings are already queued")

    def stop(self) -> None:
        """Kills what runs, and runs nothing any more."""
        with self._lock:
            self._is_stopped = True
            if self._process is not None:
                _kill_group(self._process)

    def _serve(self) -> None:
        while True:
            document = self._waiting.get()
            try:
                ended = self._run(document)
            except OSError as error:
                self._events.tell("command", f"could not be started: {error.strerror}")
                continue
            if not self._is_stopped:
                self._tell(ended)

    def _tell(self, ended: _Ended) -> None:
        output = ended.output.decode(errors="replace").strip()
        said = f"; output: {output}" if output else ""
        how = f"timed out after {self._deadline_s:g} s and was killed"
        if ended.code is not None:
            how = f"was ended by signal {-ended.code}" if ended.code < 0 else f"exited with code {ended.code}"
        self._events.tell("command", how + said, exit_code=ended.code, output=output)

    def _run(self, document: bytes) -> _Ended:
        deadline = time.monotonic() + self._deadline_s
        with os.fdopen(os.memfd_create("finding"), "w+b") as given:
            given.write(document)
            given.seek(0)
            with self._lock:
                if self._is_stopped:
                    return _Ended(None, b"")
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


def _awaited(process: subprocess.Popen[bytes], deadline: float) -> _Ended:
    """How it ended. It is reaped last of all, so that until then nobody else can have its group's number."""
    assert process.stdout is not None
    output, is_all = _drain(process.stdout.fileno(), deadline)
    if is_all:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return _Ended(process.wait(max(0.0, deadline - time.monotonic())), output)
    _kill_group(process)
    return _Ended(None, output)


def _drain(stream: int, deadline: float) -> tuple[bytes, bool]:
    """The beginning of what comes until the deadline, and whether all has come."""
    poll = select.poll()
    poll.register(stream)
    kept = b""
    while (left_s := deadline - time.monotonic()) > 0 and poll.poll(left_s * 1000):
        data = os.read(stream, 65536)
        if not data:
            return kept, True
        kept = (kept + data)[:MOST_OUTPUT]
    return kept, False


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
