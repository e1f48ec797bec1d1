"""Which thread or coroutine runs a task, which thread runs a coroutine, and which concurrency group a call is in."""

from __future__ import annotations

from dstack.analysis.index.sample_index import SampleIndex
from dstack.call_sites import EVENT_LOOP, kind_of
from dstack.model.diagnosis import Vertex
from dstack.model.vertex_keys import CoroutineKey, TaskKey, ThreadKey
from dstack.observed.node import Task
from dstack.observed.processes import Coroutine, Thread

ANY_CODE = "__ray_call__"
"""The method of each actor in which Ray's libraries run their code, in a concurrency group of the caller's choice."""


def is_graph_loop(task: Task) -> bool:
    """Whether a task may be the loop of an actor in a compiled graph, or another call of the same method."""
    return task.name.endswith(f".{ANY_CODE}")


def task_of(index: SampleIndex, worker_id: str, thread: Thread) -> str | None:
    """The task that a thread runs, if that is certain."""
    return index.task_of_thread.get((worker_id, thread.os_thread_id))


def key_of_task(index: SampleIndex, task_id: str) -> CoroutineKey | ThreadKey | TaskKey:
    """The vertex of a task: the coroutine or thread that runs it if that is certain, else one for the task."""
    if suspended := index.coroutine_of_task.get(task_id):
        return CoroutineKey(*suspended)
    place = index.thread_of_task.get(task_id)
    return ThreadKey(*place) if place else TaskKey(task_id)


def is_task(index: SampleIndex, worker_id: str, coroutine: Coroutine) -> bool:
    """Whether a coroutine is a Ray task that its worker runs, not one that a task started."""
    place = index.coroutine_of_task.get(coroutine.task_id or "")
    return coroutine.is_task and place == (worker_id, coroutine.coroutine_id)


def is_user_code(index: SampleIndex, worker_id: str, execution: Thread | Coroutine) -> bool:
    """Whether a thread or coroutine runs user code."""
    return any(frame.origin == "user" for frame in index.frames_of(worker_id, execution))


def is_in_user_code(index: SampleIndex, vertex: Vertex) -> bool:
    """Whether the execution of a vertex was read, and runs user code."""
    execution = index.execution_of(vertex)
    return execution is not None and is_user_code(index, vertex.worker_id or "", execution)


def has_one_slot(index: SampleIndex, worker_id: str) -> bool:
    """Whether an actor runs its calls on the main thread of its process: then it has one slot.

    Threaded actors and actors with concurrency groups run calls on other threads, async actors in coroutines. Seen on
    Ray 2.46 and 2.60.
    """
    process = index.process(worker_id)
    threads = [thread.os_thread_id for thread in index.threads_with_role(worker_id, "task")]
    return process is not None and threads == [process.pid] and (worker_id, process.pid) in index.task_of_thread


def is_blocked_loop(index: SampleIndex, worker_id: str, thread: Thread) -> bool:
    """Whether an event loop's thread is in a blocking call or in user code, so that the loop cannot run coroutines.

    For a thread that Ray did not create for a loop only a call shows it: its user code may run the loop.
    """
    call = index.call_of(worker_id, thread)
    if call is None and index.poll_of(worker_id, thread) is not None:
        return True
    if call is not None:
        return kind_of(call) != "await" and call.site != EVENT_LOOP.id
    return thread.role == "loop" and is_user_code(index, worker_id, thread)


def blocked_loop(index: SampleIndex, worker_id: str, coroutine: Coroutine) -> Thread | None:
    """The thread that must run a coroutine, if it blocks its event loop."""
    thread = index.thread(worker_id, coroutine.os_thread_id)
    return thread if thread and is_blocked_loop(index, worker_id, thread) else None


def concurrency_group_of(index: SampleIndex, task_id: str) -> str | None:
    """The concurrency group of a call's method, empty for the default one; None if unknown.

    A call may have a name of its own, so only names of the form ``Class.method`` count as methods.
    """
    task = index.tasks.get(task_id)
    actor = index.actors.get((task and task.actor_id) or "")
    process = index.process((actor and actor.worker_id) or "")
    if task is None or actor is None or process is None or process.concurrency_groups is None:
        return None
    class_name, _, method = task.name.rpartition(".")
    if method == ANY_CODE:
        return None
    return process.concurrency_groups.get(method, "") if class_name == actor.class_name else None
