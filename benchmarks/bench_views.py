"""What views of stacks and of tasks compute from large snapshots: no Ray, no processes, no terminal.

First merged stacks and their icicle: actors of a few classes wait and compute in stacks of 12 to 40 frames that branch
at many places. Each step is measured on the result of the one before.

Then the time of tasks of histories of 100,000 attempts: own times, an interval, its comparison, and the drawing of it.
Tasks are nested in 200 functions, or all submitted by one driver, or each submits the next one. The terminal UI
computes all of this in a thread. The last row of each is what a key costs on its screen after that.

    python -m benchmarks.bench_views [ROUNDS]
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.harness import Action, Results, arguments, seconds_of, times_ms
from benchmarks.made_up_snapshots import JOB, with_many_stacks
from dstack.analysis.diagnose import diagnose
from dstack.analysis.history.task_index import HistoryIndex
from dstack.analysis.history.task_time import TaskTime
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.stacks.app_threads import running
from dstack.analysis.stacks.icicle import Weights, icicle, weigh_by
from dstack.analysis.stacks.peers import absent_workers, outliers
from dstack.analysis.stacks.stack_tree import StackBranch, merge
from dstack.analysis.stacks.weighted_stacks import WeightedTree
from dstack.model.snapshot import Job, Sample, Snapshot, TaskAttempt, TaskHistory
from dstack.processes.gc_pause import collect_old_rarely

EXECUTIONS = (1_000, 10_000)
ATTEMPTS = 100_000
FUNCTIONS = 200
COLUMNS = 200
BEGAN_AT = 1_700_000_000.0
DRIVER = "driver"


def measure(results: Results, rounds: int, about: str, steps: dict[str, Action]) -> None:
    for name, action in steps.items():
        results.add(f"{about}: {name}", *times_ms([seconds_of(action) for _ in range(rounds)]))


# Merged stacks


def steps_of_merging(number: int) -> dict[str, Action]:
    """Every step by itself; trees are new, because they cache."""
    snapshot = with_many_stacks(number)
    index, vertices = SampleIndex(snapshot, snapshot.samples[0]), diagnose(snapshot).vertices
    executions = running(index, vertices).executions
    assert len(executions) == number
    root = merge(executions, by="kind")
    weights = Weights(root, weigh_by("executions"))
    return {
        "their paths": lambda: running(index, vertices),
        "merged by class, first two levels": lambda: merge(executions, by="kind").children,
        "outliers": lambda: outliers(executions),
        "absent workers": lambda: absent_workers(index, vertices, executions),
        "icicle of a new tree": lambda: draw(merge(executions, by="kind")),
        "icicle again, as when the terminal is resized": lambda: icicle([root], weights, COLUMNS),
    }


def draw(root: StackBranch) -> None:
    picture = icicle([root], Weights(root, weigh_by("executions")), COLUMNS)
    assert picture.weight == root.count


# The time of tasks


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


def steps_of_task_time(attempts: Iterator[TaskAttempt]) -> dict[str, Action]:
    history = history_of(attempts)
    time = TaskTime(history)
    assert time.stacks().weight == sum(time.stacks(half).weight for half in time.halves())
    tree = compare(time)
    return {
        "own times": lambda: TaskTime(history).whole,
        "stacks of all": time.stacks,
        "one half compared with the other": lambda: compare(time),
        "icicle again, as for a key": lambda: icicle([tree.root], tree.weights, COLUMNS),
    }


def main() -> None:
    (rounds,) = arguments(5)
    collect_old_rarely()  # as the terminal UI does
    columns = ("", "median ms", "min-max ms")
    merging = Results(f"Merged stacks, n = {rounds}", columns)
    for number in EXECUTIONS:
        measure(merging, rounds, f"{number:,} executions", steps_of_merging(number))
    merging.show()
    task_time = Results(f"The time of {ATTEMPTS:,} attempts, n = {rounds}", columns)
    for name, attempts in {"nested": nested(), "flat": flat(), "chained": chained()}.items():
        measure(task_time, rounds, name, steps_of_task_time(attempts))
    task_time.show()


if __name__ == "__main__":
    main()
