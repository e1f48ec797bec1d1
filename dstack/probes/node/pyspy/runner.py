"""Thread stacks through py-spy's command, and its JSON as plain frames. Seen with py-spy 0.4.3."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.permissions import DumpFailed, last_words, why_dump_failed, why_not_started
from dstack.probes.node.pyspy.parser import threads_of
from dstack.probes.node.threads import PythonThread, ShownFrame

MAX_BYTES = 128 << 20
"""The most output of a dump: a frame with its locals takes some hundred bytes."""
RAY_WORKER_NICENESS = 15
"""The default niceness of Ray's workers, see ``RAY_worker_niceness``; seen on Ray 2.46 and 2.60."""

SUDO_TIMEOUT_S = 3.0
"""The timeout of ``sudo``, which may ask a directory on the network before it refuses."""


def find_pyspy() -> str | None:
    """The py-spy beside this interpreter or on the PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


class PySpy:
    """One py-spy executable; ``prefix`` is the command that runs it as another user."""

    def __init__(self, path: str, prefix: Sequence[str] = ()) -> None:
        self.path = path
        self._prefix = list(prefix)

    @property
    def is_setuid(self) -> bool:
        """Whether it runs as root for every user."""
        with contextlib.suppress(OSError):
            found = os.stat(self.path)
            return bool(found.st_mode & stat.S_ISUID) and found.st_uid == 0
        return False

    @property
    def access(self) -> str:
        """The access of its stacks, in the words of :class:`dstack.model.Process`."""
        return "py-spy via sudo" if self._prefix else "setuid py-spy" if self.is_setuid else "py-spy"

    def through_sudo(self) -> PySpy | None:
        """The same py-spy run as root by ``sudo``, if installed; it cannot ask for a password."""
        sudo = shutil.which("sudo")
        return PySpy(self.path, (sudo, "-n", "--")) if sudo else None

    @classmethod
    def from_bytes(cls, binary: bytes) -> PySpy:
        """A py-spy in an anonymous file in memory, so that nothing is installed or left on the node."""
        descriptor = os.memfd_create("py-spy", 0)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(binary)
        return cls(f"/proc/{os.getpid()}/fd/{descriptor}")

    def dump(self, pid: int, *, blocking: bool, native: bool, timeout_s: float) -> list[PythonThread[ShownFrame]]:
        """The process's Python threads. Raises :class:`DumpFailed`.

        ``blocking`` stops the target meanwhile (about 3 ms, over 100 ms with ``native``).
        """
        arguments = [*self._prefix, self.path, "dump", "--json", "--locals", "--pid", str(pid)]
        arguments += [] if blocking else ["--nonblocking"]
        arguments += ["--native"] if native else []
        was_stopped = _is_stopped(pid)
        timeout_s = min(timeout_s, SUDO_TIMEOUT_S) if self._prefix else timeout_s
        try:
            done = _run(arguments, timeout_s, is_polite=not blocking, is_apart=bool(self._prefix))
        except (subprocess.TimeoutExpired, DumpFailed) as error:
            if blocking and not was_stopped:
                _resume(pid)
            if isinstance(error, DumpFailed):
                raise
            if self._prefix:
                raise SudoFailed(f"sudo timed out after {timeout_s:.1f} s", cause="timeout") from error
            raise DumpFailed(f"py-spy timed out after {timeout_s:.1f} s", cause="timeout") from error
        except OSError as error:
            raise why_not_started(self.path, error) from error
        if done.returncode:
            raise self._why_failed(pid, done.stderr.decode(errors="replace"))
        try:
            return threads_of(done.stdout)
        except ValueError as error:
            raise DumpFailed("the output of py-spy is malformed", cause="malformed") from error

    def _why_failed(self, pid: int, stderr: str) -> DumpFailed:
        if self._prefix and not stderr.lstrip().startswith("Error:"):  # py-spy was never started
            return SudoFailed(f"sudo does not run py-spy: {last_words(stderr)}", cause="permission")
        return why_dump_failed(pid, stderr)


class SudoFailed(DumpFailed):
    """dstack's user may not run py-spy as root without a password."""


def _run(
    arguments: list[str], timeout_s: float, *, is_polite: bool, is_apart: bool
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, or kill it. ``is_polite`` gives it the niceness of a Ray worker.

    With ``is_apart`` it has no terminal on which it could ask for a password.
    """
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=is_apart,
    )
    try:
        if is_polite:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, RAY_WORKER_NICENESS)
        stdout, stderr = _said(process, timeout_s)
    except BaseException:
        _end(process)
        raise
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


def _said(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[bytes, bytes]:
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
                raise DumpFailed(f"the output of py-spy has more than {MAX_BYTES >> 20} MiB", cause="malformed")
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
    """Resume a target that a killed py-spy has left stopped."""
    time.sleep(0.01)
    if _is_stopped(pid):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)
