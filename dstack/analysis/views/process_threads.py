"""The threads and coroutines of one process, and of the processes that it started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names, sentences
from dstack.analysis.naming.vertex_details import is_torn
from dstack.analysis.solve.requirements import targets_of
from dstack.analysis.stacks.activity import Activity, activity_of
from dstack.analysis.stacks.app_threads import call_in_words
from dstack.diagnosis import Vertex
from dstack.model import Coroutine, Process, Thread, Worker
from dstack.vertex_keys import ChildThreadKey, CoroutineKey, Key, ThreadKey


@dataclass(frozen=True, slots=True)
class ThreadSummary:
    """A thread or coroutine with the key that its vertex has or would have; ``words`` name its call or function.

    ``is_torn`` is :attr:`dstack.model.Thread.torn`.
    """

    key: Key
    name: str
    worker_id: str
    activity: Activity
    words: str
    is_torn: bool = False


@dataclass(frozen=True, slots=True)
class ChildThreads:
    """A process that a worker or driver has started, with its threads, the main thread first."""

    process: Process
    name: str
    threads: tuple[ThreadSummary, ...]


@dataclass(frozen=True, slots=True)
class ProcessThreads:
    """The threads and coroutines of a worker or driver: those of the application, and those of Ray and its libraries.

    ``trouble`` is why there are none of the application. ``children`` are processes that it has started.
    """

    worker: Worker
    name: str
    threads: tuple[ThreadSummary, ...]
    others: tuple[ThreadSummary, ...]
    trouble: str
    children: tuple[ChildThreads, ...] = ()


def thread_summaries(index: SampleIndex, vertices: Mapping[Key, Vertex], worker_id: str) -> list[ThreadSummary]:
    """All threads and coroutines of a worker."""
    process = index.process(worker_id)
    if process is None:
        return []
    found: list[tuple[Key, Thread | Coroutine]] = [
        *((ThreadKey(worker_id, thread.os_thread_id), thread) for thread in process.threads),
        *((CoroutineKey(worker_id, coroutine.coroutine_id), coroutine) for coroutine in process.coroutines),
    ]
    return [
        ThreadSummary(
            key=key,
            name=execution_name(index, vertices, key, worker_id, execution),
            worker_id=worker_id,
            activity=activity_of(vertices.get(key), execution),
            words=_words(index, vertices, vertices.get(key), execution),
            is_torn=is_torn(execution),
        )
        for key, execution in found
    ]


def execution_name(
    index: SampleIndex, vertices: Mapping[Key, Vertex], key: Key, worker_id: str, execution: Thread | Coroutine
) -> str:
    """The label of the vertex, or the name of a thread or coroutine that has none."""
    if vertex := vertices.get(key):
        return vertex.label
    if isinstance(execution, Coroutine):
        return names.coroutine(index, worker_id, execution)
    return names.execution(index, worker_id, execution, None)


def child_threads(index: SampleIndex, worker_id: str) -> tuple[ChildThreads, ...]:
    """The processes that a worker has started, with their threads."""
    process = index.process(worker_id)
    return tuple(_threads_of(index, worker_id, child) for child in process.children) if process else ()


def _threads_of(index: SampleIndex, worker_id: str, child: Process) -> ChildThreads:
    threads = sorted(child.threads, key=lambda thread: (thread.os_thread_id != child.pid, thread.role == "ray"))
    summaries = (
        ThreadSummary(
            key=ChildThreadKey(worker_id, child.pid, thread.os_thread_id),
            name=name_in_child(child, thread),
            worker_id=worker_id,
            activity="waiting" if thread.call else activity_of(None, thread),
            words=call_in_words(thread.call) or _function(index, thread),
            is_torn=thread.torn,
        )
        for thread in threads
    )
    return ChildThreads(child, f"child process {child.name}".rstrip(), tuple(summaries))


def name_in_child(child: Process, thread: Thread | Coroutine) -> str:
    """``main thread``, or ``thread`` with its name."""
    return "main thread" if thread.os_thread_id == child.pid else f'thread "{thread.name or thread.os_thread_id}"'


def worker_name(index: SampleIndex, worker: Worker) -> str:
    """``actor Trainer "left"``, ``driver train.py`` or ``worker``."""
    actor = index.actors.get(worker.actor_id or "")
    return names.actor(actor) if actor else names.worker(index, worker)


def _words(
    index: SampleIndex, vertices: Mapping[Key, Vertex], vertex: Vertex | None, execution: Thread | Coroutine
) -> str:
    """``ray.get → Clerk.stamp``, ``queue.Queue.get``, or the function of the innermost user frame."""
    if vertex is not None and vertex.never is not None:
        return vertex.never
    if vertex is None or vertex.wait is None:
        return _function(index, execution)
    call = vertex.wait.call
    known = [key for key in dict.fromkeys(targets_of(vertex)) if not vertices[key].waker_of]
    more = f" (+{len(known) - 1:,} more)" if len(known) > 1 else ""
    return f"{call} → {sentences.name(index, vertices[known[0]])}{more}" if known else call


def _function(index: SampleIndex, execution: Thread | Coroutine) -> str:
    frame = names.innermost_frame(index.snapshot.frames_of(execution))
    return frame.function if frame else ""
