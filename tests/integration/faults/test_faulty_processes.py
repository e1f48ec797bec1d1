"""A sample of a faulty process ends in time, reports what is missing, and has no side effects.

Every sample is of a faulty process and of a healthy one, whose wait for its own thread must be read correctly.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.pyspy import find_pyspy
from tests.integration.programs.processes import faulty_process as faulty
from tests.paths import PROGRAMS
from tests.processes import Child, running, wait_until
from tests.sampling import Plain, sample, target, words_of
from tests.sampling import functions as functions_of

BUDGET_S = 20.0
LATE_S = 20.0
"""Delay of a sample beyond its budget on a busy machine."""
Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a faulty program, and wait until its fault is present."""
    with contextlib.ExitStack() as stack:

        def started(trouble: str) -> Child:
            log = tmp_path / f"{trouble}.log"
            child = stack.enter_context(running([sys.executable, faulty.__file__, trouble], dict(os.environ), log))
            child.wait_for_line("ready", deadline_s=30)
            return child

        yield started


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    log = tmp_path_factory.mktemp("beside") / "log"
    with running([sys.executable, faulty.__file__, "waits"], dict(os.environ), log) as child:
        child.wait_for_line("ready", deadline_s=30)
        yield child


@pytest.fixture
def sample_beside(beside: Child) -> Callable[..., Plain]:
    """Sample a process; the healthy one must be read correctly, and nothing may be left stopped."""

    def sample_both(pid: int, probe: NodeProbe | None = None, **options: Any) -> Plain:
        was_stopped, began = stopped(pid), time.monotonic()
        files, children = open_files(), {*psutil.Process().children()}

        options = {"deadline_s": BUDGET_S, **options}
        answer = sample(target(pid, "faulty"), target(beside.pid, "beside"), probe=probe, **options)

        assert time.monotonic() - began < options["deadline_s"] + LATE_S
        assert has_correct_wait(answer["processes"]["beside"])
        assert not [failure for failure in answer["failures"] if failure["worker_id"] == "beside"]
        wait_until(lambda: stopped(pid) <= was_stopped, deadline_s=20, what=lambda: f"not left stopped: {states(pid)}")
        assert {*psutil.Process().children()} <= children
        assert probe is not None or open_files() == files
        return answer

    return sample_both


def has_correct_wait(process: Plain) -> bool:
    """Whether the program's main thread waits for its other thread."""
    threads = {thread["name"]: thread for thread in process["threads"]}
    call = words_of(threads["MainThread"]["call"])
    return call.get("kind") == "thread.join" and call["threads"] == [threads.get("sleeper", {}).get("os_thread_id")]


def states(pid: int) -> dict[str, str]:
    """The state letters of a process's threads."""
    found = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found[thread] = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]
    return found


def stopped(pid: int) -> set[str]:
    """The threads that are stopped, including by a tracer."""
    return {thread for thread, state in states(pid).items() if state in ("T", "t")}


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def main_thread(answer: Plain) -> tuple[Plain, list[str]]:
    """The main thread of the faulty process, and its functions, leaf first."""
    thread: Plain = next(one for one in answer["processes"]["faulty"]["threads"] if one["name"] == "MainThread")
    return thread, functions_of(answer, thread)


def reasons(answer: Plain) -> list[tuple[str, str]]:
    return [(failure["stage"], failure["reason"]) for failure in answer["failures"]]


Sample = Callable[..., Plain]

# Faults that must not hide anything


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"pause": True}, marks=pytest.mark.exhaustive),
        pytest.param({"locals": True}, marks=pytest.mark.exhaustive),
    ],
    ids=["plain", "pause", "locals"],
)
@pytest.mark.parametrize(
    ("trouble", "functions", "call"),
    [
        ("holds_gil_in_c", ["holds_gil_in_c", "<module>"], None),
        ("loops_in_c", ["loops_in_c", "<module>"], None),
        ("is_deep", ["wait", "wait", *["descend"] * (faulty.DEEP + 1), "is_deep", "<module>"], "threading.Event.wait"),
        ("has_many_threads", ["wait", "wait", "has_many_threads", "<module>"], "threading.Event.wait"),
        ("has_huge_locals", ["has_huge_locals", "<module>"], "threading.Lock.acquire"),
    ],
)
def test_a_faulty_process_is_read_completely(
    trouble: str, functions: list[str], call: str | None, options: Plain, start: Start, sample_beside: Sample
) -> None:
    child = start(trouble)
    answers: list[Plain] = []

    def is_there() -> bool:
        """On a busy machine some time passes between ``ready`` and the wait."""
        answers.append(sample_beside(child.pid, **options))
        return main_thread(answers[-1])[1] == functions

    wait_until(is_there, deadline_s=60, what=lambda: f"{functions}, but {main_thread(answers[-1])}")

    answer = answers[-1]
    thread, _ = main_thread(answer)
    assert all(one["failures"] == [] for one in answers)
    assert words_of(thread["call"]).get("what") == call
    assert thread["on_cpu"] == (trouble == "loops_in_c")


