"""Targets at the limits of the reader, and targets that change while they are read."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from dstack.probes.node.cpython.code_objects import CodeObjects
from dstack.probes.node.cpython.python_process import KNOWN_FUNCTION
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.procfs import proc
from dstack.probes.node.stacks.table import ENDS
from dstack.probes.node_access.targets import foreign_python
from tests.fuzzing.effort import tries
from tests.processes import Child, running, wait_until
from tests.sampling import Plain, frames_of, functions, sample, target, words_of

PROCESS_MADVISE, MADV_PAGEOUT = 440, 21  # asm/unistd.h, asm-generic/mman-common.h
THREADS = 1_000
CAUSES = {"ended", "unreadable"}
"""The causes for an unreadable process that ends or calls exec."""


@contextmanager
def program(script: str, folder: Path, *arguments: str) -> Iterator[Child]:
    argv = [sys.executable, "-c", script, *arguments]
    with running(argv, dict(os.environ), folder / "log") as child:
        child.wait_for_line("ready", deadline_s=300)
        yield child


def threads_of(answer: Plain) -> list[Plain]:
    threads: list[Plain] = answer["processes"]["w"]["threads"]
    return threads


# Sizes

DEEP = """
import sys, threading, time
sys.setrecursionlimit(10**9)
threading.stack_size(1 << 30)
def descend(left):
    if left:
        return descend(left - 1)
    print("ready", flush=True)
    time.sleep(100_000)
def begin(): descend(int(sys.argv[1]))
threading.Thread(target=begin, name="deep", daemon=True).start()
time.sleep(100_000)
"""


def test_a_stack_of_100_000_frames_keeps_both_ends(tmp_path: Path) -> None:
    with program(DEEP, tmp_path, "100000") as child:
        answer = sample(target(child.pid))

    assert answer["failures"] == []
    (deep,) = (one for one in threads_of(answer) if one["name"] == "deep")
    stack = functions(answer, deep)
    bootstrap = ["begin", "run", "_bootstrap_inner", "_bootstrap"]
    left_out = 100_001 + len(bootstrap) - 2 * ENDS
    assert deep["still"]
    assert stack[:ENDS] == ["descend"] * ENDS
    assert stack[ENDS] == f"({left_out} frames left out)"
    assert stack[ENDS + 1 :] == ["descend"] * (ENDS - len(bootstrap)) + bootstrap


MANY = """
import sys, threading, time
threading.stack_size(1 << 16)
for number in range(int(sys.argv[1])):
    threading.Thread(target=time.sleep, args=(100_000,), name=f"t-{number}", daemon=True).start()
print("ready", flush=True)
time.sleep(100_000)
"""


@pytest.mark.parametrize("count", [THREADS, pytest.param(9_990, marks=pytest.mark.exhaustive)])
def test_thousands_of_threads_are_all_read(count: int, tmp_path: Path) -> None:
    with program(MANY, tmp_path, str(count)) as child:

        def when_all_stable() -> Plain | None:
            answer = sample(target(child.pid), deadline_s=300.0)
            return answer if all(one["still"] for one in threads_of(answer)) else None

        answer = wait_until(when_all_stable, deadline_s=300, what=lambda: "all threads to be stable")

    assert answer["failures"] == []
    names = [one["name"] for one in threads_of(answer)]
    assert sorted(names) == sorted(["MainThread", *(f"t-{number}" for number in range(count))])
    assert {tuple(functions(answer, one)[-2:]) for one in threads_of(answer) if one["name"] != "MainThread"} == {
        ("_bootstrap_inner", "_bootstrap")
    }


# Targets that change while they are read

SHORT_LIVED = """
import os, sys, threading, time
end = time.monotonic() + float(sys.argv[1])
def work(left):
    return sum(work(left - 1) for _ in range(2)) if left else 1
for _ in range(4):
    threading.Thread(target=work, args=(12,), daemon=True).start()
while time.monotonic() < end:
    work(5)
