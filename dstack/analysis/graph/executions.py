"""The vertices of running code: threads, coroutines, and tasks whose thread or coroutine is unknown.

Streaming generators may be under backpressure: they wait until their consumer takes values. With
``_generator_backpressure_num_objects`` a producer blocks in C++ after each value until enough are consumed. Its task is
listed as running, its thread shows none of its code, and its owner has values of it. The number of consumed values is
unknown (seen on Ray 2.46 and 2.60). In an async actor its coroutine awaits an event there, and shows none of its code
either (Ray 2.60). Only the owner can consume values: a generator cannot be passed on.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dstack.analysis.graph.builder import GraphBuilder, SharedWaitKind, for_any, waits_for
from dstack.analysis.graph.call_waits import has_known_dependency, reach_of, wait_of_call
from dstack.analysis.graph.object_waits import has_known_wakers
from dstack.analysis.graph.producers import add_unread_driver, wait_of_unread
from dstack.analysis.index import subjects
from dstack.analysis.index.sample_index import (
    SampleIndex,
    blocked_loop,
    concurrency_group_of,
    has_one_slot,
    is_blocked_loop,
    is_graph_loop,
    is_task,
    is_user_code,
    key_of_task,
    task_of,
)
from dstack.analysis.index.shown_frames import is_ray_core, user_frame
from dstack.call_sites import ASYNC_EVENT, OTHER_LOOP, kind_of
from dstack.libraries.serve.waits import as_passed_on
from dstack.model.diagnosis import CallName, Group, Target, Vertex, Wait
from dstack.model.snapshot import is_at_hand
from dstack.model.vertex_facts import Never, Reason, Subject, TaskName, assumption, never, reason, subject
from dstack.model.vertex_keys import ChildThreadKey, CoroutineKey, Key, TaskKey, ThreadKey
from dstack.observed.calls import REF_CALLS, Call, LostOwner, Refs
from dstack.observed.node import Task
from dstack.observed.processes import Coroutine, Process, Thread

LOOP_THREAD, DEFAULT_GROUP = "AsyncIO Thread: ", "default"
"""Ray's name of the thread of each concurrency group's event loop; seen on Ray 2.46 and 2.60."""


BY_CALLS = "poll"
"""The id of the site of a poll by calls that succeed, which is no call site of its own."""


def add_executions(graph: GraphBuilder, worker_id: str) -> None:
    """Add a worker's tasks, and its threads and coroutines that run user code, wait or are awaited."""
    process = graph.index.process(worker_id)
    suspended = relevant_coroutines(graph.index, worker_id, process)
    if process:
        _add_threads(graph, worker_id, process, suspended)
    add_children(graph, worker_id)
    add_unread_driver(graph, worker_id)
    for coroutine in suspended:
        task_id = coroutine.task_id if is_task(graph.index, worker_id, coroutine) else None
        add_coroutine(graph, worker_id, coroutine, wait_of_producer(graph, worker_id, coroutine, task_id))
    for task_id in graph.index.worker_samples[worker_id].running_task_ids or ():
        _add_running(graph, task_id)


def _add_threads(graph: GraphBuilder, worker_id: str, process: Process, suspended: Sequence[Coroutine]) -> None:
    index = graph.index
    awaited = {
        one
        for call in index.calls_in(worker_id)
        for one in (*call.threads, *call.cut_short_by_threads, *reach_of(call).reached_by)
    }
    awaited |= {loop.os_thread_id for one in suspended if (loop := blocked_loop(index, worker_id, one))}
    for thread in process.threads:
        is_execution = thread.role in ("task", "user") or task_of(index, worker_id, thread) is not None
        is_blocked = thread.role == "loop" and is_blocked_loop(index, worker_id, thread)
        call = index.call_of(worker_id, thread)
        is_awaited = thread.os_thread_id in awaited or (call is not None and has_known_dependency(call))
        is_awaited = is_awaited or has_known_wakers(call) or thread.timer is not None
        if is_execution or is_blocked or is_awaited:
            _add_thread(graph, worker_id, thread)


