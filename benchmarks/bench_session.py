"""A session on four hosts: a refresh of the terminal UI, beside a snapshot that starts its own probes.

The hosts are network namespaces on this machine, with a deadlock of twenty actors, five on each. In turns, on the
head's host: `dstack check`, which starts its probes and ends them, and the key `r` of a running terminal UI, until the
diagnosis of a new snapshot is on the screen. Needs root.

    python -m benchmarks.bench_session [ROUNDS]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from textual.pilot import Pilot

from benchmarks.bench_scale import TimedApp
from benchmarks.bench_tui import SIZE, painted
from benchmarks.tables import Results
from dstack.collector import Collector
from tests.hosts import Hosts
from tests.hosts.command import PYTHONPATH, dstack
from tests.hosts.rings import ring
from tests.processes import Child

HOSTS = 4
ACTORS_ON_HOST = 5
REFRESH = "refresh"
GO, END = "go", "end"
DEADLINE_S = 60.0
BUDGET = "Budget: a refresh in 0.5 s. All hosts share the CPUs of this machine."


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


def measure(rounds: int) -> tuple[float, list[float], list[float]]:
    """Seconds until the terminal UI shows its first snapshot, of its refreshes, and of the checks."""
    refreshes, checks = [], []
    members = [*range(1, HOSTS + 1)] * ACTORS_ON_HOST
    with Hosts(HOSTS, cpus=ACTORS_ON_HOST) as hosts, ring(hosts, members):
        turns = hosts.shared / "turn"
        turns.write_text("")
        argv = [sys.executable, "-m", "benchmarks.bench_session", REFRESH, hosts.address, str(turns)]
        with hosts.start(1, argv, PYTHONPATH=PYTHONPATH) as ui:
            (first,) = printed(ui, "ready")
            for number in range(rounds):
                began = time.perf_counter()
                done = dstack(hosts, 1, "check", "--address", hosts.address)
                checks.append(time.perf_counter() - began)
                assert done.returncode == 1, done
                turns.write_text(f"{GO} {number}")
                took, *kinds = printed(ui, f"turn{number + 1}")
                assert kinds == ["deadlock"], kinds
                refreshes.append(float(took))
            turns.write_text(END)
            ui.process.wait(DEADLINE_S)
    return float(first), refreshes, checks


def printed(child: Child, word: str) -> list[str]:
    """The rest of the line that begins with this word."""
    return child.wait_for_line(f"{word} ", deadline_s=DEADLINE_S).split()[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int, nargs="?", default=20)
    rounds = parser.parse_args().rounds
    if reason := Hosts.unavailable():
        sys.exit(f"This needs hosts in network namespaces, which cannot be made here: {reason}.")
    first, refreshes, checks = measure(rounds)
    results = Results(
        f"{HOSTS} hosts with {ACTORS_ON_HOST} waiting actors each, n = {rounds}",
        ("", "median s", "min-max s", "times as long"),
    )
    for name, times in (("refresh of the terminal UI", refreshes), ("`dstack check`, cold", checks)):
        ratio = median(times) / median(refreshes)
        results.add(name, f"{median(times):.2f}", f"{min(times):.2f}-{max(times):.2f}", f"{ratio:.1f}")
    results.add("first snapshot of the terminal UI (n = 1)", f"{first:.2f}", "", f"{first / median(refreshes):.1f}")
    results.notes.append(BUDGET)
    results.show()


if __name__ == "__main__":
    if sys.argv[1:2] == [REFRESH]:
        asyncio.run(refresh(sys.argv[2], Path(sys.argv[3])))
    else:
        main()
