"""Measure all figures of docs/performance.md, and write them there: tables between two marks, and the picture.

It takes about half an hour on two idle cores, with five rounds of everything and 100 checks of a busy application:

    make performance
    python -m benchmarks.performance [ROUNDS] [CHECKS]
"""

from __future__ import annotations

import datetime
import math
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

import matplotlib as mpl
import ray
from matplotlib import pyplot

from benchmarks import (
    bench_analysis,
    bench_churn,
    bench_process,
    bench_reader,
    bench_report,
    bench_snapshot,
    bench_start,
)
from benchmarks.bench_churn import Tally
from benchmarks.bench_process import DEEP, MANY
from benchmarks.bench_snapshot import NUMBER, SAMPLE, THREADS, Runs
from benchmarks.harness import Results, arguments

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
PICTURE = DOCUMENT.parent / "pictures" / "performance.svg"
BEGIN, END = "<!-- measured: -->\n", "<!-- until here -->"
LARGE = 64
HOGS = 2
CONCLUSIVE = {0: 0.99, HOGS: 0.95}
"""The share of checks that must be conclusive, by number of CPU hogs."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Budget:
    """The limit of a figure and its measured value; with ``floor`` the limit is a minimum."""

    what: str
    limit: float
    measured: float
    unit: str
    n: int
    floor: bool = False

    @property
    def is_met(self) -> bool:
        return self.measured >= self.limit if self.floor else self.measured <= self.limit

    def cells(self) -> tuple[str, ...]:
        bound = "at least" if self.floor else "at most"
        met = "yes" if self.is_met else "no"
        measured = f"{float(f'{self.measured:.3g}'):g}"
        return self.what, f"{bound} {self.limit:g} {self.unit}", f"{measured} {self.unit}", str(self.n), met


class Measured:
    """All measurements, with a table of each part."""

    def __init__(self, rounds: int, checks: int) -> None:
        self.rounds, self.checks = rounds, checks
        self.tables: list[Results] = []
        self.runs = {workers: self._shown(*bench_snapshot.measure(workers, rounds)) for workers in bench_snapshot.SIZES}
        self.threads = self._shown(*bench_snapshot.measure_threads(NUMBER, rounds))
        self.disturbed = self._shown(*bench_snapshot.measure_pauses(NUMBER, rounds))
        self.processes = self._shown(*bench_process.measure(rounds))
        self.own_disturbed = self._shown(*bench_process.measure_pauses(rounds))
        self._show(bench_reader.measure_coroutines(rounds), bench_start.measure(rounds, NUMBER)[0])
        self.reduced = self._shown(*bench_analysis.reducing(rounds))
        self.diagnosed = self._shown(*bench_analysis.diagnosing(rounds))
        self._show(bench_analysis.files(), bench_report.measure(rounds))
        self.tallies = {hogs: self._tally(hogs) for hogs in CONCLUSIVE}

    def _shown(self, figures: T, table: Results) -> T:
        self._show(table)
        return figures

    def _show(self, *tables: Results) -> None:
        for table in tables:
            table.show()
        self.tables += tables

    def _tally(self, hogs: int) -> Tally:
        tally = Tally()
        bench_churn.measure(tally, self.checks, hogs, keep=None)
        return self._shown(tally, bench_churn.as_table(tally, hogs))

    def budgets(self) -> Results:
        """All budgets with their measured values, medians of the rounds."""
        found = [*self._of_nodes(), *self._of_processes(), *self._of_checks(), *self._of_analysis()]
        results = Results("Budgets", ("", "budget", "measured", "n", "met"))
        for budget in found:
            results.add(*budget.cells())
        return results

    def _of_nodes(self) -> Iterator[Budget]:
        n, runs, large = self.rounds, self.runs[NUMBER], self.runs[LARGE]
        times = bench_snapshot.times_faster(runs, SAMPLE)
        cpu_ms = bench_snapshot.cpu_ms(self.threads[SAMPLE]) / NUMBER
        yield Budget(f"warm sample of {NUMBER} blocked workers on one node", 0.15, seconds(runs, SAMPLE), "s", n)
        yield Budget("the same, how many times as fast as `ray stack`'s loop", 30, times, "times", n, floor=True)
        yield Budget(f"warm sample of {LARGE} blocked workers on one node", 0.4, seconds(large, SAMPLE), "s", n)
        confirmed = f"warm confirmed snapshot of {NUMBER} blocked workers"
        warm_ms = bench_snapshot.cpu_ms(runs[bench_snapshot.WARM]) / NUMBER
        yield Budget(confirmed, 0.5, seconds(runs, bench_snapshot.WARM), "s", n)
        yield Budget("its CPU time per worker", 25, warm_ms, "ms", n)
        cold_s = seconds(runs, bench_snapshot.COLD)
        yield Budget(f"confirmed `dstack check`, cold, {NUMBER} blocked workers", 1.2, cold_s, "s", n)
        yield Budget(f"CPU time per blocked worker with another {THREADS}", 5, cpu_ms, "ms", n)

    def _of_processes(self) -> Iterator[Budget]:
        for shape, limit_ms in ((MANY, 60), (DEEP, 40)):
            costs = self.processes[shape][bench_process.WARM]
            took_ms = median(cost.wall_s for cost in costs) * 1000
            yield Budget(f"warm sample of one process of {shape}", limit_ms, took_ms, "ms", self.rounds)
        found = sum(self.disturbed[way] for way in (bench_snapshot.SAMPLE, bench_snapshot.WARM))
        found += sum(self.own_disturbed[way] for way in (bench_process.COLD, bench_process.WARM))
        yield Budget("processes paused, traced or signalled", 0, found, "processes", NUMBER + 1)

    def _of_checks(self) -> Iterator[Budget]:
        for hogs, share in CONCLUSIVE.items():
            about = f"beside {hogs} CPU hogs" if hogs else "on an idle machine"
            conclusive = self.tallies[hogs].codes[bench_churn.CONCLUSIVE]
            what = f"conclusive checks of a healthy application that never rests, {about}"
            yield Budget(what, math.ceil(share * self.checks), conclusive, "checks", self.checks, floor=True)

    def _of_analysis(self) -> Iterator[Budget]:
        for waits, limit_s in ((10_000, 0.3), (100_000, 5)):
            yield Budget(f"reducing {waits:,} waits", limit_s, self.reduced[waits], "s", self.rounds)


def main() -> None:
    rounds, checks = arguments(5, 100)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    measured = Measured(rounds, checks)
    budgets = measured.budgets()
    budgets.show()
    write([conditions(), *(table.markdown() for table in (budgets, *measured.tables))])
    draw(measured)


def seconds(runs: Runs, way: str) -> float:
    """The median time of one way to read."""
    return median(run.took_s for run in runs[way])


def conditions() -> str:
    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"Measured on {today} with Ray {ray.__version__} and Python {platform.python_version()}, on {os.cpu_count()} "
        f"cores and {memory_gib:.0f} GiB that did nothing else.\n"
    )


def write(parts: list[str]) -> None:
    before, _, after_begin = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = after_begin.partition(END)
    DOCUMENT.write_text(before + BEGIN + "\n" + "\n".join(parts) + "\n" + END + after, encoding="utf-8")


def draw(measured: Measured) -> None:
    """Two panels: time to read by number of workers, and time to explain by size of the graph."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "dstack", "font.family": "sans-serif"})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 5), layout="constrained")
    for way in next(iter(measured.runs.values())):
        times = [seconds(of_size, way) for of_size in measured.runs.values()]
        left.plot(list(measured.runs), times, marker="o", label=way.replace("`", ""))
    left.set(title="Blocked workers on one node", xlabel="workers", ylabel="s, median", yscale="log")
    right.plot(list(measured.reduced), list(measured.reduced.values()), marker="o", label="reduce waits")
    right.plot(list(measured.diagnosed), list(measured.diagnosed.values()), marker="s", label="diagnose workers")
    right.set(title="Analysis alone", xlabel="waits or workers", ylabel="s, median", xscale="log", yscale="log")
    for panel in (left, right):
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))  # below the lines
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
