"""The terminal UI without a terminal: the first paint, views and keys with many executions and attempts, and a replay.

- **Views** with 100, 1,000 and 10,000 executions. ``first paint`` is a separate process, from Python's start to its
  end, that reads, diagnoses and draws a saved snapshot; it is compared with ``dstack show`` on the same file. The
  others are within one process, from the key to the updated screen.
- **Keys of the Timeline view**, with histories of 1,000 to 100,000 attempts on 300 workers. The figures are CPU time of
  the process until nothing is left to do, which other programs prolong less than the time on the clock. Rows are
  arranged and chains linked in a thread, so keys work meanwhile. Cursor keys of the Cluster view, which has the same
  workers, are measured for comparison.
- **A replay** of many snapshots, a minute apart, in which every worker is somewhere else each time, in a separate
  process: from its start after its imports, or from the key, to the updated screen.

    python -m benchmarks.bench_tui [ROUNDS]
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
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from msgspec.structs import replace
from textual.pilot import Pilot

from benchmarks.harness import Results, arguments, in_turns, seconds_of, spread, times_ms, times_s
from benchmarks.made_up_snapshots import sample_of_stacks, with_many_stacks
from dstack.cli.saved_files import open_files
from dstack.files.snapshot_file import load, save
from dstack.model.snapshot import Snapshot
from dstack.tui.app import VIEWS, DstackApp
from dstack.tui.snapshot_sources import Files, NumberedSnapshot
from dstack.tui.views.timeline_view import TimelineView
from tests.unit.support.large_histories import history_snapshot

EXECUTIONS = (100, 1_000, 10_000)
SIZE, WIDE = (120, 40), (160, 50)
PAINT, REPLAY = "paint", "replay"
ATTEMPTS = (1_000, 10_000, 100_000)
WORKERS = 300
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
REPLAYED, REPLAYED_WORKERS = 50, 1_000
"""The number of snapshots of a replay, and of the workers of each."""
STEPS = 6


async def painted(app: DstackApp, pilot: Pilot[Any]) -> None:
    """Wait until the first snapshot is on the screen."""
    while app.shown is None:
        await pilot.pause(0.01)
    await pilot.pause()


# Views


def paint(file: str) -> None:
    """Paint one screen; the function of a process."""

    async def body() -> None:
        app = DstackApp(Files(file, [load(file)]))
        async with app.run_test(size=SIZE) as pilot:
            await painted(app, pilot)

    asyncio.run(body())


async def views(snapshot: Snapshot, rounds: int) -> dict[str, list[float]]:
    """Seconds for every view when it is first shown, when it is shown again, and for another snapshot in it."""
    figures: dict[str, list[float]] = defaultdict(list)
    app = DstackApp(Files("benchmark", [snapshot]))
    async with app.run_test(size=SIZE) as pilot:
        await painted(app, pilot)
        for round_number in range(rounds + 1):
            for number, name in enumerate(VIEWS, 1):
                began = time.perf_counter()
                await pilot.press(str(number))
                await pilot.pause()
                word = "first shown" if round_number == 0 else "shown again"
                figures[f"{name}: {word}"].append(time.perf_counter() - began)
                another = NumberedSnapshot.of(round_number + 2, snapshot)
                began = time.perf_counter()
                app.show_snapshot(another)
                await pilot.pause()
                figures[f"{name}: another snapshot"].append(time.perf_counter() - began)
    return figures


def measure_views(rounds: int) -> Results:
    results = Results(
        f"The terminal UI, {SIZE[0]}x{SIZE[1]}, n = {rounds}", ("executions, and what", "median s", "min-max s")
    )
    for executions in EXECUTIONS:
        snapshot = with_many_stacks(executions)
        with tempfile.TemporaryDirectory() as folder:
            file = str(Path(folder) / "snapshot.json")
            save(snapshot, file)
            commands = {
                "first paint, whole process": ("benchmarks.bench_tui", PAINT, file),
                "dstack show, whole process": ("dstack", "show", file),
            }
            figures = in_turns(commands, rounds, lambda command: seconds_of(partial(run, *command)))
        figures |= asyncio.run(views(snapshot, rounds))
        for name, times in figures.items():
            results.add(f"{executions:,}: {name}", *times_s(times, 3))
    return results


def run(*words: str) -> bytes:
    """What a module prints in a process of its own."""
    return subprocess.run([sys.executable, "-m", *words], check=True, stdout=subprocess.PIPE).stdout


# Keys of the Timeline view


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


async def timeline_keys(attempts: int, rounds: int) -> dict[str, list[float]]:
    """The CPU times to open the view, and of each key."""
    figures: dict[str, list[float]] = defaultdict(list)
    app = DstackApp(Files("benchmark", [history_snapshot(attempts, WORKERS)]))
    async with app.run_test(size=WIDE) as pilot:
        await painted(app, pilot)
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


def measure_timeline(rounds: int) -> Results:
    """The Timeline view of histories of all sizes."""
    results = Results(
        f"Keys of the Timeline view, {WORKERS} workers, n = {rounds}, {WIDE[0]}x{WIDE[1]}",
        ("attempts", "what", "CPU ms, median", "min-max"),
    )
    for attempts in ATTEMPTS:
        for name, times in asyncio.run(timeline_keys(attempts, rounds)).items():
            results.add(f"{attempts:,}", name, *times_ms(times, 0))
    return results


# A replay


def save_several(directory: Path) -> None:
    """Save the snapshots of a replay."""
    first = with_many_stacks(REPLAYED_WORKERS)
    ids = [actor.actor_id for actor in first.actors]
    for number in range(REPLAYED):
        samples = (sample_of_stacks(ids, random.Random(number)),)
        taken_at = 1_700_000_000.0 + 60 * number
        save(replace(first, taken_at=taken_at, samples=samples), directory / f"dstack-{number:04}.json.gz")


async def until(pilot: Pilot[Any], condition: Callable[[], object], began: float) -> float:
    """Wait until a condition holds; the seconds since the beginning."""
    while not condition():
        await pilot.pause(0.01)
    await pilot.pause()
    return time.perf_counter() - began


async def replayed(directory: str) -> dict[str, float]:
    """Seconds of each part in one run, and MiB; in a process of its own, whose memory it is."""
    began = time.perf_counter()
    files = open_files([directory])
    figures = {"files listed": time.perf_counter() - began}
    app = DstackApp(Files(directory, files.snapshots))

    async def shown(snapshot: NumberedSnapshot, since: float) -> float:
        return await until(pilot, lambda: app.shown is snapshot, since)

    async with app.run_test(size=SIZE) as pilot:
        figures["first snapshot on the screen"] = await until(pilot, lambda: app.shown, began)
        key = time.perf_counter()
        await pilot.press("left_square_bracket")
        figures["first step, others being read"] = await shown(app.snapshots[-2], key)
        figures["all read"] = await until(pilot, lambda: all(one.summary for one in app.snapshots), began)
        middle = app.snapshots[len(app.snapshots) // 2]
        key = time.perf_counter()
        app.read_and_show(middle)
        figures["any other snapshot, read again"] = await shown(middle, key)
        await pilot.pause(1.0)  # the time of a reader, in which the next one is read
        steps = []
        for number in range(STEPS):
            key = time.perf_counter()
            await pilot.press("left_square_bracket")
            steps.append(await shown(app.snapshots[middle.number - 2 - number], key))
            await pilot.pause(1.0)
        figures["a step, one per second"] = median(steps)
        key = time.perf_counter()
        await pilot.press("6")
        figures["History view"] = await until(pilot, lambda: app.current_mode == "history", key)
    figures["peak RSS, MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return figures


def measure_replay(rounds: int) -> Results:
    figures: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        save_several(Path(folder))
        for _ in range(rounds):
            for name, figure in json.loads(run("benchmarks.bench_tui", REPLAY, folder)).items():
                figures[name].append(figure)
    results = Results(
        f"A replay of {REPLAYED} snapshots of {REPLAYED_WORKERS:,} workers, n = {rounds}", ("s", "median", "min-max")
    )
    for name, several in figures.items():
        digits = 0 if "MiB" in name else 3
        results.add(name, f"{median(several):.{digits}f}", spread(several, digits))
    return results


def main() -> None:
    match sys.argv[1:]:
        case ["paint", file]:
            paint(file)
        case ["replay", directory]:
            print(json.dumps(asyncio.run(replayed(directory))))
        case _:
            (rounds,) = arguments(5)
            for measure in (measure_views, measure_timeline, measure_replay):
                measure(rounds).show()


if __name__ == "__main__":
    main()
