"""Made-up histories of a pipeline: each item goes through the steps load, train and score, on many workers."""

from __future__ import annotations

import random
from heapq import heapify, heapreplace

from msgspec.structs import replace

from dstack.model.snapshot import Job, Node, Snapshot, TaskAttempt, TaskHistory, Worker
from tests.unit.scenes.scene import TAKEN_AT

JOB = "01000000"
FAILED_AT = 4
STEPS = ("load", "train", "score")
BEGAN_AT = TAKEN_AT - 3_600


def history_snapshot(attempts: int, workers: int, *, nodes: int = 4, seed: int = 0) -> Snapshot:
    """A cluster whose history has so many attempts; the last of each worker still runs, one of 50 has failed."""
    chance = random.Random(seed)
    all_workers = tuple(_worker(number, nodes) for number in range(workers))
    made = tuple(_attempts(attempts, all_workers, chance))
    return Snapshot(
        dstack_version="0.1.0",
        taken_at=TAKEN_AT,
        address="10.0.0.1:6379",
        ray_version="2.60.0",
        nodes=tuple(Node(node_id=f"{n:056x}", ip=f"10.0.0.{n + 1}") for n in range(nodes)),
        jobs=(Job(job_id=JOB, entrypoint="python pipeline.py", driver_ip="10.0.0.1"),),
        workers=all_workers,
        samples=(),
        history=TaskHistory(asked_at=TAKEN_AT, attempts=made, kept=len(made)),
    )


def with_history(snapshot: Snapshot, attempts: int = 12) -> Snapshot:
    """The same snapshot with a history, in which its own workers ran the pipeline."""
    made = tuple(_attempts(attempts, snapshot.workers, random.Random(0)))
    return replace(snapshot, history=TaskHistory(asked_at=TAKEN_AT, attempts=made, kept=attempts))


def _worker(number: int, nodes: int) -> Worker:
    node = number % nodes
    return Worker(
        worker_id=f"{number + 1:056x}", node_id=f"{node:056x}", ip=f"10.0.0.{node + 1}", port=1, pid=number + 100
    )


def _attempts(count: int, workers: tuple[Worker, ...], chance: random.Random) -> list[TaskAttempt]:
    """Attempts one after another on each worker; an item's next step is ready when the one before it has ended."""
    found: list[TaskAttempt] = []
    free_at = [(BEGAN_AT, number) for number in range(len(workers))]
    heapify(free_at)
    mean_s = 3_500 * len(workers) / max(1, count)
    ready_at = submitted_at = BEGAN_AT
    for number in range(count):
        step = number % len(STEPS)
        free, at = free_at[0]
        if step == 0:
            ready_at = submitted_at = max(BEGAN_AT, free - mean_s * chance.random())
        begins = max(free, ready_at) + 0.001
        ends = begins + mean_s * chance.uniform(0.3, 1.2)
        is_last = count - number <= len(workers)
        heapreplace(free_at, (ends, at))
        found.append(
            _attempt(number, STEPS[step], workers[at], (submitted_at, ready_at, begins, ends), is_last=is_last)
        )
        ready_at = ends
    return found


def _attempt(
    number: int, name: str, worker: Worker, times: tuple[float, float, float, float], *, is_last: bool
) -> TaskAttempt:
    submitted, ready, begins, ends = times
    has_failed = number % 50 == FAILED_AT and not is_last
    states = {
        "PENDING_ARGS_AVAIL": submitted,
        "PENDING_NODE_ASSIGNMENT": ready,
        "SUBMITTED_TO_WORKER": begins - 0.0005,
        "RUNNING": begins,
    }
    if not is_last:
        states["FAILED" if has_failed else "FINISHED"] = ends
    return TaskAttempt(
        task_id=f"{number:016x}{'f' * 24}{JOB}",
        name=name,
        kind="NORMAL_TASK",
        job_id=JOB,
        parent_task_id=f"{'f' * 40}{JOB}",
        worker_id=worker.worker_id,
        node_id=worker.node_id,
        pid=worker.pid,
        states=states,
        error_type="TASK_EXECUTION_EXCEPTION" if has_failed else "",
        error="ValueError: no such item" if has_failed else "",
    )
