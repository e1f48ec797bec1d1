"""A snapshot of 25 blocked workers on one node, beside what one would run instead: the loop inside ``ray stack``.

Everything is measured in one run, in turns, on the same hung actors: dstack as a command (cold), dstack in a process
that has taken a snapshot before (warm), and ``py-spy dump --native`` on one worker after another, as ``ray stack``
does it, less its sudo. Pauses are what the targets themselves feel: some actors have a thread that ticks every
millisecond and notes its longest gap; the same gap while nobody looks is the noise.

    python benchmarks/bench_snapshot.py [WORKERS] [ROUNDS]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import ray
from rich.console import Console
from rich.table import Table

from dstack.analysis.diagnose import diagnose
from dstack.capture import snapshot
from dstack.model import Snapshot

WORKERS = int(sys.argv[1]) if len(sys.argv) > 1 else 25
PYSPY = str(Path(sys.executable).with_name("py-spy"))
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
TICKING = 4
TICK_S = 0.001
Gaps = list[float]


class Member:
    """Passes a token to its neighbour and waits; the ring never ends."""

    def __init__(self, ticks: bool) -> None:
        self.gaps: Gaps = []
        if ticks:
            threading.Thread(target=self.tick, name="ticker", daemon=True).start()

    def tick(self) -> None:
        before = time.perf_counter()
        while True:
            time.sleep(TICK_S)
            now = time.perf_counter()
            self.gaps.append((now - before - TICK_S) * 1000)
            before = now

    @ray.method(concurrency_group="book")
    def sit_beside(self, neighbour: Any) -> int:
        self.neighbour = neighbour
        return os.getpid()

    @ray.method(concurrency_group="book")
    def take_gaps(self) -> Gaps:
        taken, self.gaps = self.gaps, []
        return taken

    def pass_token(self) -> None:
        ray.get(self.neighbour.pass_token.remote())


def start_ring() -> tuple[list[Any], list[int]]:
    """The actors and their pids, all of them waiting for the next."""
    actor: Any = ray.remote(num_cpus=0, concurrency_groups={"book": 1})(Member)
    ring = [actor.remote(number < TICKING) for number in range(WORKERS)]
    pids = ray.get([member.sit_beside.remote(ring[i - 1]) for i, member in enumerate(ring)])
    ring[0].pass_token.remote()
    time.sleep(3)
    return ring, pids


def cold(address: str) -> Snapshot | None:
    command = [sys.executable, "-m", "dstack", "check", "--address", address, "--json"]
    done = subprocess.run(command, capture_output=True, check=False)
    verdict = json.loads(done.stdout)
    assert verdict["verdict"] == "deadlock", done.stderr
    assert verdict["findings"][0]["confirmed"], verdict["findings"][0]
    return None


def warm(address: str) -> Snapshot:
    taken = snapshot(address)
    assert diagnose(taken).findings[0].confirmed
    return taken


def ray_stack(pids: list[int]) -> None:
    for pid in pids:
        subprocess.run([PYSPY, "dump", "--pid", str(pid), "--native"], capture_output=True, check=True)


def measure(action: Callable[[], object], ring: list[Any]) -> tuple[float, Gaps]:
    """How long one run takes in s, and the longest gap in ms that each ticking actor felt meanwhile."""
    ray.get([member.take_gaps.remote() for member in ring[:TICKING]])
    began = time.perf_counter()
    action()
    took = time.perf_counter() - began
    return took, [max(gaps) for gaps in ray.get([member.take_gaps.remote() for member in ring[:TICKING]])]


def first_sample_s(address: str) -> float:
    """How long one warm look at everything takes, without the second one that confirms."""
    sample = snapshot(address).samples[0]
    return sample.ended_s - sample.began_s


def main() -> None:
    context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    address = context.address_info["gcs_address"]
    ring, pids = start_ring()
    warm(address)
    actions: dict[str, Callable[[], object]] = {
        "nobody looks (1 s)": lambda: time.sleep(1),
        "dstack, warm, confirmed by a second look": lambda: warm(address),
        "dstack check, cold, confirmed by a second look": lambda: cold(address),
        "py-spy dump --native in turn (`ray stack`)": lambda: ray_stack(pids),
    }
    results: dict[str, list[tuple[float, Gaps]]] = {name: [] for name in actions}
    for _ in range(ROUNDS):
        for name, action in actions.items():
            results[name].append(measure(action, ring))
    samples = [first_sample_s(address) for _ in range(ROUNDS)]
    print_table(results)
    print(f"one warm look at everything, unconfirmed: median {median(samples):.2f} s, max {max(samples):.2f} s")
    print(f"processes dstack paused at all: {len(paused(warm(address)))} of {WORKERS + 1}")
    print(f"own CPU of one warm confirmed snapshot: {own_cpu_s(address):.2f} s")


def paused(taken: Snapshot) -> list[int]:
    workers = [worker for sample in taken.samples for worker in sample.workers]
    return sorted({w.process.pid for w in workers if w.process and w.process.paused_ms})


def own_cpu_s(address: str) -> float:
    def spent() -> float:
        times = psutil.Process().cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)

    before = spent()
    warm(address)
    return spent() - before


def print_table(results: dict[str, list[tuple[float, Gaps]]]) -> None:
    *_, loop = results
    base = [took for took, _ in results[loop]]
    table = Table(title=f"{WORKERS} blocked workers on one node, n = {ROUNDS}, {os.cpu_count()} cores")
    for column in ("", "median s", "min-max s", "ratio to `ray stack`", "longest gap felt, median ms", "max ms"):
        table.add_column(column, justify="left" if not column else "right")
    for name, runs in results.items():
        times = [took for took, _ in runs]
        gaps = [gap for _, felt in runs for gap in felt]
        ratio = median(took / other for took, other in zip(times, base, strict=True))
        table.add_row(
            name,
            f"{median(times):.2f}",
            f"{min(times):.2f}-{max(times):.2f}",
            f"{ratio:.2f}",
            f"{median(gaps):.1f}",
            f"{max(gaps):.1f}",
        )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
