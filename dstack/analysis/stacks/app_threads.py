"""The threads and coroutines of the application in one sample, each with its stack as a path."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from dstack.analysis.index import ray_libraries, subjects
from dstack.analysis.index.ranks import NO_RANKS, Ranks
from dstack.analysis.index.sample_index import SampleIndex, is_in_user_code
from dstack.analysis.index.shown_frames import FoldedFrame, all_frames, fold_imports, own_frames
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe
from dstack.model.diagnosis import CallName, Vertex
from dstack.model.profile import PathStep
from dstack.model.snapshot import Worker, job_of_task
from dstack.model.vertex_keys import Key
from dstack.observed.calls import Call
from dstack.observed.processes import Coroutine, Frame, Span, Thread

Activity = Literal["stuck", "waiting", "running", "off CPU", "idle", "unreadable", "not read"]
"""``off CPU`` is a thread that neither waits nor runs: it sleeps, is in I/O, or in a call outside of Python.

``unreadable`` is a call of which no stack was read, ``not read`` a worker that does not count as read.
"""
ACTIVITIES: tuple[Activity, ...] = ("stuck", "waiting", "running", "off CPU", "idle", "unreadable", "not read")
"""Worst first."""


def activity_of(vertex: Vertex | None, execution: Thread | Coroutine) -> Activity:
    """The activity of a thread or coroutine; ``vertex`` is its vertex in the graph, if it has one."""
    if vertex is not None and (vertex.wait is not None or vertex.never is not None):
        return "waiting"
    return "running" if isinstance(execution, Thread) and execution.on_cpu else "off CPU"


ENTRIES = ("ray/_private/workers/default_worker.py", "ray/_private/worker.py")


@dataclass(frozen=True, slots=True)
class PeerGroup:
    """Similar executions: by actor class and method or task name; other threads, and child processes, by owner."""

    name: str
    job_id: str | None


@dataclass(frozen=True, slots=True)
class Execution:
    """A thread or coroutine of the application, by the key and the label of its vertex.

    ``kind`` is ``actor CLASS``, ``task NAME`` or ``driver SCRIPT``. ``path`` is its stack, outermost frame first.
    """

    key: Key
    name: str
    kind: str
    peer_group: PeerGroup
    node: str
    job: str
    worker_id: str
    activity: Activity
    path: tuple[PathStep, ...]
    ranks: Ranks = NO_RANKS
    child_pid: int | None = None


@dataclass(frozen=True, slots=True)
class AppExecutions:
    """All executions of the application, and how many threads and coroutines of Ray and its libraries are left out.

    ``folded`` counts the frames of others' code that are left out of the paths.
    """

    executions: tuple[Execution, ...]
    left_out: int
    folded: int


Extent = Literal["own", "unfolded", "whole"]
"""The frames of a stack that are shown: the application's own with imports folded, the same unfolded, or all."""


def running(index: SampleIndex, vertices: Mapping[Key, Vertex], extent: Extent = "own") -> AppExecutions:
    """The application's executions; with only its own frames and the call it is blocked in, or whole stacks.

    Executions of libraries are left out unless an application depends on them, and idle task threads.
    """
    machines = ray_libraries.machinery(index, vertices)
    reader = _Reader(index, extent)
    found = tuple(
        execution
        for vertex in vertices.values()
        if vertex.kind == "execution" and (vertex.wait or vertex.key not in machines)
        if not _is_idle(index, vertex) and (execution := reader.execution(vertex))
    )
    total = sum(len(one.executions()) for process in index.processes.values() for one in process.family)
    return AppExecutions(found, total - len(found), reader.folded)


def kind_of(index: SampleIndex, worker: Worker, task_id: str | None) -> str:
    """``actor Trainer``, ``driver train.py``, ``task load``, or ``worker`` where it is not known what that runs."""
    actor = index.actors.get(worker.actor_id or "")
    if actor is not None:
        return names.actor_kind(actor).name
    if task_id is None or worker.is_driver:
        return names.process(subjects.worker(index, worker))
    known = index.tasks.get(task_id)
    name = names.task(subjects.task(index, task_id))
    return f"task {name}" if known and known.name == name else name


def job_in_words(index: SampleIndex, job_id: str | None) -> str:
    """``job 01000000 train.py``."""
    job = index.jobs.get(job_id or "")
    script = f" {names.script(job.entrypoint)}" if job and job.entrypoint else ""
    return f"job {job_id}{script}" if job_id else "no job"