def test_200_threads_are_read_with_their_waits(start: Start, sample_beside: Sample) -> None:
    """All wait for one lock; on a busy machine some are still on their way from the barrier before it."""
    child = start("has_many_threads")
    waits: list[list[Plain]] = []

    def are_there() -> bool:
        threads = sample_beside(child.pid)["processes"]["faulty"]["threads"]
        waits.append([words_of(thread["call"]) for thread in threads if thread["name"].startswith("waits-")])
        return all(wait.get("what") == "threading.Lock.acquire" for wait in waits[-1])

    wait_until(are_there, deadline_s=60, what=lambda: f"at the lock, but {waits[-1]}")

    assert len(waits[-1]) == faulty.MANY
    assert len({wait["object_id"] for wait in waits[-1]}) == 1


def test_locals_of_hundreds_of_megabytes_are_shown_in_a_few_bytes(start: Start, sample_beside: Sample) -> None:
    thread, _ = main_thread(sample_beside(start("has_huge_locals").pid, locals=True))

    locals_shown = thread["locals"]["0"]
    assert locals_shown.keys() == {"data", "text", "items", "numbers", "lock"}
    assert max(map(len, locals_shown.values())) < 1000


def test_a_process_at_its_resource_limits_is_read_completely(tmp_path: Path, sample_beside: Sample) -> None:
    limits = ["prlimit", "--nofile=8", "--nproc=1", "--fsize=1000", f"--as={1 << 30}", "--stack=1000000"]
    with running([*limits, sys.executable, faulty.__file__, "is_deep"], dict(os.environ), tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=30)

        answer = sample_beside(child.pid)

    assert answer["failures"] == []
    assert main_thread(answer)[1].count("descend") == faulty.DEEP + 1


# Stopped, ended, ending, beginning


def test_a_stopped_process_is_read_and_remains_stopped(start: Start, sample_beside: Sample) -> None:
    child = start("runs")
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: states(child.pid)[str(child.pid)] == "T", deadline_s=20, what=lambda: "stopped")

    answer = sample_beside(child.pid)

    assert answer["failures"] == []
    assert main_thread(answer)[1][-2:] == ["runs", "<module>"]
    assert states(child.pid) == {str(child.pid): "T"}


def test_a_zombie_is_reported_as_ended(start: Start, sample_beside: Sample) -> None:
    child = start("waits")
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: states(child.pid)[str(child.pid)] == "Z", deadline_s=20, what=lambda: "a zombie")

    answer = sample_beside(child.pid)

    assert reasons(answer) == [("process", "the process has ended")]
    assert answer["processes"]["faulty"]["state"] == "zombie"


KILL = 'case "$* " in *" {pid} "*) kill -9 {pid}; while [ -d /proc/{pid} ]; do :; done;; esac'
"""Only in the dump of this process: the healthy one is dumped at the same time."""


@pytest.mark.parametrize("option", ["pause", "native"])
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (f'{KILL}; exec "{{real}}" "$@"', [("process", "the process has ended")]),
        (f'"{{real}}" "$@"; {KILL}', []),
    ],
    ids=["before it is read", "once it is read"],
)
def test_a_process_that_ends_during_a_sample_is_reported_as_ended_unless_it_was_read(
    script: str, expected: list[tuple[str, str]], option: str, start: Start, sample_beside: Sample
) -> None:
    child = start("is_deep")
    reaper = threading.Thread(target=child.process.wait)
    reaper.start()

    answer = sample_beside(child.pid, stand_in(script, child.pid), **{option: True})

    reaper.join()
    assert reasons(answer) == expected
    assert expected or main_thread(answer)[1].count("descend") == faulty.DEEP + 1


def test_a_starting_process_is_unreadable_until_python_runs(tmp_path: Path, sample_beside: Sample) -> None:
    program = ["sh", "-c", f'read go; exec "{sys.executable}" "{faulty.__file__}" waits']
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        assert child.stdin is not None
        try:
            before = sample_beside(child.pid)
            child.stdin.write(b"\n")
            child.stdin.flush()
            answers: list[Plain] = []

            def is_read() -> bool:
                answers.append(sample_beside(child.pid))
                process = answers[-1]["processes"]["faulty"]
                return len(process["threads"]) == 2 and has_correct_wait(process)

            wait_until(is_read, deadline_s=30, what=lambda: f"a complete reading: {answers[-1]}")
        finally:
            child.kill()

    (failure,) = before["failures"]
    assert failure["stage"] == "stacks"
    assert "python" in failure["reason"]
    assert before["processes"]["faulty"]["threads"] == []
    assert answers[-1]["failures"] == []


