"""Hand-made histories: attempts with times relative to ``NOW``, and pipelines as the owner of their tasks sees them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dstack.analysis.history.task_index import Attempt, HistoryIndex
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.snapshot import Actor, Job, Node, Sample, Snapshot, TaskAttempt, TaskHistory, Worker
from dstack.observed.node import Ref, Task, TaskKind

NOW = 1.7e9
JOB, DRIVER = "01000000", "f" * 40 + "01000000"
HEAD, OTHER = Node(node_id="aa" * 28, ip="10.0.0.1"), Node(node_id="bb" * 28, ip="10.0.0.2")
ACTOR = "c" * 24 + JOB


def task_id(number: int) -> str:
    return f"{number:016x}" + "f" * 24 + JOB


def worker_id(number: int) -> str:
    return f"{number:056x}"


def driver_attempt() -> TaskAttempt:
    return TaskAttempt(task_id=DRIVER, name="", kind="DRIVER_TASK", job_id=JOB, states={"RUNNING": NOW})


def attempt(
    number: int,
    name: str,
    *,
    submitted: float | None = None,
    ready: float | None = None,
    sent: float | None = None,
    arrived: float | None = None,
    started: float | None = None,
    ended: float | None = None,
    failed: bool = False,
    worker: int | None = None,
    node: Node = HEAD,
    kind: TaskKind = "NORMAL_TASK",
    actor_id: str | None = None,
    parent: str = DRIVER,
    retry: int = 0,
) -> TaskAttempt:
    times = {
        "PENDING_ARGS_AVAIL": submitted,
        "PENDING_NODE_ASSIGNMENT": ready,
        "SUBMITTED_TO_WORKER": sent,
        "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY": arrived,
        "RUNNING": started,
        "FAILED" if failed else "FINISHED": ended,
    }
    return TaskAttempt(
        task_id=task_id(number),
        name=name,
        kind=kind,
        job_id=JOB,
        attempt=retry,
        parent_task_id=parent,
        actor_id=actor_id,
        worker_id=None if worker is None else worker_id(worker),
        node_id=None if worker is None else node.node_id,
        pid=worker,
        states={state: NOW + at for state, at in times.items() if at is not None},
        error="ValueError: no" if failed else "",
    )


def index(
    *attempts: TaskAttempt,
    asked: float = 100.0,
    nodes: tuple[Node, ...] = (HEAD, OTHER),
    actors: tuple[Actor, ...] = (),
    workers: tuple[Worker, ...] = (),
    tasks: tuple[Task, ...] = (),
    refs: tuple[Ref, ...] = (),
    dropped: int = 0,
) -> HistoryIndex:
    snapshot = Snapshot(
        dstack_version="0",
        taken_at=NOW + asked,
        address="10.0.0.1:1",
        ray_version="2.60.0",
        nodes=nodes,
        actors=actors,
        workers=workers,
        jobs=(Job(job_id=JOB, driver_ip=HEAD.ip, entrypoint="python train.py"),),
    )
    sample = Sample(began_s=0.0, ended_s=0.0, tasks=tasks, refs=refs)
    history = TaskHistory(asked_at=NOW + asked, attempts=attempts, dropped=dropped)
    return HistoryIndex(SampleIndex(snapshot, sample), history)


def pipeline(runs: Sequence[Sequence[tuple[float, float]]], *, late_s: float = 0.0001) -> list[TaskAttempt]:
    """Items through ``step_0``, ``step_1``, ...: for each item, when each step starts and ends.

    Everything is submitted at the beginning. Each step has a worker of its own.
    """
    made: list[TaskAttempt] = []
    for item, steps in enumerate(runs):
        ready = 0.0001
        for step, (started, ended) in enumerate(steps):
            number = 1 + item * len(steps) + step
            made.append(
                attempt(
                    number,
                    f"step_{step}",
                    submitted=0.0,
                    ready=ready,
                    sent=max(ready, started - 0.0001),
                    started=started,
                    ended=ended,
                    worker=step + 1,
                )
            )
            ready = ended + late_s
    return made


def named(attempts: Iterable[Attempt]) -> list[str]:
    return [one.task.name for one in attempts]
