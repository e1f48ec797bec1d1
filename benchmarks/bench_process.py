"""One sample of one process without Ray, by number and depth of its threads, compared with ``py-spy dump``.

All threads are blocked. A cold sample is a probe's first one, a warm one follows another of the same probe. Everything
is measured in one run, in turns, on the same process. CPU time is that of the reader with its children.

Then, on one process with a thread that ticks every millisecond: the longest time that this thread did not run while the
process was read continuously, and while it was not read, which is the noise; and whether another process that polls its
state found it stopped, traced or signalled. It blocks all signals, so that none gets lost.

    python -m benchmarks.bench_process [ROUNDS]
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median

from benchmarks.harness import (
    Action,
    Cost,
    Results,
    arguments,
    cost_of,
    disturbed,
    in_ms,
    in_turns,
    longest_gap_ms,
    py_spy,
    repeat,
    spread,
    target_process,
    times_ms,
)
from dstack.observed.node import NodeAnswer
from dstack.probes.node.node_figures import NodeFigures
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.procfs import proc
from dstack.probes.node.wire import ReadTarget, SampleOptions, encoded

OPTIONS: SampleOptions = {
    "native": False,
    "locals": False,
    "pause": False,
    "children": False,
    "reach": False,  # as in a first sample
    "deadline_s": 60.0,
}
WINDOW_S = 1.0
NOTHING, COLD, WARM = "not read", "dstack, cold", "dstack, warm"
DUMP, NONBLOCKING = "py-spy dump", "py-spy dump --nonblocking"
"""Both print JSON."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of threads, and of frames of each thread."""

    threads: int
    depth: int

    def __str__(self) -> str:
        return f"{self.threads} threads of {self.depth} frames"


SMALL, MANY, DEEP, PAUSED = Shape(10, 20), Shape(200, 20), Shape(10, 300), Shape(50, 20)
PROCESSES = 25
"""The number of processes with figures."""
SHAPES = (SMALL, Shape(50, 20), MANY, Shape(10, 100), DEEP)
Costs = dict[Shape, dict[str, list[Cost]]]
Disturbed = dict[str, int]
"""The number of processes that each way has stopped, traced or signalled."""


# The target process


def start_threads(shape: Shape) -> None:
    """Start threads that wait for ever."""
    end = threading.Event()

    def wait(deeper: int) -> None:
        if deeper:
            wait(deeper - 1)
        else:
            end.wait()

    for _ in range(shape.threads):
        threading.Thread(target=wait, args=(shape.depth,), daemon=True).start()


def target(shape: Shape) -> None:
    """Run the target process until it is killed; answer each number of seconds with the longest gap in that time."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    start_threads(shape)
    print("ready", flush=True)
    for line in sys.stdin:
        print(longest_gap_ms(float(line)), flush=True)


class Process:
    """The target process with its pipes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._questions, self._answers = process.stdin, process.stdout

    def longest_gap_ms(self, action: Action) -> float:
        """The longest gap of its ticking thread while the action was repeated."""
        print(WINDOW_S, file=self._questions, flush=True)
        repeat(action, WINDOW_S)
        return float(self._answers.readline())


@contextmanager
def process_of(shape: Shape) -> Iterator[Process]:
    with target_process("bench_process", shape.threads, shape.depth) as process:
        yield Process(process)


# The readers


def sample(probe: NodeProbe, *pids: int) -> NodeAnswer:
    targets: list[ReadTarget] = [{"worker_id": str(pid), "pid": pid, "port": 0, "is_driver": True} for pid in pids]
    answer = probe.sample(targets, OPTIONS)
    assert not answer.failures, answer.failures
    return answer


def ways_to_read(pid: int) -> dict[str, Action]:
    probe = NodeProbe()
    sample(probe, pid)
    return {
        COLD: lambda: sample(NodeProbe(), pid),
        WARM: lambda: sample(probe, pid),
        DUMP: lambda: py_spy(pid, "--json"),
        NONBLOCKING: lambda: py_spy(pid, "--json", "--nonblocking"),
    }


def measure(rounds: int) -> tuple[Costs, Results]:
    """Wall and CPU time by shape and way."""
    ways = (COLD, WARM, DUMP, NONBLOCKING)
    columns = ("", *(f"{way}: {unit}" for way in ways for unit in ("ms", "CPU ms")), "answer KiB")
    results = Results(f"One process, by threads and depth, n = {rounds}", columns)
    costs: Costs = {}
    for shape in SHAPES:
        with process_of(shape) as process:
            costs[shape] = in_turns(ways_to_read(process.pid), rounds, cost_of)
            kib = len(encoded(sample(NodeProbe(), process.pid))) / 1024
        figures = [
            in_ms(seconds)
            for way in ways
            for seconds in ([one.wall_s for one in costs[shape][way]], [one.cpu_s for one in costs[shape][way]])
        ]
        results.add(str(shape), *figures, f"{kib:.0f}")
    return costs, results


def measure_pauses(rounds: int) -> tuple[Disturbed, Results]:
    """The gaps of the process for each way, read continuously, and the disturbed processes."""
    results = Results(
        f"Longest time that a thread was kept from running within {WINDOW_S:g} s, {PAUSED}, n = {rounds}",
        ("", "median ms", "min-max ms", "stopped, traced or signalled"),
    )
    with process_of(PAUSED) as process:
        ways: dict[str, Action] = {NOTHING: partial(time.sleep, WINDOW_S), **ways_to_read(process.pid)}
        gaps = in_turns(ways, rounds, process.longest_gap_ms)
        found = {name: len(disturbed([process.pid], partial(repeat, ways[name], WINDOW_S))) for name in ways}
    for name, longest in gaps.items():
        results.add(name, f"{median(longest):.1f}", spread(longest, 1), f"{found[name]} of 1")
    return found, results


def figures_of(pids: list[int]) -> Action:
    """All figures of these processes, as a sample reads them."""
    figures = NodeFigures()
    known = {pid: found for pid in pids if (found := proc.figures(pid))}

    def read() -> None:
        figures.begin()
        for pid, found in known.items():
            figures.note(pid, found)
        figures.begin_disks()
        figures.end(time.monotonic() + 60)
        for pid, found in known.items():
            figures.cpu(pid, found.birth)
            figures.gpus(pid)

    return read


def measure_figures(rounds: int) -> Results:
    """The figures beside the whole warm sample."""
    results = Results(
        f"Figures of a node with {PROCESSES} processes of {SMALL}, n = {rounds}, {os.cpu_count()} cores",
        ("", "median ms", "min-max ms", "CPU ms"),
    )
    with ExitStack() as stack:
        pids = [stack.enter_context(process_of(SMALL)).pid for _ in range(PROCESSES)]
        probe = NodeProbe()
        sample(probe, *pids)
        ways: dict[str, Action] = {"figures": figures_of(pids), "a whole sample": partial(sample, probe, *pids)}
        costs = in_turns(ways, rounds, cost_of)
    for name, several in costs.items():
        results.add(name, *times_ms([one.wall_s for one in several]), in_ms(one.cpu_s for one in several))
    return results


def main() -> None:
    if sys.argv[1:2] == ["target"]:
        target(Shape(*map(int, sys.argv[2:])))
        return
    (rounds,) = arguments(5)
    for results in (measure(rounds)[1], measure_pauses(rounds)[1], measure_figures(4 * rounds)):
        results.show()


if __name__ == "__main__":
    main()
