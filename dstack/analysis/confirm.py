"""Which waits of the first sample stand again in the second, so that they all held at one common instant.

ObjectRefs are written once: a ref pending in the second sample was pending all the while, and a thread or coroutine in
the same call for the same refs has not left it. The second sample begins after the first has ended everywhere, so all
waits that stand in both overlap: together they are a consistent cut of the cluster, taken without stopping anything.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dstack.analysis.members import execution_of
from dstack.analysis.observed import Observed
from dstack.diagnosis import Target, Vertex
from dstack.model import Coroutine, Sample, Snapshot, Task, Thread, WorkerSample
from dstack.vertex_keys import Key


def confirm(
    first: Observed, before: Mapping[Key, Vertex], second: Observed, after: Mapping[Key, Vertex]
) -> dict[Key, Vertex]:
    """The graph of what is known to hold at that instant, and of what could not be looked at again.

    A wait that stands is taken from the second sample and marked so; one that moved is dropped, and its vertex counts
    as able to go on; one nobody could look at again is kept as it was, unmarked. So is one with a timeout that moved,
    while what it polls is still not there, and one that could only be read in the second.
    """
    confirmed: dict[Key, Vertex] = {}
    for key, vertex in before.items():
        again = after.get(key)
        if vertex.wait is None and vertex.never is None:
            begun = again is not None and again.task_id not in (None, vertex.task_id)
            confirmed[key] = msgspec.structs.replace(again, wait=None, never=None) if again and begun else vertex
        elif not _was_looked_at(vertex, first, second):
            confirmed[key] = vertex
        elif again is not None and _is_read_at_last(vertex, first, second):
            confirmed[key] = again
        elif again is not None and _is_same(vertex, again, first, second):
            confirmed[key] = msgspec.structs.replace(again, label=vertex.label, stands=True)
        elif not _may_come_back(vertex, after):
            confirmed[key] = msgspec.structs.replace(vertex, wait=None, never=None)
        else:
            confirmed[key] = vertex
    for key, vertex in after.items():
        if key not in before:
            confirmed[key] = msgspec.structs.replace(vertex, wait=None, never=None)
    return confirmed


def completed(first: Sample, second: Sample) -> Sample:
    """The second sample, with what the first saw of the processes and states it does not have."""
    before = {worker.worker_id: worker for worker in first.workers}
    looked_at = {worker.worker_id for worker in second.workers}
    answered = {worker.worker_id for worker in second.workers if worker.running_task_ids is not None}
    kept = (worker for worker in first.workers if worker.worker_id not in looked_at)
    return msgspec.structs.replace(
        second,
        workers=(*(_completed(before.get(worker.worker_id), worker) for worker in second.workers), *kept),
        tasks=(*second.tasks, *(task for task in first.tasks if task.owner_id not in answered)),
        refs=(*second.refs, *(ref for ref in first.refs if ref.holder_id not in answered)),
    )


def merged(snapshot: Snapshot) -> Sample:
    """The first sample, with what only the second has: workers that had just started, and what was unreadable."""
    if not snapshot.samples:
        return Sample(began_s=0.0, ended_s=0.0)
    first, *second = snapshot.samples
    return completed(second[0], first) if second else first


def _completed(before: WorkerSample | None, after: WorkerSample) -> WorkerSample:
    if before is None:
        return after
    return msgspec.structs.replace(
        after,
        process=after.process if after.process and after.process.threads else before.process,
        running_task_ids=before.running_task_ids if after.running_task_ids is None else after.running_task_ids,
        held=before.held if after.running_task_ids is None else after.held,
    )


def _may_come_back(vertex: Vertex, after: Mapping[Key, Vertex]) -> bool:
    """Whether it waited with a timeout for what is still not there: it moves between its looks at that."""
    return vertex.wait is not None and vertex.wait.is_timed and all(t.vertex in after for t in _targets(vertex))


def _was_looked_at(vertex: Vertex, first: Observed, second: Observed) -> bool:
    """Whether the second sample could have shown the wait."""
    if vertex.kind == "execution":
        execution = execution_of(second, vertex)
        if execution is None:
            return _was_read(vertex, second)
        if _is_for_held(execution):
            return True
        same_stack = execution.stack == getattr(execution_of(first, vertex), "stack", None)
        return execution.still or not same_stack
    if vertex.kind == "task" and vertex.task_id is not None:
        task = first.tasks.get(vertex.task_id)
        owner = second.seen.get(task.owner_id) if task else None
        return task is None or (owner is not None and owner.running_task_ids is not None)
    return True


def _is_read_at_last(vertex: Vertex, first: Observed, second: Observed) -> bool:
    """Whether only the second sample tells what it waits for: that was seen once."""
    before, after = execution_of(first, vertex), execution_of(second, vertex)
    if before is None or after is None or before.call is None or after.call is None:
        return False
    return before.call.unread is not None and after.call.unread is None


def _was_read(vertex: Vertex, second: Observed) -> bool:
    """Whether a thread or coroutine would have been seen if it were there."""
    worker_id = vertex.worker_id or ""
    return second.reads_coroutines(worker_id) if vertex.coroutine_id is not None else bool(second.threads(worker_id))


def _is_same(vertex: Vertex, again: Vertex, first: Observed, second: Observed) -> bool:
    """Whether two samples show one instance of a wait."""
    if (vertex.wait is None) != (again.wait is None) or (vertex.never is None) != (again.never is None):
        return False
    if vertex.wait and again.wait and vertex.wait.kind != again.wait.kind:
        return False
    if vertex.task_id != again.task_id:
        return False
    before, after = first.tasks.get(vertex.task_id or ""), second.tasks.get(vertex.task_id or "")
    if before and after and _progress(before) != _progress(after):
        return False
    if vertex.kind == "execution" and not _is_same_call(vertex, first, second):
        return False
    if vertex.kind == "execution":
        return _targets(vertex) == _targets(again) or not _is_for_held(execution_of(second, vertex))
    return _targets(vertex) <= _targets(again)


def _is_for_held(execution: Thread | Coroutine | None) -> bool:
    """Whether nothing of its call is known by the call itself: which refs those are, only the workers' states tell."""
    return execution is not None and execution.call is not None and execution.call.held


def _progress(task: Task) -> tuple[str, int, int]:
    """How far a task has come, by what its owner knows."""
    return task.state, task.attempt, task.items


def _targets(vertex: Vertex) -> set[Target]:
    """What something pending waits for. Without one of these it may be about to go on, whatever its state says."""
    return {target for group in vertex.wait.groups for target in group.targets} if vertex.wait else set()


def _is_same_call(vertex: Vertex, first: Observed, second: Observed) -> bool:
    worker_id = vertex.worker_id or ""
    old, new = first.process(worker_id), second.process(worker_id)
    was, now = execution_of(first, vertex), execution_of(second, vertex)
    if not (old and new and was and now and old.started_at == new.started_at):
        return False
    return was.stack == now.stack and was.call == now.call and _identity(was) == _identity(now)


def _identity(execution: Thread | Coroutine) -> tuple[object, ...]:
    """What tells a coroutine from a later one at the same address; a thread is known by its id alone."""
    if isinstance(execution, Coroutine):
        return execution.name, execution.task_id, execution.is_task, execution.os_thread_id, execution.still
    return ()
