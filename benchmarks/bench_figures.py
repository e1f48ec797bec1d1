"""The figures of a node within one sample: CPU of each process, disks and GPUs; beside the whole warm sample.

Without a driver of NVIDIA's; with one, a sample also has the time of its library, at most 0.5 s.

    python -m benchmarks.bench_figures [ROUNDS]
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack

from benchmarks.bench_process import OPTIONS, Shape, process_of
from benchmarks.costs import Action, in_ms, in_turns, spread
from benchmarks.tables import Results
from dstack.probes.node.node_figures import NodeFigures
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.procfs import proc
from dstack.probes.node.wire import ReadTarget

PROCESSES = 25
SHAPE = Shape(10, 20)


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


def sample_of(pids: list[int]) -> Action:
    """A whole warm sample."""
    targets: list[ReadTarget] = [{"worker_id": str(pid), "pid": pid, "port": 0, "is_driver": True} for pid in pids]
    probe = NodeProbe()
    probe.sample(targets, OPTIONS)
    return lambda: probe.sample(targets, OPTIONS)


def measure(rounds: int) -> Results:
    results = Results(
        f"Figures of a node with {PROCESSES} processes of {SHAPE}, n = {rounds}, {os.cpu_count()} cores",
        ("", "median ms", "min-max ms", "CPU ms"),
    )
    with ExitStack() as stack:
        pids = [stack.enter_context(process_of(SHAPE)).pid for _ in range(PROCESSES)]
        costs = in_turns({"figures": figures_of(pids), "a whole sample": sample_of(pids)}, rounds)
    for name, several in costs.items():
        walls = [one.wall_s for one in several]
        results.add(name, in_ms(walls), spread([wall * 1000 for wall in walls], 1), in_ms(one.cpu_s for one in several))
    return results


def main() -> None:
    measure(int(sys.argv[1]) if len(sys.argv) > 1 else 20).show()


if __name__ == "__main__":
    main()
