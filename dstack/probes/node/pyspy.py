"""Thread stacks through py-spy's command, and its JSON as plain frames. Seen with py-spy 0.4.3."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from dstack.probes.node.dump_json import threads_of

RAY_WORKER_NICENESS = 15
"""What Ray gives its workers unless ``RAY_worker_niceness`` says otherwise; seen on Ray 2.46 and 2.60."""

RawThread = dict[str, Any]
"""A thread as py-spy prints it: ``os_thread_id``, ``thread_name``, ``active``, ``frames`` leaf first."""


class DumpFailed(Exception):
    """py-spy could not read the process: one sentence and, where known, the remedy."""

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


def find_pyspy() -> str | None:
    """The py-spy beside this interpreter or on the PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


class PySpy:
    """One py-spy executable."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def from_bytes(cls, binary: bytes) -> PySpy:
        """One that lives in an anonymous file in memory: nothing to install on the node, nothing left behind."""
        descriptor = os.memfd_create("py-spy", 0)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(binary)
        return cls(f"/proc/{os.getpid()}/fd/{descriptor}")

    def dump(self, pid: int, *, blocking: bool, native: bool, timeout_s: float) -> list[RawThread]:
        """The process's Python threads. Raises :class:`DumpFailed`.

        ``blocking`` stops the target meanwhile (about 3 ms, over 100 ms with ``native``).
        """
        arguments = [self.path, "dump", "--json", "--locals", "--pid", str(pid)]
        arguments += [] if blocking else ["--nonblocking"]
        arguments += ["--native"] if native else []
        was_stopped = _is_stopped(pid)
        try:
            done = _run(arguments, timeout_s, is_polite=not blocking)
        except subprocess.TimeoutExpired as error:
            if blocking and not was_stopped:
                _resume(pid)
            raise DumpFailed(f"py-spy did not finish within {timeout_s:.1f} s") from error
        except OSError as error:
            raise DumpFailed(f"py-spy could not be started: {error.strerror}") from error
        if done.returncode:
            raise _diagnose(pid, done.stderr.decode(errors="replace"))
        try:
            return threads_of(done.stdout)
        except ValueError as error:
            raise DumpFailed("py-spy printed something that is no dump of its own") from error


def _run(arguments: list[str], timeout_s: float, *, is_polite: bool) -> subprocess.CompletedProcess[bytes]:
    """A run to its end or its kill; a polite one takes no more of the CPU from Ray's workers than one of them does."""
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as process:
        if is_polite:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, RAY_WORKER_NICENESS)
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


def _diagnose(pid: int, stderr: str) -> DumpFailed:
    if _state(pid) == "Z":
        return DumpFailed("the process is a zombie: it has ended and waits for its parent")
    if re.search("permission denied|operation not permitted", stderr, re.IGNORECASE):
        tracer = _tracer(pid)
        if tracer:
            return DumpFailed(f"another program traces it, {tracer}", "Wait for that to end, or end it.")
        return DumpFailed("no permission to read the process", _permission_remedy(pid))
    last = [line.strip() for line in stderr.splitlines() if line.strip()]
    return DumpFailed("py-spy: " + re.sub(r"^Error: ", "", last[0] if last else "failed without a word"))


def _permission_remedy(pid: int) -> str:
    with contextlib.suppress(OSError):
        owner = os.stat(f"/proc/{pid}").st_uid
        if os.geteuid() not in (0, owner):
            return f"Run dstack as the user who runs Ray (uid {owner}) or as root."
    return (
        "Allow ptrace: in a container add the SYS_PTRACE capability; "
        "elsewhere run as root or set kernel.yama.ptrace_scope=0."
    )


def _tracer(pid: int) -> str:
    """Who has attached to a process, or to any thread of it, as a debugger does; empty where nobody has."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with (
                contextlib.suppress(OSError, StopIteration, ValueError, psutil.Error),
                open(f"/proc/{pid}/task/{thread}/status", encoding="utf-8", errors="replace") as file,
            ):
                tracer = int(next(line for line in file if line.startswith("TracerPid:")).split()[1])
                if tracer:
                    return f"{psutil.Process(tracer).name()} (pid {tracer})"
    return ""


def _state(pid: int) -> str:
    """The process's state letter from ``/proc/PID/stat``, empty when it is gone."""
    with (
        contextlib.suppress(OSError, IndexError),
        open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file,
    ):
        return file.read().rpartition(")")[2].split()[0]
    return ""


def _is_stopped(pid: int) -> bool:
    return _state(pid) == "T"


def _resume(pid: int) -> None:
    """Lets a target go on whose py-spy was killed in the middle, should it have been left stopped."""
    time.sleep(0.01)
    if _is_stopped(pid):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)
