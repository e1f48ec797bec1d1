"""The Timeline view of made-up histories of 1,000, 10,000 and 100,000 attempts on 300 workers: no Ray, no terminal.

All figures are CPU time of the whole process, until the screen is drawn and nothing is left to do, which other programs
prolong less than the time on the clock. Rows are arranged and chains linked in a thread, so keys work meanwhile. Cursor
keys of the Cluster view, which has the same workers, are measured for comparison.

    python -m benchmarks.bench_history [ROUNDS]
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from statistics import median
from typing import Any

from textual.pilot import Pilot

from benchmarks.tables import Results
from dstack.tui.app import DstackApp
from dstack.tui.snapshot_sources import Files
from dstack.tui.views.timeline_view import TimelineView
from tests.unit.support.large_histories import history_snapshot

ROUNDS = 10
ATTEMPTS = (1_000, 10_000, 100_000)
WORKERS = 300
SIZE = (160, 50)
POLL_S = 0.05
KEYS = {
    "j": "cursor to the next row",
    "h": "cursor to another bar",
    "plus": "zoom in",
    "minus": "zoom out",
    "left_square_bracket": "earlier",
    "f": "next failed attempt",
    "c": "colour by chain, or by phase",
    "pagedown": "next page",
}


async def opened(app: DstackApp, pilot: Pilot[Any]) -> tuple[float, float]:
    """CPU time from the key of the view to its rows, and to the chains that are linked afterwards."""
    began = time.process_time()
    await pilot.press("7")
    while not (isinstance(app.screen, TimelineView) and app.screen.rows):
        await pilot.pause(POLL_S)
    arranged = time.process_time()
    while not app.screen.is_linked:
        await pilot.pause(POLL_S)
    return arranged - began, time.process_time() - began


async def cpu_s(pilot: Pilot[Any], key: str) -> float:
    """CPU time of a key until nothing is left to do."""
    began = time.process_time()
    await pilot.press(key)
    await pilot.pause()
    return time.process_time() - began


async def times_of(attempts: int, rounds: int) -> dict[str, list[float]]:
    """The CPU times to open the view, and of each key."""
    figures: dict[str, list[float]] = defaultdict(list)
    app = DstackApp(Files("benchmark", [history_snapshot(attempts, WORKERS)]))
    async with app.run_test(size=SIZE) as pilot:
        while app.shown is None:
            await pilot.pause(0.001)
        await pilot.press("5")
        for _ in range(rounds):
            figures["Cluster view: cursor to the next row"].append(await cpu_s(pilot, "j"))
        rows_s, chains_s = await opened(app, pilot)
        figures["opened (n = 1): rows are shown"], figures["opened (n = 1): chains are linked"] = [rows_s], [chains_s]
        await pilot.press("j", "j", "plus")
        for _ in range(rounds):
            for key, name in KEYS.items():
                figures[name].append(await cpu_s(pilot, key))
        view = app.screen
        assert isinstance(view, TimelineView)
        for _ in range(rounds):
            for text in ("train", ""):
                began = time.process_time()
                view.filtered(text)
                await pilot.pause()
                figures["filter by a word, or by none"].append(time.process_time() - began)
    return figures


def measure(rounds: int) -> Results:
    """All figures as a table."""
    table = Results(
        f"Keys of the Timeline view, 300 workers, n = {rounds}, {SIZE[0]}x{SIZE[1]}",
        ("attempts", "what", "CPU ms, median", "min-max"),
    )
    for attempts in ATTEMPTS:
        for name, times in asyncio.run(times_of(attempts, rounds)).items():
            ordered = [1e3 * one for one in sorted(times)]
            table.add(f"{attempts:,}", name, f"{median(ordered):.0f}", f"{ordered[0]:.0f}-{ordered[-1]:.0f}")
    return table


if __name__ == "__main__":
    measure(int(sys.argv[1]) if len(sys.argv) == 2 else ROUNDS).show()
