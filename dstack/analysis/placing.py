"""Which thread runs which task, as far as one sample shows."""

from __future__ import annotations

from dstack.analysis.observed import Observed, task_key, thread_key
from dstack.model import Thread


def task_of(observed: Observed, worker_id: str, thread: Thread) -> str | None:
    """The task a thread runs, where that is certain."""
    return observed.task_on.get((worker_id, thread.os_thread_id))


def key_of_running(observed: Observed, task_id: str) -> str:
    """The vertex of a running task: its thread where that is certain, else one for the task."""
    place = observed.thread_of_task.get(task_id)
    return thread_key(*place) if place else task_key(task_id)


def has_one_slot(observed: Observed, worker_id: str) -> bool:
    """Whether an actor is seen to run its calls on its process's main thread, which only those with one slot do.

    Threaded actors and those with concurrency groups run theirs on other threads, async ones in coroutines. Seen on
    Ray 2.46 and 2.60.
    """
    process = observed.process(worker_id)
    threads = [thread.os_thread_id for thread in observed.threads_with_role(worker_id, "task")]
    return process is not None and threads == [process.pid] and (worker_id, process.pid) in observed.task_on


def is_blocked_loop(observed: Observed, thread: Thread) -> bool:
    """Whether an event loop's thread is inside a call that does not give the loop back, or in somebody's code."""
    if thread.role != "loop":
        return False
    return thread.call is not None or any(frame.origin == "user" for frame in observed.snapshot.frames_of(thread))
