"""The time of tasks of histories of 100,000 attempts: own times, an interval, its comparison, and the drawing of it.

Tasks are nested in 200 functions, or all submitted by one driver, or each submits the next one. The terminal UI
computes all of this in a thread. The last row of each is what a key costs on its screen after that.

    python -m benchmarks.bench_task_time [ROUNDS]
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table

from benchmarks.bench_merging import JOB, measure
from dstack.analysis.history.task_index import HistoryIndex
from dstack.analysis.history.task_time import TaskTime
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.stacks.icicle import icicle
from dstack.analysis.stacks.weighted_stacks import WeightedTree
from dstack.model.snapshot import Job, Sample, Snapshot, TaskAttempt, TaskHistory

ATTEMPTS = 100_000
FUNCTIONS = 200
COLUMNS = 200
BEGAN_AT = 1_700_000_000.0
DRIVER = "driver"


def attempt(number: int, caller: str, began_s: float, run_s: float) -> TaskAttempt:
    """One attempt that ran."""
    times = {"PENDING_ARGS_AVAIL": began_s, "RUNNING": began_s, "FINISHED": began_s + run_s}
    return TaskAttempt(
        task_id=f"{number:024x}{JOB}",
        name=f"function_{number % FUNCTIONS}",
        kind="NORMAL_TASK",
        job_id=JOB,
        parent_task_id=caller,
        states={state: BEGAN_AT + at for state, at in times.items()},
    )


def nested() -> Iterator[TaskAttempt]:
    """Each tenth task is submitted by the driver, the others by one of the ten before."""
    chance = random.Random(0)
    for number in range(ATTEMPTS):
        caller = f"{number - chance.randint(1, number % 10):024x}{JOB}" if number % 10 else DRIVER
        yield attempt(number, caller, number * 0.01, chance.random() * 2)


def flat() -> Iterator[TaskAttempt]:
    """All are submitted by the driver."""
    return (attempt(number, DRIVER, number * 0.01, 0.005) for number in range(ATTEMPTS))


def chained() -> Iterator[TaskAttempt]:
    """Each submits the next one and ends."""
    return (attempt(number, f"{number - 1:024x}{JOB}", number, 0.5) for number in range(ATTEMPTS))


def history_of(attempts: Iterator[TaskAttempt]) -> HistoryIndex:
    made = tuple(attempts)
    asked_at = max(one.states["FINISHED"] for one in made)
    snapshot = Snapshot(
        dstack_version="0",
        taken_at=asked_at,
        address="10.0.0.1:6379",
        ray_version="2.60.0",
        jobs=(Job(job_id=JOB, entrypoint="python train.py"),),
        samples=(Sample(began_s=0.0, ended_s=0.1),),
        history=TaskHistory(asked_at=asked_at, attempts=made),
    )
    assert snapshot.history
    index = HistoryIndex(SampleIndex(snapshot, snapshot.samples[0]), snapshot.history)
    assert len(index.attempts) == len(made)
    return index


def compare(time: TaskTime) -> WeightedTree:
    """The second half with the first one."""
    half = time.halves()[1]
    return WeightedTree(time.stacks(half), time.stacks(half.moved(-1)))


def measure_all(table: Table, rounds: int, name: str, attempts: Callable[[], Iterator[TaskAttempt]]) -> None:
    history = history_of(attempts())
    measure(table, rounds, f"{name}: own times", lambda: TaskTime(history).whole)
    time = TaskTime(history)
    whole = time.stacks().weight
    assert whole == sum(time.stacks(half).weight for half in time.halves())
    measure(table, rounds, f"{name}: stacks of all", time.stacks)
    measure(table, rounds, f"{name}: one half compared with the other", lambda: compare(time))
    tree = compare(time)
    measure(table, rounds, f"{name}: icicle again, as for a key", lambda: icicle([tree.root], tree.weights, COLUMNS))


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    table = Table(title=f"The time of {ATTEMPTS:,} attempts, n = {rounds}")
    for column in ("", "median ms", "min-max ms"):
        table.add_column(column, justify="left" if not column else "right")
    for attempts in (nested, flat, chained):
        measure_all(table, rounds, attempts.__name__, attempts)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
