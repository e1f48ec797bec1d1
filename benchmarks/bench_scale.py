"""A made-up cluster of 100, 300 and 1,000 nodes with ten workers each: snapshots with verdict, and their costs.

The servers are real (`benchmarks/fake_cluster`), and one in a hundred nodes is dead and one is slow. Everything of
dstack is real but its driver, which Ray would run. One session takes all snapshots of a cluster: the first one starts
it, the others find it running. A snapshot with verdict ends with the text of the report. Servers, session and analysis
share the CPUs of this machine. Memory is that of the front end, the session's process and the driver together, at
their highest. The terminal UI opens the saved snapshot in a new process.

    python -m benchmarks.bench_scale [ROUNDS [NODES...]]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil
from rich.console import RenderableType
from textual.screen import Screen

from benchmarks.bench_tui import PAINT, SIZE, painted, run
from benchmarks.fake_cluster.cluster import DRIVER, FakeCluster
from benchmarks.harness import Results, seconds_of
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.collecting.collector import SAVED_HISTORY, Collector, Terms
from dstack.files.snapshot_file import load, save
from dstack.model.snapshot import Snapshot
from dstack.processes.gc_pause import collect_old_rarely
from dstack.report.text import report_text
from dstack.tui import app
from dstack.tui.app import VIEWS, DstackApp
from dstack.tui.snapshot_sources import Files

NODES = (100, 300, 1_000)
BUDGETS = "Budgets at 1,000 nodes: 5 s p95, 1,024 MiB, 5 MB, opens in 2 s, a key in 100 ms; growth at most linear."
KEYS = (
    *(str(number) for number in range(1, len(VIEWS) + 1)),
    "down",
    "down",
    "pagedown",
    "enter",
    "escape",
    "up",
    "end",
)
ROUNDS_OF_KEYS = 3
COLUMNS = (
    *("nodes", "workers", "first s", "median s", "p95 s", "of it explained s"),
    *("MiB", "threads", "descriptors", "file MB", "TUI opens s", "key p95 ms"),
)


@dataclass
class Resources:
    """The highest use of dstack's processes together: of this one and of its children."""

    mib: float = 0.0
    threads: int = 0
    descriptors: int = 0

    def note(self) -> None:
        """Reads them now, without the servers of the made-up cluster."""
        own = psutil.Process()
        mib, threads, descriptors = 0.0, 0, 0
        for process in (own, *own.children(recursive=True)):
            try:
                if "benchmarks.fake_cluster.servers" in process.cmdline():
                    continue
                mib += process.memory_info().rss / 2**20
                threads += process.num_threads()
                descriptors += process.num_fds()
            except psutil.Error:
                continue
        self.mib, self.threads = max(self.mib, mib), max(self.threads, threads)
        self.descriptors = max(self.descriptors, descriptors)


