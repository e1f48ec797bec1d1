"""What keeps a process from running, read of real processes in each of these states."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from dstack.observed.calls import Call, KernelObjects, ProcessObject
from dstack.observed.processes import Halt
from dstack.probes.node.process_values import halt_of
from dstack.probes.node.procfs import proc
from dstack.probes.node.target_process import ThreadReading
from dstack.probes.node.thread_stacks import PythonThread
from tests.processes import wait_until

SLEEPS = "import time; time.sleep(1000)"
SPAWNS = """
import os, sys
action = os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[action])
"""
"""Its child waits in ``open`` for a writer of the pipe, and until then the kernel suspends it (``vfork``)."""
CRASHES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (int(sys.argv[1]),) * 2)
data = os.urandom(1 << 20) * 300
os.abort()
"""
PTRACE_ATTACH, PTRACE_DETACH = 16, 17


def halt(pid: int, call: Call | None = None, *, sleeps: bool = False) -> Halt | None:
    thread = ThreadReading(PythonThread(0, pid, "", (), False), "user", call, is_stable=True, sleeps=sleeps)
    return halt_of(pid, proc.status(pid), [thread])


@contextmanager
def started(source: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", source, *arguments]) as process:
        try:
            yield process
        finally:
            process.kill()


def runs(pid: int) -> bool:
    """Wait until nothing halts it: a new process is uninterruptible for moments, as it reads its files from a disk."""
    return wait_until(lambda: halt(pid) is None, deadline_s=60, what=lambda: f"no halt: {proc.status(pid)}")


def halted(pid: int) -> Halt:
    return wait_until(lambda: halt(pid), deadline_s=60, what=lambda: f"a halt: {proc.status(pid)}")


def suspended_by_child(pid: int) -> Halt:
    """Wait for the halt that lasts until the child of ``SPAWNS`` goes on, and not for an earlier one on a disk."""
    wait_until(psutil.Process(pid).children, deadline_s=60, what=lambda: "a child")
    return halted(pid)


@contextmanager
def traced(pid: int) -> Iterator[None]:
    trace: Callable[..., int] = ctypes.CDLL(None, use_errno=True).ptrace
    assert trace(PTRACE_ATTACH, pid, 0, 0) == 0, os.strerror(ctypes.get_errno())
    os.waitpid(pid, 0)
    try:
        yield
    finally:
        trace(PTRACE_DETACH, pid, 0, 0)


def test_a_process_is_stopped_by_a_signal_until_it_is_continued() -> None:
    with started(SLEEPS) as process:
        assert runs(process.pid)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: halt(process.pid) == Halt(kind="stopped"), deadline_s=60, what=lambda: "the stop")
        process.send_signal(signal.SIGCONT)
        assert runs(process.pid)


def test_a_process_is_stopped_by_its_tracer() -> None:
    with started(SLEEPS) as process, traced(process.pid):
        expected = Halt(kind="traced", by=proc.name(os.getpid()), tracer=os.getpid())
        assert halt(process.pid) == expected


def test_a_thread_in_uninterruptible_sleep_has_its_function_of_the_kernel(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with started(SPAWNS, str(pipe)) as process:
        found = suspended_by_child(process.pid)
        with pipe.open("wb"):  # lets the child go on, which the process cannot outlive
            assert found == Halt(kind="uninterruptible", by=found.by, os_thread_id=process.pid)
            assert found.by.isidentifier() or not found.by
            assert process.wait(60) == 0


def test_a_thread_in_a_wait_that_is_known_is_not_in_uninterruptible_sleep(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with started(SPAWNS, str(pipe)) as process:
        suspended_by_child(process.pid)
        waits = Call(site="threading.Condition.wait", frame=0, need=ProcessObject())
        in_kernel = Call(site="system call", frame=0, need=KernelObjects(system_call="read"))

        assert halt(process.pid, waits) is None
        assert halt(process.pid, sleeps=True) is None
        assert halt(process.pid, in_kernel) is not None
        with pipe.open("wb"):
            process.wait(60)


def test_a_process_that_crashed_writes_its_core_dump(tmp_path: Path) -> None:
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if most == 0 or Path("/proc/sys/kernel/core_pattern").read_text().startswith("|"):
        pytest.skip("this machine writes no core dumps to files")
    with subprocess.Popen([sys.executable, "-c", CRASHES, str(most)], cwd=tmp_path) as process:
        seen = set()
        while process.poll() is None:
            seen.add(halt_of(process.pid, proc.status(process.pid), ()))
            time.sleep(0.001)

    assert process.returncode == -signal.SIGABRT
    assert Halt(kind="dumps core") in seen
