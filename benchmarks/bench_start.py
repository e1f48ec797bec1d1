"""The cost of a cold ``dstack check`` without reading processes: start, imports, connection, hand-over, report.

Everything is measured in one run, in turns, on the same blocked actors: the whole command compared with ``import ray``
and ``ray status``; then the phases of the collector, and of the command that explains the snapshot. Each phase runs in
a new interpreter, from bytecode, as in an installation by pip. CPU time is that of the process and its children,
without Ray's own processes.

    python -m benchmarks.bench_start [ROUNDS] [WORKERS]
"""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import dstack
from benchmarks.bench_snapshot import ring_of
from benchmarks.harness import Cost, Results, arguments, cost_of, times_ms

DSTACK = (sys.executable, "-m", "dstack")
RAY = str(Path(sys.executable).with_name("ray"))

COLLECTING = """
import resource, sys, time

def spent():
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime

marks = [("import dstack.collecting.collector", *spent())]
import dstack.collecting.collector
marks.append(("import dstack.collecting.capture", *spent()))
from dstack.collecting import capture
from dstack.files.snapshot_file import dumps
marks.append(("find the clusters on this machine", *spent()))
from dstack.probes.connection.connect import gcs_addresses
gcs_addresses()
marks.append(("connect", *spent()))
has_first = False

def progress(step):
    name = {"connecting": "connect", "reading the control plane": "control plane"}.get(step, "")
    name = name or ("sample 2" if has_first else "sample 1")
    if name != marks[-1][0]:
        marks.append((name, *spent()))

def plan(first):
    global has_first
    has_first = True
    marks.append(("import analysis", *spent()))
    from dstack.analysis.second_sample import plan_readings
    marks.append(("choose targets of sample 2", *spent()))
    planned = plan_readings(first)
    marks.append(("sample 2", *spent()))
    return planned

with capture.ProbeSession() as session:
    taken = capture.take(session, sys.argv[1], capture.Terms(), progress=progress, plan=plan)
marks.append(("serialize", *spent()))
data = dumps(taken)
marks.append(("", *spent()))
open(sys.argv[2], "wb").write(data)
"""
"""The phases of the collector. In a command, the parent loads the analysis meanwhile, and chooses the targets."""

EXPLAINING = """
import resource, sys, time

def spent():
    own = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), own.ru_utime + own.ru_stime

data = open(sys.argv[2], "rb").read()
marks = [("import dstack.cli", *spent())]
import dstack.cli
marks.append(("import analysis, report", *spent()))
import dstack.collecting.collector, dstack.files.snapshot_file, dstack.analysis.views.analysed_snapshot
import dstack.report.text, rich.console
marks.append(("parse", *spent()))
taken = dstack.files.snapshot_file.loads(data)
marks.append(("diagnose", *spent()))
analysed = dstack.analysis.views.analysed_snapshot.AnalysedSnapshot.of(taken)
marks.append(("print", *spent()))
dstack.cli.output.rendered(analysed, "report")
marks.append(("", *spent()))
"""

REPORTED = """
import json
print(json.dumps([(name, then[1] - now[1], then[2] - now[2])
    for (name, *_), now, then in zip(marks, marks, marks[1:])]))
"""


def cost(command: list[str], environment: Mapping[str, str], ends_with: int = 0) -> Cost:
    """The cost of one run of a command, with its children."""

    def run() -> None:
        done = subprocess.run(command, capture_output=True, check=False, env=environment)
        assert done.returncode == ends_with, done.stderr

    return cost_of(run)


def phases(program: str, *arguments: str) -> list[tuple[str, Cost]]:
    """The phases of a program in a new interpreter, in order."""
    command = [sys.executable, "-c", program + REPORTED, *arguments]
    done = subprocess.run(command, capture_output=True, check=True)
    return [(name, Cost(wall, cpu)) for name, wall, cpu in json.loads(done.stdout.splitlines()[-1])]


def commands(address: str) -> dict[str, tuple[list[str], int]]:
    """The compared commands with their expected exit codes."""
    return {
        "python -c pass": ([sys.executable, "-c", "pass"], 0),
        "python -c 'import ray'": ([sys.executable, "-c", "import ray"], 0),
        "ray status": ([RAY, "status", "--address", address], 0),
        "dstack --help": ([*DSTACK, "--help"], 0),
        "dstack check": ([*DSTACK, "check", "--address", address], 1),
    }


def row(costs: list[Cost]) -> tuple[str, ...]:
    return *times_ms([one.wall_s for one in costs], 0), *times_ms([one.cpu_s for one in costs], 0)


def measure(rounds: int, workers: int) -> tuple[Results, Results]:
    """Measure whole commands, and the phases of one."""
    wholes: dict[str, list[Cost]] = defaultdict(list)
    parts: dict[str, list[Cost]] = defaultdict(list)
    compileall.compile_dir(str(Path(dstack.__file__).parent), quiet=1)
    with ring_of(workers) as ring, tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "snapshot.json")
        environment = {**os.environ, "RAY_AUTH_MODE": "token"}  # without it `ray status` sends no token
        for _ in range(rounds + 1):
            for name, (command, code) in commands(ring.address).items():
                wholes[name].append(cost(command, environment, code))
            for process, program in {"collector": COLLECTING, "command": EXPLAINING}.items():
                for name, spent in phases(program, ring.address, file):
                    parts[f"{process}: {name}"].append(spent)
    columns = ("", "wall ms", "min-max", "CPU ms", "min-max")
    about = f"{workers} blocked workers on one node, n = {rounds}, {os.cpu_count()} cores"
    tables = Results(f"Commands, {about}", columns), Results(f"Phases of dstack check, {about}", columns)
    for table, costs in zip(tables, (wholes, parts), strict=True):
        for name, some in costs.items():
            table.add(name, *row(some[1:]))  # the first round fills the page cache
    return tables


def main() -> None:
    rounds, workers = arguments(5, 25)
    for table in measure(rounds, workers):
        table.show()


if __name__ == "__main__":
    main()