def _add_thread(graph: GraphBuilder, worker_id: str, thread: Thread) -> None:
    task_id = task_of(graph.index, worker_id, thread)
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
    key = key_of_task(graph.index, task_id)
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
        is_graph_loop=task is not None and is_graph_loop(task),
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
    if not all(is_blocked_loop(index, worker_id, loop) for loop in loops):
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
    group = concurrency_group_of(index, task_id)
    own = [loop for loop in loops if loop.name == f"{LOOP_THREAD}{group or DEFAULT_GROUP}"]
    if group is None or len(own) != 1 or not is_blocked_loop(index, worker_id, own[0]):
        return otherwise
    wait = waits_for("event loop", Target(vertex=ThreadKey(worker_id, own[0].os_thread_id)))
    assumed = assumption("declared group", index.tasks[task_id].name, group)
    return replace(wait, assumed=(assumed,), proven_groups=otherwise.groups)


def _on_one_of(
    graph: GraphBuilder, kind: SharedWaitKind, worker_id: str, threads: Sequence[Thread], why: Reason
) -> Wait:
    keys = (ThreadKey(worker_id, thread.os_thread_id) for thread in threads)
    return graph.one_of(kind, lambda: (Target(vertex=key) for key in keys), why, worker_id)


def wait_of_execution(graph: GraphBuilder, key: ThreadKey | CoroutineKey, execution: Thread | Coroutine) -> Wait | None:
    """The wait of the call that an execution is blocked in, or of its poll."""
    poll = graph.index.poll_of(key.worker_id, execution)
    target = poll.target if poll is not None else graph.index.call_of(key.worker_id, execution)
    if target is None or isinstance(target, Call):
        return wait_of_call(graph, key, target) if target else None
    called = CallName(site=BY_CALLS, text=target.name)
    return waits_for("other", graph.unknown_waker_in(called, key.worker_id), timeout_s=0.0, called=called)


# Coroutines


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
        or is_task(index, worker_id, coroutine)
        or ((call := call_of(index, worker_id, coroutine)) and has_known_dependency(call))
        or is_user_code(index, worker_id, coroutine)
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
    is_ray_task = is_task(graph.index, worker_id, coroutine)
    is_lost = child_pid is not None and coroutine.call is not None and coroutine.call.refs  # Ray works in no child
    key = CoroutineKey(worker_id, coroutine.coroutine_id)
    vertex = Vertex(
        key=key,
        kind="execution",
        subject=subjects.of_coroutine(graph.index, worker_id, coroutine),
        worker_id=worker_id,
        coroutine_id=coroutine.coroutine_id,
        child_pid=child_pid,
        task_id=coroutine.task_id if is_ray_task else None,
        wait=None if is_lost else _wait_of_coroutine(graph, key, coroutine, backpressure),
    )
    graph.add(vertex)


def _wait_of_coroutine(
    graph: GraphBuilder, key: CoroutineKey, coroutine: Coroutine, backpressure: Wait | None
) -> Wait | None:
    """The dependencies of its call, and its event loop's thread while that blocks the loop.

    Meanwhile no timeout ends the call.
    """
    loop = blocked_loop(graph.index, key.worker_id, coroutine)
    call = call_of(graph.index, key.worker_id, coroutine)
    if loop is None:
        wait = wait_of_execution(graph, key, coroutine) if graph.index.is_still(key.worker_id, coroutine) else None
        return backpressure or (_named_wait(graph, key.worker_id, coroutine, wait) if wait else None)
    thread = Target(vertex=ThreadKey(key.worker_id, loop.os_thread_id))
    by_loop = Group(needs=1, targets=(thread,))
    if call is None or call.timeout_s is not None:
        return Wait(kind="event loop", groups=(by_loop,))
    wait = wait_of_call(graph, key, call, thread)
    proven_groups = tuple(dict.fromkeys((*wait.proven_groups, by_loop))) if wait.is_suspected else ()
    return replace(
        wait, groups=tuple(dict.fromkeys((*wait.groups, by_loop))), proven_groups=proven_groups, loop=thread.vertex
    )


