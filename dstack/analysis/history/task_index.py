"""The attempts of tasks of one snapshot, with times by one clock, and their callers.

Most are known from the history; others only from the samples, without times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from dstack.analysis.history.call_nodes import DRIVER
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.snapshot import ACTOR_HANDLE, TaskAttempt, TaskHistory
from dstack.observed.node import Task
from dstack.words import grouped

State = Literal["pending", "running", "finished", "failed"]


class Attempt(Struct, frozen=True, gc=False):
    """One attempt with its times by the clock of dstack's host, in Unix seconds; None if unknown or not yet reached.

    In this order: its caller submitted it; its arguments were available; it was sent to a worker; it arrived in the
    queue of its actor; it began to run; it ended. It is a struct, as there may be 100,000 of them. Clocks of hosts that
    disagree are aligned by what is known of their difference at least, so a time may be off by the rest.
    """

    task: TaskAttempt
    state: State
    submitted_at: float | None = None
    ready_at: float | None = None
    sent_at: float | None = None
    arrived_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None

    @property
    def times(self) -> list[float]:
        """Its times that are known, in the order of its states; those of Ray always have one."""
        times = (self.submitted_at, self.ready_at, self.sent_at, self.arrived_at, self.started_at, self.ended_at)
        return [time for time in times if time is not None]

    @property
    def began_at(self) -> float:
        """The first of its times."""
        return self.times[0]


class HistoryIndex:
    """The history of a snapshot, by task, caller and worker; attempts are in the order of their submission."""

    def __init__(self, index: SampleIndex, history: TaskHistory) -> None:
        self.index = index
        self.history = history

    @property
    def asked_at(self) -> float:
        """When the history was requested: the end of what is known of tasks that have not ended."""
        return self.history.asked_at

    @cached_property
    def attempts(self) -> Sequence[Attempt]:
        """All attempts, oldest first; those without a time, as in a malformed file, are left out."""
        return sorted(
            (one for one in map(self._attempt, self.history.attempts) if one.times), key=attrgetter("began_at")
        )

    @cached_property
    def latest(self) -> Mapping[str, Attempt]:
        """The latest attempt of each task, by its id."""
        found: dict[str, Attempt] = {}
        for attempt in self.attempts:
            known = found.get(attempt.task.task_id)
            if known is None or known.task.attempt <= attempt.task.attempt:
                found[attempt.task.task_id] = attempt
        return found

    def caller(self, attempt: Attempt) -> Attempt | None:
        """The latest attempt of the task that submitted this one; None if the GCS does not keep it."""
        return self.latest.get(attempt.task.parent_task_id or "")

    def callees(self, attempt: Attempt) -> Sequence[Attempt]:
        """The attempts of the tasks that an attempt's task submitted, oldest first."""
        return self._by_caller.get(attempt.task.task_id, ())

    @cached_property
    def _by_caller(self) -> Mapping[str, Sequence[Attempt]]:
        return grouped((attempt.task.parent_task_id or "", attempt) for attempt in self.attempts)

    # Clocks

    def _attempt(self, task: TaskAttempt) -> Attempt:
        states = task.states
        callers, own = self.ahead_s(self._caller_node(task)), self.ahead_s(self._own_node(task))
        started = states.get("RUNNING")
        arrived = states.get("PENDING_ACTOR_TASK_ARGS_FETCH", states.get("PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY"))
        ended = states.get("FINISHED", states.get("FAILED"))
        is_driver = task.kind == "DRIVER_TASK"
        return Attempt(
            task=task,
            state=_state(states),
            submitted_at=_aligned(states.get("PENDING_ARGS_AVAIL"), callers),
            ready_at=_aligned(states.get("PENDING_NODE_ASSIGNMENT"), callers),
            sent_at=_aligned(states.get("SUBMITTED_TO_WORKER"), callers),
            arrived_at=_aligned(arrived, own),
            started_at=_aligned(started, self.ahead_s(self._driver_nodes.get(task.job_id)) if is_driver else own),
            ended_at=_aligned(ended, callers),
        )

    def _own_node(self, task: TaskAttempt) -> str | None:
        """The node that it ran on; the GCS does not give it for the creation of an actor."""
        actor = self.index.actors.get(task.actor_id or "")
        return task.node_id or (actor.node_id if actor else None)

    def _caller_node(self, task: TaskAttempt) -> str | None:
        """The node of the process that submitted it: that of its parent task, else of the driver."""
        return self._nodes.get(task.parent_task_id or "") or self._driver_nodes.get(task.job_id)

    @cached_property
    def _nodes(self) -> dict[str, str | None]:
        return {task.task_id: task.node_id for task in self.history.attempts}

    @cached_property
    def _driver_nodes(self) -> dict[str, str]:
        by_ip = {node.ip: node.node_id for node in self.index.snapshot.nodes}
        jobs = self.index.snapshot.jobs
        return {job.job_id: by_ip[job.driver_ip] for job in jobs if job.driver_ip in by_ip}

    @cached_property
    def _clocks(self) -> dict[str, float]:
        return {node.node_id: node.clock_ahead_s or 0.0 for node in self.index.snapshot.nodes}

    def ahead_s(self, node_id: str | None) -> float:
        """How far the clock of a node is ahead of that of dstack's host, as far as it is known."""
        return self._clocks.get(node_id or "", 0.0)

    # Bounds

    @cached_property
    def began_at(self) -> float:
        """The first time in the history; that of the request if it is empty."""
        return min((attempt.began_at for attempt in self.attempts), default=self.asked_at)

    @cached_property
    def ended_at(self) -> float:
        """The last time in the history."""
        ends = (attempt.ended_at or attempt.began_at for attempt in self.attempts)
        return max(chain(ends, (self.asked_at,)))


def _aligned(time: float | None, ahead_s: float) -> float | None:
    return None if time is None else time - ahead_s


def _state(states: Mapping[str, float]) -> State:
    if "FAILED" in states:
        return "failed"
    if "FINISHED" in states:
        return "finished"
    return "running" if "RUNNING" in states else "pending"


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
