"""Child processes for tests: each in its own process group, watched with a deadline, and always killed."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

T = TypeVar("T")
Tag = tuple[str, str]
"""An environment variable, name and value, that identifies a family of processes."""

LAST_OUTPUT_BYTES = 4000
"""Size of the part of a child's output in a failure message."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Make the kernel kill this child when the thread that started it ends; call it between fork and exec.

    Start children from a thread that outlives them; in pytest that is the main thread.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(frozen=True)
class Child:
    """A running child process, which leads its own process group, and the file with its output."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for_line(self, prefix: str, *, deadline_s: float) -> str:
        """Poll :meth:`line` until there is one; raises :class:`AssertionError` at the deadline."""
        return wait_until(lambda: self.line(prefix), deadline_s=deadline_s, what=lambda: f"{prefix!r} from {self}")

    def line(self, prefix: str) -> str | None:
        """The first complete line of the output so far that starts with ``prefix``, without its line end.

        Raises :class:`AssertionError` with the end of the output if the child exited without such a line.
        """
        exited = self.process.poll() is not None
        lines = self.log.read_text(errors="replace").splitlines(keepends=True)
        found = next((one for one in lines if one.startswith(prefix) and one.endswith("\n")), None)
        assert found is not None or not exited, f"exited before {prefix!r}: {self}"
        return None if found is None else found.rstrip("\n")

    def printed_json(self) -> Any:
        """The JSON that the child printed in its line that starts with ``expected``."""
        line = self.line("expected ")
        assert line is not None, f"no expected values: {self}"
        return json.loads(line.removeprefix("expected "))

    def __str__(self) -> str:
        return f"{self.process}\n{last_output(self.log)}"


@contextlib.contextmanager
def running(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[Child]:
    """Run ``argv`` with its output in ``log``; at the end it is killed with its process group."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        yield Child(process, log)
    finally:
        kill_group(process)


def kill_group(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Kill a child with the process group that it leads, and reap it, unless it has ended."""
    if process.poll() is None:  # not reaped, so its pid cannot be reused
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_output(log: Path) -> str:
    """The end of a child's output."""
    return log.read_bytes()[-LAST_OUTPUT_BYTES:].decode(errors="replace")


def wait_until(
    condition: Callable[[], T | None], *, deadline_s: float, what: Callable[[], str], pause_s: float = 0.05
) -> T:
    """Poll ``condition`` until its result is true, and return that; use a longer pause if it takes much CPU time.

    Raises :class:`AssertionError` with ``what()`` when ``deadline_s`` have passed.
    """
    end = time.monotonic() + deadline_s
    while not (result := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:g} s: {what()}")
        time.sleep(pause_s)
    return result


def carrying(tag: Tag) -> list[psutil.Process]:
    """The other live processes that have the variable ``tag`` in their environment.

    A child inherits its parent's environment unless it is cleared, so this finds a whole family, including members
    that were re-parented or run in another pid namespace. Ray's workers keep theirs readable (Ray sets SPT_NOENV
    before it changes their title).
    """
    return [one for one in psutil.process_iter() if one.pid != os.getpid() and _carries(one, tag)]


def _carries(process: psutil.Process, tag: Tag) -> bool:
    name, value = tag
    try:
        return process.environ().get(name) == value
    except psutil.Error:  # ended, a zombie, or of another user
        return False


def command_line(process: psutil.Process) -> list[str]:
    """The arguments of ``process``, or the title that it set as the only one; empty if it has ended."""
    try:
        return [argument for argument in process.cmdline() if argument]  # a title is padded with empty ones
    except psutil.Error:
        return []


def is_rays(process: psutil.Process) -> bool:
    """Whether it is a live worker process of Ray."""
    try:
        return process.name().startswith("ray::")
    except psutil.Error:
        return False


def kill_all(family: Callable[[], list[psutil.Process]], *, deadline_s: float = 10.0) -> None:
    """Send SIGKILL to the processes that ``family`` finds until it finds none."""

    def none_left() -> bool:
        members = family()
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        return not members

    wait_until(none_left, deadline_s=deadline_s, what=lambda: f"end of {family()}")


@contextlib.contextmanager
def stopped(process: psutil.Process, *, may_end: bool = False) -> Iterator[None]:
    """Stop a process within this context; with ``may_end`` it may end before it is resumed."""
    process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(*([psutil.NoSuchProcess] if may_end else [])):
            process.resume()


@contextlib.contextmanager
def woken_all_the_time(*pids: int, every_s: float = 0.015) -> Iterator[None]:
    """Wake every thread of these processes more often than py-spy can read it."""
    ended = threading.Event()

    def wake() -> None:
        while not ended.wait(every_s):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    os.kill(pid, signal.SIGCONT)

    waker = threading.Thread(target=wake)
    waker.start()
    try:
        yield
    finally:
        ended.set()
        waker.join()


def reads_memory(pid: int) -> bool:
    """Whether a child of a process has the memory of another process open, as a recording has."""

    def files(child: psutil.Process) -> list[str]:
        with contextlib.suppress(OSError):
            return [os.readlink(link) for link in Path(f"/proc/{child.pid}/fd").iterdir()]
        return []

    return any(file.startswith("/proc/") and file.endswith("/mem") for c in _children(pid) for file in files(c))


def _children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children()
    return []
