"""The parts of one reading of one process: its stacks, its waits, its coroutines; and a whole sample.

Each part includes the previous ones, but a whole sample reads coroutines only of threads that may run an event loop.
The counts are the reads of its memory (system calls), their sizes, and the opened files and folders of ``/proc``.
Everything is warm: code objects and addresses of pages are cached by an earlier reading.

Then all suspended coroutines of one process, compared with ``py-spy dump``, which reads only its threads. Each is
repeated for a second or more. A coroutine in the process ticks every millisecond and records its longest gap in that
time. Its gap while the process is not read is the noise.

    python -m benchmarks.bench_reader [ROUNDS [COROUTINES...]]
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.bench_process import DEEP, MANY, NOTHING, SMALL, process_of, sample
from benchmarks.harness import (
    TICK_S,
    Action,
    Results,
    arguments,
    cost_of,
    in_ms,
    in_turns,
    py_spy,
    repeat,
    target_process,
    times_ms,
)
from dstack.probes.node.asyncio.suspended_coroutines import LoopState
from dstack.probes.node.cpython import memory
from dstack.probes.node.cpython.python_process import Interpreter, KnownPython, OwnPython, PythonProcess
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.procfs import proc
from dstack.probes.node.stability import marks_of
from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.thread_calls import BlockedCalls

SHAPES = (SMALL, MANY, DEEP)
COROUTINES = 1000
NUMBERS = (100, 1000, 5000)
WINDOW_S = 1.0
SAMPLE, DUMP = "dstack, with all coroutines", "py-spy dump --json, threads only"
KEPT: list[Any] = []
Part = Callable[[PythonProcess], object]


@dataclass
class Counts:
    """The system calls of one action."""

    reads: int = 0
    bytes: int = 0
    files: int = 0


@contextmanager
def counted() -> Iterator[Counts]:
    """Count the reader's system call, its fallback, and the calls that open files of ``/proc``."""
    counts = Counts()

    def of_memory(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any) -> Any:
            given = call(*arguments)
            counts.reads += 1
            counts.bytes += max(0, given if isinstance(given, int) else len(given))
            return given

        return counting

    def of_files(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            counts.files += 1
            return call(*arguments, **options)

        return counting

    readv = of_memory(memory._process_vm_readv())
    with (
        patch.object(memory, "_process_vm_readv", lambda: readv),
        patch.object(os, "pread", of_memory(os.pread)),
        patch.object(os, "open", of_files(os.open)),
        patch.object(os, "listdir", of_files(os.listdir)),
        patch.object(os, "readlink", of_files(os.readlink)),
    ):
        yield counts


class Reader:
    """Readings of one process with the caches of earlier ones."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._interpreter = Interpreter(None, OwnPython(), proc.mapped_files(pid))
        self._known = KnownPython()

    def read(self, *parts: Part) -> None:
        with memory.open_memory(self._pid, keeps_pages=True) as opened:
            process = PythonProcess(opened, self._interpreter, self._known, marks_of(self._pid))
            for part in parts:
                part(process)
            self._known.pages = list(opened.pages)


def stacks(process: PythonProcess) -> None:
    assert all(process.steps(thread) for thread in process.threads)


def calls(process: PythonProcess) -> None:
    blocked = BlockedCalls(process, Origins().is_user)
    for thread in process.threads:  # a running loop has no call
        blocked.call_of(thread)


def coroutines(process: PythonProcess) -> None:
    state = LoopState.read(lambda: BlockedCalls(process, Origins().is_user).coroutines)
    assert state.unread is None


def parts_of(pid: int) -> dict[str, Action]:
    """Each part with its own warm reader, because the parts read different pages."""
    parts: tuple[tuple[str, tuple[Part, ...]], ...] = (
        ("stacks", (stacks,)),
        ("and calls", (stacks, calls)),
        ("and coroutines", (stacks, calls, coroutines)),
    )
    actions = {name: reading(Reader(pid), some) for name, some in parts}
    probe = NodeProbe()
    return {**actions, "a whole sample": lambda: sample(probe, pid)}


def reading(reader: Reader, parts: tuple[Part, ...]) -> Action:
    return lambda: reader.read(*parts)


def measure(rounds: int) -> Results:
    columns = ("", "median ms", "min-max ms", "CPU ms", "reads of memory", "KiB", "files of /proc")
    results = Results(f"Parts of a reading, n = {rounds}", columns)
    for shape in SHAPES:
        with process_of(shape) as process:
            add_parts(results, str(shape), process.pid, rounds)
    with target_process("bench_reader", COROUTINES) as loop:
        add_parts(results, f"{COROUTINES} coroutines", loop.pid, rounds)
    return results


def add_parts(results: Results, about: str, pid: int, rounds: int) -> None:
    parts = parts_of(pid)
    for action in parts.values():
        action()
    for name, some in in_turns(parts, rounds, cost_of).items():
        with counted() as counts:
            parts[name]()
        took = *times_ms([one.wall_s for one in some]), in_ms(one.cpu_s for one in some)
        results.add(f"{about}: {name}", *took, str(counts.reads), f"{counts.bytes / 1024:.0f}", str(counts.files))


# A process with coroutines


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


# All coroutines of a process


@dataclass(frozen=True, slots=True)
class Window:
    """A repeated action: the duration and CPU time of each run, and the longest gap within all runs."""

    took_s: float
    cpu_s: float
    gap_ms: float


def longest_gap_ms(process: subprocess.Popen[str]) -> float:
    """The longest gap since the last call."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def read(probe: NodeProbe, pid: int, number: int) -> None:
    """Sample one worker like the probe of a node; all coroutines must be read, and most be stable: its loop ticks."""
    found = sample(probe, pid).processes[str(pid)].coroutines
    stable = sum(one.still for one in found)
    assert len(found) >= number, f"{len(found)} of {number} read"
    assert stable >= number / 2, f"{stable} of {len(found)} stable"


def window(process: subprocess.Popen[str], action: Action) -> Window:
    times = 0

    def several() -> None:
        nonlocal times
        times = repeat(action, WINDOW_S)

    longest_gap_ms(process)
    cost = cost_of(several)
    return Window(cost.wall_s / times, cost.cpu_s / times, longest_gap_ms(process))


def windows_of(number: int, rounds: int) -> dict[str, list[Window]]:
    """The windows of each way to read."""
    probe = NodeProbe()
    with target_process("bench_reader", number) as process:
        ways: dict[str, Action] = {
            NOTHING: partial(time.sleep, WINDOW_S),
            SAMPLE: partial(read, probe, process.pid, number),
            DUMP: partial(py_spy, process.pid, "--json"),
        }
        ways[SAMPLE]()
        return in_turns(ways, rounds, partial(window, process))


def measure_coroutines(rounds: int, numbers: Sequence[int] = NUMBERS) -> Results:
    columns = ("", "median ms", "min-max ms", "CPU ms", "longest gap: median ms", "max ms")
    results = Results(f"Suspended coroutines of one process, n = {rounds}, {os.cpu_count()} cores", columns)
    for number in numbers:
        for name, windows in windows_of(number, rounds).items():
            gaps = [one.gap_ms for one in windows]
            took = *times_ms([one.took_s for one in windows]), in_ms(one.cpu_s for one in windows)
            results.add(f"{number:,} coroutines: {name}", *took, f"{median(gaps):.1f}", f"{max(gaps):.1f}")
    return results


def main() -> None:
    if sys.argv[1:2] == ["target"]:
        asyncio.run(target(int(sys.argv[2])))
        return
    rounds, *numbers = arguments(5)
    measure(rounds).show()
    measure_coroutines(rounds, numbers or NUMBERS).show()


if __name__ == "__main__":
    main()
