"""Merged stacks and their icicle of synthetic clusters: no Ray, no processes.

Actors of a few classes wait and compute in stacks of 12 to 40 frames that branch at many places.

    python -m benchmarks.bench_merging [ROUNDS]
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from statistics import median

from rich.console import Console
from rich.table import Table

from dstack.analysis.diagnose import diagnose
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.stacks.app_threads import running
from dstack.analysis.stacks.icicle import Weights, icicle, weigh_by
from dstack.analysis.stacks.peers import absent_workers, outliers
from dstack.analysis.stacks.stack_tree import StackBranch, merge
from dstack.model.snapshot import Actor, Job, Node, Sample, Snapshot, Worker, WorkerSample
from dstack.observed.calls import Call, ProcessObject
from dstack.observed.processes import Frame, Process, Thread
from dstack.processes.gc_pause import collect_old_rarely

JOB = "01000000"
CLASSES = 8
NODES = 100
STACKS = 400
COLUMNS = 200


def snapshot_of(executions: int) -> Snapshot:
    """A cluster of actors, each with one thread that runs a call; two of three wait."""
    chance = random.Random(0)
    frames = tuple(Frame(function=f"Layer{n % 97}.call_{n}", file=f"model/part{n % 13}.py", line=n) for n in range(900))
    stacks = tuple(stack_of(chance) for _ in range(STACKS))
    ids = [f"{number:024x}{JOB}" for number in range(executions)]
    return Snapshot(
        dstack_version="0",
        taken_at=0.0,
        address="10.0.0.1:6379",
        ray_version="2.60.0",
        nodes=tuple(Node(node_id=f"{n:056x}", ip=f"10.0.0.{n}") for n in range(NODES)),
        jobs=(Job(job_id=JOB, entrypoint="python train.py"),),
        actors=tuple(
            Actor(actor_id=id_, job_id=JOB, class_name=f"Part{n % CLASSES}", state="ALIVE", worker_id=f"{n:056x}")
            for n, id_ in enumerate(ids)
        ),
        workers=tuple(
            Worker(worker_id=f"{n:056x}", node_id=f"{n % NODES:056x}", ip="", port=n, pid=n + 1, actor_id=id_)
            for n, id_ in enumerate(ids)
        ),
        frames=frames,
        stacks=stacks,
        samples=(
            Sample(began_s=0.0, ended_s=0.5, workers=tuple(worker_of(n, id_, chance) for n, id_ in enumerate(ids))),
        ),
    )


def stack_of(chance: random.Random) -> tuple[int, ...]:
    """A stack, leaf first; the nearer to the root, the fewer different frames."""
    return tuple(chance.randrange(min(900, 1 + depth * depth)) for depth in reversed(range(chance.randint(12, 40))))


def worker_of(number: int, actor_id: str, chance: random.Random) -> WorkerSample:
    call = Call(site="threading.Condition.wait", frame=0, need=ProcessObject()) if number % 3 else None
    task_id = f"{number:016x}{actor_id}"
    stack = min(int(chance.expovariate(0.02)), STACKS - 1)
    thread = Thread(
        os_thread_id=number + 1, name="MainThread", stack=stack, role="task", on_cpu=not call, still=True, call=call
    )
    process = Process(pid=number + 1, started_at=1.0, threads=(thread,))
    return WorkerSample(worker_id=f"{number:056x}", running_task_ids=(task_id,), process=process)


def measure(table: Table, rounds: int, name: str, action: Callable[[], object]) -> None:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    table.add_row(name, f"{median(times) * 1000:,.1f}", f"{min(times) * 1000:,.1f}-{max(times) * 1000:,.1f}")


def measure_all(table: Table, rounds: int, executions: int) -> None:
    """Measure every step separately, each on the result of the previous one; trees are new, because they cache."""
    snapshot = snapshot_of(executions)
    index, vertices = SampleIndex(snapshot, snapshot.samples[0]), diagnose(snapshot).vertices
    executions_found = running(index, vertices).executions
    assert len(executions_found) == executions
    count = f"{executions:,} executions"
    measure(table, rounds, f"{count}: their paths", lambda: running(index, vertices))
    measure(
        table,
        rounds,
        f"{count}: merged by class, first two levels",
        lambda: merge(executions_found, by="kind").children,
    )
    measure(table, rounds, f"{count}: outliers", lambda: outliers(executions_found))
    measure(table, rounds, f"{count}: absent workers", lambda: absent_workers(index, vertices, executions_found))
    root = merge(executions_found, by="kind")
    weights = Weights(root, weigh_by("executions"))
    measure(table, rounds, f"{count}: icicle of a new tree", lambda: draw(merge(executions_found, by="kind")))
    measure(
        table,
        rounds,
        f"{count}: icicle again, as when the terminal is resized",
        lambda: icicle([root], weights, COLUMNS),
    )


def draw(root: StackBranch) -> None:
    picture = icicle([root], Weights(root, weigh_by("executions")), COLUMNS)
    assert picture.weight == root.count


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    collect_old_rarely()  # as the terminal UI does
    table = Table(title=f"Merged stacks, n = {rounds}")
    for column in ("", "median ms", "min-max ms"):
        table.add_column(column, justify="left" if not column else "right")
    for executions in (1_000, 10_000):
        measure_all(table, rounds, executions)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