class _Reader:
    """Build executions from vertices; paths are shared."""

    def __init__(self, index: SampleIndex, extent: Extent) -> None:
        self._index = index
        self._extent = extent
        self._places: dict[PathStep, PathStep] = {}
        self._paths: dict[tuple[int, tuple[tuple[str, int | None], ...]], tuple[PathStep, ...]] = {}
        self._jobs: dict[str | None, str] = {}
        self.folded = 0

    def execution(self, vertex: Vertex) -> Execution | None:
        """The execution of a vertex, None if its stack or its worker is unknown."""
        thread = self._index.execution_of(vertex)
        worker = self._index.worker_of(vertex)
        if thread is None or worker is None:
            return None
        job_id = job_of_task(vertex.task_id) if vertex.task_id else worker.job_id
        kind = kind_of(self._index, worker, vertex.task_id)
        return Execution(
            key=vertex.key,
            name=describe(vertex),
            kind=kind,
            peer_group=PeerGroup(_peer_name(vertex, worker, kind), job_id),
            node=self._nodes.get(worker.node_id, f"node {names.short(worker.node_id)}"),
            job=self._job(job_id),
            worker_id=worker.worker_id,
            activity=activity_of(vertex, thread),
            path=self._path(thread),
            ranks=self._index.ranks(worker.worker_id, vertex.child_pid),
            child_pid=vertex.child_pid,
        )

    @cached_property
    def _nodes(self) -> dict[str, str]:
        return names.nodes(self._index.snapshot.nodes)

    def _job(self, job_id: str | None) -> str:
        if job_id not in self._jobs:
            self._jobs[job_id] = job_in_words(self._index, job_id)
        return self._jobs[job_id]

    def _path(self, execution: Thread | Coroutine) -> tuple[PathStep, ...]:
        stack, spans = execution.stack, execution.spans
        key = stack, tuple((span.name, span.frame) for span in spans)
        if key not in self._paths:
            frames = self._index.snapshot.frames_of(execution)
            places = with_spans(_places(frames, self._calls.get(stack), self._extent), spans)
            self._paths[key] = tuple(self._places.setdefault(place, place) for place in places)
        path = self._paths[key]
        self.folded += len(self._index.snapshot.stacks[stack]) - sum(step.is_frame for step in path)
        return path

    @cached_property
    def _calls(self) -> dict[int, Call]:
        """By stack: the call of an execution that has it, though others with it may have moved."""
        calls: dict[int, Call] = {}
        for process in self._index.processes.values():
            calls.update((thread.stack, thread.call) for thread in process.threads if thread.call)
            calls.update((coroutine.stack, coroutine.call) for coroutine in process.coroutines if coroutine.call)
        return calls


def _is_idle(index: SampleIndex, vertex: Vertex) -> bool:
    """Whether it is a task thread without a task."""
    thread = index.thread(vertex.worker_id, vertex.os_thread_id)
    sample = index.worker_samples.get(vertex.worker_id or "")
    if thread is None or thread.role != "task" or vertex.wait or sample is None or sample.running_task_ids != ():
        return False
    return not is_in_user_code(index, vertex)


def call_in_words(call: Call | None) -> str:
    """``ray.get`` or ``queue.Queue.get``; empty if only the frame has a name."""
    return CallName.of(call).text if call else ""


def step_of(frame: Frame) -> PathStep:
    """A frame as a step."""
    return PathStep(frame.function, frame.file, frame.line, frame.function, frame.origin)


def shown_step(one: FoldedFrame, name: str = "") -> PathStep:
    """A frame or an import as a step, with the name of the call that it is, if any."""
    frame = one.frame
    return PathStep(name or frame.function, frame.file, frame.line, frame.function, frame.origin, one.is_import)


def _places(frames: tuple[Frame, ...], call: Call | None, extent: Extent) -> Iterator[tuple[int, PathStep]]:
    """The path of a stack that is given leaf first, each step with the index of its frame."""
    at_call = call.frame if call else None
    for one in reversed(_shown(frames, at_call, extent)):
        is_call = one.first == at_call and one.frame.origin != "user"
        yield one.first, shown_step(one, call_in_words(call) if is_call else "")


def with_spans(steps: Iterable[tuple[int, PathStep]], spans: Sequence[Span]) -> Iterator[PathStep]:
    """A path from the outermost step, with each open span above the frame that has entered it.

    A span of an unknown frame is beside the span around it. One in frames that are not shown is above the next one
    that is, or at the end.
    """
    left = deque(spans)
    for index, step in steps:
        while left and (left[0].frame is None or left[0].frame >= index):
            yield span_step(left.popleft().name)
        yield step
    yield from (span_step(span.name) for span in left)


def span_step(name: str) -> PathStep:
    """The step of a span that a program marks with ``dstack.span``."""
    return PathStep(f'span "{name}"', origin="library", is_span=True)


def _shown(frames: tuple[Frame, ...], at_call: int | None, extent: Extent) -> list[FoldedFrame]:
    """The user frames and the call; without user frames, all frames from the thread's entry to the call.

    It begins after the first ones of the standard library, or after ``Worker.main_loop`` and what calls that. Seen on
    Ray 2.46 and 2.60.
    """
    shown = list(fold_imports(frames, at_call) if extent == "own" else all_frames(frames))
    if extent == "whole":
        return shown
    innermost = at_call or 0
    if own := {one.first for one in own_frames(shown)}:
        return [one for one in shown if one.first in own or one.first <= innermost <= one.last]
    begin = len(shown)
    while begin > 1 and _is_before_entry(shown[begin - 1]):
        begin -= 1
    return [one for one in shown[:begin] if one.last >= innermost] or shown[begin - 1 : begin]


def _is_before_entry(one: FoldedFrame) -> bool:
    return not one.is_import and (one.frame.origin == "stdlib" or _is_entry(one.frame))


def _is_entry(frame: Frame) -> bool:
    return frame.file.endswith(ENTRIES) and frame.function in ("<module>", "Worker.main_loop")


def _peer_name(vertex: Vertex, worker: Worker, kind: str) -> str:
    if vertex.child_pid is not None:
        return f"{'child processes' if vertex.coroutine_id is None else 'asyncio tasks of child processes'} of {kind}"
    if vertex.task_id is None and worker.actor_id is not None:
        return f"{'threads' if vertex.coroutine_id is None else 'asyncio tasks'} of {kind}"
    return describe(vertex)
