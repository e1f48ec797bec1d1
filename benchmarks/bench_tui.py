"""The terminal UI with 100, 1,000 and 10,000 executions: the first paint, switches between views, a refresh.

Everything is measured in one run and in turns. ``first paint`` is a separate process, from Python's start to its end,
that reads, diagnoses and draws a saved snapshot; it is compared with ``dstack show`` on the same file. The others are
within one process without a terminal, from the key to the updated screen.

    python -m benchmarks.bench_tui [ROUNDS]
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from textual.pilot import Pilot

from benchmarks.bench_merging import snapshot_of
from dstack.files.snapshot_file import load, save
from dstack.model.snapshot import Snapshot
from dstack.tui.app import VIEWS, DstackApp
from dstack.tui.snapshot_sources import Files, NumberedSnapshot

ROUNDS = int(sys.argv[1]) if len(sys.argv) == 2 else 5
EXECUTIONS = (100, 1_000, 10_000)
SIZE = (120, 40)
PAINT = "paint"


async def painted(app: DstackApp, pilot: Pilot[Any]) -> None:
    """Wait until the first snapshot is on the screen."""
    while app.shown is None:
        await pilot.pause(0.01)
    await pilot.pause()


def paint(file: str) -> None:
    """Paint one screen; the function of the child process."""

    async def body() -> None:
        app = DstackApp(Files(file, [load(file)]))
        async with app.run_test(size=SIZE) as pilot:
            await painted(app, pilot)

    asyncio.run(body())


def took(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


async def within(snapshot: Snapshot) -> dict[str, list[float]]:
    """Seconds for every view when it is first shown, when it is shown again, and for another snapshot in it."""
    figures: dict[str, list[float]] = {}
    app = DstackApp(Files("benchmark", [snapshot]))
    async with app.run_test(size=SIZE) as pilot:
        await painted(app, pilot)
        for round_number in range(ROUNDS + 1):
            for number, name in enumerate(VIEWS, 1):
                began = time.perf_counter()
                await pilot.press(str(number))
                await pilot.pause()
                word = "first shown" if round_number == 0 else "shown again"
                figures.setdefault(f"{name}: {word}", []).append(time.perf_counter() - began)
                another = NumberedSnapshot.of(round_number + 2, snapshot)
                began = time.perf_counter()
                app.show_snapshot(another)
                await pilot.pause()
                figures.setdefault(f"{name}: another snapshot", []).append(time.perf_counter() - began)
    return figures


def main() -> None:
    table = Table(title=f"The terminal UI, {SIZE[0]}x{SIZE[1]}, n = {ROUNDS}")
    for column in ("executions", "what", "median s", "min-max s"):
        table.add_column(column, justify="left" if column == "what" else "right")
    with tempfile.TemporaryDirectory() as folder:
        for executions in EXECUTIONS:
            snapshot = snapshot_of(executions)
            file = str(Path(folder) / f"{executions}.json")
            save(snapshot, file)
            commands = {
                "first paint, whole process": [sys.executable, __file__, PAINT, file],
                "dstack show, whole process": [sys.executable, "-m", "dstack", "show", file],
            }
            figures: dict[str, list[float]] = {name: [] for name in commands}
            for _ in range(ROUNDS):
                for name, command in commands.items():
                    figures[name].append(took(command))
            figures.update(asyncio.run(within(snapshot)))
            for name, times in figures.items():
                spread = f"{min(times):.3f}-{max(times):.3f}" if len(times) > 1 else ""
                table.add_row(f"{executions:,}", name, f"{median(times):.3f}", spread)
            table.add_section()
    Console(width=120).print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == [PAINT]:
        paint(sys.argv[2])
    else:
        main()
