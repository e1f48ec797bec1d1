"""Checks of a healthy, always busy application: the number of conclusive ones, and the reasons of the others.

The application is `benchmarks/workloads/churn.py`: 12 actors in three layers that call each other continuously, and a
driver with six threads. Each check reads the cluster in a separate process, as `dstack check` does, and has the same
exit code: 0 if nothing is stuck, 1 for a deadlock or hang, which would be a false alarm, and 4 if the snapshot is
inconclusive. With `--hogs 2`, two processes burn CPU time beside it.

    python -m benchmarks.bench_churn [CHECKS] [--hogs N] [--keep DIRECTORY]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.harness import Results
from dstack import api
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.errors import ClusterError
from dstack.files.snapshot_file import save
from dstack.model.diagnosis import Diagnosis
from dstack.report.not_observed import gaps_in_words
from tests.clusters.ray_clusters import Example, ray_cluster
from tests.paths import ROOT

WORKLOAD = Path(__file__).with_name("workloads") / "churn.py"
HOG = "while True: pass"
CONCLUSIVE, STUCK, INCONCLUSIVE = 0, 1, 4
MEANINGS = {
    CONCLUSIVE: "conclusive",
    STUCK: "false alarm",
    ClusterError.exit_code: "failed",
    INCONCLUSIVE: "inconclusive",
}
"""Exit codes of `dstack check`."""
SHOWN_REASONS = 15
GAPS = re.compile(r"\b[0-9a-f]{8,}\b|\b\d+\b")
"""Ids and numbers, in which similar reasons differ."""


@dataclass
class Tally:
    """Exit codes, times and reasons; several reasons of one kind in one check count once."""

    codes: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    between_s: list[float] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, analysed: AnalysedSnapshot, took_s: float) -> int:
        snapshot, diagnosis = analysed.snapshot, analysed.diagnosis
        code = exit_code(diagnosis)
        self.codes[code] += 1
        self.seconds.append(took_s)
        self.verdicts[diagnosis.verdict] += 1
        if len(snapshot.samples) > 1:
            self.between_s.append(snapshot.samples[1].ended_s - snapshot.samples[0].began_s)
        if code == INCONCLUSIVE:
            self.reasons.update({GAPS.sub("…", gap.text) for gap in gaps_in_words(analysed)})
        return code


def exit_code(diagnosis: Diagnosis) -> int:
    """The exit code of `dstack check`."""
    if diagnosis.is_stuck:
        return STUCK
    return INCONCLUSIVE if diagnosis.incomplete else CONCLUSIVE


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """Run processes that burn CPU time."""
    running = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def measure(tally: Tally, checks: int, hog_count: int, keep: Path | None) -> None:
    """Run consecutive checks of one application."""
    with ExitStack() as stack:
        os.environ["PYTHONPATH"] = str(ROOT)  # of the workload's own imports
        cluster = stack.enter_context(ray_cluster(1, num_cpus=2, auth="off"))
        os.environ.update(cluster.environment)
        workload = stack.enter_context(cluster.run_example(WORKLOAD))
        stack.enter_context(hogs(hog_count))
        for number in range(checks):
            code = check(cluster.address, tally, keep / f"churn-{number + 1}.json.gz" if keep else None)
            print(f"{number + 1}/{checks}: exit code {code}", file=sys.stderr, flush=True)
            require_alive(workload)


def require_alive(workload: Example) -> None:
    """End the benchmark if the workload has stopped."""
    try:
        os.kill(workload.pid, 0)
    except ProcessLookupError:
        sys.exit(f"workload {workload.name} has stopped:\n{workload.output()}")


def check(address: str, tally: Tally, kept: Path | None) -> int:
    """Run one check and return its exit code; save the snapshot if that is not 0."""
    began = time.monotonic()
    try:
        snapshot = api.snapshot(address)
    except ClusterError as error:
        tally.codes[error.exit_code] += 1
        tally.reasons[f"no snapshot: {error.message}"] += 1
        return error.exit_code
    code = tally.add(AnalysedSnapshot.of(snapshot), time.monotonic() - began)
    if kept and code:
        save(snapshot, kept, force=True)
    return code


def as_table(tally: Tally, hog_count: int) -> Results:
    title = f"Checks of a healthy application that never rests, {hog_count} CPU hogs, n = {tally.codes.total()}"
    results = Results(title, ("", "checks"))
    for code, meaning in MEANINGS.items():
        results.add(f"exit code {code}, {meaning}", str(tally.codes[code]))
    for verdict, count in tally.verdicts.most_common():
        results.add(f"verdict {verdict}", str(count))
    for reason, count in tally.reasons.most_common(SHOWN_REASONS):
        results.add(f"not conclusive for {reason}", str(count))
    between = f"{median(tally.between_s):.2f} s" if tally.between_s else "none had two samples"
    results.notes.append(
        f"One check: median {median(tally.seconds or [0]):.2f} s, max {max(tally.seconds, default=0):.2f} s. "
        f"From the beginning of the first sample to the end of the second: median {between}. "
        f"{os.cpu_count()} cores."
    )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", type=int, nargs="?", default=100, metavar="CHECKS", help="how many (100)")
    parser.add_argument("--hogs", type=int, default=0, metavar="N", help="processes that burn CPU time beside it (0)")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="for snapshots of checks that do not end with 0")
    options = parser.parse_args()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    tally = Tally()
    try:
        measure(tally, options.checks, options.hogs, options.keep)
    finally:  # shows the measurements also after an interruption
        as_table(tally, options.hogs).show()


if __name__ == "__main__":
    main()
