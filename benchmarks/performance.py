"""Measures all that docs/performance.md tells, and writes it there: tables between two marks, and the picture.

On a machine that does nothing else, about a quarter of an hour on two cores:

    make performance
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
from pathlib import Path
from statistics import median

import matplotlib as mpl
import ray
from matplotlib import pyplot

from benchmarks import bench_analysis, bench_process, bench_snapshot, bench_snapshot_file
from benchmarks.bench_snapshot import Run
from benchmarks.tables import Results

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
PICTURE = DOCUMENT.parent / "pictures" / "performance.svg"
BEGIN, END = "<!-- measured: -->\n", "<!-- until here -->"
Runs = dict[int, dict[str, list[Run]]]
"""By number of workers and way to look at them."""


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    tables: list[Results] = []
    runs: Runs = {}
    for workers in bench_snapshot.SIZES:
        runs[workers], table = bench_snapshot.measure(workers, rounds)
        tables.append(table)
    tables.append(bench_process.measure(rounds))
    reduced, table = bench_analysis.reducing(rounds)
    tables.append(table)
    diagnosed, table = bench_analysis.diagnosing(rounds)
    tables += [table, bench_snapshot_file.measure()]
    for table in tables:
        table.show()
    write([conditions(), *(table.markdown() for table in tables)])
    draw(runs, reduced, diagnosed)


def conditions() -> str:
    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"Measured on {today} with Ray {ray.__version__} and Python {platform.python_version()}, on {os.cpu_count()} "
        f"cores and {memory_gib:.0f} GiB that did nothing else.\n"
    )


def write(parts: list[str]) -> None:
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(before + BEGIN + "\n" + "\n".join(parts) + "\n" + END + after, encoding="utf-8")


def draw(runs: Runs, reduced: dict[int, float], diagnosed: dict[int, float]) -> None:
    """Two panels: time to look by number of workers, and time to explain by size of the graph."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "dstack", "font.family": "sans-serif"})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for way in next(iter(runs.values())):
        if way != bench_snapshot.NOBODY:
            times = [median(run.took_s for run in of_size[way]) for of_size in runs.values()]
            left.plot(list(runs), times, marker="o", label=way.replace("`", ""))
    left.set(title="Blocked workers on one node", xlabel="workers", ylabel="s, median", ylim=0)
    right.plot(list(reduced), list(reduced.values()), marker="o", label="reduce waits")
    right.plot(list(diagnosed), list(diagnosed.values()), marker="s", label="diagnose workers")
    right.set(title="Analysis alone", xlabel="waits or workers", ylabel="s, median", xscale="log", yscale="log")
    for panel in (left, right):
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
