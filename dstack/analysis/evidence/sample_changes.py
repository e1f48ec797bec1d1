"""The changes between the two samples: ended processes and tasks, values that arrived, waits that moved.

A wait whose dependency changed was transient. A change is claimed only if the second sample proves it: a process
that is no longer listed, a task that its worker no longer runs or its owner no longer lists, another stack or call. For
what the second sample could not read, the first sample still holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import zip_longest

from dstack.analysis.evidence.rest import has_run
from dstack.analysis.index.process_index import ExecutionKey, execution_key
from dstack.analysis.index.refs import is_returned
from dstack.analysis.index.sample_index import SampleIndex
from dstack.call_sites import kind_of, named_site
from dstack.model.diagnosis import Target, Vertex
from dstack.model.snapshot import Snapshot, actor_of_task, producer_task_id
from dstack.model.vertex_keys import Key, TaskKey
from dstack.observed.calls import Call, HeldRefs, KernelObjects, ProcessObject, Unreadable
from dstack.observed.processes import Coroutine, Thread


class SampleChanges:
    """The differences of two samples of one snapshot."""

    def __init__(self, first: SampleIndex, second: SampleIndex) -> None:
        self._first = first
        self._second = second
        self._left: dict[Key, bool] = {}

    # Processes

    @cached_property
    def ended_workers(self) -> frozenset[str]:
        """The workers that ended between the samples."""
        return ended_workers(self._first.snapshot)

    def is_new(self, worker_id: str) -> bool:
        """Whether a worker started after the first sample had begun."""
        return worker_id not in self._first.worker_samples and worker_id in self._second.worker_samples

    def _has_restarted(self, worker_id: str) -> bool:
        before, after = self._first.process(worker_id), self._second.process(worker_id)
        return before is not None and after is not None and before.started_at != after.started_at

    # Tasks

    def has_ended(self, vertex: Vertex) -> bool:
        """Whether the waiter has ended: its process, the task that it ran, or the process that submitted it."""
        worker_id = vertex.worker_id
        if worker_id is None:
            task = self._first.tasks.get(vertex.task_id or "")
            return isinstance(vertex.key, TaskKey) and task is not None and task.owner_id in self.ended_workers
        if worker_id in self.ended_workers or self._has_restarted(worker_id):
            return True
        sample = self._second.worker_samples.get(worker_id)
        if sample is None or sample.running_task_ids is None or vertex.kind not in ("execution", "task"):
            return False
        task_id = self._task_of(vertex)
        if task_id is None:
            return self._is_for_tasks(vertex) and sample.running_task_ids == ()
        return task_id not in sample.running_task_ids

    def _task_of(self, vertex: Vertex) -> str | None:
        """The task that the execution runs, also if its worker did not list the task."""
        if vertex.task_id is not None:
            return vertex.task_id
        execution = self._first.execution_of(vertex)
        if isinstance(execution, Coroutine):
            return execution.task_id if execution.is_task else None
        is_read = self._is_for_tasks(vertex) and self._first.has_read_tasks(vertex.worker_id or "")
        return execution.task_id if is_read and execution and self._may_run(vertex, execution.task_id) else None

    def _is_for_tasks(self, vertex: Vertex) -> bool:
        thread = self._first.thread(vertex.worker_id, vertex.os_thread_id)
        worker = self._first.workers.get(vertex.worker_id or "")
        return thread is not None and thread.role == "task" and worker is not None and not worker.is_driver

    def _may_run(self, vertex: Vertex, task_id: str | None) -> bool:
        """Whether the task's id names its worker's actor, or none: Ray invents ids for threads of user code."""
        worker = self._first.workers[vertex.worker_id or ""]
        return task_id is not None and actor_of_task(task_id) == worker.actor_id

    # Values

    @cached_property
    def given(self) -> frozenset[str]:
        """The refs that were awaited in the first sample and whose tasks have ended since, as their owners report.

        An owner lists all its unfinished tasks, and a ref exists before the wait for it.
        """
        again = {ref for call in self._readable_calls() for ref in call.refs}
        calls = ((call, worker_id) for worker_id in self._first.processes for call in self._first.calls_in(worker_id))
        pairs = (pair for call, worker_id in calls for pair in _owned(call, worker_id))
        return frozenset(ref for ref, owner in pairs if ref not in again and self._has_ended(ref, owner))

    def _readable_calls(self) -> Iterator[Call]:
        """The calls that the second sample shows without a doubt."""
        for worker_id, process in self._second.processes.items():
            for one in process.executions():
                if (call := self._second.call_of(worker_id, one)) and is_readable(self._second, worker_id, one):
                    yield call

    def _has_ended(self, ref: str, owner_id: str) -> bool:
        known = self._first.tasks.get(producer_task_id(ref))
        owner_id = owner_id or (known.owner_id if known else "")
        return is_returned(ref) and _denies(self._second, owner_id, producer_task_id(ref))

    def is_new_wait(self, vertex: Vertex) -> bool:
        """Whether a wait of the second sample began later: its owner did not list the awaited task in the first."""
        owners = dict(_owned(self._second.call_of_vertex(vertex), vertex.worker_id or ""))
        groups = vertex.wait.groups if vertex.wait else ()
        return any(all(self._is_new(target, owners) for target in group.targets) for group in groups if group.targets)

    def _is_new(self, target: Target, owners: Mapping[str, str]) -> bool:
        if target.ref is None or not is_returned(target.ref):
            return False
        task_id = producer_task_id(target.ref)
        known = self._second.tasks.get(task_id)
        return _denies(self._first, known.owner_id if known else owners.get(target.ref, ""), task_id)

    # Threads and coroutines

    def has_left(self, vertex: Vertex) -> bool:
        """Whether a thread or coroutine is in other code, or is missing in a sample that lists all."""
        if vertex.key not in self._left:
            self._left[vertex.key] = self._has_left(vertex)
        return self._left[vertex.key]

    def _has_left(self, vertex: Vertex) -> bool:
        before, after = self._first.execution_of(vertex), self._second.execution_of(vertex)
        if after is None:
            return self._reads(vertex)
        return before is not None and self._differ(vertex.worker_id or "", before, after)

    def _differ(self, worker_id: str, before: Thread | Coroutine, after: Thread | Coroutine) -> bool:
        """Whether an execution moved; unread parts do not differ."""
        if self._first.stack_of(worker_id, before) != self._second.stack_of(worker_id, after):
            return True
        if _identity(before) != _identity(after):
            return True
        if None not in (before.task_id, after.task_id) and before.task_id != after.task_id:
            return True
        calls = (self._first.call_of(worker_id, before), self._second.call_of(worker_id, after))
        if isinstance(before, Thread) and isinstance(after, Thread) and _was_woken(calls[1], before, after):
            return True
        return all(map(is_known, calls)) and not are_equal(*calls)

    def is_readable_again(self, vertex: Vertex) -> bool:
        """Whether the second sample has a readable thread or coroutine."""
        execution = self._second.execution_of(vertex)
        return execution is not None and is_readable(self._second, vertex.worker_id or "", execution)

    def _reads(self, vertex: Vertex) -> bool:
        worker_id = vertex.worker_id or ""
        is_coroutine = vertex.coroutine_id is not None
        return self._second.has_read_coroutines(worker_id) if is_coroutine else bool(self._second.threads(worker_id))

    def calls_of_first(self) -> Iterator[tuple[ExecutionKey, Call]]:
        """The calls that only the first sample could read, of executions that did not move until the second."""
        for worker_id, process in self._second.processes.items():
            first = self._first.process(worker_id)
            if first is None or first.started_at != process.started_at:
                continue
            for after in process.executions():
                if is_readable(self._second, worker_id, after) or is_known(self._second.call_of(worker_id, after)):
                    continue
                key = execution_key(worker_id, after)
                before = self._first.execution(key)
                call = self._first.call_of(worker_id, before) if before else None
                if before and call and is_known(call) and not self._differ(worker_id, before, after):
                    yield key, call

    # Vertices of the second sample alone

    def was_hidden(self, vertex: Vertex) -> bool:
        """Whether the first sample could not have shown a vertex that only the second one has."""
        worker_id = vertex.worker_id
        if vertex.kind == "execution" and worker_id is not None:
            if self.is_new(worker_id) or self._has_restarted(worker_id):
                return False
            if vertex.coroutine_id is not None:
                return not self._first.has_read_coroutines(worker_id)
            return not self._first.threads(worker_id)
        if not isinstance(vertex.key, TaskKey):
            return False
        task = self._second.tasks.get(vertex.task_id or "")
        reporter = worker_id or (task.owner_id if task else None)
        return reporter is not None and not self.is_new(reporter) and self._first.is_unresponsive(reporter)


def ended_workers(snapshot: Snapshot) -> frozenset[str]:
    """The workers of the first sample that ended before the second.

    The second sample has all workers that are listed then, except those that did not answer the first in time.
    """
    if len(snapshot.samples) < 2:
        return frozenset()
    before, after = ({worker.worker_id for worker in sample.workers} for sample in snapshot.samples[:2])
    not_asked = {f.worker_id for f in snapshot.failures if f.stage == "core worker" and f.cause == "timeout"}
    return frozenset(before - after - not_asked)


def new_workers(snapshot: Snapshot) -> frozenset[str]:
    """The workers that started after the first sample had begun."""
    if len(snapshot.samples) < 2:
        return frozenset()
    before, after = ({worker.worker_id for worker in sample.workers} for sample in snapshot.samples[:2])
    return frozenset(after - before)


def is_readable(index: SampleIndex, worker_id: str, execution: Thread | Coroutine) -> bool:
    """Whether an execution was stable while it was read, and its dependencies were read."""
    call = index.call_of(worker_id, execution)
    return index.is_still(worker_id, execution) and (call is None or is_known(call))


def is_known(call: Call | None) -> bool:
    """Whether the dependencies of a call were read."""
    return call is not None and not isinstance(call.need, (Unreadable, HeldRefs))


def are_equal(before: Call | None, after: Call | None) -> bool:
    """Whether two readings of a call are equal, apart from remaining times and what is at the other ends."""
    return before == after or (before is not None and after is not None and before.is_same_as(after))


def _was_woken(call: Call | None, before: Thread, after: Thread) -> bool:
    """Whether a thread has run between the samples, in a wait in which only what ends it wakes a thread."""
    if call is None or call.timeout_s is not None or not isinstance(call.need, KernelObjects | ProcessObject):
        return False
    return not named_site(call).polls and has_run(before, after)


def _identity(execution: Thread | Coroutine) -> tuple[object, ...]:
    """The values that distinguish a coroutine from a later one at the same address; a thread has its id."""
    if isinstance(execution, Coroutine):
        return execution.name, execution.task_id, execution.is_task, execution.os_thread_id
    return ()


def _denies(index: SampleIndex, owner_id: str, task_id: str) -> bool:
    """Whether a worker that lists all its unfinished tasks does not list this one, and nothing runs it."""
    owner = index.worker_samples.get(owner_id)
    if owner is None or owner.running_task_ids is None or owner_id in index.incomplete_workers:
        return False
    return task_id not in index.tasks and task_id not in index.worker_of_task


def _owned(call: Call | None, worker_id: str) -> Iterator[tuple[str, str]]:
    """The refs of a call with their owners, as far as known; only its owner can take from a generator."""
    if call is None:
        return
    owners = call.owners or (worker_id,) * (kind_of(call) == "generator")
    yield from zip_longest(call.refs, owners[: len(call.refs)], fillvalue="")
