"""Streaming generators under backpressure: they wait until their consumer takes values.

With ``_generator_backpressure_num_objects`` a producer blocks in C++ after each value until enough are consumed. Its
task is listed as running, its thread shows none of its code, and its owner has values of it. The number of consumed
values is unknown (seen on Ray 2.46 and 2.60). In an async actor its coroutine awaits an event there, and shows none of
its code either (Ray 2.60). Only the owner can consume values: a generator cannot be passed on.
"""

from __future__ import annotations

from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.graph.coroutines import relevant_coroutines
from dstack.analysis.index import subjects, task_assignment
from dstack.analysis.index.sample_index import SampleIndex
from dstack.call_sites import ASYNC_EVENT
from dstack.model.diagnosis import Group, Target, Wait
from dstack.model.vertex_facts import reason, subject
from dstack.model.vertex_keys import CoroutineKey, Key, ThreadKey
from dstack.observed.node import Task
from dstack.observed.processes import Coroutine, Thread

ASYNC_FILE = "/asyncio/locks.py"
"""The only file in the stack of a coroutine under backpressure, which awaits an event."""
HOUSEKEEPING = ("PythonGCThread", "ray_listen_error_messages", "ray_print_logs", "ray_import_thread")
"""Ray's own threads in every worker and driver; they consume no values (seen on Ray 2.46 and 2.60)."""


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
        groups=(Group(needs=1, targets=_consumers(graph, task)),),
        inferred=reason("kept values", task.items),
    )


def _is_outside(index: SampleIndex, worker_id: str, execution: Thread | Coroutine) -> bool:
    """Whether it is where Ray stops a generator under backpressure, and in none of its own code."""
    frames = index.frames_of(worker_id, execution)
    if isinstance(execution, Thread):
        return all(frame.origin == "ray" for frame in frames)
    call = index.call_of(worker_id, execution)
    is_event = call is not None and call.site == ASYNC_EVENT.id
    return is_event and all(frame.file.endswith(ASYNC_FILE) for frame in frames)


def _consumers(graph: GraphBuilder, task: Task) -> tuple[Target, ...]:
    """The executions of the owner's process if only they can consume a value there, else an unknown consumer."""
    index, owner_id = graph.index, task.owner_id
    owner = index.workers.get(owner_id)
    if owner is None or not index.threads(owner_id):
        consumer = subject("consumer", subjects.task(index, task.task_id), None)
        return (graph.unknown("consumer", task.task_id, subject=consumer, unobserved=True),)
    threads = [t for role in ("task", "user") for t in index.threads_with_role(owner_id, role)]
    is_closed = owner.is_driver or task_assignment.has_one_slot(index, owner_id)
    coroutines = relevant_coroutines(index, owner_id, index.process(owner_id))
    is_closed = is_closed and len(coroutines) == len(index.coroutines(owner_id))
    if not is_closed or any(map(_may_consume, index.threads(owner_id))):
        consumer = subject("consumer", subjects.task(index, task.task_id), subjects.place(index, owner))
        return (graph.unknown("consumer", task.task_id, subject=consumer, worker_id=owner_id),)
    keys: list[Key] = [ThreadKey(owner_id, thread.os_thread_id) for thread in threads]
    keys += [CoroutineKey(owner_id, coroutine.coroutine_id) for coroutine in coroutines]
    return tuple(Target(vertex=key) for key in keys)


def _may_consume(thread: Thread) -> bool:
    """Whether a thread without a vertex may consume values: that of an event loop, or of a library."""
    is_main_or_native = not thread.name or thread.name == "MainThread"
    return thread.role not in ("task", "user") and not is_main_or_native and thread.name not in HOUSEKEEPING
