"""Samples a process through ``py-spy record``, for C frames, for the GIL, and where memory cannot be read.

Each py-spy runs for several rounds, since its start takes long, and then writes its counts to a temporary file. It ends
by itself after :data:`SEGMENT_S`, even if dstack is killed. Seen with py-spy 0.4.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from dstack.probes.node.commands import RAY_WORKER_NICENESS
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.permissions import DumpFailed, why_dump_failed, why_not_started
from dstack.probes.node.pyspy import PySpy
from dstack.probes.node.sampling.process_sampler import Samples, Stack
from dstack.probes.node.thread_stacks import CodePosition
from dstack.probes.node.wire import RecordOptions

SEGMENT_S = 10
END_S, NATIVE_END_S = 1.5, 6.0
"""How long py-spy may take to write its counts; with C frames it may still read the symbols of libraries."""
MAX_BYTES = 64 << 20
MAX_NAME = 4_096
LINE = re.compile(r"(.*) (\d{1,9})")
THREAD = re.compile(r"thread \((\d+|0x[0-9a-fA-F]+)\)(?:: (.*))?")
PYTHON_FRAME = re.compile(r"(.*?) \((.*(?:\.py|>)):(\d{1,9})\)")
C_FRAME = re.compile(r"(.*) \((.*?)(?::(\d{1,9}))?\)")
"""A name of C++ has parentheses, the path of a Python file may have some."""
WROTE = re.compile(r"Samples: (\d+) Errors: (\d+)")


@dataclass
class PySpySamples(Samples):
    """The counts of one segment; ``names`` are those of threads by OS id."""

    names: dict[int, str] = field(default_factory=dict)


class PySpyRecorder:
    """Runs py-spy on one process, again and again. Methods raise :class:`DumpFailed`."""

    def __init__(self, tool: PySpy, pid: int, options: RecordOptions) -> None:
        self._tool = tool
        self._pid = pid
        self._options = options
        self._child: subprocess.Popen[bytes] | None = None
        self._output = ""
        self._began = 0.0
        self._positions: dict[str, CodePosition] = {}

    def begin(self) -> None:
        """Start a py-spy, unless one runs."""
        if self._child is not None:
            return
        handle, self._output = tempfile.mkstemp(prefix="dstack-", suffix=".folded")
        os.close(handle)
        self._began = time.monotonic()
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray's actors block it; it is inherited
        try:
            self._child = subprocess.Popen(
                [self._tool.path, *self._arguments()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._remove()
            raise why_not_started(self._tool.path, error) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._child.pid, RAY_WORKER_NICENESS)

    def _arguments(self) -> list[str]:
        options = self._options
        flags = {
            "--gil": options["gil"],
            "--idle": options["idle"],
            "--native": options["native"],
            "--nonblocking": not options["native"],  # C frames need a pause
        }
        rate, pid = str(max(1, round(options["rate_hz"]))), str(self._pid)
        terms = ["--format", "raw", "--output", self._output, "--pid", pid, "--rate", rate, "--threads"]
        return [
            "record",
            *terms,
            "--full-filenames",
            "--duration",
            str(SEGMENT_S),
            *(f for f, on in flags.items() if on),
        ]

    def collect(self, *, is_last: bool) -> PySpySamples | None:
        """The counts of a py-spy that has ended, or of the current one if it ``is_last``; None while one runs."""
        child = self._child
        if child is None or (child.poll() is None and not is_last):
            return None
        self._child = None
        seconds = min(float(SEGMENT_S), time.monotonic() - self._began)
        try:
            stderr = _ended(child, NATIVE_END_S if self._options["native"] else END_S)
            text = _read(self._output)
        finally:
            self._remove()
        if child.returncode and not text:
            raise why_dump_failed(self._pid, stderr)
        return self._samples(text, stderr, seconds)

    def close(self) -> None:
        """End a py-spy that runs, without its counts."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            if self._child.stderr:
                self._child.stderr.close()
            self._child = None
            self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._output)

    def _samples(self, text: str, stderr: str, seconds: float) -> PySpySamples:
        found = PySpySamples(wanted=max(1, round(seconds * self._options["rate_hz"])))
        for thread, name, stack, count in self._lines(text):
            found.counts[thread, stack, not self._options["idle"]] += count
            found.names[thread] = name
        said = WROTE.search(stderr)
        errors = int(said[2]) if said else 0
        found.taken = max(0, found.wanted - errors)
        found.torn = min(errors, found.wanted)
        return found

    def _lines(self, text: str) -> Iterator[tuple[int, str, Stack, int]]:
        """OS thread id, name, stack and samples of each line; lines of another form are left out."""
        for line in text.splitlines():
            match = LINE.fullmatch(line)
            first, *frames = match[1].split(";") if match else [""]
            thread = THREAD.fullmatch(first)
            if match and thread and frames:
                number = int(thread[1], 0)
                stack = tuple(map(self._position, reversed(frames)))
                yield number if proc.has_thread(self._pid, number) else 0, (thread[2] or "")[:100], stack, int(match[2])

    def _position(self, text: str) -> CodePosition:
        known = self._positions.get(text)
        if known is None:
            known = self._positions[text] = position_of(text)
        return known


def position_of(text: str) -> CodePosition:
    """The position of ``function (file:line)``; a frame of C has a library, and perhaps no line."""
    match = PYTHON_FRAME.fullmatch(text)
    if match is not None:
        name, file = match[1][:MAX_NAME], match[2][:MAX_NAME]
        return CodePosition(file, name.rpartition(".")[2], name, int(match[3]))
    match = C_FRAME.fullmatch(text)
    if match is None:
        return CodePosition("", text[:MAX_NAME], text[:MAX_NAME], 0, "unknown")
    name, file = match[1][:MAX_NAME], match[2][:MAX_NAME]
    return CodePosition(file, name, name, int(match[3] or 0), file)


def _ended(child: subprocess.Popen[bytes], within_s: float) -> str:
    """What a py-spy said, which is asked to end and to write its counts."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
    try:
        _, stderr = child.communicate(timeout=within_s)
    except subprocess.TimeoutExpired as error:
        child.kill()
        child.communicate()
        raise DumpFailed("py-spy did not write its counts in time", cause="timeout") from error
    return stderr.decode(errors="replace")


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(MAX_BYTES).decode(errors="replace")
