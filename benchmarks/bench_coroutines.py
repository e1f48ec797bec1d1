"""Reading all suspended coroutines of one process, beside what ``py-spy dump`` takes for that process's threads.

Everything is measured in one run, in turns, on the same process without Ray: what dstack's probe does for it once it is
warm, with all coroutines, their chains and what they wait for, and ``py-spy dump``, which shows none of them. Each is
repeated for a second at least. A coroutine in the process ticks every millisecond and notes its longest gap in that
time, also while nobody looks: that is the noise.

    python -m benchmarks.bench_coroutines [ROUNDS] [COROUTINES...]
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.wire import Options, Target

PYSPY = str(Path(sys.executable).with_name("py-spy"))
ROUNDS = int(sys.argv[1]) if sys.argv[1:2] != ["target"] and len(sys.argv) > 1 else 10
NUMBERS = [int(number) for number in sys.argv[2:]] or [100, 1000, 5000]
OPTIONS: Options = {
    "native": False,
    "locals": False,
    "pause": False,
    "children": False,
    "thread_context": None,
    "deadline_s": 60.0,
}
TICK_S = 0.001
WINDOW_S = 1.0
KEPT: list[Any] = []


class Window(NamedTuple):
    """The same again and again: how long each took and of how much CPU time, and the longest gap of all meanwhile."""

    took_s: float
    cpu_s: float
    gap_ms: float


# The process that is read


async def target(number: int) -> None:
    """So many coroutines that wait in several ways, and one that ticks; answers each line with its longest gap."""
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
    command = [sys.executable, __file__, "target", str(number)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


# What is done to it


def longest_gap_ms(process: subprocess.Popen[str]) -> float:
    """Since the last time this was asked."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def read(probe: NodeProbe, process: subprocess.Popen[str], number: int) -> None:
    """As the probe of a node does it for one worker; all coroutines must be found, and proven not to move."""
    target: Target = {"worker_id": "w", "pid": process.pid, "port": 0, "is_driver": True}
    result = probe.sample([target], OPTIONS)
    coroutines = result["processes"]["w"]["coroutines"]
    still = sum(one["still"] for one in coroutines)
    assert not result["failures"], result["failures"]
    assert still >= number, f"{still} of {len(coroutines)} still, of {number}"


def dump(process: subprocess.Popen[str]) -> None:
    subprocess.run([PYSPY, "dump", "--json", "--pid", str(process.pid)], capture_output=True, check=True)


def measure(action: Callable[[], None], process: subprocess.Popen[str]) -> Window:
    longest_gap_ms(process)
    cpu, began, times = own_cpu_s(), time.perf_counter(), 0
    while time.perf_counter() < began + WINDOW_S:
        action()
        times += 1
    took = time.perf_counter() - began
    return Window(took / times, (own_cpu_s() - cpu) / times, longest_gap_ms(process))


def own_cpu_s() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def main() -> None:
    table = Table(title=f"Suspended coroutines of one process, n = {ROUNDS}, {os.cpu_count()} cores")
    for column in ("coroutines", "", "wall s", "min-max s", "CPU s", "ratio to py-spy", "longest gap ms", "max ms"):
        table.add_column(column, justify="left" if not column else "right")
    for number in NUMBERS:
        for name, runs, ratio in measured(number):
            times = [run.took_s for run in runs]
            gaps = [run.gap_ms for run in runs]
            table.add_row(
                f"{number:,}",
                name,
                f"{median(times):.3f}",
                f"{min(times):.3f}-{max(times):.3f}",
                f"{median(run.cpu_s for run in runs):.3f}",
                f"{ratio:.1f}",
                f"{median(gaps):.1f}",
                f"{max(gaps):.1f}",
            )
    Console(width=130).print(table)


def measured(number: int) -> Iterator[tuple[str, list[Window], float]]:
    """All the runs of each way, with the median ratio to the dump of the same round."""
    probe = NodeProbe()
    with running(number) as process:
        actions: dict[str, Callable[[], None]] = {
            f"nobody looks for {WINDOW_S:g} s": lambda: time.sleep(WINDOW_S),
            "dstack's probe, with all coroutines": lambda: read(probe, process, number),
            "py-spy dump --json, threads only": lambda: dump(process),
        }
        read(probe, process, number)
        results: dict[str, list[Window]] = {name: [] for name in actions}
        for _ in range(ROUNDS):
            for name, action in actions.items():
                results[name].append(measure(action, process))
    *_, dumps = results.values()
    for name, runs in results.items():
        pairs = zip(runs, dumps, strict=True)
        yield name, runs, median(run.took_s / dumped.took_s for run, dumped in pairs)


if __name__ == "__main__":
    if sys.argv[1:2] == ["target"]:
        asyncio.run(target(int(sys.argv[2])))
    else:
        main()
