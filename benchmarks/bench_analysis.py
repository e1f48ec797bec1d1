"""Analysis alone, on synthetic clusters: no Ray, no processes.

First the reduction with its cores and a shortest cycle, on random graphs of and, or and k-of-n waits that contain a
cycle; then whole diagnoses of snapshots in which every worker waits, five in a cycle and all others in open chains.

    python -m benchmarks.bench_analysis [ROUNDS]
"""

from __future__ import annotations

import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median

from benchmarks.tables import Results
from dstack.analysis.diagnose import diagnose
from dstack.analysis.solve import reduction
from dstack.model.snapshot import Actor, Job, Node, Sample, Snapshot, Worker, WorkerSample
from dstack.observed.calls import Call, Refs
from dstack.observed.node import Task
from dstack.observed.processes import Frame, Process, Thread

WAITS = ((10_000, 80_000), (100_000, 1_000_000), (1_000_000, 8_000_000))
WORKERS = (100, 1_000, 10_000)
MANY = 100_000
"""Larger sizes are measured once."""
RING = 5
JOB = "01000000"
Waits = dict[int, list[tuple[int, list[int]]]]


def graph_of(vertices: int, edges: int) -> Waits:
    """Random waits of one to three groups; the first few vertices are a cycle, and a tenth waits for nothing."""
    chance = random.Random(0)
    each = edges // vertices
    waits: Waits = {vertex: [(1, [(vertex + 1) % RING])] for vertex in range(RING)}
    for vertex in range(RING, vertices):
        targets = [chance.randrange(vertices + vertices // 10) for _ in range(each)]
        cut = chance.randrange(1, each)
        waits[vertex] = [(1, targets[:cut]), (chance.randint(1, each - cut), targets[cut:])]
    return waits


def reduce(waits: Waits) -> None:
    stuck = reduction.residue(waits)
    graph = reduction.stuck_graph(waits, stuck)
    cores = reduction.cores(waits, graph)
    cycle = reduction.shortest_cycle(reduction.stuck_graph({key: waits[key] for key in cores[-1]}, cores[-1]))
    assert len(cycle) <= RING


def snapshot_of(workers: int) -> Snapshot:
    """Actors that wait in ``ray.get`` for a call that runs on another: five in a cycle, the others along chains."""
    ids = [f"{number:024x}{JOB}" for number in range(workers)]
    tasks = [f"{number:016x}{ids[number]}" for number in range(workers)]
    samples = tuple(sample_of(tasks, began_s) for began_s in (0.0, 1.0))
    return Snapshot(
        dstack_version="0",
        taken_at=0.0,
        address="10.0.0.1:6379",
        ray_version="2.60.0",
        nodes=(Node(node_id="0" * 56, ip="10.0.0.1"),),
        jobs=(Job(job_id=JOB, entrypoint="python train.py"),),
        actors=tuple(
            Actor(actor_id=id_, job_id=JOB, class_name="Member", state="ALIVE", worker_id=f"{number:056x}")
            for number, id_ in enumerate(ids)
        ),
        workers=tuple(
            Worker(worker_id=f"{n:056x}", node_id="0" * 56, ip="10.0.0.1", port=n, pid=n + 1, actor_id=ids[n])
            for n in range(workers)
        ),
        frames=(
            Frame(function="Worker.get_objects", file="/site-packages/ray/_private/worker.py", line=1, origin="ray"),
            Frame(function="Member.run", file="train.py", line=2),
        ),
        stacks=((0, 1), (1,)),
        sources={"train.py": {2: "    return ray.get(ref)"}},
        samples=samples,
    )


def sample_of(tasks: list[str], began_s: float) -> Sample:
    return Sample(
        began_s=began_s,
        ended_s=began_s + 0.5,
        workers=tuple(worker_of(number, tasks) for number in range(len(tasks))),
        tasks=tuple(
            Task(
                task_id=task,
                owner_id=f"{owner_of(number, len(tasks)):056x}",
                name="Member.run",
                kind="ACTOR_TASK",
                state="SUBMITTED_TO_WORKER",
                job_id=JOB,
                actor_id=task[16:],
            )
            for number, task in enumerate(tasks)
        ),
    )


def owner_of(number: int, workers: int) -> int:
    return (number - 1) % RING if number < RING else min(number + 1, workers - 1)


def worker_of(number: int, tasks: list[str]) -> WorkerSample:
    """Members of the cycle wait for the next one, others for the previous one; every hundredth waits for nothing."""
    waits_for = (number + 1) % RING if number < RING else number - 1
    is_end = number >= RING and number % 100 == RING
    call = None if is_end else Call(site="ray.get", frame=0, need=Refs(refs=(f"{tasks[waits_for]}01000000",)))
    thread = Thread(os_thread_id=number + 1, name="MainThread", stack=int(is_end), role="task", still=True, call=call)
    process = Process(pid=number + 1, started_at=1.0, threads=(thread,))
    return WorkerSample(worker_id=f"{number:056x}", running_task_ids=(tasks[number],), process=process)


def explain(snapshot: Snapshot) -> None:
    diagnosis = diagnose(snapshot)
    assert diagnosis.verdict == "deadlock"
    assert diagnosis.findings[0].confirmed
    assert len(diagnosis.findings[0].cycle) == RING


def measure(action: Callable[[], None], rounds: int) -> tuple[list[float], float]:
    """The durations of the runs in s, and the peak memory of one more run in MiB."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    tracemalloc.start()
    action()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return times, peak / 2**20


def growth(
    title: str, actions: Iterable[tuple[int, str, Callable[[], None]]], rounds: int
) -> tuple[dict[int, float], Results]:
    """The median times in s by size, and a table."""
    results = Results(title, ("", "n", "median s", "min-max s", "peak MiB"))
    medians = {}
    for size, name, action in actions:
        times, peak_mib = measure(action, rounds if size <= MANY else 1)
        medians[size] = median(times)
        results.add(
            name, str(len(times)), f"{median(times):.3f}", f"{min(times):.3f}-{max(times):.3f}", f"{peak_mib:.0f}"
        )
    return medians, results


def reducing(rounds: int) -> tuple[dict[int, float], Results]:
    """Median times of reductions by number of waits, and a table."""
    actions = (
        (waits, f"{waits:,} waits, {edges:,} edges", partial(reduce, graph_of(waits, edges))) for waits, edges in WAITS
    )
    return growth("Reducing random graphs of waits, with cores and a shortest cycle", actions, rounds)


def diagnosing(rounds: int) -> tuple[dict[int, float], Results]:
    """Median times of diagnoses by number of workers, and a table."""
    actions = ((workers, f"{workers:,} workers", partial(explain, snapshot_of(workers))) for workers in WORKERS)
    return growth("Diagnosing whole snapshots in which every worker waits", actions, rounds)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for measured in (reducing, diagnosing):
        _, results = measured(rounds)
        results.show()


if __name__ == "__main__":
    main()