@contextmanager
def watched(resources: Resources) -> Iterator[None]:
    """Reads the resources all the time."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(0.2):
            resources.note()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@dataclass
class Figures:
    """What was measured with one size of cluster; times in s."""

    nodes: int = 0
    workers: int = 0
    first_s: float = 0.0
    taken_s: list[float] = field(default_factory=list)
    explained_s: list[float] = field(default_factory=list)
    resources: Resources = field(default_factory=Resources)
    file_mb: float = 0.0
    opened_s: list[float] = field(default_factory=list)
    keys_s: list[float] = field(default_factory=list)

    @property
    def verdict_s(self) -> list[float]:
        """The snapshots of a running session, with their verdicts."""
        return [taken + explained for taken, explained in zip(self.taken_s, self.explained_s, strict=True)]


def measure(nodes: int, rounds: int, folder: Path) -> Figures:
    figures = Figures()
    file = folder / f"{nodes}.json.gz"
    with (
        FakeCluster(nodes) as cluster,
        Collector(cluster.address, Terms(history=SAVED_HISTORY), driver=DRIVER) as collector,
    ):
        figures.nodes = cluster.nodes
        with watched(figures.resources):
            for _ in range(rounds + 1):
                began = time.perf_counter()
                snapshot = collector.take()
                taken = time.perf_counter()
                require_truth(cluster, snapshot)
                between = time.perf_counter()
                report_text(AnalysedSnapshot.of(snapshot))
                figures.taken_s.append(taken - began)
                figures.explained_s.append(time.perf_counter() - between)
                gc.collect()  # as the terminal UI and watch do
        figures.first_s = figures.taken_s.pop(0) + figures.explained_s.pop(0)
        save(snapshot, file)
    figures.workers = len(snapshot.workers)
    figures.file_mb = file.stat().st_size / 1e6
    figures.opened_s = [seconds_of(partial(run, "benchmarks.bench_tui", PAINT, str(file))) for _ in range(3)]
    figures.keys_s = asyncio.run(keys(load(file)))
    return figures


def require_truth(cluster: FakeCluster, snapshot: Snapshot) -> None:
    """Raises :class:`AssertionError` unless only the deadlock is confirmed, and the lost nodes are named."""
    found = AnalysedSnapshot.of(snapshot).diagnosis.findings
    stuck = [one for one in found if one.kind in ("deadlock", "hang")]
    assert [(one.kind, one.confirmed, len(one.members)) for one in stuck] == [("deadlock", True, 4)], stuck
    assert {one.node_id for one in snapshot.failures} == {*cluster.dead, *cluster.slow}, snapshot.failures


class TimedApp(DstackApp):
    """Notes when it has painted last; the test driver itself waits longer after a key.

    Its clock, which paints the age of the snapshot each second, does not run: no key causes that.
    """

    CSS_PATH = [Path(app.__file__).parent / path for path in DstackApp.CSS_PATH]
    painted_at = 0.0

    def _tick(self) -> None:
        pass

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        super()._display(screen, renderable)
        self.painted_at = time.perf_counter()


async def keys(snapshot: Snapshot) -> list[float]:
    """Seconds from each key to the last painting that it causes, after every view was shown once."""
    collect_old_rarely()  # as the command does
    timed, found = TimedApp(Files("benchmark", [snapshot])), []
    async with timed.run_test(size=SIZE) as pilot:
        await painted(timed, pilot)
        for round_number in range(ROUNDS_OF_KEYS + 1):
            for key in KEYS:
                began = time.perf_counter()
                await pilot.press(key)
                await pilot.pause()
                if round_number and timed.painted_at > began:
                    found.append(timed.painted_at - began)
    return found


def p95(values: list[float]) -> float:
    """The 95th percentile; the longest of fewer than 20."""
    return quantiles(values, n=20)[-1] if len(values) >= 20 else max(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int, nargs="?", default=20)
    parser.add_argument("nodes", type=int, nargs="*", default=list(NODES))
    options = parser.parse_args()
    results = Results(
        f"A made-up cluster, one session, n = {options.rounds} snapshots after the first",
        COLUMNS,
    )
    with tempfile.TemporaryDirectory() as folder:
        for nodes in options.nodes:
            with get_context("spawn").Pool(1) as process:  # so that no size costs what others have left
                one = process.apply(measure, (nodes, options.rounds, Path(folder)))
            results.add(
                f"{one.nodes:,}",
                f"{one.workers:,}",
                f"{one.first_s:.2f}",
                f"{median(one.verdict_s):.2f}",
                f"{p95(one.verdict_s):.2f}",
                f"{median(one.explained_s):.2f}",
                f"{one.resources.mib:,.0f}",
                str(one.resources.threads),
                str(one.resources.descriptors),
                f"{one.file_mb:.2f}",
                f"{median(one.opened_s):.2f}",
                f"{p95(one.keys_s) * 1000:.0f}",
            )
    results.notes.append(BUDGETS)
    results.show()


if __name__ == "__main__":
    main()