def _named_wait(graph: GraphBuilder, worker_id: str, coroutine: Coroutine, wait: Wait) -> Wait:
    """The wait with the kind of a wait for another event loop, or of code that passes a request on, if it is one."""
    call = graph.index.call_of(worker_id, coroutine)
    if call is not None and call.site == OTHER_LOOP.id:
        return replace(wait, kind="event loop", called=None)
    return as_passed_on(graph.index, worker_id, coroutine, wait)


# Child processes


def add_children(graph: GraphBuilder, worker_id: str) -> None:
    """Add the main threads and coroutines of a worker's child processes, and the threads that wait or are awaited.

    Ray's connection does not survive a fork: a forked child has none of the threads that receive values. Values that it
    has not received before never arrive; values in shared memory from before the fork can still be read (Ray 2.60).
    """
    process = graph.index.process(worker_id)
    for child in process.children if process else ():
        awaited = {thread_id for call in child.calls() for thread_id in call.threads}
        for thread in child.threads:
            vertex = _thread_of_child(graph, worker_id, child, thread)
            if vertex.wait or vertex.never or thread is child.main_thread or thread.os_thread_id in awaited:
                graph.add(vertex)
        for coroutine in relevant_coroutines(graph.index, worker_id, child):
            add_coroutine(graph, worker_id, coroutine, child_pid=child.pid)


def _thread_of_child(graph: GraphBuilder, worker_id: str, child: Process, thread: Thread) -> Vertex:
    key = ChildThreadKey(worker_id, child.pid, thread.os_thread_id)
    never = _never_of_child(graph.index, worker_id, child, thread)
    wait = None if never else _wait_of_child(graph, key, child, thread)
    return Vertex(
        key=key,
        kind="execution",
        subject=_subject_of_child(child, thread),
        worker_id=worker_id,
        os_thread_id=thread.os_thread_id,
        child_pid=child.pid,
        wait=wait,
        never=never,
    )


def _subject_of_child(child: Process, thread: Thread) -> Subject:
    if thread is not child.main_thread:
        return subject("child thread", thread.name or thread.os_thread_id, child.pid)
    process = subject("child process", child.pid)
    return subject("exit", process, thread.exits_in) if thread.exits_in else process


def _wait_of_child(graph: GraphBuilder, key: ChildThreadKey, child: Process, thread: Thread) -> Wait | None:
    """The wait of a thread; None in calls to Ray, which works in no child, and for coroutines that were not read."""
    call = graph.index.call_of(key.worker_id, thread)
    if call is None or kind_of(call) in REF_CALLS or call.refs or (call.coroutines and not child.coroutines_read):
        return None
    return replace(wait_of_call(graph, key, call), loop=None)


def _never_of_child(index: SampleIndex, worker_id: str, child: Process, thread: Thread) -> Never | None:
    """Why a thread of a forked process can never get the values, or the lock, that it waits for."""
    call = thread.call
    if call is not None and thread.still and isinstance(call.need, LostOwner) and call.timeout_s is None:
        return _lost_lock(index, worker_id, child, call.need)
    if not (child.is_cut_off and thread.still) or call is None or not _is_for_missing(index, call):
        return None  # between fork and exec, a child's memory still shows its parent's threads, which do not run in it
    frame = user_frame(index.snapshot.frames_of(thread))
    place = (frame.file, frame.line) if frame else ("", None)
    return never("forked", CallName.of(call).text, *place)


