"""Whether an execution of one snapshot is in another of the same cluster: the same instance, not a similar one."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from dstack.analysis.index import task_assignment
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.diagnosis import Vertex
from dstack.model import Coroutine, Frame, Thread

Presence = Literal["there", "gone", "not known"]


class ComparedSnapshot:
    """One of the two snapshots, with the last observation of each process."""

    def __init__(self, analysed: AnalysedSnapshot) -> None:
        self.snapshot = analysed.snapshot
        self.findings = analysed.diagnosis.findings
        self.vertices = analysed.diagnosis.vertices
        self.first = analysed.first_index
        self.last = analysed.last_index
        self.began_at = self.first.began_at
        self.first_ended_at = self.snapshot.taken_at + self.first.sample.ended_s
        self.ended_at = self.snapshot.taken_at + self.last.sample.ended_s

    @cached_property
    def lists_all(self) -> bool:
        """Whether workers that are not listed have ended."""
        return all(failure.stage != "control plane" for failure in self.snapshot.failures)

    def read_at(self, vertex: Vertex) -> float:
        """When the last sample that shows a wait began, in Unix seconds."""
        return (self.last if vertex.is_confirmed else self.first).began_at

    def latest(self, worker_id: str) -> SampleIndex:
        """The last sample with a worker's threads."""
        return self.last if self.last.threads(worker_id) else self.first

    def execution(self, vertex: Vertex) -> Thread | Coroutine | None:
        """A thread or coroutine in the last sample that has it."""
        return self.latest(vertex.worker_id or "").execution_of(vertex)

    def frames(self, vertex: Vertex) -> tuple[Frame, ...] | None:
        """Its stack, leaf first."""
        execution = self.execution(vertex)
        return None if execution is None else self.snapshot.frames_of(execution)

    def task_of(self, vertex: Vertex) -> str | None:
        """The task that a thread or coroutine runs, if that is certain."""
        worker_id = vertex.worker_id or ""
        index, execution = self.latest(worker_id), self.execution(vertex)
        if isinstance(execution, Coroutine):
            return execution.task_id if execution.is_task else None
        return task_assignment.task_of(index, worker_id, execution) if execution else None

    def knows_task_of(self, vertex: Vertex) -> bool:
        """Whether a thread or coroutine that is not known to run a task runs none."""
        worker_id = vertex.worker_id or ""
        index = self.latest(worker_id)
        sample = index.worker_samples.get(worker_id)
        if sample is None or sample.running_task_ids is None:
            return False
        return not sample.running_task_ids or vertex.coroutine_id is not None or index.has_read_tasks(worker_id)

    def runs(self, worker_id: str) -> tuple[str, ...] | None:
        """The tasks that a worker reports as running in any sample; None if it never answered."""
        samples = (index.worker_samples.get(worker_id) for index in (self.first, self.last))
        answers = [one.running_task_ids for one in samples if one and one.running_task_ids is not None]
        return tuple(task_id for answer in answers for task_id in answer) if answers else None

    def attempt(self, task_id: str | None) -> int | None:
        """The attempt of a task, if its owner reported it."""
        task = self.last.tasks.get(task_id or "") or self.first.tasks.get(task_id or "")
        return task.attempt if task else None

    def state(self, vertex: Vertex) -> tuple[object, ...] | None:
        """The state of a pending vertex, to which it never returns within one attempt."""
        if vertex.placement_group_id is not None:
            group = self.last.placement_groups.get(vertex.placement_group_id) or self.first.placement_groups.get(
                vertex.placement_group_id
            )
            return (group.state, group.requested_at) if group else None
        task = self.last.tasks.get(vertex.task_id or "") or self.first.tasks.get(vertex.task_id or "")
        return (task.state, task.attempt, task.items) if task else None


def presence_of(vertex: Vertex, here: ComparedSnapshot, there: ComparedSnapshot) -> Presence:
    """Whether an execution of one snapshot is in the other."""
    worker_id = vertex.worker_id or ""
    if worker_id not in there.first.workers:
        return "gone" if there.lists_all and worker_id in here.first.workers else "not known"
    if vertex.kind == "task":
        return _fate_of_task(vertex, here, there)
    index = there.latest(worker_id)
    own, other = here.latest(worker_id).process(worker_id), index.process(worker_id)
    if own is None or other is None or not other.threads:
        return "not known"
    if own.started_at != other.started_at:
        return "gone"
    if vertex.coroutine_id is not None and not index.has_read_coroutines(worker_id):
        return "not known"
    mine, same = here.execution(vertex), there.execution(vertex)
    if mine is None:
        return "not known"
    if same is None or (isinstance(mine, Coroutine) and mine.name != same.name):
        return "gone"
    return _fate_by_task(vertex, here, there)


def _fate_of_task(vertex: Vertex, here: ComparedSnapshot, there: ComparedSnapshot) -> Presence:
    """The thread of such a running task is unknown, so it is unknown whether the task moved."""
    worker_id = vertex.worker_id or ""
    here_running, there_running = here.runs(worker_id), there.runs(worker_id)
    if here_running is None or there_running is None or vertex.task_id not in here_running:
        return "not known"
    is_there = vertex.task_id in there_running and _is_same_attempt(vertex.task_id, here, there)
    return "not known" if is_there else "gone"


def _fate_by_task(vertex: Vertex, here: ComparedSnapshot, there: ComparedSnapshot) -> Presence:
    """Compare the tasks of a thread or coroutine that is in both snapshots."""
    mine, other = here.task_of(vertex), there.task_of(vertex)
    if mine != other:
        is_certain = all(task or side.knows_task_of(vertex) for task, side in ((mine, here), (other, there)))
        return "gone" if is_certain else "not known"
    return "there" if _is_same_attempt(mine, here, there) else "gone"


def _is_same_attempt(task_id: str | None, here: ComparedSnapshot, there: ComparedSnapshot) -> bool:
    attempts = {here.attempt(task_id), there.attempt(task_id)} - {None}
    return len(attempts) < 2
