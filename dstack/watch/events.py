"""The events of a watch: printed one line each, and findings passed to the user's command."""

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
from datetime import datetime, timezone

from dstack.files.document_file import to_json
from dstack.probes.connection.background import begin
from dstack.words import visible

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
MAX_TEXT = 500
"""The most characters of an event's text that are printed."""
WITHIN_S = 2.0
"""How long a full pipe may delay an event before the event is dropped."""
_ATOMIC = 4096
"""The bytes that a writable pipe accepts at once, pipe(7)."""
TIMEOUT_S = 60.0
"""A command that takes longer is killed, with its process group."""
MAX_QUEUED = 100
"""The most findings that wait for the command."""
MAX_OUTPUT = 400
"""The most bytes of the command's output that are reported."""


class Events:
    """Prints a line for each event to standard error, and with ``as_json`` a line of JSON to standard output.

    If a stream is closed or not read any more, nothing is raised and no write blocks for long: the watch continues for
    its files, its command and its metrics. An event that cannot be written in time is dropped.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._lock = threading.Lock()
        self._cut: set[int] = set()  # the streams in which the last line is incomplete

    def emit(self, event: str, text: str, *, within_s: float = WITHIN_S, **fields: object) -> None:
        """Prints an event: its name and its text, in JSON also its fields."""
        now = time.time()
        shown = visible(text)
        shown = shown if len(shown) <= MAX_TEXT else f"{shown[:MAX_TEXT]}..."
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))}  {event:8}  {shown}\n"
        self._write(STANDARD_ERROR, line.encode(errors="backslashreplace"), within_s)
        if self._as_json:
            at = datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="milliseconds")
            document = to_json({"event": event, "at": at, "text": text, **fields})
            self._write(STANDARD_OUTPUT, document + b"\n", within_s)

    def _write(self, stream: int, line: bytes, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        if not self._lock.acquire(timeout=within_s):
            return
        try:
            line = b"\n" * (stream in self._cut) + line
            left = _unwritten(stream, line, deadline)
            if not left:
                self._cut.discard(stream)
            elif len(left) < len(line):
                self._cut.add(stream)
        finally:
            self._lock.release()


def _unwritten(stream: int, data: bytes, deadline: float) -> bytes:
    """Writes in pieces so that no write blocks; returns the data that could not be written by the deadline."""
    poll = select.poll()
    poll.register(stream, select.POLLOUT)
    with contextlib.suppress(OSError):
        while data and poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            data = data[os.write(stream, data[:_ATOMIC]) :]
    return data


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
