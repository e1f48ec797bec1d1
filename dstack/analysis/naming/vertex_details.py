"""The details of a vertex for reports and views: its process, actor, rank and line of code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dstack.analysis.index import ray_libraries
from dstack.analysis.index.ranks import NO_RANKS, Ranks
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.shown_frames import import_of, library_frame, user_frame
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import actor_of_task
from dstack.observed.processes import Access, Coroutine, Frame, Halt, Thread


@dataclass(frozen=True, slots=True)
class VertexDetails:
    """The details of a vertex; a field is None if it does not apply, as for a pending task, or is unknown.

    ``line`` is that of the innermost frame of user code, else of a library's; ``frames`` are leaf first. For a
    ``coroutine`` they are those of its await chain, and ``thread`` is the one that runs its event loop. ``torn`` is
    :attr:`dstack.observed.processes.Thread.torn`; ``sleeps`` is true in ``time.sleep`` or ``asyncio.sleep``.
    ``imports`` says what is being imported. ``ranks`` are those of the process. ``ids`` distinguish it from others of
    its name in its process. ``halt`` is what keeps it from running.
    """

    execution: str
    task_id: str | None = None
    task_name: str | None = None
    attempt: int | None = None
    ids: tuple[str, ...] = ()
    actor_id: str | None = None
    actor_class: str | None = None
    actor_name: str | None = None
    job_id: str | None = None
    node_id: str | None = None
    node_ip: str | None = None
    pid: int | None = None
    ranks: Ranks = NO_RANKS
    thread: str | None = None
    coroutine: bool = False
    file: str | None = None
    line: int | None = None
    function: str | None = None
    source: str | None = None
    access: Access | None = None
    on_cpu: bool = False
    sleeps: bool = False
    imports: str = ""
    torn: bool = False
    halt: Halt | None = None
    frames: tuple[Frame, ...] = ()

    @property
    def place(self) -> str:
        """``actor Left "left", rank 3 (tp 1), pid 2907, node 10.0.0.1``, without unknown parts."""
        actor = None
        if self.actor_id:
            actor = names.actor_in_words(self.actor_class or "", self.actor_name or "", self.actor_id)
            actor = f"coroutine of {actor}" if self.coroutine else actor
        node = f"node {self.node_ip}" if self.node_ip else None
        parts = (actor, self.ranks.in_words, f"pid {self.pid}" if self.pid else None, node)
        return ", ".join(part for part in parts if part)

    @property
    def actor_and_rank(self) -> tuple[str, ...]:
        """``('actor "left"', 'rank 3 (tp 1)')``: its actor, with the class where its own name does not say it."""
        return tuple(filter(None, (self._actor, self.ranks.in_words)))

    @property
    def process(self) -> str:
        """``pid 7621 on 192.0.2.2``; empty if unknown."""
        return f"pid {self.pid}{f' on {self.node_ip}' if self.node_ip else ''}" if self.pid else ""

    @property
    def _actor(self) -> str:
        if self.actor_id is None:
            return ""
        if self.says_part and (part := self._part) and part.which:
            return part.which.strip(", ")
        named = names.short_actor if self._says_actor else names.actor_in_words
        return named(self.actor_class or "", self.actor_name or "", self.actor_id)

    @property
    def says_part(self) -> bool:
        """Whether its own name says which part of a library its actor is, so that only the actor's id is missing."""
        part = self._part
        return part is not None and part.name in self.execution

    @property
    def _part(self) -> ray_libraries.LibraryPart | None:
        """The part of a library that its actor is."""
        return ray_libraries.part(self.actor_class or "", self.actor_name or "", self.actor_id or "")

    @property
    def _says_actor(self) -> bool:
        """Whether its own name says which class its actor is of, or a library's actor is known by another name."""
        return (self.actor_class or "") in self.execution or self._part is not None

    @property
    def short_place(self) -> str:
        """The same in short form: ``"left", rank 3 (tp 1), pid 2907, 10.0.0.1``."""
        actor = None
        if self.actor_id:
            name = f'"{self.actor_name}"' if self.actor_name else names.short(self.actor_id)
            actor = name if self._says_actor else f"{self.actor_class} {name}"
        parts = (actor, self.ranks.in_words, f"pid {self.pid}" if self.pid else None, self.node_ip)
        return ", ".join(part for part in parts if part)


