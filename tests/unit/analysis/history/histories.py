"""Small histories of tasks, made by hand; times are seconds after BEGAN_AT."""

from __future__ import annotations

from collections.abc import Iterable

from dstack.analysis.history.task_index import HistoryIndex
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.snapshot import Job, Node, Sample, Snapshot, TaskAttempt, TaskHistory
from dstack.observed.node import TaskKind

BEGAN_AT = 1_700_000_000.0
JOB = "01000000"


def attempt(
    task_id: str,
    began_s: float | None,
    ended_s: float | None,
    *,
    name: str = "",
    by: str | None = None,
    kind: TaskKind = "NORMAL_TASK",
    number: int = 0,
    failed: bool = False,
    node_id: str = "n1",
) -> TaskAttempt:
    """An attempt that ran from ``began_s`` to ``ended_s``; None before it has begun or ended."""
    states = {"PENDING_ARGS_AVAIL": BEGAN_AT + (began_s or 0 if number else 0)}
    if began_s is not None:
        states["RUNNING"] = BEGAN_AT + began_s
    if ended_s is not None:
        states["FAILED" if failed else "FINISHED"] = BEGAN_AT + ended_s
    return TaskAttempt(
        task_id=task_id,
        name=name or task_id,
        kind=kind,
        job_id=JOB,
        attempt=number,
        parent_task_id=by,
        node_id=node_id,
        states=states,
    )


def snapshot_with(attempts: Iterable[TaskAttempt], asked_s: float) -> Snapshot:
    """A snapshot with nothing but this history."""
    return Snapshot(
        dstack_version="0",
        taken_at=BEGAN_AT + asked_s,
        address="10.0.0.1:6379",
        ray_version="2.60.0",
        nodes=tuple(Node(node_id=f"n{number}", ip=f"10.0.0.{number}", is_head=number == 1) for number in (1, 2)),
        jobs=(Job(job_id=JOB, driver_ip="10.0.0.1", driver_pid=7, entrypoint="python train.py"),),
        samples=(Sample(began_s=0.0, ended_s=0.1),),
        history=TaskHistory(asked_at=BEGAN_AT + asked_s, attempts=tuple(attempts)),
    )


def history_of(attempts: Iterable[TaskAttempt], asked_s: float = 100.0) -> HistoryIndex:
    """The index of a snapshot's history."""
    snapshot = snapshot_with(attempts, asked_s)
    assert snapshot.history
    return HistoryIndex(SampleIndex(snapshot, snapshot.samples[0]), snapshot.history)
