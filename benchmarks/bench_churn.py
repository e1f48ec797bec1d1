"""Checks of a healthy application that never rests: how many of them are conclusive, and why the others are not.

The application is `benchmarks/workloads/churn.py`: 12 actors in three layers that call each other without rest, and a
driver with six threads. Each check takes a snapshot in a process of its own, as `dstack check` does, and ends with the
same exit code: 0 where nothing is stuck, 1 where something is said to be, which would be a false alarm, 3 where no
snapshot could be taken, and 4 where not enough was seen to say. With `--hogs 2`, two processes that only burn CPU time
run beside it.

    python -m benchmarks.bench_churn [CHECKS] [--hogs N] [--keep DIRECTORY]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.soak import require_alive
from benchmarks.tables import Results
from dstack import api
from dstack.analysis.coverage import holes_of
from dstack.analysis.diagnose import diagnose
from dstack.diagnosis import Diagnosis
from dstack.errors import ClusterError
from dstack.model import Snapshot
from dstack.snapshot_file import save
from tests.clusters import ray_cluster

WORKLOAD = Path(__file__).with_name("workloads") / "churn.py"
HOG = "while True: pass"
CONCLUSIVE, STUCK, FAILED, INCONCLUSIVE = 0, 1, 3, 4
MEANINGS = {CONCLUSIVE: "conclusive", STUCK: "false alarm", FAILED: "no snapshot", INCONCLUSIVE: "inconclusive"}
"""Exit codes of `dstack check`."""
SHOWN_REASONS = 15


@dataclass
class Tally:
    """Exit codes, times and reasons; of a check with several reasons of one kind, that kind counts once."""

    codes: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    between_s: list[float] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, taken: Snapshot, diagnosis: Diagnosis, took_s: float) -> int:
        code = exit_code(diagnosis)
        self.codes[code] += 1
        self.seconds.append(took_s)
        self.verdicts[diagnosis.verdict] += 1
        if len(taken.samples) > 1:
            self.between_s.append(taken.samples[1].ended_s - taken.samples[0].began_s)
        if code == INCONCLUSIVE:
            self.reasons.update({str(hole) for hole in holes_of(taken, diagnosis.vertices)})
        return code

    def fail(self, reason: str, took_s: float) -> int:
        """A check that took no snapshot at all."""
        self.codes[FAILED] += 1
        self.seconds.append(took_s)
        self.reasons[reason] += 1
        return FAILED


def exit_code(diagnosis: Diagnosis) -> int:
    """What `dstack check` ends with."""
    if diagnosis.is_stuck:
        return STUCK
    return INCONCLUSIVE if diagnosis.incomplete else CONCLUSIVE


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """So many processes that burn CPU time."""
    running = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def measure(checks: int, hog_count: int, keep: Path | None) -> Tally:
    """Checks one after the other, of one application."""
    tally = Tally()
    with ExitStack() as stack:
        cluster = stack.enter_context(ray_cluster(1, num_cpus=2, auth="off"))
        os.environ.update(cluster.environment)
        workload = stack.enter_context(cluster.run_example(WORKLOAD))
        stack.enter_context(hogs(hog_count))
        for number in range(checks):
            began = time.monotonic()
            try:
                taken = api.snapshot(cluster.address)
            except ClusterError as error:
                code = tally.fail(str(error), time.monotonic() - began)
            else:
                code = tally.add(taken, diagnose(taken), time.monotonic() - began)
                if keep and code:
                    save(taken, keep / f"churn-{number + 1}-exit-{code}.json.gz", force=True)
            print(f"{number + 1}/{checks}: exit code {code}", file=sys.stderr, flush=True)
            require_alive(workload)
    return tally


def as_table(tally: Tally, hog_count: int) -> Results:
    title = f"Checks of a healthy application that never rests, {hog_count} CPU hogs, n = {len(tally.seconds)}"
    results = Results(title, ("", "checks"))
    for code, meaning in MEANINGS.items():
        results.add(f"exit code {code}, {meaning}", str(tally.codes[code]))
    for verdict, count in tally.verdicts.most_common():
        results.add(f"verdict {verdict}", str(count))
    for reason, count in tally.reasons.most_common(SHOWN_REASONS):
        results.add(f"not conclusive: {reason}", str(count))
    between = f"{median(tally.between_s):.2f} s" if tally.between_s else "none had two samples"
    results.notes.append(
        f"One check: median {median(tally.seconds):.2f} s, max {max(tally.seconds):.2f} s. "
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
    as_table(measure(options.checks, options.hogs, options.keep), options.hogs).show()


if __name__ == "__main__":
    main()
