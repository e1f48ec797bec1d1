"""A replay of many saved snapshots: the first screen, steps, the time until all are read, and the memory.

Snapshots of a synthetic cluster, a minute apart, in which every worker is somewhere else each time. Everything is
measured in one process without a terminal, from the start of the program's imports or from the key to the updated
screen; RSS is that of the whole process.

    python -m benchmarks.bench_replay [SNAPSHOTS] [WORKERS] [ROUNDS]
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table
from textual.pilot import Pilot

SIZE = (120, 40)
REPLAY = "replay"
STEPS = 6


def write(directory: Path, snapshots: int, workers: int) -> None:
    """Save the snapshots."""
    from benchmarks.bench_merging import snapshot_of, worker_of
    from dstack.files.snapshot_file import save

    first = snapshot_of(workers)
    for number in range(snapshots):
        chance = random.Random(number)
        read = tuple(worker_of(at, actor.actor_id, chance) for at, actor in enumerate(first.actors))
        sample = replace(first.samples[0], workers=read)
        taken_at = 1_700_000_000.0 + 60 * number
        save(replace(first, taken_at=taken_at, samples=(sample,)), directory / f"dstack-{number:04}.json.gz")


async def until(pilot: Pilot[Any], condition: Callable[[], object], began: float) -> float:
    """Wait until a condition holds; the seconds since the beginning."""
    while not condition():
        await pilot.pause(0.01)
    await pilot.pause()
    return time.perf_counter() - began


async def replayed(directory: str) -> dict[str, float]:
    """Seconds of each part in one run, and MiB."""
    began = time.perf_counter()
    from dstack.cli.saved_files import open_files
    from dstack.tui.app import DstackApp
    from dstack.tui.snapshot_sources import Files

    files = open_files([directory])
    figures = {"files listed": time.perf_counter() - began}
    app = DstackApp(Files(directory, files.snapshots))
    async with app.run_test(size=SIZE) as pilot:
        figures["first snapshot on the screen"] = await until(pilot, lambda: app.shown, began)
        key = time.perf_counter()
        await pilot.press("left_square_bracket")
        last = app.snapshots[-2]
        figures["first step, others being read"] = await until(pilot, lambda: app.shown is last, key)
        figures["all read"] = await until(pilot, lambda: all(one.summary for one in app.snapshots), began)
        middle = app.snapshots[len(app.snapshots) // 2]
        key = time.perf_counter()
        app.read_and_show(middle)
        figures["any other snapshot, read again"] = await until(pilot, lambda: app.shown is middle, key)
        await pilot.pause(1.0)  # the time of a reader, in which the next one is read
        steps = []
        for number in range(STEPS):
            following = app.snapshots[middle.number - 2 - number]
            key = time.perf_counter()
            await pilot.press("left_square_bracket")
            steps.append(await until(pilot, lambda: app.shown is following, key))  # noqa: B023
            await pilot.pause(1.0)
        figures["a step, one per second"] = median(steps)
        key = time.perf_counter()
        await pilot.press("6")
        figures["History view"] = await until(pilot, lambda: app.current_mode == "history", key)
    figures["peak RSS, MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return figures


def main() -> None:
    snapshots, workers, rounds = (int(one) for one in (*sys.argv[1:], *("50", "1000", "3")[len(sys.argv) - 1 :]))
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), snapshots, workers)
        for _ in range(rounds):
            output = subprocess.run([sys.executable, __file__, REPLAY, folder], check=True, stdout=subprocess.PIPE)
            for name, figure in json.loads(output.stdout).items():
                found.setdefault(name, []).append(figure)
    table = Table(title=f"A replay of {snapshots} snapshots of {workers:,} workers, n = {rounds}")
    for column in ("what", "median", "min-max"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, figures in found.items():
        digits = 0 if "MiB" in name else 3
        table.add_row(name, f"{median(figures):.{digits}f}", f"{min(figures):.{digits}f}-{max(figures):.{digits}f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == [REPLAY]:
        print(json.dumps(asyncio.run(replayed(sys.argv[2]))))
    else:
        main()
