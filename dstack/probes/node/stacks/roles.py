"""The roles of threads."""

from __future__ import annotations

from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.threads import AnyThread, is_event_loop, is_in

RAY_WORKER_FILE = "ray/_private/worker.py"


def role_of(thread: AnyThread, task_id: str | None, *, pid: int, is_driver: bool, origins: Origins) -> str:
    """The role of a thread that runs this Ray task or none, in the words of :class:`dstack.observed.Thread`.

    A thread of Ray's that has a task without frames of it is fetching arguments, storing results, or yielding an item.
    """
    role = shown_role(thread, pid=pid, is_driver=is_driver, origins=origins)
    runs_in_cpp = role == "ray" and task_id is not None and not is_driver and not is_made_by_python(thread)
    return "task" if runs_in_cpp else role


def shown_role(thread: AnyThread, *, pid: int, is_driver: bool, origins: Origins) -> str:
    """The role of a thread by its frames, in the words of :class:`dstack.observed.Thread`.

    A worker's main thread is in ``main_loop`` and runs sync tasks above it; threaded actors run theirs on threads
    that C++ made, so without Python's bootstrap frames. Seen on Ray 2.46 and 2.60.
    """
    frames = thread.frames
    if is_event_loop(thread):
        return "loop"
    if not frames:
        return "ray"
    if thread.os_thread_id == pid:
        return "user" if is_driver else "ray" if _is_idle(thread) else "task"
    if is_made_by_python(thread):
        return "user" if any(map(origins.is_user, frames)) else "ray"
    return "user" if is_driver else "task"


def is_made_by_python(thread: AnyThread) -> bool:
    """Whether the thread began in Python's own bootstrap; those that C++ made, and main threads, did not."""
    frames = thread.frames
    return bool(frames) and frames[-1].position.function == "_bootstrap" and "threading" in frames[-1].position.file


def _is_idle(thread: AnyThread) -> bool:
    """Whether a worker's main thread runs no task: it waits for one, or has not begun to."""
    is_main_loop = [is_in(frame, RAY_WORKER_FILE, "main_loop") for frame in thread.frames]
    return is_main_loop[0] or not any(is_main_loop)
