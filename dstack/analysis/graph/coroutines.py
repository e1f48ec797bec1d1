"""The coroutines of a worker that belong in the graph, and their waits."""

from __future__ import annotations

from msgspec.structs import replace

from dstack.analysis.graph.blocked_calls import has_known_dependency, reach_of, wait_of_call
from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.graph.polls import wait_of_execution
from dstack.analysis.index import subjects, task_assignment
from dstack.analysis.index.sample_index import SampleIndex
from dstack.call_sites import OTHER_LOOP
from dstack.libraries.serve.waits import as_passed_on
from dstack.model.diagnosis import Group, Target, Vertex, Wait
from dstack.model.vertex_keys import CoroutineKey, ThreadKey
from dstack.observed.calls import Call
from dstack.observed.processes import Coroutine, Process


def relevant_coroutines(index: SampleIndex, worker_id: str, process: Process | None) -> list[Coroutine]:
    """The coroutines of a process that are tasks, run user code, wait or are awaited; others serve a library.

    The process is that of a worker or driver, or one below it.
    """
    if process is None or not process.coroutines:
        return []
    calls = (index.call_of(worker_id, one) for one in process.executions())
    awaited = {
        one
        for call in calls
        if call
        for one in (*call.coroutines, *call.cut_short_by, *reach_of(call).reached_by_coroutines)
    }
    return [
        coroutine
        for coroutine in process.coroutines
        if coroutine.coroutine_id in awaited
        or task_assignment.is_task(index, worker_id, coroutine)
        or ((call := call_of(index, worker_id, coroutine)) and has_known_dependency(call))
        or task_assignment.is_user_code(index, worker_id, coroutine)
    ]


def call_of(index: SampleIndex, worker_id: str, coroutine: Coroutine) -> Call | None:
    """The call of a coroutine, None if it ran while it was read."""
    return index.call_of(worker_id, coroutine) if index.is_still(worker_id, coroutine) else None


def add_coroutine(
    graph: GraphBuilder,
    worker_id: str,
    coroutine: Coroutine,
    backpressure: Wait | None = None,
    child_pid: int | None = None,
) -> None:
    """Add the vertex of a coroutine, which may be in a child process; a generator may wait for its consumer."""
    is_task = task_assignment.is_task(graph.index, worker_id, coroutine)
    is_lost = child_pid is not None and coroutine.call is not None and coroutine.call.refs  # Ray works in no child
    key = CoroutineKey(worker_id, coroutine.coroutine_id)
    vertex = Vertex(
        key=key,
        kind="execution",
        subject=subjects.of_coroutine(graph.index, worker_id, coroutine),
        worker_id=worker_id,
        coroutine_id=coroutine.coroutine_id,
        child_pid=child_pid,
        task_id=coroutine.task_id if is_task else None,
        wait=None if is_lost else _wait(graph, key, coroutine, backpressure),
    )
    graph.add(vertex)


def _wait(graph: GraphBuilder, key: CoroutineKey, coroutine: Coroutine, backpressure: Wait | None) -> Wait | None:
    """The dependencies of its call, and its event loop's thread while that blocks the loop.

    Meanwhile no timeout ends the call.
    """
    loop = task_assignment.blocked_loop(graph.index, key.worker_id, coroutine)
    call = call_of(graph.index, key.worker_id, coroutine)
    if loop is None:
        wait = wait_of_execution(graph, key, coroutine) if graph.index.is_still(key.worker_id, coroutine) else None
        return backpressure or (_named(graph, key.worker_id, coroutine, wait) if wait else None)
    thread = Target(vertex=ThreadKey(key.worker_id, loop.os_thread_id))
    by_loop = Group(needs=1, targets=(thread,))
    if call is None or call.timeout_s is not None:
        return Wait(kind="event loop", groups=(by_loop,))
    wait = wait_of_call(graph, key, call, thread)
    proven_groups = tuple(dict.fromkeys((*wait.proven_groups, by_loop))) if wait.is_suspected else ()
    return replace(
        wait, groups=tuple(dict.fromkeys((*wait.groups, by_loop))), proven_groups=proven_groups, loop=thread.vertex
    )


def _named(graph: GraphBuilder, worker_id: str, coroutine: Coroutine, wait: Wait) -> Wait:
    """The wait with the kind of a wait for another event loop, or of code that passes a request on, if it is one."""
    call = graph.index.call_of(worker_id, coroutine)
    if call is not None and call.site == OTHER_LOOP.id:
        return replace(wait, kind="event loop", called=None)
    return as_passed_on(graph.index, worker_id, coroutine, wait)
