"""The costs of an action, and its effects on the processes that it reads: pauses, tracers and signals."""

from __future__ import annotations

import json
import resource
import select
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

Action = Callable[[], object]
PYSPY = str(Path(sys.executable).with_name("py-spy"))
TICK_S = 0.001
PENDING = ("SigPnd", "ShdPnd")


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall time, and CPU time of this process and of its reaped children."""

    wall_s: float
    cpu_s: float


def cpu_s() -> float:
    """The CPU time so far of this process and of its reaped children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def cost_of(action: Action) -> Cost:
    """The cost of one run."""
    began, before = time.perf_counter(), cpu_s()
    action()
    return Cost(time.perf_counter() - began, cpu_s() - before)


def in_turns(ways: dict[str, Action], rounds: int) -> dict[str, list[Cost]]:
    """The costs of each way; every round runs all ways once."""
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, action in ways.items():
            costs[name].append(cost_of(action))
    return costs


def in_ms(seconds: Iterable[float]) -> str:
    """The median in ms."""
    return f"{median(seconds) * 1000:.1f}"


def spread(values: Collection[float], digits: int = 2) -> str:
    """The minimum and the maximum."""
    return f"{min(values):.{digits}f}-{max(values):.{digits}f}"


def py_spy(pid: int, *options: str) -> None:
    """Dump one process with py-spy."""
    subprocess.run([PYSPY, "dump", "--pid", str(pid), *options], capture_output=True, check=True)


def repeat(action: Action, duration_s: float) -> None:
    """Repeat an action for that time, at least once."""
    end = time.perf_counter() + duration_s
    while True:
        action()
        if time.perf_counter() >= end:
            return


def longest_gap_ms(duration_s: float) -> float:
    """The longest time within ``duration_s`` that this thread did not run, beyond its sleeps of 1 ms."""
    longest, before = 0.0, time.perf_counter()
    end = before + duration_s
    while before < end:
        time.sleep(TICK_S)
        now = time.perf_counter()
        longest = max(longest, now - before - TICK_S)
        before = now
    return longest * 1000


def disturbed(pids: Collection[int], action: Action) -> set[int]:
    """The processes that were stopped or traced, or had a signal pending, during the action.

    Another process polls them without a pause. A dump with a pause takes some ms and is found; a signal is certainly
    found only in a process that blocks all signals.
    """
    command = [sys.executable, "-m", "benchmarks.costs", *map(str, pids)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "ready\n"
        try:
            action()
        finally:
            found, _ = watcher.communicate()
    return set(json.loads(found))


def watch(pids: Iterable[int]) -> None:
    """Poll the processes until the standard input ends, and print the disturbed ones as JSON."""
    files = {pid: Path(f"/proc/{pid}/status") for pid in pids}
    found: set[int] = set()
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        found.update(pid for pid, file in files.items() if is_disturbed(file.read_text()))
    print(json.dumps(sorted(found)))


def is_disturbed(status: str) -> bool:
    """Whether ``/proc/PID/status`` is of a stopped or traced process, or has a pending signal."""
    lines = dict(line.split(":", 1) for line in status.splitlines())
    has_signal = any(int(lines[name], 16) for name in PENDING)
    return has_signal or lines["State"].strip()[0] in "tT" or lines["TracerPid"].strip() != "0"


if __name__ == "__main__":
    watch(map(int, sys.argv[1:]))
