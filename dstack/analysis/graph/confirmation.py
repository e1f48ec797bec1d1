"""Confirmation: which waits of the first sample the second one shows again, so that all held at one common instant.

ObjectRefs are written once. A ref that is pending in the second sample was pending throughout. A thread or coroutine in
the same call for the same refs has not left it. The second sample begins after the first has ended everywhere, so
all confirmed waits overlap: together they are a consistent cut of the cluster, without stopping anything.

A wait whose dependency changed in between was transient: its vertex counts as able to proceed. A deadlock that existed
when the first sample began loses no wait by that, since none of its waits or their dependencies changes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dstack.analysis.evidence.evidence import Evidence
from dstack.analysis.evidence.sample_changes import are_equal, is_known
from dstack.analysis.graph.builder import waits_for
from dstack.analysis.graph.group_waits import with_proven_calls
from dstack.analysis.graph.wait_graph import wait_for_graph
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.diagnosis import Target, Vertex, Wait
from dstack.model.vertex_keys import AnyKey, Key, TaskKey, UnknownKey
from dstack.observed.calls import HeldRefs
from dstack.observed.node import Task

Vertices = Mapping[Key, Vertex]


def confirmed_graph(evidence: Evidence) -> dict[Key, Vertex]:
    """The wait-for graph of the first sample, without the waits that the second sample disproves, if there is one."""
    before = wait_for_graph(evidence.first, evidence.nodes_settle_s)
    if not evidence.has_second_sample:
        return with_proven_calls(before)
    after = wait_for_graph(evidence.latest, evidence.nodes_settle_s)
    return with_proven_calls(_Confirmation(evidence, before, after).graph())


class _Confirmation:
    """The graph that both samples support.

    A confirmed wait comes from the second sample and is marked; a transient one is dropped. These stay unmarked: a wait
    that the second sample could not show, for its dependencies that are still pending; a wait with a timeout that moved
    while its dependency is still pending; and a wait that only the second sample could read.
    """

    def __init__(self, evidence: Evidence, before: Vertices, after: Vertices) -> None:
        self._first = evidence.first
        self._second = evidence.second
        self._changes = evidence.changes
        self._before = before
        self._after = after

    def graph(self) -> dict[Key, Vertex]:
        found = self._found_at_last()
        graph: dict[Key, Vertex] = {}
        for key, vertex in self._before.items():
            graph[key] = self._confirmed(vertex)
        for key, vertex in self._after.items():
            if key not in self._before:
                is_kept = isinstance(key, AnyKey) or self._changes.was_hidden(vertex)
                graph[key] = self._seen_once(vertex) if is_kept else _proceeding(vertex)
        for key, task in found.items():
            graph[key] = graph[key] if graph[key].wait else self._seen_once(self._after[key])
            graph[task] = _running_as(graph[task], key)
        for key, vertex in self._before.items():
            lost = TaskKey(vertex.task_id or "")
            if vertex.kind == "execution" and lost in self._after and lost not in self._before and graph[key].wait:
                graph[lost] = _running_as(graph[lost], key)  # only the first sample shows what runs it
        return graph

    def _found_at_last(self) -> dict[Key, Key]:
        """The executions of tasks for which the first sample had no execution, with the vertices of these tasks.

        The tasks were running, or their workers had not answered: the executions may have been there throughout.
        """
        unresolved = {
            vertex.task_id: key
            for key, vertex in self._before.items()
            if isinstance(key, TaskKey) and self._is_unobserved(vertex, self._before) and self._may_have_run(vertex)
        }
        executions = ((key, vertex) for key, vertex in self._after.items() if vertex.kind == "execution")
        return {key: unresolved[vertex.task_id] for key, vertex in executions if vertex.task_id in unresolved}

    def _may_have_run(self, vertex: Vertex) -> bool:
        if vertex.worker_id is not None:
            return not self._changes.has_ended(vertex)
        worker_id = self._second.worker_of_task.get(vertex.task_id or "")
        return worker_id in self._first.worker_samples and self._first.is_unresponsive(worker_id)

    def _confirmed(self, vertex: Vertex) -> Vertex:
        again = self._after.get(vertex.key)
        if vertex.wait is None and vertex.never is None:
            return self._without_wait(vertex, again)
        if self._changes.has_ended(vertex):
            return _proceeding(vertex)
        if not self._is_shown_again(vertex):
            return self._as_far_as_known(vertex, again)
        if again is not None and self._is_same(vertex, again):
            return msgspec.structs.replace(again, subject=vertex.subject, is_confirmed=True)
        if again is not None and self._is_read_at_last(vertex, again):
            return self._seen_once(again)
        return vertex if self._may_come_back(vertex) else _proceeding(vertex)

    def _without_wait(self, vertex: Vertex, again: Vertex | None) -> Vertex:
        """A vertex without a wait in the first sample, unless only the second could read its dependencies."""
        if again is None:
            return vertex
        if vertex.kind == "execution" and self._is_read_at_last(vertex, again):
            return self._seen_once(again)
        has_begun = again.task_id not in (None, vertex.task_id)
        return _proceeding(again) if has_begun else vertex

    def _seen_once(self, vertex: Vertex) -> Vertex:
        """A wait that only the second sample shows, though it may have existed in the first."""
        return _proceeding(vertex) if self._changes.is_new_wait(vertex) else vertex

    def _as_far_as_known(self, vertex: Vertex, again: Vertex | None) -> Vertex:
        """A wait that the second sample could not show, for its dependencies that are still pending then."""
        if vertex.kind != "execution" or again is None or again.wait is None:
            return vertex
        call = self._first.call_of_vertex(vertex)
        if call is not None and not is_known(call):
            return vertex  # its dependencies are not known, nor whether they arrived
        return _proceeding(vertex) if _is_over(again.wait) else msgspec.structs.replace(again, subject=vertex.subject)

    def _is_shown_again(self, vertex: Vertex) -> bool:
        """Whether the second sample could have shown the wait."""
        if vertex.kind == "execution":
            is_shown = self._changes.is_readable_again(vertex) or self._changes.has_left(vertex)
            return is_shown or (_is_for_held(self._first, vertex) and _is_for_held(self._second, vertex))
        if vertex.kind == "task" and vertex.task_id is not None:
            task = self._first.tasks.get(vertex.task_id)
            owner = self._second.worker_samples.get(task.owner_id) if task else None
            return task is None or (owner is not None and owner.running_task_ids is not None)
        return True

    def _is_read_at_last(self, vertex: Vertex, again: Vertex) -> bool:
        """Whether only the second sample shows its dependencies."""
        if vertex.kind == "execution":
            before, after = self._first.execution_of(vertex), self._second.execution_of(vertex)
            if before is None or after is None or self._changes.has_left(vertex):
                return False
            worker_id = vertex.worker_id or ""
            call = self._first.call_of(worker_id, before)
            was_unread = not is_known(call) if call else not self._first.is_still(worker_id, before)
            is_stable = self._second.is_still(worker_id, after)
            return was_unread and is_stable and is_known(self._second.call_of(worker_id, after))
        if again.wait is None or not self._is_unobserved(vertex, self._before):
            return False
        has_begun = vertex.worker_id is None and again.worker_id is not None
        may_have_run = not has_begun or self._first.is_unresponsive(again.worker_id or "")
        known = {target for target in _targets(vertex) if not self._before[target.vertex].unobserved}
        is_same = _instances(known, self._before) <= _instances(_targets(again), self._after)
        return may_have_run and self._has_not_moved(vertex) and is_same

    def _is_same(self, vertex: Vertex, again: Vertex) -> bool:
        """Whether two samples show one instance of a wait."""
        if (vertex.wait is None) != (again.wait is None) or (vertex.never is None) != (again.never is None):
            return False
        if vertex.wait and again.wait and vertex.wait.kind_name != again.wait.kind_name:
            return False
        if vertex.task_id != again.task_id and (
            vertex.kind != "execution" or None not in (vertex.task_id, again.task_id)
        ):
            return False  # of an execution, one sample may not know the task
        if not self._has_not_moved(vertex):
            return False
        if vertex.kind == "execution":
            is_for_the_same = not _is_for_held(self._second, vertex) or _targets(vertex) == _targets(again)
            return is_for_the_same and self._is_same_call(vertex)
        return self._depends_on_the_same(vertex, again)

    def _has_not_moved(self, vertex: Vertex) -> bool:
        """Whether the task of a wait made no progress between the samples."""
        before, after = self._first.tasks.get(vertex.task_id or ""), self._second.tasks.get(vertex.task_id or "")
        return before is None or after is None or _progress(before) == _progress(after)

    def _is_same_call(self, vertex: Vertex) -> bool:
        before, after = self._first.execution_of(vertex), self._second.execution_of(vertex)
        if before is None or after is None or self._changes.has_left(vertex):
            return False
        worker_id = vertex.worker_id or ""
        return are_equal(self._first.call_of(worker_id, before), self._second.call_of(worker_id, after))

    def _depends_on_the_same(self, vertex: Vertex, again: Vertex) -> bool:
        """Whether a pending vertex still has all its dependencies of the first sample.

        Without one of them it may be about to proceed, whatever its state says. A thread that runs another task is
        another dependency, except in a request for resources: the request remains while its holders change.
        """
        before, after = _targets(vertex), _targets(again)
        if vertex.wait and vertex.wait.resources and before <= after:
            return True
        return _instances(before, self._before) <= _instances(after, self._after)

    def _may_come_back(self, vertex: Vertex) -> bool:
        """Whether it waited with a timeout for dependencies that are still pending: it moves between its attempts."""
        if vertex.wait is None or not vertex.wait.is_timed or self._is_unobserved(vertex, self._before):
            return False
        targets = _targets(vertex)
        is_there = all(target.vertex in self._after for target in targets)
        return is_there and _instances(targets, self._before) == _instances(targets, self._after)

    @staticmethod
    def _is_unobserved(vertex: Vertex, graph: Vertices) -> bool:
        return any(graph[target.vertex].unobserved for target in _targets(vertex))


def _proceeding(vertex: Vertex) -> Vertex:
    return msgspec.structs.replace(vertex, wait=None, never=None)


def _running_as(task: Vertex, execution: Key) -> Vertex:
    """The vertex of a running task, which waits for the execution that runs it."""
    return msgspec.structs.replace(task, wait=waits_for("thread", Target(vertex=execution)), is_confirmed=False)


def _is_for_held(index: SampleIndex, vertex: Vertex) -> bool:
    """Whether the refs of its call are known only from the workers' states, not from the call."""
    call = index.call_of_vertex(vertex)
    return call is not None and isinstance(call.need, HeldRefs)


def _is_over(wait: Wait) -> bool:
    """Whether all dependencies are available."""
    return all(
        sum(isinstance(t.vertex, UnknownKey) and t.vertex.is_available_value for t in group.targets) >= group.needs
        for group in wait.groups
    )


def _progress(task: Task) -> tuple[str, int, int]:
    """The progress of a task, as its owner knows it."""
    return task.state, task.attempt, task.items


def _targets(vertex: Vertex) -> set[Target]:
    return {target for group in vertex.wait.groups for target in group.targets} if vertex.wait else set()


def _instances(targets: set[Target], graph: Vertices) -> set[str | Key]:
    """The awaited tasks, whatever they run on, and all other vertices by their keys."""
    return {graph[target.vertex].task_id or target.vertex for target in targets}
