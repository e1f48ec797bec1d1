"""Which thread or coroutine runs which task, and which thread runs a coroutine, as far as one sample shows."""

from __future__ import annotations

from dstack.analysis.index.sample_index import SampleIndex
from dstack.model import Coroutine, Thread
from dstack.vertex_keys import CoroutineKey, TaskKey, ThreadKey

IDLE_LOOP = "asyncio event loop"
"""What probes call the wait of an event loop for whatever comes, on threads that Ray did not make for one."""


ANY_CODE = "__ray_call__"
"""The method of every actor in which Ray's libraries run their code, in the concurrency group that each call names."""


def task_of(index: SampleIndex, worker_id: str, thread: Thread) -> str | None:
    """The task a thread runs, where that is certain."""
    return index.task_of_thread.get((worker_id, thread.os_thread_id))


def key_of_task(index: SampleIndex, task_id: str) -> CoroutineKey | ThreadKey | TaskKey:
    """The vertex of a task: the coroutine or thread that runs it where that is certain, else one for the task."""
    if suspended := index.coroutine_of_task.get(task_id):
        return CoroutineKey(*suspended)
    place = index.thread_of_task.get(task_id)
    return ThreadKey(*place) if place else TaskKey(task_id)


def is_task(index: SampleIndex, worker_id: str, coroutine: Coroutine) -> bool:
    """Whether a coroutine is a Ray task that its worker runs, and not something that one began besides."""
    place = index.coroutine_of_task.get(coroutine.task_id or "")
    return coroutine.is_task and place == (worker_id, coroutine.coroutine_id)


def is_user_code(index: SampleIndex, execution: Thread | Coroutine) -> bool:
    """Whether a thread or coroutine is in the user's own code."""
    return any(frame.origin == "user" for frame in index.snapshot.frames_of(execution))


def has_one_slot(index: SampleIndex, worker_id: str) -> bool:
    """Whether an actor is seen to run its calls on its process's main thread, which only those with one slot do.

    Threaded actors and those with concurrency groups run theirs on other threads, async ones in coroutines. Seen on
    Ray 2.46 and 2.60.
    """
    process = index.process(worker_id)
    threads = [thread.os_thread_id for thread in index.threads_with_role(worker_id, "task")]
    return process is not None and threads == [process.pid] and (worker_id, process.pid) in index.task_of_thread


def is_blocked_loop(index: SampleIndex, thread: Thread) -> bool:
    """Whether an event loop's thread is inside a call that does not give the loop back, or in somebody's code.

    Of a thread that Ray did not make for a loop, only a call tells: its code may be what runs the loop.
    """
    if thread.call is not None:
        return thread.call.kind != "await" and thread.call.what != IDLE_LOOP
    return thread.role == "loop" and is_user_code(index, thread)


def blocked_loop(index: SampleIndex, worker_id: str, coroutine: Coroutine) -> Thread | None:
    """The thread that would have to run a coroutine, while it keeps the event loop to itself."""
    thread = index.thread(worker_id, coroutine.os_thread_id)
    return thread if thread and is_blocked_loop(index, thread) else None


def group_of(index: SampleIndex, task_id: str) -> str | None:
    """The concurrency group of a call's method, empty for the default one; None where nobody knows.

    A call may have been given a name of its own, so only names of the form ``Class.method`` are taken for methods.
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


def as_declared(call: str, group: str) -> str:
    """What is assumed where a call's group is known by its method's declaration: a caller may ask for another one."""
    name = f"concurrency group {group}" if group else "default concurrency group"
    return f"{call} runs in the {name} of its actor, as declared"