def _lost_lock(index: SampleIndex, worker_id: str, child: Process, need: LostOwner) -> Never:
    """A lock was held when the child was forked, by a thread that exists only in its parent."""
    parent = index.process(worker_id) if child.parent_pid == index.pid_of(worker_id) else None
    owner = next((one for one in parent.threads if one.os_thread_id == need.owner), None) if parent else None
    frame = user_frame(index.snapshot.frames_of(owner)) if owner else None
    place = f"{frame.file.rpartition('/')[2]}:{frame.line}" if frame else ""
    return never("lost lock", owner.name if owner else "", place)


def _is_for_missing(index: SampleIndex, call: Call) -> bool:
    """Whether a call needs values that cannot be in shared memory."""
    if not isinstance(call.need, Refs) or call.timeout_s is not None:
        return False
    # a small value is in the memory of its owner's process, where an earlier fork cannot read it
    at_owner = {ref for ref in call.refs if any(map(is_at_hand, index.refs.reports_of.get(ref, ())))}
    missing = sum(not index.refs.has_value(ref) or ref in at_owner for ref in call.refs)
    needed = call.need.count or 1 if kind_of(call) == "ray.wait" else len(call.refs)
    return missing > len(call.refs) - needed


# Generators under backpressure


def wait_of_producer(
    graph: GraphBuilder, worker_id: str, execution: Thread | Coroutine, task_id: str | None
) -> Wait | None:
    """The wait of an execution for the consumer of its task, if that seems to be a generator under backpressure."""
    task = graph.index.tasks.get(task_id or "")
    if task is None or not task.items or task_id in graph.index.refs.awaited_tasks:
        return None
    if not graph.index.is_still(worker_id, execution) or not _is_outside(graph.index, worker_id, execution):
        return None
    return Wait(
        kind="backpressure",
        groups=for_any(*_consumers(graph, task)),
        inferred=reason("kept values", task.items),
    )


def _is_outside(index: SampleIndex, worker_id: str, execution: Thread | Coroutine) -> bool:
    """Whether it is where Ray stops a generator under backpressure, and in none of its own code."""
    frames = index.frames_of(worker_id, execution)
    if isinstance(execution, Thread):
        return all(frame.origin == "ray" for frame in frames)
    call = index.call_of(worker_id, execution)
    is_event = call is not None and call.site == ASYNC_EVENT.id
    return is_event and all(frame.origin == "stdlib" for frame in frames)


def _consumers(graph: GraphBuilder, task: Task) -> tuple[Target, ...]:
    """The executions of the owner's process if only they can consume a value there, else an unknown consumer."""
    index, owner_id = graph.index, task.owner_id
    owner = index.workers.get(owner_id)
    if owner is None or not index.threads(owner_id):
        consumer = subject("consumer", subjects.task(index, task.task_id), None)
        return (graph.unknown("consumer", task.task_id, subject=consumer, unobserved=True),)
    threads = [t for role in ("task", "user") for t in index.threads_with_role(owner_id, role)]
    is_closed = owner.is_driver or has_one_slot(index, owner_id)
    coroutines = relevant_coroutines(index, owner_id, index.process(owner_id))
    is_closed = is_closed and len(coroutines) == len(index.coroutines(owner_id))
    if not is_closed or any(_may_consume(index, owner_id, thread) for thread in index.threads(owner_id)):
        consumer = subject("consumer", subjects.task(index, task.task_id), subjects.place(index, owner))
        return (graph.unknown("consumer", task.task_id, subject=consumer, worker_id=owner_id),)
    keys: list[Key] = [ThreadKey(owner_id, thread.os_thread_id) for thread in threads]
    keys += [CoroutineKey(owner_id, coroutine.coroutine_id) for coroutine in coroutines]
    return tuple(Target(vertex=key) for key in keys)


def _may_consume(index: SampleIndex, worker_id: str, thread: Thread) -> bool:
    """Whether a thread without a vertex may consume values: that of an event loop, or of a library."""
    frames = index.frames_of(worker_id, thread)
    return thread.role not in ("task", "user") and bool(frames) and not is_ray_core(frames)