if sys.argv[2] != "0":
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:-1], str(int(sys.argv[2]) - 1)])
os._exit(0)
"""


def test_processes_that_end_or_exec_during_a_reading_are_no_error(tmp_path: Path) -> None:
    """Each is read without a break from its start to its end, and calls exec twice in between.

    On a busy machine many are never read as a whole; more are started until enough are.
    """
    probe, whole, failures = NodeProbe(), 0, []
    for number in range(10 * tries(100)):
        if number >= tries(100) and whole > tries(100):
            break
        script = [sys.executable, "-c", SHORT_LIVED, str(0.002 * (number % 10)), "2"]
        with subprocess.Popen(script) as process:
            while process.poll() is None:
                answer = sample(target(process.pid), probe=probe)
                whole += bool(answer["processes"]) and bool(threads_of(answer))
                failures += answer["failures"]
                for thread in threads_of(answer) if answer["processes"] else ():
                    assert all(function for function in functions(answer, thread))

    assert whole > tries(100)
    assert {one["cause"] for one in failures} <= CAUSES, failures
    assert {one["stage"] for one in failures} <= {"process", "stacks", "memory"}, failures


def test_a_process_whose_libraries_were_not_mapped_yet_is_read_from_memory_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with program("print('ready', flush=True)\nimport time\ntime.sleep(100_000)", tmp_path) as child:
        probe = NodeProbe()
        with monkeypatch.context() as patched:
            patched.setattr(proc, "mapped_files", lambda pid: {})
            early = sample(target(child.pid), probe=probe)
        answer = sample(target(child.pid), probe=probe)

    assert [one["stage"] for one in early["failures"]] == ["memory"]
    assert answer["failures"] == []


SPINS = """
import threading, time
def spin():
    while True: pass
threading.Thread(target=spin, name="spins", daemon=True).start()
print("ready", flush=True)
time.sleep(100_000)
"""


def test_a_name_that_was_read_wrong_while_a_thread_ran_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with program(SPINS, tmp_path) as child, program(SPINS, tmp_path) as other:
        probe = NodeProbe()
        sample(target(other.pid), probe=probe)  # the probe has checked its own memory by the names in it
        text = CodeObjects._text
        with monkeypatch.context() as patched:
            # Of a process without this function nothing is read.
            right = {one: one for one in KNOWN_FUNCTION}
            patched.setattr(CodeObjects, "_text", lambda self, address: right.get(text(self, address), "wrong"))
            wrong = sample(target(child.pid), probe=probe)
        later = [sample(target(child.pid), probe=probe) for _ in range(3)]

    def names(answer: Plain) -> set[str]:
        return {name for one in threads_of(answer) for name in functions(answer, one)}

    assert names(wrong) == {"wrong"}
    assert [names(one) for one in later] == [{"spin", "run", "_bootstrap_inner", "_bootstrap", "<module>"}] * 3


STARTS_THREADS = """
import signal, threading, time
enough = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: enough.set())
print("ready", flush=True)
def wait(): threading.Event().wait()
number = 0
while not enough.is_set():
    threading.Thread(target=wait, name=f"t-{number}", daemon=True).start()
    number += 1
    time.sleep(0.05)
time.sleep(100_000)
"""


def test_threads_started_between_samples_are_read_with_their_ids_and_waits(tmp_path: Path) -> None:
    with program(STARTS_THREADS, tmp_path) as child:
        probe = NodeProbe()

        def started() -> list[Plain]:
            threads = threads_of(sample(target(child.pid), probe=probe))
            assert all(one["os_thread_id"] for one in threads)
            return [one for one in threads if one["name"] != "MainThread"]

        counts: set[int] = set()
        while len(counts) < 5:
            counts.add(len(started()))
        os.kill(child.pid, signal.SIGUSR1)

        def waiting() -> list[Plain]:
            threads = started()
            return threads if all(one["still"] and one["name"].startswith("t-") for one in threads) else []

        threads = wait_until(waiting, deadline_s=60, what=lambda: "threads that move")

    assert len(threads) >= max(counts)
    assert {words_of(one["call"])["what"] for one in threads} == {"threading.Event.wait"}


# Targets that are stopped or paged out

BLOCKED = """
import sys, threading, time
def descend(left, rows):
    if left:
        return descend(left - 1, [*rows, left])
    print("ready", flush=True)
    time.sleep(100_000)
