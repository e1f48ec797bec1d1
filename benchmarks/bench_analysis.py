"""Analysis and files alone, on synthetic clusters: no Ray, no processes.

First the reduction with its cores and a shortest cycle, on random graphs of and, or and k-of-n waits that contain a
cycle; then whole diagnoses of snapshots in which every worker waits, five in a cycle and all others in open chains;
then files of similar workers. The budget of these is 2 kB a worker at 1,000 workers.

    python -m benchmarks.bench_analysis [ROUNDS]
"""

from __future__ import annotations

import random
import tempfile
import tracemalloc
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.harness import Action, Results, arguments, seconds_of, times_s
from benchmarks.made_up_snapshots import RING, similar, waiting
from dstack.analysis.diagnose import diagnose
from dstack.analysis.solve import reduction
from dstack.files.snapshot_file import load, save
from dstack.model.snapshot import Snapshot

WAITS = ((10_000, 80_000), (100_000, 1_000_000), (1_000_000, 8_000_000))
WORKERS = (100, 1_000, 10_000)
IN_FILES = (1_000, 10_000)
MANY = 100_000
"""Larger sizes are measured once."""
Waits = dict[int, list[tuple[int, list[int]]]]


def graph_of(vertices: int, edges: int) -> Waits:
    """Random waits of one to three groups; the first few vertices are a cycle, and a tenth waits for nothing."""
    chance = random.Random(0)
    each = edges // vertices
    waits: Waits = {vertex: [(1, [(vertex + 1) % RING])] for vertex in range(RING)}
    for vertex in range(RING, vertices):
        targets = [chance.randrange(vertices + vertices // 10) for _ in range(each)]
        cut = chance.randrange(1, each)
        waits[vertex] = [(1, targets[:cut]), (chance.randint(1, each - cut), targets[cut:])]
    return waits


def reduce(waits: Waits) -> None:
    stuck = reduction.residue(waits)
    graph = reduction.stuck_graph(waits, stuck)
    cores = reduction.cores(waits, graph)
    cycle = reduction.shortest_cycle(reduction.stuck_graph({key: waits[key] for key in cores[-1]}, cores[-1]))
    assert len(cycle) <= RING


def explain(snapshot: Snapshot) -> None:
    diagnosis = diagnose(snapshot)
    assert diagnosis.verdict == "deadlock"
    assert diagnosis.findings[0].confirmed
    assert len(diagnosis.findings[0].cycle) == RING


def peak_mib(action: Action) -> float:
    """The peak memory of one run."""
    tracemalloc.start()
    action()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / 2**20


def growth(title: str, actions: Iterable[tuple[int, str, Action]], rounds: int) -> tuple[dict[int, float], Results]:
    """The median times in s by size, and a table."""
    results = Results(title, ("", "n", "median s", "min-max s", "peak MiB"))
    medians = {}
    for size, name, action in actions:
        times = [seconds_of(action) for _ in range(rounds if size <= MANY else 1)]
        medians[size] = median(times)
        results.add(name, str(len(times)), *times_s(times, 3), f"{peak_mib(action):.0f}")
    return medians, results


def reducing(rounds: int) -> tuple[dict[int, float], Results]:
    """Median times of reductions by number of waits, and a table."""
    actions = (
        (waits, f"{waits:,} waits, {edges:,} edges", partial(reduce, graph_of(waits, edges))) for waits, edges in WAITS
    )
    return growth("Reducing random graphs of waits, with cores and a shortest cycle", actions, rounds)


def diagnosing(rounds: int) -> tuple[dict[int, float], Results]:
    """Median times of diagnoses by number of workers, and a table."""
    actions = ((workers, f"{workers:,} workers", partial(explain, waiting(workers))) for workers in WORKERS)
    return growth("Diagnosing whole snapshots in which every worker waits", actions, rounds)


def files() -> Results:
    """The sizes of files, and the times to save and to load them."""
    results = Results("Snapshot files of similar workers, n = 1", ("", "B a worker", "save s", "load s"))
    for workers in IN_FILES:
        snapshot = similar(workers)
        for suffix in (".json", ".json.gz"):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"snapshot{suffix}"
                saved_s, loaded_s = seconds_of(partial(save, snapshot, path)), seconds_of(partial(load, path))
                size = path.stat().st_size / workers
            results.add(f"{workers:,} workers, {suffix}", f"{size:.0f}", f"{saved_s:.2f}", f"{loaded_s:.2f}")
    return results


def main() -> None:
    (rounds,) = arguments(5)
    for results in (reducing(rounds)[1], diagnosing(rounds)[1], files()):
        results.show()


if __name__ == "__main__":
    main()
