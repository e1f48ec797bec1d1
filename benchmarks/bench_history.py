"""The Timeline view of made-up histories of 1,000, 10,000 and 100,000 attempts on 300 workers: no Ray, no terminal.

``opened`` is the time from the key to the rows on the screen; they are arranged in a thread. For each further key it is
the CPU time of the whole process until the screen is drawn and nothing is left to do, which another program on the
machine does not prolong. Cursor keys of the Cluster view, which has the same workers, are measured for comparison.

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
from dstack.tui.source import Files
from dstack.tui.views.timeline.view import TimelineView
from tests.unit.support.large_histories import history_snapshot

ROUNDS = 10
ATTEMPTS = (1_000, 10_000, 100_000)
WORKERS = 300
SIZE = (160, 50)
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


async def opened(app: DstackApp, pilot: Pilot[Any]) -> float:
    """Seconds from the key of the view to its rows."""
    began = time.perf_counter()
    await pilot.press("7")
    while not (isinstance(app.screen, TimelineView) and app.screen.rows):
        await pilot.pause(0.005)
    await pilot.pause()
    return time.perf_counter() - began


async def cpu_s(pilot: Pilot[Any], key: str) -> float:
    """CPU time of a key until nothing is left to do."""
    began = time.process_time()
    await pilot.press(key)
    await pilot.pause()
    return time.process_time() - began


async def times_of(attempts: int, rounds: int) -> tuple[float, dict[str, list[float]]]:
    """The time to open the view, and the CPU times of each key."""
    figures: dict[str, list[float]] = defaultdict(list)
    app = DstackApp(Files("benchmark", [history_snapshot(attempts, WORKERS)]))
    async with app.run_test(size=SIZE) as pilot:
        while app.shown is None:
            await pilot.pause(0.001)
        await pilot.press("5")
        for _ in range(rounds):
            figures["Cluster view: cursor to the next row"].append(await cpu_s(pilot, "j"))
        took = await opened(app, pilot)
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
    return took, figures


def measure(rounds: int) -> Results:
    """All figures as a table."""
    table = Results(
        f"Keys of the Timeline view, 300 workers, n = {rounds}, {SIZE[0]}x{SIZE[1]}",
        ("attempts", "what", "median ms", "min-max ms"),
    )
    for attempts in ATTEMPTS:
        took, figures = asyncio.run(times_of(attempts, rounds))
        table.add(f"{attempts:,}", "opened: all rows arranged (n = 1)", f"{1e3 * took:.0f}", "")
        for name, times in figures.items():
            ordered = [1e3 * one for one in sorted(times)]
            table.add(f"{attempts:,}", name, f"{median(ordered):.0f}", f"{ordered[0]:.0f}-{ordered[-1]:.0f}")
    return table


if __name__ == "__main__":
    measure(int(sys.argv[1]) if len(sys.argv) == 2 else ROUNDS).show()