# Traced by other programs


def has_all_threads(answer: Plain) -> bool:
    return sum(thread["still"] for thread in answer["processes"]["faulty"]["threads"]) >= faulty.MANY + 1


@pytest.mark.parametrize("how", ["stopped", "running"])
def test_a_process_traced_by_another_program_is_read_without_a_pause(
    how: str, start: Start, sample_beside: Sample, tmp_path: Path
) -> None:
    child = start("has_many_threads")
    argv = [sys.executable, str(PROGRAMS / "tools/tracer.py"), str(child.pid), how]
    with running(argv, dict(os.environ), tmp_path / "tracer.log") as tracer:
        tracer.wait_for_line("ready", deadline_s=30)

        wait_until(
            lambda: has_all_threads(sample_beside(child.pid)), deadline_s=60, what=lambda: "not all threads are proven"
        )
        plain, traced = sample_beside(child.pid), sample_beside(child.pid, pause=True)

        by = f"another program is tracing it: {psutil.Process(tracer.pid).name()} (pid {tracer.pid})"
        assert reasons(traced) == [("stacks", f"py-spy could not pause it, so it was read without a pause: {by}")]
        for answer in (plain, traced):
            assert has_all_threads(answer)
        assert plain["failures"] == []
        assert psutil.pid_exists(tracer.pid)
    assert sample_beside(child.pid, pause=True)["failures"] == []


def test_a_process_is_read_while_a_profiler_pauses_it(start: Start, sample_beside: Sample, tmp_path: Path) -> None:
    child = start("runs")
    pyspy = find_pyspy()
    assert pyspy
    out = tmp_path / "profile"
    argv = [pyspy, "record", "--rate", "200", "--duration", "1000", "-f", "raw", "-o", str(out), "-p", str(child.pid)]
    with running(argv, dict(os.environ), tmp_path / "profiler.log") as profiler:
        wait_until(lambda: traced_once(child.pid), deadline_s=30, what=lambda: f"attached: {profiler}")

        for _ in range(10):
            assert sample_beside(child.pid)["failures"] == []
            answer = sample_beside(child.pid, pause=True)
            assert "runs" in main_thread(answer)[1]
            assert all(
                reason.startswith("py-spy could not pause it, so it was read without a pause: ")
                for _, reason in reasons(answer)
            )
        assert profiler.process.poll() is None
        profiler.process.send_signal(signal.SIGINT)
        profiler.process.wait(30)
    assert b"runs" in out.read_bytes()


def traced_once(pid: int) -> bool:
    return any("TracerPid:\t0" not in Path(f"/proc/{pid}/status").read_text() for _ in range(1000))


# A py-spy that fails


def stand_in(script: str, pid: int = 0) -> NodeProbe:
    """A probe whose py-spy is this shell script; ``{real}`` and ``{pid}`` are replaced."""
    probe = NodeProbe()
    probe.equip(b"#!/bin/sh\n" + script.format(real=find_pyspy(), pid=pid).encode() + b"\n")
    return probe


FAILS_SO_OFTEN = """
echo >>"{tries}"
[ $(wc -l <"{tries}") -gt {times} ] && exec "{{real}}" "$@"
echo "Error: lost its way" >&2; exit 1
"""


@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_a_failed_dump_with_a_pause_is_retried(times: int, start: Start, sample_beside: Sample, tmp_path: Path) -> None:
    tries = tmp_path / "tries"

    answer = sample_beside(start("runs").pid, stand_in(FAILS_SO_OFTEN.format(tries=tries, times=times)), pause=True)

    assert len(tries.read_text()) == times + 1
    assert answer["failures"] == []
    assert answer["processes"]["faulty"]["paused_ms"] > 0
    assert "runs" in main_thread(answer)[1]


def test_the_dump_without_a_pause_is_the_fallback(start: Start, sample_beside: Sample, tmp_path: Path) -> None:
    tries = tmp_path / "tries"

    answer = sample_beside(start("is_deep").pid, stand_in(FAILS_SO_OFTEN.format(tries=tries, times=1000)), pause=True)

    thread, stack = main_thread(answer)
    assert reasons(answer) == [
        ("stacks", "py-spy could not pause it, so it was read without a pause: py-spy: lost its way")
    ]
    assert thread["still"]
    assert stack.count("descend") == faulty.DEEP + 1
    assert answer["processes"]["faulty"]["paused_ms"] == 0
