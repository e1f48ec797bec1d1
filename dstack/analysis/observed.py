"""One sample of a snapshot, indexed for the questions that waits ask of it."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from dstack.model import (
    Actor,
    Job,
    Node,
    PlacementGroup,
    Process,
    Ref,
    Sample,
    Snapshot,
    Task,
    Thread,
    Worker,
    WorkerSample,
)

ENDED = ("FINISHED", "FAILED")
ACTOR_HANDLE = "f" * 16
"""Ray counts a handle of an actor as a ref; its id begins so, and no task makes it."""


class Observed:
    """What was seen in one sample. Everything is looked up, nothing is concluded but whether a value is there."""

    def __init__(self, snapshot: Snapshot, sample: Sample) -> None:
        self.snapshot = snapshot
        self.sample = sample

    @cached_property
    def seen(self) -> dict[str, WorkerSample]:
        """What each worker showed in this sample, by its id."""
        return {worker.worker_id: worker for worker in self.sample.workers}

    @cached_property
    def workers(self) -> dict[str, Worker]:
        """All workers by id."""
        return {worker.worker_id: worker for worker in self.snapshot.workers}

    @cached_property
    def actors(self) -> dict[str, Actor]:
        """All actors by id."""
        return {actor.actor_id: actor for actor in self.snapshot.actors}

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """All nodes by id."""
        return {node.node_id: node for node in self.snapshot.nodes}

    @cached_property
    def jobs(self) -> dict[str, Job]:
        """All jobs by id."""
        return {job.job_id: job for job in self.snapshot.jobs}

    @cached_property
    def tasks(self) -> dict[str, Task]:
        """Unfinished tasks by id, as their owners know them."""
        return {task.task_id: task for task in self.sample.tasks}

    @cached_property
    def groups(self) -> dict[str, PlacementGroup]:
        """Placement groups by id."""
        return {group.placement_group_id: group for group in self.sample.placement_groups}

    @cached_property
    def running_on(self) -> dict[str, str]:
        """The worker that runs a task, by task id."""
        return {task: w.worker_id for w in self.sample.workers for task in w.running_task_ids or ()}

    @cached_property
    def _refs(self) -> dict[str, list[Ref]]:
        by_ref: dict[str, list[Ref]] = defaultdict(list)
        for ref in self.sample.refs:
            by_ref[ref.ref].append(ref)
        return by_ref

    @cached_property
    def arguments_of_owner(self) -> dict[str, list[str]]:
        """By worker: refs that some task it submitted takes as an argument, and that are not known there to be given.

        A borrowed ref is among them also when its owner says that the value is there: the borrower may not have heard.
        """
        by_owner: dict[str, list[str]] = defaultdict(list)
        for ref in self.sample.refs:
            is_argument = ref.argument_uses and not ref.ref.startswith(ACTOR_HANDLE)
            is_borrowed = ref.state is None and ref.size_bytes < 0
            if is_argument and (is_borrowed or not self.is_given(ref.ref)):
                by_owner[ref.holder_id].append(ref.ref)
        return by_owner

    @cached_property
    def creations(self) -> dict[str, Task]:
        """By actor: its creation, while that is unfinished."""
        return {t.actor_id: t for t in self.sample.tasks if t.actor_id and t.kind == "ACTOR_CREATION_TASK"}

    @cached_property
    def calls_without_arguments(self) -> dict[tuple[str, str], list[Task]]:
        """By caller and actor: the calls of which an argument is not there yet."""
        calls: dict[tuple[str, str], list[Task]] = defaultdict(list)
        for task in self.sample.tasks:
            if task.actor_id and task.state == "PENDING_ARGS_AVAIL":
                calls[task.owner_id, task.actor_id].append(task)
        return calls

    def is_given(self, ref: str) -> bool:
        """Whether some process knows the ref's value, or an error in its place, to be there.

        A ref that the task's executor owns itself was made by ``ray.put`` and is known with its size at once.
        """
        return any(known.size_bytes >= 0 or known.state in ENDED for known in self._refs.get(ref, ()))

    def process(self, worker_id: str) -> Process | None:
        """A worker's process, if it was seen."""
        worker = self.seen.get(worker_id)
        return worker.process if worker else None

    def threads(self, worker_id: str) -> tuple[Thread, ...]:
        """A worker's threads, none if its process was not seen."""
        process = self.process(worker_id)
        return process.threads if process else ()


def thread_key(worker_id: str, os_thread_id: int) -> str:
    """The vertex of a thread."""
    return f"thread:{worker_id}/{os_thread_id}"


def task_key(task_id: str) -> str:
    """The vertex of a task that is not known to run on one certain thread."""
    return f"task:{task_id}"


def group_key(placement_group_id: str) -> str:
    """The vertex of a placement group."""
    return f"group:{placement_group_id}"


def any_key(kind: str, whose: str) -> str:
    """The vertex that stands for any one of many things that are waited for alike."""
    return f"any:{kind}/{whose}"


def is_any_key(key: str) -> bool:
    """Whether a vertex is nothing by itself, but stands for any one of many."""
    return key.startswith("any:")
