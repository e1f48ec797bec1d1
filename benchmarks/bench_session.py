"""A session on several hosts: a refresh of the terminal UI, beside a snapshot that starts its own probes.

The hosts are network namespaces on this machine, with a deadlock of all actors, five on each host. In turns, on the
head's host: `dstack check`, which starts its probes and ends them, and the key `r` of a running terminal UI, until the
diagnosis of a new snapshot is on the screen. The CPU time of the GCS and of dstack's driver until the first snapshot is
given for each probe that they start. Needs root.

    python -m benchmarks.bench_session [ROUNDS [HOSTS...]]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from textual.pilot import Pilot

from benchmarks.bench_scale import TimedApp
from benchmarks.bench_tui import SIZE, painted
from benchmarks.harness import Results, times_s
from dstack.collecting.collector import Collector
from dstack.probes.node_access.remote_probes import ClusterDriver
from tests.hosts import Hosts
from tests.hosts.command import PYTHONPATH, dstack
from tests.hosts.rings import ring
from tests.processes import Child, carrying, command_line

HOSTS = (4, 16)
ACTORS_ON_HOST = 5
REFRESH = "refresh"
GO, END = "go", "end"
DEADLINE_S = 60.0
START_S = 300.0
BUDGET = "Budget: a refresh with 4 hosts in 0.5 s. All hosts share the CPUs of this machine."
COLUMNS = (
    *("hosts", "refresh: median s", "min-max s", "check: median s", "min-max s", "times as long"),
    *("first snapshot (n = 1) s", "GCS: CPU ms a probe", "driver: CPU ms a probe"),
)


async def refresh(address: str, turns: Path) -> None:
    """Runs the terminal UI; at each turn it presses `r` and prints the seconds until another snapshot is shown."""
    with Collector(address) as source:
        await run(TimedApp(source), turns)


async def run(app: TimedApp, turns: Path) -> None:
    """Serves the turns in a running terminal UI."""
    async with app.run_test(size=SIZE) as pilot:
        began = time.perf_counter()
        await painted(app, pilot)
        await taken(app, pilot)
        say("ready", app.painted_at - began)
        number = 0
        while (turn := turns.read_text()) != END:
            if turn != f"{GO} {number}":
                await pilot.pause(0.01)
                continue
            number += 1
            began = time.perf_counter()
            await pilot.press("r")
            await taken(app, pilot)
            shown = app.snapshots[-1]
            assert (shown.number, shown.is_final) == (number + 1, True)
            kinds = [finding.kind for finding in shown.analysed.diagnosis.findings]
            say(f"turn{number}", app.painted_at - began, *kinds)


async def taken(app: TimedApp, pilot: Pilot[Any]) -> None:
    """Waits until the snapshot in progress is on the screen."""
    while app.status.doing:
        await pilot.pause(0.01)
    await pilot.pause()


def say(*words: object) -> None:
    """Prints a line, which a running terminal UI would take for itself."""
    print(*words, file=sys.__stdout__, flush=True)


@dataclass
class Figures:
    """What was measured: seconds, and the CPU time in ms for the start of each probe."""

    hosts: int
    first_s: float = 0.0
    gcs_ms: float = 0.0
    driver_ms: float = 0.0
    refreshes_s: list[float] = field(default_factory=list)
    checks_s: list[float] = field(default_factory=list)


def measure(number: int, rounds: int) -> Figures:
    """Measures a cluster of so many hosts."""
    figures = Figures(number)
    members = [*range(1, number + 1)] * ACTORS_ON_HOST
    with Hosts(number, cpus=ACTORS_ON_HOST, deadline_s=START_S) as hosts, ring(hosts, members):
        turns = hosts.shared / "turn"
        turns.write_text("")
        gcs = hosts.gcs()
        before = spent_ms(gcs)
        argv = [sys.executable, "-m", "benchmarks.bench_session", REFRESH, hosts.address, str(turns)]
        with hosts.start(1, argv, PYTHONPATH=PYTHONPATH) as ui:
            figures.first_s = float(printed(ui, "ready")[0])
            figures.gcs_ms = (spent_ms(gcs) - before) / (number - 1)
            (driver,) = [one for one in carrying(hosts.tag) if ClusterDriver.MODULE in " ".join(command_line(one))]
            figures.driver_ms = spent_ms(driver) / (number - 1)
            for turn in range(rounds):
                began = time.perf_counter()
                done = dstack(hosts, 1, "check", "--address", hosts.address)
                figures.checks_s.append(time.perf_counter() - began)
                assert done.returncode == 1, done
                turns.write_text(f"{GO} {turn}")
                took, *kinds = printed(ui, f"turn{turn + 1}")
                assert kinds == ["deadlock"], kinds
                figures.refreshes_s.append(float(took))
            turns.write_text(END)
            ui.process.wait(DEADLINE_S)
    return figures


def spent_ms(process: psutil.Process) -> float:
    """Its CPU time so far."""
    times = process.cpu_times()
    return 1000 * float(times.user + times.system)


def printed(child: Child, word: str) -> list[str]:
    """The rest of the line that begins with this word."""
    return child.wait_for_line(f"{word} ", deadline_s=DEADLINE_S).split()[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int, nargs="?", default=20)
    parser.add_argument("hosts", type=int, nargs="*", default=list(HOSTS))
    options = parser.parse_args()
    if reason := Hosts.unavailable():
        sys.exit(f"This needs hosts in network namespaces, which cannot be made here: {reason}.")
    results = Results(f"A session on hosts with {ACTORS_ON_HOST} waiting actors each, n = {options.rounds}", COLUMNS)
    for number in options.hosts:
        one = measure(number, options.rounds)
        results.add(
            str(number),
            *times_s(one.refreshes_s),
            *times_s(one.checks_s),
            f"{median(one.checks_s) / median(one.refreshes_s):.1f}",
            f"{one.first_s:.2f}",
            f"{one.gcs_ms:.0f}",
            f"{one.driver_ms:.0f}",
        )
    results.notes.append(BUDGET)
    results.show()


if __name__ == "__main__":
    if sys.argv[1:2] == [REFRESH]:
        asyncio.run(refresh(sys.argv[2], Path(sys.argv[3])))
    else:
        main()
