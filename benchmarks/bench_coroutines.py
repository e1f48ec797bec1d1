"""Reading all suspended coroutines of one process, compared with ``py-spy dump`` of that process's threads.

Everything is measured in one run, in turns, on the same process without Ray: a warm probe of dstack, which reads all
coroutines, their chains and dependencies, and ``py-spy dump``, which reads none of them. Each is repeated for a second
or more. A coroutine in the process ticks every millisecond and records its longest gap in that time. Its gap while the
process is not read is the noise.

    python -m benchmarks.bench_coroutines [ROUNDS] [COROUTINES...]
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks import bench_process
from benchmarks.costs import TICK_S, Action, cost_of, in_ms, py_spy, repeat, spread
from benchmarks.tables import Results
from dstack.probes.node.probe import NodeProbe

NUMBERS = (100, 1000, 5000)
WINDOW_S = 1.0
NOTHING, SAMPLE, DUMP = "not read", "dstack, with all coroutines", "py-spy dump --json, threads only"
KEPT: list[Any] = []


@dataclass(frozen=True, slots=True)
class Window:
    """A repeated action: the duration and CPU time of each run, and the longest gap within all runs."""

    took_s: float
    cpu_s: float
    gap_ms: float


# The target process


async def target(number: int) -> None:
    """Run coroutines that wait in several ways, and one that ticks; answer each line with its longest gap."""
    loop = asyncio.get_running_loop()
    lock, event, gaps = asyncio.Lock(), asyncio.Event(), [0.0]

    async def deep(waitable: Any, depth: int = 3) -> None:
        await (deep(waitable, depth - 1) if depth else waitable)

    async def holds() -> None:
        async with lock:
            await event.wait()

    async def enters() -> None:
        async with lock:
            pass

    def answer() -> None:
        sys.stdin.readline()
        print(max(gaps), flush=True)
        gaps[:] = [0.0]

    def spawn(coroutine: Any) -> None:
        KEPT.append(loop.create_task(coroutine))

    spawn(holds())
    while len(KEPT) < number:
        ways = (event.wait(), KEPT[-1], loop.create_future(), asyncio.gather(*KEPT[-3:]))
        for waitable in ways:
            spawn(deep(waitable))
        spawn(enters())
    loop.add_reader(sys.stdin, answer)
    print("ready", flush=True)
    await tick(gaps)


async def tick(gaps: list[float]) -> None:
    before = time.perf_counter()
    while True:
        await asyncio.sleep(TICK_S)
        now = time.perf_counter()
        gaps.append((now - before - TICK_S) * 1000)
        before = now


@contextmanager
def running(number: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.bench_coroutines", "target", str(number)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


# The readers


def longest_gap_ms(process: subprocess.Popen[str]) -> float:
    """The longest gap since the last call."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def read(probe: NodeProbe, pid: int, number: int) -> None:
    """Sample one worker like the probe of a node; all coroutines must be read, and be stable."""
    coroutines = bench_process.sample(probe, pid).processes["w"].coroutines
    stable = sum(one.still for one in coroutines)
    assert stable >= number, f"{stable} of {len(coroutines)} stable, of {number}"


def window(action: Action, process: subprocess.Popen[str]) -> Window:
    times = 0

    def count() -> None:
        nonlocal times
        action()
        times += 1

    longest_gap_ms(process)
    cost = cost_of(partial(repeat, count, WINDOW_S))
    return Window(cost.wall_s / times, cost.cpu_s / times, longest_gap_ms(process))


def windows_of(number: int, rounds: int) -> dict[str, list[Window]]:
    """The windows of each way to read."""
    probe = NodeProbe()
    with running(number) as process:
        ways: dict[str, Action] = {
            NOTHING: partial(time.sleep, WINDOW_S),
            SAMPLE: partial(read, probe, process.pid, number),
            DUMP: partial(py_spy, process.pid, "--json"),
        }
        ways[SAMPLE]()
        windows: dict[str, list[Window]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, action in ways.items():
                windows[name].append(window(action, process))
    return windows


def measure(rounds: int, numbers: Sequence[int] = NUMBERS) -> Results:
    columns = ("", "median ms", "min-max ms", "CPU ms", "longest gap: median ms", "max ms")
    results = Results(f"Suspended coroutines of one process, n = {rounds}, {os.cpu_count()} cores", columns)
    for number in numbers:
        for name, windows in windows_of(number, rounds).items():
            gaps = [one.gap_ms for one in windows]
            took_ms = spread([1000 * one.took_s for one in windows], 1)
            took = in_ms(one.took_s for one in windows), took_ms, in_ms(one.cpu_s for one in windows)
            results.add(f"{number:,} coroutines: {name}", *took, f"{median(gaps):.1f}", f"{max(gaps):.1f}")
    return results


def main() -> None:
    if sys.argv[1:2] == ["target"]:
        asyncio.run(target(int(sys.argv[2])))
        return
    rounds, *numbers = map(int, sys.argv[1:]) if len(sys.argv) > 1 else (5,)
    measure(rounds, numbers or NUMBERS).show()


if __name__ == "__main__":
    main()
