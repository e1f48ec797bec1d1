"""Samples of plain processes: stable and running threads, pauses, failures, and py-spy as a fallback."""

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.procfs.permissions import DumpFailed
from dstack.probes.node.pyspy import PySpy, find_pyspy
from dstack.probes.node.stability import mark_off_cpu, marks_of, unchanged
from tests.processes import command_line, wait_until
from tests.sampling import Plain, sample, target


def child(script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", script])


@contextmanager
def running(script: str) -> Iterator[psutil.Process]:
    with child(script) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def sample_of(pid: int, **options: Any) -> Plain:
    return sample(target(pid), **options)


def threads_of(result: Plain) -> list[Any]:
    return list(result["processes"]["w"]["threads"])


SLEEPER = "import time; time.sleep(1000)"
SPINNER = "import time\nwhile True: pass"


def is_in_program(process: psutil.Process) -> bool:
    """Whether it runs its script, after Python's own start."""
    return any(frame["file"] == "<string>" for frame in sample_of(process.pid)["frames"])


def started(process: psutil.Process) -> psutil.Process:
    wait_until(lambda: is_in_program(process), deadline_s=20, what=lambda: "the child in its program")
    return process


def test_a_sleeping_thread_is_proven_stable_without_a_pause() -> None:
    with running(SLEEPER) as process:
        result = sample_of(started(process).pid)

    assert [thread["still"] for thread in threads_of(result)] == [True]
    assert result["processes"]["w"]["paused_ms"] == 0


def test_a_running_thread_is_paused_on_request_and_not_called_stable() -> None:
    with running(SPINNER) as process:
        pid = started(process).pid

        def paused_answer() -> Plain | None:
            result = sample_of(pid, pause=True)
            return result if result["processes"]["w"]["paused_ms"] else None

        result = wait_until(paused_answer, deadline_s=20, what=lambda: "a reading with a pause")
        state = process.status()

    assert [(one["still"], one["torn"], one["on_cpu"]) for one in threads_of(result)] == [(False, False, True)]
    assert state not in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def test_a_running_thread_is_not_paused_by_default() -> None:
    with running(SPINNER) as process:
        result = sample_of(started(process).pid)

    assert result["processes"]["w"]["paused_ms"] == 0
    assert result["failures"] == []


def test_a_stopped_process_is_read_where_it_stopped() -> None:
    with running(SPINNER) as process:
        started(process).send_signal(signal.SIGSTOP)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, deadline_s=20, what=lambda: "stopped")
        result = sample_of(process.pid)
        state = process.status()

    assert [thread["still"] for thread in threads_of(result)] == [True]
    assert state == psutil.STATUS_STOPPED


def test_an_ended_process_is_a_failure_with_a_reason() -> None:
    with child("pass") as process:
        process.wait()

    result = sample_of(process.pid)

    assert result["processes"] == {}
    assert [(failure["stage"], failure["reason"]) for failure in result["failures"]] == [
        ("process", "the process has ended")
    ]


def test_another_process_with_the_same_pid_is_not_the_worker() -> None:
    with (
        running("import socket, time; s = socket.create_server(('127.0.0.1', 0)); time.sleep(1000)") as server,
        running("import time; time.sleep(1000)") as other,
    ):
        ports = wait_until(
            lambda: [c.laddr.port for c in server.net_connections("tcp")], deadline_s=20, what=lambda: "a port"
        )
        result = sample(target(other.pid, port=ports[0]))

    assert "another process" in result["failures"][0]["reason"]


def test_pyspy_runs_from_memory_if_the_node_has_none() -> None:
    path = find_pyspy()
    assert path is not None
    probe = NodeProbe()
    probe.equip(Path(path).read_bytes())

    with running(SLEEPER) as process:
        result = sample(target(started(process).pid), probe=probe, native=True)

    assert result["failures"] == []
    assert len(threads_of(result)) == 1
    assert result["processes"]["w"]["paused_ms"] > 0


def test_a_hanging_pyspy_is_killed_and_reported(tmp_path: Path) -> None:
    hanging = tmp_path / "py-spy"
    seconds = f"1000.{secrets.randbelow(10**9)}"
    hanging.write_text(f"#!/bin/sh\nexec sleep {seconds}\n")
    hanging.chmod(0o755)

    with running(SLEEPER) as process, pytest.raises(DumpFailed, match=r"timed out after 0\.3 s"):
        PySpy(str(hanging)).dump(process.pid, blocking=False, native=False, timeout_s=0.3)

    assert not [one for one in psutil.process_iter() if seconds in command_line(one)]


def test_marks_differ_for_a_thread_that_ran_and_are_stable_otherwise() -> None:
    asleep, ticking = threading.Event(), threading.Event()
    threads = [threading.Thread(target=asleep.wait), threading.Thread(target=tick, args=(ticking,))]
    for thread in threads:
        thread.start()
    time.sleep(0.1)

    before = marks_of(os.getpid())

    def the_same_after_a_tick() -> set[int] | None:
        same = unchanged(before, marks_of(os.getpid()))
        return None if threads[1].native_id in same else same

    same = wait_until(the_same_after_a_tick, deadline_s=20, what=lambda: "a tick")
    asleep.set()
    ticking.set()

    assert threads[0].native_id in same


def test_a_running_thread_is_never_stable() -> None:
    with running(SPINNER) as process:
        pid = started(process).pid
        wait_until(lambda: process.status() == psutil.STATUS_RUNNING, deadline_s=20, what=process.status)
        assert {mark_off_cpu(pid, pid) for _ in range(100)} == {""}


def test_a_sleeping_thread_is_stable_until_it_ends() -> None:
    with running(SLEEPER) as process:
        pid = started(process).pid
        wait_until(lambda: process.status() == psutil.STATUS_SLEEPING, deadline_s=20, what=process.status)
        assert mark_off_cpu(pid, pid) == mark_off_cpu(pid, pid) != ""

    assert mark_off_cpu(pid, pid) == ""


def tick(until: threading.Event) -> None:
    while not until.wait(0.001):
        pass


SLEEPS_AND_WAITS = """
import threading, time
threading.Thread(target=threading.Event().wait, name="waits", daemon=True).start()
threading.Thread(target=input, name="reads", daemon=True).start()
print("ready", flush=True)
time.sleep(1000)
"""


def test_a_sleeping_thread_differs_from_a_blocked_one() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPS_AND_WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"

        def asleep() -> set[str]:
            (process,) = sample(target(program.pid))["processes"].values()
            return {thread["name"] for thread in process["threads"] if thread["sleeps"]}

        wait_until(lambda: asleep() == {"MainThread"}, deadline_s=60, what=lambda: str(asleep()))
        program.kill()
