"""The threads and coroutines of each process, and the page of one of them: its frames, and what its wait needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from dstack.analysis.index import subjects
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.shown_frames import FoldedFrame, fold_imports, innermost_shown
from dstack.analysis.naming import names, sentences
from dstack.analysis.naming.descriptions import asyncio_task, describe, in_words
from dstack.analysis.naming.vertex_details import details_of, is_sleeping, is_torn
from dstack.analysis.solve.requirements import targets_of
from dstack.analysis.stacks.app_threads import Activity, activity_of, call_in_words
from dstack.analysis.views.distributed_stack import group_similar
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import Worker
from dstack.model.vertex_keys import ChildThreadKey, CoroutineKey, Key, ThreadKey
from dstack.observed.processes import Coroutine, Frame, Process, Thread
from dstack.words import base_name


@dataclass(frozen=True, slots=True)
class ThreadSummary:
    """A thread or coroutine with the key that its vertex has or would have.

    ``does`` is its call, or its function and line; ``target`` names what it waits for, if known. ``sleeps`` says why a
    thread is off the CPU. ``is_torn`` is :attr:`dstack.observed.processes.Thread.torn`.
    """

    key: Key
    name: str
    worker_id: str
    activity: Activity
    does: str
    target: str = ""
    sleeps: bool = False
    is_torn: bool = False

    @property
    def words(self) -> str:
        """``ray.get → Clerk.stamp``, ``queue.Queue.get``, or the function and the line."""
        return f"{self.does} → {self.target}" if self.target else self.does


@dataclass(frozen=True, slots=True)
class ChildThreads:
    """A process that a worker or driver has started, with its threads, the main thread first, and its coroutines."""

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
    return [_summary(index, vertices, key, worker_id, execution) for key, execution in found]


def _summary(
    index: SampleIndex, vertices: Mapping[Key, Vertex], key: Key, worker_id: str, execution: Thread | Coroutine
) -> ThreadSummary:
    name = execution_name(index, vertices, key, worker_id, execution)
    does, target = _does(index, vertices, vertices.get(key)) or (_function(index, execution, name), "")
    activity = activity_of(vertices.get(key), execution)
    sleeps = is_sleeping(execution, index.snapshot.frames_of(execution))
    return ThreadSummary(key, name, worker_id, activity, does, target, sleeps, is_torn(execution))


def execution_name(
    index: SampleIndex, vertices: Mapping[Key, Vertex], key: Key, worker_id: str, execution: Thread | Coroutine
) -> str:
    """The label of the vertex, or the name of a thread or coroutine that has none."""
    if vertex := vertices.get(key):
        return describe(vertex)
    if isinstance(execution, Coroutine):
        return in_words(subjects.of_coroutine(index, worker_id, execution))
    return in_words(subjects.of_thread(index, worker_id, execution, None))


def child_threads(index: SampleIndex, worker_id: str) -> tuple[ChildThreads, ...]:
    """The processes that a worker has started, with their threads."""
    process = index.process(worker_id)
    return tuple(_threads_of(index, worker_id, child) for child in process.children) if process else ()


def _threads_of(index: SampleIndex, worker_id: str, child: Process) -> ChildThreads:
    threads = sorted(child.threads, key=lambda thread: (thread.os_thread_id != child.pid, thread.role == "ray"))
    found: list[tuple[Key, Thread | Coroutine]] = [
        *((ChildThreadKey(worker_id, child.pid, thread.os_thread_id), thread) for thread in threads),
        *((CoroutineKey(worker_id, coroutine.coroutine_id), coroutine) for coroutine in child.coroutines),
    ]
    summaries = (
        ThreadSummary(
            key=key,
            name=(name := name_in_child(index, child, one)),
            worker_id=worker_id,
            activity="waiting" if one.call else activity_of(None, one),
            does=call_in_words(one.call) or _function(index, one, name),
            sleeps=is_sleeping(one, index.snapshot.frames_of(one)),
            is_torn=is_torn(one),
        )
        for key, one in found
    )
    return ChildThreads(child, f"child process {child.name}".rstrip(), tuple(summaries))


def name_in_child(index: SampleIndex, child: Process, one: Thread | Coroutine) -> str:
    """``main thread``, or ``thread`` or ``asyncio task`` with its name."""
    if isinstance(one, Coroutine):
        return asyncio_task(*subjects.names_of(index, "", one))
    return "main thread" if one.os_thread_id == child.pid else f'thread "{one.name or one.os_thread_id}"'


def worker_name(index: SampleIndex, worker: Worker) -> str:
    """``actor Trainer "left"``, ``driver train.py`` or ``worker``."""
    return names.process(subjects.process(index, worker.worker_id))


def _does(index: SampleIndex, vertices: Mapping[Key, Vertex], vertex: Vertex | None) -> tuple[str, str] | None:
    """``ray.get`` and ``Clerk.stamp (+2 more)``: the call that waits and its target; None if there is no wait."""
    if vertex is not None and vertex.never is not None:
        return in_words(vertex.never), ""
    if vertex is None or vertex.wait is None:
        return None
    known = [key for key in dict.fromkeys(targets_of(vertex)) if not vertices[key].waker_of]
    more = f" (+{len(known) - 1:,} more)" if len(known) > 1 else ""
    return vertex.wait.call, f"{sentences.name(index, vertices[known[0]])}{more}" if known else ""


def _function(index: SampleIndex, execution: Thread | Coroutine, name: str) -> str:
    """``Clerk.stamp  app.py:12``; without the function if the execution is named after it."""
    frame = innermost_shown(index.snapshot.frames_of(execution))
    if frame is None:
        return ""
    place = f"{base_name(frame.file)}:{frame.line}"
    is_named = name.rpartition(".")[2] == frame.function.rpartition(".")[2]
    return place if is_named else f"{frame.function}  {place}"


MAX_DEPENDENCIES = 200
"""Maximum number of links of one page."""


@dataclass(frozen=True, slots=True)
class FrameRun:
    """Adjacent frames of a stack with their indices from the leaf, outermost first.

    ``is_foldable`` is true for code that is not the user's. ``imported`` stands for the frames of an import.
    """

    frames: tuple[tuple[int, Frame], ...]
    is_foldable: bool
    imported: Frame | None = None


@dataclass(frozen=True, slots=True)
class DependencyLink:
    """Similar dependencies of a wait: the keys of all, the name and the place of the first."""

    keys: tuple[Key, ...]
    name: str
    place: str


@dataclass(frozen=True, slots=True)
class StackPage:
    """One execution, or another vertex of the graph.

    ``call_at`` is the index from the leaf of the frame that is blocked, ``locals`` are by such an index, if recorded.
    ``left_out`` counts the dependencies without a link. ``is_torn`` is :attr:`dstack.observed.processes.Thread.torn`.
    """

    key: Key
    name: str
    place: str
    sentence: str
    runs: tuple[FrameRun, ...]
    call_at: int | None
    call: str
    locals: Mapping[int, Mapping[str, str]]
    dependencies: tuple[DependencyLink, ...]
    left_out: int
    is_torn: bool = False


class StackPages:
    """The pages of one sample."""

    def __init__(self, index: SampleIndex, vertices: Mapping[Key, Vertex]) -> None:
        self._index = index
        self._vertices = vertices

    def page(self, key: Key) -> StackPage | None:
        """The page of a thread, a coroutine or another vertex; None if neither the sample nor the graph has it."""
        vertex, execution = self._vertices.get(key), self._execution(key)
        if vertex is None and execution is None:
            return None
        frames = self._index.snapshot.frames_of(execution) if execution else ()
        call = execution.call if execution else None
        values = execution.locals if isinstance(execution, Thread) else None
        groups = group_similar(self._vertices, list(dict.fromkeys(targets_of(vertex)))) if vertex else []
        return StackPage(
            key=key,
            name=self._name(key, vertex, execution),
            place=details_of(self._index, vertex).place if vertex else self._place(_worker_id(key)),
            sentence=sentences.sentence(self._index, self._vertices, vertex).text if vertex else "",
            runs=tuple(_runs(frames, call.frame if call else None)),
            call_at=call.frame if call else None,
            call=call_in_words(call),
            locals={int(index): frame for index, frame in (values or {}).items() if index.isdecimal()},
            dependencies=tuple(self._link(tuple(group)) for group in groups[:MAX_DEPENDENCIES]),
            left_out=sum(map(len, groups[MAX_DEPENDENCIES:])),
            is_torn=is_torn(execution),
        )

    def frames_of(self, key: Key) -> tuple[Frame, ...]:
        """The frames of a thread or coroutine, leaf first; empty if the sample does not have it."""
        execution = self._execution(key)
        return self._index.snapshot.frames_of(execution) if execution else ()

    def path_to(self, key: Key) -> tuple[str, str, int | None] | None:
        """The ids of the node and the worker of a thread or coroutine, and the pid of its child process, if in one.

        None if it has no worker.
        """
        vertex = self._vertices.get(key)
        worker = self._index.workers.get((vertex.worker_id if vertex else _worker_id(key)) or "")
        return (worker.node_id, worker.worker_id, self._index.child_of(key)) if worker else None

    def _execution(self, key: Key) -> Thread | Coroutine | None:
        if vertex := self._vertices.get(key):
            return self._index.execution_of(vertex)
        match key:
            case ChildThreadKey(worker_id, pid, os_thread_id):
                return self._index.child_thread(worker_id, pid, os_thread_id)
            case CoroutineKey(worker_id, coroutine_id):
                return self._index.coroutine(worker_id, coroutine_id)
            case ThreadKey(worker_id, os_thread_id):
                return self._index.thread(worker_id, os_thread_id)
        return None

    def _name(self, key: Key, vertex: Vertex | None, execution: Thread | Coroutine | None) -> str:
        if execution is None or (vertex is not None and vertex.child_pid is None):
            return describe(vertex) if vertex else ""
        if (pid := self._index.child_of(key)) is not None and (child := self._index.child(_worker_id(key), pid)):
            return f"{name_in_child(self._index, child, execution)} of child process (pid {child.pid})"
        return execution_name(self._index, self._vertices, key, _worker_id(key), execution)

    def _place(self, worker_id: str) -> str:
        worker = self._index.workers.get(worker_id)
        if worker is None:
            return ""
        ranks = self._index.ranks(worker_id).in_words
        parts = (worker_name(self._index, worker), ranks, f"pid {worker.pid}", f"node {worker.ip}")
        return ", ".join(part for part in parts if part)

    def _link(self, keys: tuple[Key, ...]) -> DependencyLink:
        vertex = self._vertices[keys[0]]
        details = details_of(self._index, vertex)
        parts = (details.ranks.in_words, f"pid {details.pid}" if details.pid else None, details.node_ip)
        return DependencyLink(keys, sentences.name(self._index, vertex), ", ".join(part for part in parts if part))


def _worker_id(key: Key) -> str:
    return key.worker_id if isinstance(key, ThreadKey | CoroutineKey | ChildThreadKey) else ""


def _runs(frames: tuple[Frame, ...], call_at: int | None) -> Iterator[FrameRun]:
    """Split a stack, given leaf first, into runs of the user's frames with the call, imports, and other frames."""

    def kind(one: FoldedFrame) -> tuple[bool, Frame | None]:
        is_foldable = one.is_import or (one.frame.origin != "user" and one.first != (call_at or 0))
        return is_foldable, one.frame if one.is_import else None

    outermost_first = reversed(list(fold_imports(frames, call_at)))
    for (is_foldable, imported), run in groupby(outermost_first, kind):
        indices = (index for one in run for index in range(one.last, one.first - 1, -1))
        yield FrameRun(tuple((index, frames[index]) for index in indices), is_foldable, imported)