def begin(): descend(50, [])
threading.Thread(target=begin, name="deep", daemon=True).start()
time.sleep(100_000)
"""
IN_BLOCKED = ["descend"] * 51 + ["begin", "run", "_bootstrap_inner", "_bootstrap"]


def deep_stack(answer: Plain) -> list[str]:
    (deep,) = (one for one in threads_of(answer) if one["name"] == "deep")
    assert deep["still"]
    return functions(answer, deep)


def test_a_stopped_process_is_read_and_stays_stopped(tmp_path: Path) -> None:
    with program(BLOCKED, tmp_path) as child:
        os.kill(child.pid, signal.SIGSTOP)
        process = psutil.Process(child.pid)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, deadline_s=20, what=process.status)
        answer = sample(target(child.pid))
        status = process.status()

    assert answer["failures"] == []
    assert deep_stack(answer) == IN_BLOCKED
    assert status == psutil.STATUS_STOPPED


def page_out(pid: int) -> None:
    """Have the kernel page out as much of a process as it can: without swap, pages of files."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.pidfd_open(pid)
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            start, end = (int(one, 16) for one in line.split()[0].split("-"))
            vector = (ctypes.c_size_t * 2)(start, end - start)
            libc.syscall(PROCESS_MADVISE, descriptor, ctypes.byref(vector), 1, MADV_PAGEOUT, 0)
    finally:
        os.close(descriptor)


def test_a_process_whose_pages_are_not_in_memory_is_read(tmp_path: Path) -> None:
    """The interpreter is a copy, whose pages no other process keeps in memory; they contain types and their names."""
    copy = tmp_path / "python"
    shutil.copy(Path(sys.executable).resolve(), copy)
    environment = {**os.environ, "PYTHONHOME": sys.base_prefix}
    with running([str(copy), "-c", BLOCKED], environment, tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=60)
        os.sync()  # dirty pages are not paged out
        python = foreign_python(child.pid)
        process = psutil.Process(child.pid)
        before = process.memory_info().rss
        page_out(child.pid)
        after = process.memory_info().rss
        answer = sample(target(child.pid, python=python))

    assert after < before
    assert answer["failures"] == []
    assert deep_stack(answer) == IN_BLOCKED


# Running threads

RECURSES = """
import random, sys, threading, time
sys.setrecursionlimit(10_000)
def leaf(): return 1
def left(depth):
    if depth > 0: return pick(depth)(depth - 1)
    return leaf()
def right(depth):
    total = 0
    for _ in range(2):
        total += pick(depth)(max(0, depth - random.randrange(1, 9)))
    return total
def generates(depth):
    yield pick(depth)(depth - 1)
def middle(depth):
    return sum(one
               for one in generates(depth))
def pick(depth): return random.choice((left, right, middle)) if depth > 0 else left
def run():
    while True: pick(9)(random.randrange(1, 40))
for _ in range(2): threading.Thread(target=run, name="runs", daemon=True).start()
print("ready", flush=True)
time.sleep(100_000)
"""
PICKED = {("left", 6), ("right", 11), ("generates", 14), ("run", 20)}
"""The lines that call ``left``, ``right`` and ``middle``, and ``pick`` before."""
IN_MIDDLE = {("middle", 16), ("middle", 17)}
CALLERS = {
    **dict.fromkeys(("left", "right", "middle", "pick"), PICKED),
    "leaf": {("left", 7)},
    "<genexpr>": IN_MIDDLE,
    "generates": {("<genexpr>", 16), ("<genexpr>", 17), *IN_MIDDLE},
}


def impossible_calls(frames: list[tuple[str, str, int]]) -> list[str]:
    """The calls in a stack that the program never makes."""
    stack = [(function.rpartition(".")[2], line) for file, function, line in frames if file == "<string>"]
    return [f"{callee} by {caller}" for (callee, _), caller in pairwise(stack) if caller not in CALLERS[callee]]


def test_a_stack_of_a_running_thread_is_possible_or_marked_as_torn(tmp_path: Path) -> None:
    torn = whole = 0
    with program(RECURSES, tmp_path) as child:
        probe = NodeProbe()
        for _ in range(tries(500)):  # each takes up to half a second, because both threads always run
            answer = sample(target(child.pid), probe=probe)
            assert answer["failures"] == []
            running_threads = [one for one in threads_of(answer) if one["name"] == "runs"]
            assert len(running_threads) == 2
            for thread in running_threads:
                assert thread["call"] is None or words_of(thread["call"])["system_call"] == "futex"  # that of the GIL
                assert not (thread["torn"] and thread["still"])
                torn += thread["torn"]
                whole += not thread["torn"]
                assert thread["torn"] or impossible_calls(frames_of(answer, thread)) == [], thread

    assert whole > torn / 100, "at least some could be read"
