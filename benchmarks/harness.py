"""What benchmarks share: arguments, ways that run in turns, tables, and the effects on processes that are read."""

from __future__ import annotations

import json
import resource
import select
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TypeVar

from rich.console import Console
from rich.table import Table

Action = Callable[[], object]
PYSPY = str(Path(sys.executable).with_name("py-spy"))
TICK_S = 0.001
PENDING = ("SigPnd", "ShdPnd")
Way = TypeVar("Way")
Figures = TypeVar("Figures")


# What is run


def arguments(*defaults: int) -> list[int]:
    """The numbers on the command line, and the defaults of those that are missing."""
    given = [int(word) for word in sys.argv[1:]]
    return [*given, *defaults[len(given) :]]


def in_turns(ways: Mapping[str, Way], rounds: int, measure: Callable[[Way], Figures]) -> dict[str, list[Figures]]:
    """The figures of each way; every round measures all ways once."""
    figures: dict[str, list[Figures]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            figures[name].append(measure(way))
    return figures


def repeat(action: Action, duration_s: float) -> int:
    """Repeat an action for that time, at least once, and count."""
    end, count = time.perf_counter() + duration_s, 0
    while not count or time.perf_counter() < end:
        action()
        count += 1
    return count


def py_spy(pid: int, *options: str) -> None:
    """Dump one process with py-spy."""
    subprocess.run([PYSPY, "dump", "--pid", str(pid), *options], capture_output=True, check=True)


@contextmanager
def target_process(module: str, *words: object, pass_fds: Collection[int] = ()) -> Iterator[subprocess.Popen[str]]:
    """A module of benchmarks as a process that prints "ready", to be read until it is killed; it gets these words."""
    command = [sys.executable, "-m", f"benchmarks.{module}", "target", *map(str, words)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=pass_fds
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


# What it costs


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall time, and CPU time of this process and of its reaped children."""

    wall_s: float
    cpu_s: float


def children_cpu_s() -> float:
    """The CPU time so far of the reaped children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def cost_of(action: Action) -> Cost:
    """The cost of one run."""
    began, before = time.perf_counter(), time.process_time() + children_cpu_s()
    action()
    return Cost(time.perf_counter() - began, time.process_time() + children_cpu_s() - before)


def seconds_of(action: Action) -> float:
    """The duration of one run."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


# How it is shown


@dataclass
class Results:
    """A table whose first column has the names of the rows."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """Append a row."""
        assert len(cells) == len(self.columns)
        self.rows.append(cells)

    def show(self) -> None:
        """Print the table."""
        table = Table(*self.columns, title=self.title)
        for column in table.columns[1:]:
            column.justify = "right"
        for row in self.rows:
            table.add_row(*row)
        Console(width=130).print(table, *self.notes, sep="\n")

    def markdown(self) -> str:
        """The table as a section of a document."""
        lines = [self.columns, ("---", *("---:" for _ in self.columns[1:])), *self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n\n".join([f"## {self.title}", table, *self.notes]) + "\n"


def in_ms(seconds: Iterable[float], digits: int = 1) -> str:
    """The median in ms."""
    return f"{median(seconds) * 1000:,.{digits}f}"


def spread(values: Collection[float], digits: int = 2) -> str:
    """The minimum and the maximum."""
    return f"{min(values):,.{digits}f}-{max(values):,.{digits}f}"


def times_s(seconds: Collection[float], digits: int = 2) -> tuple[str, str]:
    """The cells for the median and the spread, in s."""
    return f"{median(seconds):.{digits}f}", spread(seconds, digits)


def times_ms(seconds: Collection[float], digits: int = 1) -> tuple[str, str]:
    """The cells for the median and the spread, in ms."""
    return in_ms(seconds, digits), spread([1000 * one for one in seconds], digits)


# What it does to the processes that are read


def longest_gap_ms(duration_s: float) -> float:
    """The longest time within ``duration_s`` that this thread did not run, beyond its sleeps of 1 ms."""
    longest, before = 0.0, time.perf_counter()
    end = before + duration_s
    while before < end:
        time.sleep(TICK_S)
        now = time.perf_counter()
        longest = max(longest, now - before - TICK_S)
        before = now
    return longest * 1000


def disturbed(pids: Collection[int], action: Action) -> set[int]:
    """The processes that were stopped or traced, or had a signal pending, during the action.

    Another process polls them without a pause. A dump with a pause takes some ms and is found; a signal is certainly
    found only in a process that blocks all signals.
    """
    with target_process("harness", *pids) as watcher:
        action()
        found, _ = watcher.communicate()
    return set(json.loads(found))


def watch(pids: Iterable[int]) -> None:
    """Poll the processes until the standard input ends, and print the disturbed ones as JSON."""
    files = {pid: Path(f"/proc/{pid}/status") for pid in pids}
    found: set[int] = set()
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        found.update(pid for pid, file in files.items() if is_disturbed(file.read_text()))
    print(json.dumps(sorted(found)))


def is_disturbed(status: str) -> bool:
    """Whether ``/proc/PID/status`` is of a stopped or traced process, or has a pending signal."""
    lines = dict(line.split(":", 1) for line in status.splitlines())
    has_signal = any(int(lines[name], 16) for name in PENDING)
    return has_signal or lines["State"].strip()[0] in "tT" or lines["TracerPid"].strip() != "0"


if __name__ == "__main__":
    watch(map(int, sys.argv[2:]))
