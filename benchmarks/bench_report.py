"""Pages of made-up clusters of 100, 1,000 and 10,000 workers with a history of 20,000 attempts: no Ray, no browser.

``dstack report FILE`` beside ``dstack show FILE``, and beside writing the snapshot file once more, in turns and in
separate processes. Peak memory is that of the process.

    python -m benchmarks.bench_report [ROUNDS]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.harness import Results, arguments, in_turns, times_s
from benchmarks.made_up_snapshots import waiting, with_many_stacks
from dstack.files.snapshot_file import save
from dstack.model.snapshot import Snapshot
from tests.unit.support.large_histories import with_history

SIZES = (100, 1_000, 10_000)
ATTEMPTS = 20_000
SHAPES: dict[str, Callable[[int], Snapshot]] = {
    "400 different stacks": with_many_stacks,
    "all wait, one deadlock": waiting,
}
SAVE = "import sys; from dstack.files.snapshot_file import load, save; save(load(sys.argv[1]), sys.argv[2], force=True)"
REPORT, SHOW, WRITE = "`dstack report`", "`dstack show`", "reading and writing the file"


@dataclass(frozen=True, slots=True)
class Run:
    """One process: its time on the clock, its CPU time and its peak memory."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def run(words: tuple[str, ...]) -> Run:
    """Run Python with these words to its end."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return Run(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def measure(rounds: int) -> Results:
    """A table with all sizes and shapes; each way in turn."""
    columns = ("", "median s", "min-max s", "CPU s", "CPU of `show` times", "peak MiB", "MB written")
    results = Results(f"HTML reports of workers with {ATTEMPTS:,} attempts, n = {rounds}", columns)
    for workers in SIZES:
        for shape, snapshot_of in SHAPES.items():
            with tempfile.TemporaryDirectory() as folder:
                _measure(results, f"{workers:,} workers, {shape}", snapshot_of(workers), Path(folder), rounds)
    return results


def _measure(results: Results, title: str, snapshot: Snapshot, folder: Path, rounds: int) -> None:
    file, page, copy = folder / "snapshot.json.gz", folder / "page.html", folder / "copy.json.gz"
    save(with_history(snapshot, ATTEMPTS), file)
    ways = {
        REPORT: ("-m", "dstack", "report", str(file), "-o", str(page), "--force"),
        SHOW: ("-m", "dstack", "show", str(file)),
        WRITE: ("-c", SAVE, str(file), str(copy)),
    }
    runs = in_turns(ways, rounds, run)
    written = {REPORT: f"{page.stat().st_size / 1e6:.1f}", SHOW: "", WRITE: f"{copy.stat().st_size / 1e6:.1f}"}
    shown_s = median(one.cpu_s for one in runs[SHOW])
    for way, done in runs.items():
        times, cpu_s = [one.wall_s for one in done], median(one.cpu_s for one in done)
        results.add(
            f"{title}: {way}",
            *times_s(times),
            f"{cpu_s:.2f}",
            f"{cpu_s / shown_s:.1f}",
            f"{max(one.peak_mib for one in done):.0f}",
            written[way],
        )


def main() -> None:
    measure(*arguments(5)).show()


if __name__ == "__main__":
    main()
