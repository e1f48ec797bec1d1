"""The page of one stack: its frames, and links to the dependencies of its wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import sentences
from dstack.analysis.naming.vertex_details import details_of, is_torn
from dstack.analysis.solve.requirements import targets_of
from dstack.analysis.stacks.app_threads import call_in_words
from dstack.analysis.views.distributed_stack import group_similar
from dstack.analysis.views.process_threads import execution_name, name_in_child, worker_name
from dstack.diagnosis import Vertex
from dstack.model import Coroutine, Frame, Thread
from dstack.vertex_keys import ChildThreadKey, CoroutineKey, Key, ThreadKey

MAX_DEPENDENCIES = 200
"""Maximum number of links of one page."""


@dataclass(frozen=True, slots=True)
class FrameRun:
    """Adjacent frames of a stack with their indices from the leaf, outermost first.

    ``is_foldable`` is true for code that is not the user's.
    """

    frames: tuple[tuple[int, Frame], ...]
    is_foldable: bool


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
    ``left_out`` counts the dependencies without a link. ``is_torn`` is :attr:`dstack.model.Thread.torn`.
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
            runs=_runs(frames, call.frame if call else 0),
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

    def path_to(self, key: Key) -> tuple[str, str] | None:
        """The ids of the node and the worker of a thread or coroutine; None if it has no worker."""
        vertex = self._vertices.get(key)
        worker = self._index.workers.get((vertex.worker_id if vertex else _worker_id(key)) or "")
        return (worker.node_id, worker.worker_id) if worker else None

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
            return vertex.label if vertex else ""
        if isinstance(key, ChildThreadKey) and (child := self._index.child(key.worker_id, key.pid)):
            return f"{name_in_child(child, execution)} of child process (pid {child.pid})"
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


def _runs(frames: tuple[Frame, ...], call_at: int) -> tuple[FrameRun, ...]:
    """Split a stack, given leaf first, into runs of the user's frames with the call, and of other frames."""

    def is_foldable(indexed: tuple[int, Frame]) -> bool:
        return indexed[1].origin != "user" and indexed[0] != call_at

    outermost_first = reversed(list(enumerate(frames)))
    return tuple(FrameRun(tuple(run), foldable) for foldable, run in groupby(outermost_first, is_foldable))
