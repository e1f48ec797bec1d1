"""Runs the tools that read other processes, such as py-spy: with a deadline, and with a limit to their output."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType

from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.permissions import DumpFailed

MAX_BYTES = 128 << 20
"""The most output of a tool: in a dump of py-spy, a frame with its locals takes some hundred bytes."""
RAY_WORKER_NICENESS = 15
"""The default niceness of Ray's workers, see ``RAY_worker_niceness``; seen on Ray 2.46 and 2.60."""


def run(
    arguments: list[str],
    timeout_s: float,
    *,
    is_polite: bool,
    is_apart: bool,
    stops: int | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, or kill it. ``is_polite`` gives it the niceness of a Ray worker.

    With ``is_apart`` it has no terminal on which it could ask for a password. If it is killed, the process ``stops``,
    which it stops meanwhile, is resumed, unless that was stopped before. The ``variables`` are added to its
    environment. Raises ``subprocess.TimeoutExpired``, ``OSError``, and :class:`DumpFailed` for too much output.
    """
    to_resume = stops if stops is not None and not _is_stopped(stops) else None
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=is_apart,
        env={**os.environ, **variables},
    )
    try:
        if is_polite:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, RAY_WORKER_NICENESS)
        stdout, stderr = _said(process, os.path.basename(arguments[0]), timeout_s)
    except BaseException:
        _end(process)
        if to_resume is not None:
            _resume(to_resume)
        raise
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


def _said(process: subprocess.Popen[bytes], name: str, timeout_s: float) -> tuple[bytes, bytes]:
    """Its output until it ends, as from ``communicate``, but of bounded size."""
    assert process.stdout
    assert process.stderr
    deadline = time.monotonic() + timeout_s
    written = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as ready:
        for stream in written:
            ready.register(stream, selectors.EVENT_READ)
        while ready.get_map():
            found = ready.select(max(0.0, deadline - time.monotonic()))
            if not found:
                raise subprocess.TimeoutExpired(process.args, timeout_s)
            for stream in (stream for stream in written if any(key.fileobj is stream for key, _ in found)):
                data = os.read(stream.fileno(), 1 << 16)
                written[stream] += data
                if not data:
                    ready.unregister(stream)
            if sum(map(len, written.values())) > MAX_BYTES:
                raise DumpFailed(f"the output of {name} has more than {MAX_BYTES >> 20} MiB", cause="malformed")
    process.wait(max(0.0, deadline - time.monotonic()))
    for stream in written:
        stream.close()
    return bytes(written[process.stdout]), bytes(written[process.stderr])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it. One that runs as root cannot be killed: it ends at a write without a reader, and a thread reaps it."""
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()
    try:
        process.kill()
    except PermissionError:
        threading.Thread(target=process.wait, name="dstack", daemon=True).start()
    else:
        process.wait()


def _is_stopped(pid: int) -> bool:
    return proc.state(pid) == "T"


def _resume(pid: int) -> None:
    """Resume a target that a killed tool has left stopped."""
    time.sleep(0.01)
    if _is_stopped(pid):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)
