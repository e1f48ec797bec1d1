"""All attempts that a snapshot knows: those of its history, completed by the unfinished tasks of its samples.

Workers report task events once a second, and the GCS drops some. The owners of tasks know those that have not ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from dstack.analysis.history.call_nodes import DRIVER
from dstack.analysis.history.task_index import Attempt, HistoryIndex
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model import ACTOR_HANDLE, Task, TaskAttempt


def known_attempts(index: SampleIndex, history: HistoryIndex | None) -> Sequence[Attempt]:
    """Each attempt once, those of the history first; the others have no times. Drivers are no attempts."""
    missing = dict(index.tasks)
    attempts = history.attempts if history else ()
    found = list(_updated(attempts, index, missing))
    return [*found, *(_attempt(index, task) for task in missing.values())]


def _updated(attempts: Sequence[Attempt], index: SampleIndex, missing: dict[str, Task]) -> Iterator[Attempt]:
    """The attempts of the history, whose tasks are removed from ``missing``; some run that the GCS shows as pending."""
    for attempt in attempts:
        task = attempt.task
        if task.kind == "DRIVER_TASK":
            continue
        own = missing.get(task.task_id)
        if own is not None and own.attempt <= task.attempt:
            del missing[task.task_id]
        is_latest = own is not None and own.attempt == task.attempt
        if is_latest and attempt.state == "pending" and task.task_id in index.worker_of_task:
            yield replace(attempt, state="running")
        else:
            yield attempt


def _attempt(index: SampleIndex, task: Task) -> Attempt:
    """An attempt that only its owner knows."""
    return Attempt(
        task=TaskAttempt(
            task_id=task.task_id,
            name=task.name,
            kind=task.kind,
            job_id=task.job_id,
            attempt=task.attempt,
            actor_id=task.actor_id,
            parent_task_id=task.parent_task_id or _task_of_owner(index, task.owner_id),
            worker_id=index.worker_of_task.get(task.task_id),
            node_id=task.node_id,
        ),
        state="running" if task.task_id in index.worker_of_task else "pending",
    )


def _task_of_owner(index: SampleIndex, owner_id: str) -> str | None:
    """The task that represents a process as a caller, if it is a driver or an actor."""
    owner = index.workers.get(owner_id)
    if owner is None:
        return None
    if owner.actor_id:
        return ACTOR_HANDLE + owner.actor_id
    return DRIVER + owner.job_id if owner.is_driver and owner.job_id else None