def details_of(index: SampleIndex, vertex: Vertex) -> VertexDetails:
    """Collect the details of a vertex."""
    task = index.tasks.get(vertex.task_id or "")
    worker = index.worker_of(vertex)
    actor_id = actor_of_task(vertex.task_id) if vertex.task_id else worker.actor_id if worker else None
    actor = index.actors.get(actor_id or "")
    host = worker or index.workers.get((actor.worker_id if actor else None) or "")
    node = index.nodes.get(host.node_id) if host else None
    execution = index.execution_of(vertex)
    worker_id = vertex.worker_id or ""
    frames = index.frames_of(worker_id, execution) if execution else ()
    thread = index.thread(worker_id, execution.os_thread_id) if execution else None
    is_coroutine = isinstance(execution, Coroutine)
    own = user_frame(frames) or library_frame(frames)
    group = index.placement_groups.get(vertex.placement_group_id or "")
    return VertexDetails(
        execution=describe(vertex),
        task_id=vertex.task_id,
        task_name=task.name if task else None,
        attempt=task.attempt if task else None,
        ids=_ids(vertex),
        actor_id=actor.actor_id if actor else None,
        actor_class=actor.class_name if actor else None,
        actor_name=actor.name or None if actor else None,
        job_id=(task.job_id if task else None)
        or (worker.job_id if worker else None)
        or (group.job_id if group else None),
        node_id=node.node_id if node else None,
        node_ip=node.ip if node else None,
        pid=vertex.child_pid or (host.pid if host else None),
        ranks=index.ranks(host.worker_id, vertex.child_pid) if host else NO_RANKS,
        thread=thread.name or str(thread.os_thread_id) if thread else None,
        coroutine=is_coroutine,
        file=own.file if own else None,
        line=own.line if own else None,
        function=own.function if own else None,
        source=index.snapshot.source_line(own.file, own.line) if own else None,
        access=index.access(host.worker_id) if host else None,
        on_cpu=thread is not None and not is_coroutine and index.is_on_cpu(worker_id, thread),
        sleeps=is_sleeping(execution, frames),
        imports=import_of(frames),
        torn=execution is not None and index.is_torn(worker_id, execution),
        halt=_halt_of(index, vertex),
        frames=frames,
    )


def _halt_of(index: SampleIndex, vertex: Vertex) -> Halt | None:
    """What keeps the process of a vertex from running, or its thread."""
    halt = index.halts.get((vertex.worker_id or "", vertex.child_pid))
    return halt if halt and halt.os_thread_id in (None, vertex.os_thread_id) else None


def _ids(vertex: Vertex) -> tuple[str, ...]:
    """``task 5f8aed75``, ``coroutine 0x7f81``, ``thread 4711``, and its whole id."""
    task = f"task {names.short(vertex.task_id)}" if vertex.task_id else ""
    coroutine = f"coroutine {vertex.coroutine_id}" if vertex.coroutine_id else ""
    thread = f"thread {vertex.os_thread_id}" if vertex.os_thread_id and not coroutine else ""
    return (*filter(None, (task, coroutine, thread)), str(vertex.key))


def is_sleeping(execution: Thread | Coroutine | None, frames: Sequence[Frame]) -> bool:
    """Whether a thread sleeps, or a coroutine waits in ``asyncio.sleep``, as CPython 3.10 to 3.15 name it."""
    if isinstance(execution, Thread):
        return execution.sleeps
    return bool(frames) and frames[0].function == "sleep" and frames[0].file.endswith("/asyncio/tasks.py")


def is_torn(execution: Thread | Coroutine | None) -> bool:
    """Whether it is a thread that ran during every reading of its stack."""
    return isinstance(execution, Thread) and execution.torn
