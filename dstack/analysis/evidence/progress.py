"""The progress of a job while it was observed: tasks started, finished and submitted, and CPU time.

Polls and internal calls of Ray's libraries are no progress. Core workers count the tasks that they have executed, so a
task that began and ended between the samples counts too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dstack.analysis.evidence.sample_changes import ended_workers, new_workers
from dstack.analysis.index.ray_libraries import is_machinery_actor
from dstack.model.diagnosis import Progress
from dstack.model.snapshot import Sample, Snapshot, WorkerSample, job_of_task
from dstack.observed.node import Task


class JobProgress:
    """The progress of jobs from the first sample to the second."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.routine = RoutineCalls(snapshot)
        self._snapshot = snapshot
        self._job_of = {worker.worker_id: worker.job_id for worker in snapshot.workers}
        self._started_or_ended = ended_workers(snapshot) | new_workers(snapshot)
        self._known: dict[tuple[str, ...], Progress] = {}

    def of(self, jobs: tuple[str, ...]) -> Progress | None:
        """What moved in these jobs, as far as workers answered in both samples; None without a second sample."""
        if len(self._snapshot.samples) < 2:
            return None
        if jobs not in self._known:
            self._known[jobs] = self._between(self._snapshot.samples[0], self._snapshot.samples[1], jobs)
        return self._known[jobs]

    def _between(self, first: Sample, last: Sample, jobs: Collection[str]) -> Progress:
        before = {one.worker_id: one for one in self._workers_of(first, jobs)}
        after = list(self._workers_of(last, jobs))
        pairs = [(before[one.worker_id], one) for one in after if one.worker_id in before]
        ran, runs = self._running(first, last, jobs), self._running(last, first, jobs)
        executed = sum(_executed(*pair) for pair in pairs if not self.routine.are_all(pair[1]))
        new = (one for one in after if one.worker_id in self._started_or_ended)
        executed += sum(one.executed_tasks or 0 for one in new if not self.routine.are_all(one))
        return Progress(
            watched_s=round(max(0.0, last.ended_s - first.began_s), 3),
            started=max(len(runs - ran), executed - len(ran - runs)),
            finished=max(len(ran - runs), executed),
            submitted=len(self._owned(last, first, jobs) - self._owned(first, last, jobs)),
            cpu_s=_cpu_s(pairs),
            **self._by_events(first, jobs),
        )

    def _by_events(self, first: Sample, jobs: Collection[str]) -> dict[str, float]:
        """How long before the first sample the last task of the jobs ended, and how many end each second.

        The clocks of the hosts have to agree.
        """
        window = self._snapshot.task_event_window
        if window is None or not self._snapshot.has_one_time:
            return {}
        recent = [found for job, found in window.recent.items() if job in jobs and found.over_s]
        rate = {"per_s": round(sum(one.tasks / one.over_s for one in recent), 3)} if recent else {}
        ends = [ended_at for job, ended_at in window.last_ended_at.items() if job in jobs]
        if not ends:
            return rate
        idle_s = round(max(0.0, self._snapshot.taken_at + first.began_s - max(ends)), 1)
        return {**rate, "idle_s": idle_s, "last_ended_at": max(ends)}

    def _workers_of(self, sample: Sample, jobs: Collection[str]) -> Iterator[WorkerSample]:
        return (one for one in sample.workers if self._job_of.get(one.worker_id) in jobs)

    def _running(self, sample: Sample, other: Sample, jobs: Collection[str]) -> set[str]:
        """The tasks of the jobs that run, on workers that answered in both samples, or are only in this one."""
        answered = self._answered(sample, other)
        ids = {task for one in sample.workers if one.worker_id in answered for task in one.running_task_ids or ()}
        polls = {task.task_id for s in (sample, other) for task in s.tasks if self.routine.is_one(task)}
        return {task_id for task_id in ids - polls if job_of_task(task_id) in jobs}

    def _owned(self, sample: Sample, other: Sample, jobs: Collection[str]) -> set[str]:
        answered = self._answered(sample, other)
        own = (task for task in sample.tasks if task.owner_id in answered and task.job_id in jobs)
        return {task.task_id for task in own if not self.routine.is_one(task)}

    def _answered(self, sample: Sample, other: Sample) -> set[str]:
        return _answered(sample) & (_answered(other) | self._started_or_ended)


class RoutineCalls:
    """The calls that are no progress: polls that succeed at once, and internal calls of Ray's libraries."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._actor_of = {worker.worker_id: worker.actor_id for worker in snapshot.workers}
        self._polled = {(call.actor_id, call.name) for call in snapshot.repeated_calls}
        self._actors = {call.actor_id for call in snapshot.repeated_calls}
        self._actors |= {actor.actor_id for actor in snapshot.actors if is_machinery_actor(actor)}

    def is_one(self, task: Task) -> bool:
        """Whether a task is such a call."""
        return (task.actor_id, task.name) in self._polled or task.actor_id in self._actors

    def are_all(self, worker: WorkerSample) -> bool:
        """Whether the tasks that a worker ends are such calls."""
        return self._actor_of.get(worker.worker_id) in self._actors


def _answered(sample: Sample) -> set[str]:
    return {worker.worker_id for worker in sample.workers if worker.running_task_ids is not None}


def _executed(before: WorkerSample, after: WorkerSample) -> int:
    if before.executed_tasks is None or after.executed_tasks is None:
        return 0
    return max(0, after.executed_tasks - before.executed_tasks)


def _cpu_s(pairs: Collection[tuple[WorkerSample, WorkerSample]]) -> float | None:
    """CPU time of the processes in both samples; None without any."""
    used = list(_used(pairs))
    return round(sum(used), 2) if used else None


def _used(pairs: Collection[tuple[WorkerSample, WorkerSample]]) -> Iterator[float]:
    for before, after in pairs:
        if before.process and after.process and before.process.started_at == after.process.started_at:
            yield max(0.0, after.process.cpu_s - before.process.cpu_s)
