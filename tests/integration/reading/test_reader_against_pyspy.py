"""Frames, names and lines read from memory equal those of py-spy and of the program itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dstack.files.snapshot_file import load
from dstack.probes.node.cpython.layouts import LAYOUTS, OWN_VERSION
from dstack.probes.node.cpython.memory import open_memory
from dstack.probes.node.cpython.python_process import PTHREAD_TID
from dstack.probes.node.pyspy import find_pyspy
from dstack.probes.node.stability import marks_of, unchanged
from dstack.probes.node_access.targets import foreign_python
from tests.clusters.dstack_command import dstack
from tests.clusters.shared_cluster import SharedCluster
from tests.fuzzing.effort import tries
from tests.integration.programs.processes import random_stacks
from tests.paths import PROGRAMS
from tests.processes import Child, running, wait_until
from tests.sampling import Plain, frames_of, sample, target
from tests.versions.interpreters import python_or_skip

SEEDS, SEEDS_OF_OTHERS = tries(20), tries(5)
THREADS = 200
WAITING_THREADS = 8
"""The threads of the driver that wait in Ray, without those that wake periodically."""
OTHERS = [f"{major}.{minor}" for major, minor in LAYOUTS if (major, minor) != OWN_VERSION]
VERSIONS = ["own", *(pytest.param(version, marks=pytest.mark.exhaustive) for version in OTHERS)]
Stacks = dict[str, list[tuple[str, str, int]]]
"""File, qualified name and line of every frame, leaf first, by the names of the threads."""


def is_3_10(version: str) -> bool:
    return version == "3.10" or (version == "own" and OWN_VERSION == (3, 10))


def python_of(version: str) -> list[str]:
    return [sys.executable] if version == "own" else python_or_skip(version)


def read(pid: int) -> tuple[Stacks, set[str]]:
    """The stacks of all threads from memory, and the names of the stable threads."""
    answer = sample(target(pid, python=foreign_python(pid)))
    assert answer["failures"] == []
    process = answer["processes"]["w"]
    assert (process["access"], process["paused_ms"]) == ("memory", 0)
    threads = {thread["name"]: thread for thread in process["threads"]}
    assert len(threads) == len(process["threads"])
    return (
        {name: frames_of(answer, thread) for name, thread in threads.items()},
        {name for name, thread in threads.items() if thread["still"]},
    )


def dump(pid: int) -> list[Plain]:
    """All threads in py-spy's format."""
    command = [find_pyspy() or "", "dump", "--json", "--nonblocking", "--pid", str(pid)]
    threads: list[Plain] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return threads


def frames_by_pyspy(thread: Plain) -> list[tuple[str, str, int]]:
    return [(frame["filename"], frame["name"], frame["line"]) for frame in thread["frames"]]


def dumped(pid: int) -> Stacks:
    """The stacks of all threads from py-spy."""
    return {one["thread_name"]: frames_by_pyspy(one) for one in dump(pid)}


