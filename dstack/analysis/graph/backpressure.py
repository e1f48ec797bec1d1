"""Streaming generators that have given more than was taken, and wait for their consumer.

With ``_generator_backpressure_num_objects`` a producer blocks in C++ after each value until enough are taken. Its task
is listed as running, its thread shows none of its code, and its owner has values of it, though not how many were taken
(seen on Ray 2.46 and 2.60). In an async actor its coroutine awaits an event there, and shows none of its code either
(Ray 2.60). Only the owner can take them: a generator cannot be passed on.
"""

from __future__ import annotations

from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.graph.coroutines import taking_part
from dstack.analysis.index import task_assignment
from dstack.analysis.naming import names
from dstack.diagnosis import Group, Target, Wait
from dstack.model import Coroutine, Task, Thread
from dstack.vertex_keys import CoroutineKey, Key, ThreadKey

ASYNC_EVENT, ASYNC_FILE = "asyncio.Event.wait", "/asyncio/locks.py"
"""What a coroutine under backpressure awaits, and the file of all the code that it shows."""
HOUSEKEEPING = ("PythonGCThread", "ray_listen_error_messages", "ray_print_logs", "ray_import_thread")
"""Threads of Ray's own in every worker and driver that take no values (seen on Ray 2.46 and 2.60)."""


def wait_of_producer(graph: GraphBuilder, execution: Thread | Coroutine, task_id: str | None) -> Wait | None:
    """The wait of an execution for its task's consumer, where that seems to be a generator under backpressure."""
    task = graph.index.tasks.get(task_id or "")
    if task is None or not task.items or task_id in graph.index.refs.awaited_tasks:
        return None
    if not execution.still or not _is_outside(graph, execution):
        return None
    return Wait(
        kind="backpressure",
        groups=(Group(needs=1, targets=_consumers(graph, task)),),
        inferred=f"it has produced {task.items} values that are still kept, and waits outside its own code",
    )


def _is_outside(graph: GraphBuilder, execution: Thread | Coroutine) -> bool:
    """Whether it rests where Ray stops a generator under backpressure, and in none of its own code."""
    frames = graph.index.snapshot.frames_of(execution)
    if isinstance(execution, Thread):
        return all(frame.origin == "ray" for frame in frames)
    is_event = execution.call is not None and execution.call.what == ASYNC_EVENT
    return is_event and all(frame.file.endswith(ASYNC_FILE) for frame in frames)


def _consumers(graph: GraphBuilder, task: Task) -> tuple[Target, ...]:
    """Any execution of the owner's process, where these are all that can take a value there."""
    index, owner_id = graph.index, task.owner_id
    owner = index.workers.get(owner_id)
    if owner is None or not index.threads(owner_id):
        label = f"consumer of {names.task(index, task.task_id)}"
        return (graph.unknown("consumer", task.task_id, label=label, unobserved=True),)
    threads = [t for role in ("task", "user") for t in index.threads_with_role(owner_id, role)]
    is_closed = owner.is_driver or task_assignment.has_one_slot(index, owner_id)
    coroutines = taking_part(index, owner_id)
    is_closed = is_closed and len(coroutines) == len(index.coroutines(owner_id))
    if not is_closed or any(map(_may_take, index.threads(owner_id))):
        label = f"consumer of {names.task(index, task.task_id)} in {names.place(index, owner)}"
        return (graph.unknown("consumer", task.task_id, label=label, worker_id=owner_id),)
    keys: list[Key] = [ThreadKey(owner_id, thread.os_thread_id) for thread in threads]
    keys += [CoroutineKey(owner_id, coroutine.coroutine_id) for coroutine in coroutines]
    return tuple(Target(vertex=key) for key in keys)


def _may_take(thread: Thread) -> bool:
    """Whether a thread that is no execution may run code that takes values: an event loop, or a library's thread."""
    is_main_or_native = not thread.name or thread.name == "MainThread"
    return thread.role not in ("task", "user") and not is_main_or_native and thread.name not in HOUSEKEEPING
