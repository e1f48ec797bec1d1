"""Healthy workloads under load, looked at again and again: whoever is called stuck here is a false alarm.

The programs in `benchmarks/workloads` run for ever and always make headway. A few of them at a time share a cluster of
two nodes with too few CPUs, while one snapshot after another is taken and diagnosed. A finding of a deadlock, of an
orphan or of an infeasible request, confirmed or only suspected, is printed, its snapshot is saved, and the end is an
exit code of 1. So it is when a workload stops. `stalled` is counted and shown, but allowed: it claims no proof.

    python -m benchmarks.soak [MINUTES] [--workloads NAME,NAME...] [--together N] [--keep DIRECTORY]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.capture import snapshot
from dstack.report.text import print_report
from dstack.snapshot_file import save
from tests.clusters.ray_clusters import Example, ray_cluster

WORKLOADS = Path(__file__).with_name("workloads")
NEEDS = {"collectives": "torch", "data": "pyarrow", "serve": "fastapi", "tune": "tensorboardX", "train": "pyarrow"}
"""Workloads that need an extra of Ray's, and a package that tells whether it is installed."""
FALSE_ALARMS = ("deadlock", "orphaned", "infeasible")
SHOWN = (*FALSE_ALARMS, "stalled")
SHIFT_S = 90.0
"""How long workloads stay together before others come."""
START_S = 180.0
"""Deadline for a workload to start beside others that are at work already."""


@dataclass
class Tally:
    """What was judged, and what was said of it."""

    verdicts: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    saved: list[Path] = field(default_factory=list)

    def add(self, analysed: AnalysedSnapshot) -> None:
        taken, diagnosis = analysed.snapshot, analysed.diagnosis
        vertices = diagnosis.vertices.values()
        self.verdicts[diagnosis.verdict] += 1
        self.findings.update(finding.kind for finding in diagnosis.findings)
        self.seconds.append(taken.total_s)
        self.counts.update(
            snapshots=1,
            incomplete=int(diagnosis.incomplete),
            looked_at_twice=int(len(taken.samples) > 1),
            executions=sum(vertex.kind == "execution" for vertex in vertices),
            waits=sum(vertex.wait is not None for vertex in vertices),
            false_alarms=int(any(finding.kind in FALSE_ALARMS for finding in diagnosis.findings)),
        )

    def lines(self) -> list[str]:
        counts = self.counts
        return [
            f"{counts['snapshots']} snapshots, {median(self.seconds or [0]):.2f} s each in the median; "
            f"{counts['looked_at_twice']} looked twice, {counts['incomplete']} were incomplete",
            f"{counts['executions']} executions and {counts['waits']} waits judged",
            "verdicts: " + ", ".join(f"{count} {verdict}" for verdict, count in self.verdicts.most_common()),
            "findings: " + (", ".join(f"{count} {kind}" for kind, count in self.findings.most_common()) or "none"),
            f"false alarms: {counts['false_alarms']}" + "".join(f"\n  {path}" for path in self.saved),
        ]


def main() -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    options = parsed()
    names, left_out = chosen(options.workloads.split(",") if options.workloads else [])
    print(f"workloads: {', '.join(names)}")
    if left_out:
        print(f"left out, as Ray's extra for it is not installed (pip install '.[soak]'): {', '.join(left_out)}")
    left_s = 60 * options.minutes
    tally = Tally()
    for shift in shifts(names, options.together):
        print(f"\n{', '.join(shift)}", flush=True)
        soak(shift, min(left_s, SHIFT_S), options.keep, tally)
        left_s -= SHIFT_S
        if left_s <= 0:
            break
    print("", *tally.lines(), sep="\n")
    sys.exit(1 if tally.counts["false_alarms"] else 0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", type=float, nargs="?", default=5.0, metavar="MINUTES", help="to look for (5)")
    parser.add_argument("--workloads", default="", metavar="NAME,...", help="only these")
    parser.add_argument("--together", type=int, default=4, metavar="N", help="how many at a time (4)")
    parser.add_argument("--keep", type=Path, default=Path(), metavar="DIRECTORY", help="for snapshots of false alarms")
    return parser.parse_args()


def chosen(wanted: list[str]) -> tuple[list[str], list[str]]:
    """The workloads to run, and those that cannot be run here."""
    known = sorted(path.stem for path in WORKLOADS.glob("*.py"))
    if unknown := set(wanted) - set(known):
        sys.exit(f"There is no workload {', '.join(sorted(unknown))}. There are {', '.join(known)}.")
    names = wanted or known
    missing = {name for name in names if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None}
    return [name for name in names if name not in missing], sorted(missing)


def shifts(names: list[str], together: int) -> Iterator[list[str]]:
    """Groups of workloads without end: everybody's turn comes before anybody's second."""
    while True:
        order = random.sample(names, len(names))
        yield from (order[i : i + together] for i in range(0, len(order), together))


def soak(names: list[str], seconds: float, keep: Path, tally: Tally) -> None:
    """Runs these workloads on a cluster of their own, and judges it for so long once all are ready, at least once."""
    with ExitStack() as stack:
        cluster = stack.enter_context(ray_cluster(2, num_cpus=2, auth="off"))
        os.environ.update(cluster.environment)
        workloads = [
            stack.enter_context(cluster.run_example(WORKLOADS / f"{name}.py", deadline_s=START_S)) for name in names
        ]
        end = time.monotonic() + seconds
        while True:
            analysed = AnalysedSnapshot.of(snapshot(cluster.address))
            tally.add(analysed)
            show(analysed, keep, tally)
            for workload in workloads:
                require_alive(workload)
            if time.monotonic() >= end:
                break


def show(analysed: AnalysedSnapshot, keep: Path, tally: Tally) -> None:
    """Prints and saves what is a false alarm; prints what is nearly one."""
    kinds = {finding.kind for finding in analysed.diagnosis.findings}
    if not kinds.intersection(SHOWN):
        return
    print_report(Console(), analysed)
    if kinds.intersection(FALSE_ALARMS):
        path = keep / f"false-alarm-{int(analysed.snapshot.taken_at * 1000)}.json.gz"
        save(analysed.snapshot, path)
        tally.saved.append(path)
        print(f"Saved. Show it again with: dstack show {path}", flush=True)


def require_alive(workload: Example) -> None:
    """Ends the soak when a workload has stopped, for whatever is said of it then is no false alarm."""
    try:
        os.kill(workload.pid, 0)
    except ProcessLookupError:
        sys.exit(f"workload {workload.name} has stopped:\n{workload.output()}")


if __name__ == "__main__":
    main()