def shown_by_pyspy(frames: Sequence[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    """The frames without those that py-spy 0.4.3 leaves out as the interpreter's: code without a file name."""
    return [frame for frame in frames if frame[0]]


def without_lines(frames: Sequence[tuple[str, str, int]]) -> list[tuple[str, str]]:
    return [frame[:2] for frame in frames]


def printed_by(program: Child) -> Stacks:
    line = program.line("stacks ")
    assert line is not None
    printed = json.loads(line.removeprefix("stacks "))
    return {name: [(file, function, number) for file, function, number in frames] for name, frames in printed.items()}


def start(version: str, *arguments: object) -> list[str]:
    return [*python_of(version), str(PROGRAMS / "processes/random_stacks.py"), *map(str, arguments)]


@pytest.mark.parametrize(
    ("version", "seed"),
    [
        *(("own", seed) for seed in range(SEEDS)),
        *(
            pytest.param(version, seed, marks=pytest.mark.exhaustive)
            for version in OTHERS
            for seed in range(SEEDS_OF_OTHERS)
        ),
    ],
)
def test_random_stacks_equal_those_of_the_program_and_of_pyspy(version: str, seed: int, tmp_path: Path) -> None:
    """Names are qualified from CPython 3.11 on."""
    with running(start(version, seed, THREADS), dict(os.environ), tmp_path / "log") as program:
        program.wait_for_line("ready", deadline_s=120)
        expected = printed_by(program)

        def when_all_stable() -> Stacks | None:
            stacks, stable = read(program.pid)
            return stacks if stable >= expected.keys() else None

        stacks = wait_until(when_all_stable, deadline_s=60, what=lambda: "all threads to be stable")
        shown = dumped(program.pid)

    assert len(expected) == THREADS
    for name, frames in expected.items():
        assert stacks[name] == (as_read(stacks[name], frames) if may_trace_wrong_lines(version) else frames)
        if is_3_10(version):
            assert_shown_on_3_10(shown[name], shown_by_pyspy(frames))
        else:
            assert shown[name] == shown_by_pyspy(stacks[name])


def may_trace_wrong_lines(version: str) -> bool:
    return version in ("3.14", "3.15") or (version == "own" and OWN_VERSION >= (3, 14))


def as_read(
    shown: Sequence[tuple[str, str, int]], frames: Sequence[tuple[str, str, int]]
) -> list[tuple[str, str, int]]:
    """The program's frames, with the reader's line where ``f_lineno`` of CPython 3.14 or later has lost upper bytes.

    For a traced frame with lines before the first, it is too large by a multiple of 2**8 (observed with 3.14.8 and
    3.15.0). Only code that the program generates has such lines; its ``co_lines()`` is correct.
    """
    return [
        (file, function, mine[2] if file in random_stacks.FILES and not (line - mine[2]) % 256 else line)
        for mine, (file, function, line) in zip(shown, frames, strict=True)
    ]


def assert_shown_on_3_10(shown: Sequence[tuple[str, str, int]], frames: Sequence[tuple[str, str, int]]) -> None:
    """Compare the frames, except for two kinds of wrong lines of py-spy 0.4.3 on CPython 3.10.

    Line 0 for a step of more than 127 lines, or back, which is several entries of the table. The line after the first
    for a frame that has not begun, as in trace functions.
    """
    assert without_lines(shown) == without_lines(frames)
    for one, (file, function, line) in zip(shown, frames, strict=True):
        is_made_at_run_time = file in random_stacks.FILES
        has_not_begun = function == "called"
        assert one[2] == line or (is_made_at_run_time and one[2] == 0) or (has_not_begun and one[2] == line + 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stack_of_3000_frames_equals_that_of_pyspy(version: str, tmp_path: Path) -> None:
    script = """
import sys, threading, time
sys.setrecursionlimit(10_000)
def descend(left):
    if left:
        return descend(left - 1)
    print("ready", flush=True)
    time.sleep(100_000)
descend(3_000)
"""
    with running([*python_of(version), "-c", script], dict(os.environ), tmp_path / "log") as program:
        program.wait_for_line("ready", deadline_s=60)
        (stacks, stable), shown = read(program.pid), dumped(program.pid)

    assert stable == {"MainThread"}
    assert stacks == shown
    assert stacks["MainThread"] == [
        ("<string>", "descend", 8),
        *[("<string>", "descend", 6)] * 3_000,
        ("<string>", "<module>", 9),
    ]


@pytest.mark.ray
def test_stacks_of_rays_workers_and_driver_equal_those_of_pyspy(shared: SharedCluster, tmp_path: Path) -> None:
    """Only threads that are stable from the reading to the dump are compared; Ray's own threads wake periodically."""
    file = tmp_path / "snapshot.json"
    with shared.running(PROGRAMS / "drivers/ray_waits.py") as program:
        done = dstack("snapshot", "--address", program.address, "-o", str(file), environment=program.environment)
        assert done.returncode == 0, done.stderr
        processes = [one.process for one in load(file).samples[0].workers if one.process]
        assert len(processes) >= 4
        for process in processes:
            compare(process.pid, threads=WAITING_THREADS if process.pid == program.pid else 1)


def compare(pid: int, threads: int) -> None:
    """Compare until so many threads have once been stable: on a busy host few are at the same time."""
    compared: set[int] = set()

    def are_enough() -> bool:
        compared.update(compared_threads(pid))
        return len(compared) >= threads

    wait_until(are_enough, deadline_s=60, what=lambda: f"{threads} stable threads of {pid}, seen: {compared}")


def compared_threads(pid: int) -> set[int]:
    """Compare the threads that were stable while both readers read them, and return their ids."""
    before = marks_of(pid)
    answer = sample(target(pid))
    with open_memory(pid) as memory:  # without a pause, py-spy has no OS ids of threads of CPython 3.10
        at = PTHREAD_TID[os.uname().machine]
        shown = {memory.int32(one["thread_id"] + at): frames_by_pyspy(one) for one in dump(pid)}
    stable = unchanged(before, marks_of(pid))
    threads = {one["os_thread_id"]: one for one in answer["processes"]["w"]["threads"]}
    assert threads.keys() & stable == shown.keys() & stable
    for thread_id in threads.keys() & stable:
        assert threads[thread_id]["still"]
        assert frames_of(answer, threads[thread_id]) == shown[thread_id]
    return threads.keys() & stable
