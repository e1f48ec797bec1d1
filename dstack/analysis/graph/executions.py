"""The vertices of running code: threads, coroutines, and tasks whose thread or coroutine is unknown."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dstack.analysis.graph import coroutines
from dstack.analysis.graph.backpressure import wait_of_producer
from dstack.analysis.graph.blocked_calls import has_known_dependency, reach_of
from dstack.analysis.graph.builder import GraphBuilder, SharedWaitKind, waits_for
from dstack.analysis.graph.child_processes import add_children
from dstack.analysis.graph.in_process_links import has_known_wakers
from dstack.analysis.graph.polls import wait_of_execution
from dstack.analysis.graph.refs.unread_refs import add_unread_driver, wait_of_unread
from dstack.analysis.index import subjects, task_assignment
from dstack.model.diagnosis import Target, Vertex, Wait
from dstack.model.vertex_facts import Reason, TaskName, assumption, reason, subject
from dstack.model.vertex_keys import TaskKey, ThreadKey
from dstack.observed.processes import Coroutine, Process, Thread

LOOP_THREAD, DEFAULT_GROUP = "AsyncIO Thread: ", "default"
"""Ray's name of the thread of each concurrency group's event loop; seen on Ray 2.46 and 2.60."""


def add_executions(graph: GraphBuilder, worker_id: str) -> None:
    """Add a worker's tasks, and its threads and coroutines that run user code, wait or are awaited."""
    process = graph.index.process(worker_id)
    suspended = coroutines.relevant_coroutines(graph.index, worker_id, process)
    if process:
        _add_threads(graph, worker_id, process, suspended)
    add_children(graph, worker_id)
    add_unread_driver(graph, worker_id)
    for coroutine in suspended:
        task_id = coroutine.task_id if task_assignment.is_task(graph.index, worker_id, coroutine) else None
        coroutines.add_coroutine(graph, worker_id, coroutine, wait_of_producer(graph, worker_id, coroutine, task_id))
    for task_id in graph.index.worker_samples[worker_id].running_task_ids or ():
        _add_running(graph, task_id)


def _add_threads(graph: GraphBuilder, worker_id: str, process: Process, suspended: Sequence[Coroutine]) -> None:
    index = graph.index
    awaited = {
        one
        for call in index.calls_in(worker_id)
        for one in (*call.threads, *call.cut_short_by_threads, *reach_of(call).reached_by)
    }
    awaited |= {loop.os_thread_id for one in suspended if (loop := task_assignment.blocked_loop(index, worker_id, one))}
    for thread in process.threads:
        is_execution = thread.role in ("task", "user") or task_assignment.task_of(index, worker_id, thread) is not None
        is_blocked = thread.role == "loop" and task_assignment.is_blocked_loop(index, worker_id, thread)
        call = index.call_of(worker_id, thread)
        is_awaited = thread.os_thread_id in awaited or (call is not None and has_known_dependency(call))
        is_awaited = is_awaited or has_known_wakers(call) or thread.timer is not None
        if is_execution or is_blocked or is_awaited:
            _add_thread(graph, worker_id, thread)


def _add_thread(graph: GraphBuilder, worker_id: str, thread: Thread) -> None:
    task_id = task_assignment.task_of(graph.index, worker_id, thread)
    key = ThreadKey(worker_id, thread.os_thread_id)
    wait = wait_of_execution(graph, key, thread) or wait_of_producer(graph, worker_id, thread, task_id)
    vertex = Vertex(
        key=key,
        kind="execution",
        subject=subjects.of_thread(graph.index, worker_id, thread, task_id),
        worker_id=worker_id,
        os_thread_id=thread.os_thread_id,
        task_id=task_id,
        wait=wait,
    )
    graph.add(vertex)


def _add_running(graph: GraphBuilder, task_id: str) -> None:
    """Add a vertex for a running task whose thread or coroutine is unknown."""
    key = task_assignment.key_of_task(graph.index, task_id)
    if not isinstance(key, TaskKey):
        return
    worker_id = graph.index.worker_of_task[task_id]
    task = graph.index.tasks.get(task_id)
    vertex = Vertex(
        key=key,
        kind="task",
        subject=subjects.of_task(graph.index, task_id),
        worker_id=worker_id,
        task_id=task_id,
        is_graph_loop=task is not None and task_assignment.is_graph_loop(task),
        wait=_wait_of_running(graph, worker_id, task_id),
    )
    graph.add(vertex)


def _wait_of_running(graph: GraphBuilder, worker_id: str, task_id: str) -> Wait | None:
    index = graph.index
    threads = index.threads_with_role(worker_id, "task")
    name = subjects.task(index, task_id)
    if index.threads_with_role(worker_id, "loop"):
        return _wait_for_loop(graph, worker_id, task_id, name)
    if not index.has_read_tasks(worker_id) and 1 < len(threads) >= len(
        index.worker_samples[worker_id].running_task_ids or ()
    ):
        return _on_one_of(graph, "thread", worker_id, threads, reason("any thread", len(threads)))
    if threads:
        thread = subject("unidentified thread", name)
        keys = (ThreadKey(worker_id, thread.os_thread_id) for thread in threads)
        return waits_for("thread", graph.unknown("stack", task_id, subject=thread, unobserved=True, at_most=keys))
    return wait_of_unread(graph, worker_id, name, task_id) if not index.threads(worker_id) else None


def _wait_for_loop(graph: GraphBuilder, worker_id: str, task_id: str, name: TaskName) -> Wait:
    """A call of an async actor whose coroutine was not read proceeds when its event loop does."""
    index = graph.index
    loops = index.threads_with_role(worker_id, "loop")
    if not all(task_assignment.is_blocked_loop(index, worker_id, loop) for loop in loops):
        if not index.has_read_coroutines(worker_id):
            unread = subject("coroutine", name)
            return waits_for("coroutine", graph.unknown("coroutine", task_id, subject=unread, unobserved=True))
        step = graph.unknown("step", task_id, subject=subject("step", name), unobserved=True)
        return _wait_for_loop_of_group(graph, worker_id, task_id, loops, waits_for("step", step))
    return _on_one_of(graph, "event loop", worker_id, loops, reason("any event loop", len(loops)))


def _wait_for_loop_of_group(
    graph: GraphBuilder, worker_id: str, task_id: str, loops: Sequence[Thread], otherwise: Wait
) -> Wait:
    """A call proceeds when the loop of its concurrency group does, by its method's declaration."""
    index = graph.index
    group = task_assignment.concurrency_group_of(index, task_id)
    own = [loop for loop in loops if loop.name == f"{LOOP_THREAD}{group or DEFAULT_GROUP}"]
    if group is None or len(own) != 1 or not task_assignment.is_blocked_loop(index, worker_id, own[0]):
        return otherwise
    wait = waits_for("event loop", Target(vertex=ThreadKey(worker_id, own[0].os_thread_id)))
    assumed = assumption("declared group", index.tasks[task_id].name, group)
    return replace(wait, assumed=(assumed,), proven_groups=otherwise.groups)


def _on_one_of(
    graph: GraphBuilder, kind: SharedWaitKind, worker_id: str, threads: Sequence[Thread], why: Reason
) -> Wait:
    keys = (ThreadKey(worker_id, thread.os_thread_id) for thread in threads)
    return graph.one_of(kind, lambda: (Target(vertex=key) for key in keys), why, worker_id)
