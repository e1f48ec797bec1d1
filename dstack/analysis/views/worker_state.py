"""What each worker does, by its executions, and what it uses: CPU, memory, threads, GPUs. What is unknown is None."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dstack.analysis.index import subjects
from dstack.analysis.index.process_index import newest_processes
from dstack.analysis.index.sample_index import SampleIndex, is_in_user_code
from dstack.analysis.index.shown_frames import user_frame
from dstack.analysis.naming.descriptions import describe, operand_in_words
from dstack.analysis.naming.sentences import predicate
from dstack.analysis.naming.vertex_details import VertexDetails, details_of
from dstack.analysis.solve.requirements import targets_of
from dstack.analysis.stacks.app_threads import ACTIVITIES, Activity
from dstack.model.diagnosis import Diagnosis, Vertex
from dstack.model.snapshot import Snapshot, Worker
from dstack.model.vertex_keys import Key
from dstack.observed.node import Gpu
from dstack.observed.processes import Coroutine, CudaUse, Frame, GpuUse, Process, Thread
from dstack.words import grouped

PERMANENT = ("deadlock", "orphaned", "infeasible")
MIN_AGE_S = 1.0
"""The use of CPU since its start is no figure of a younger process."""
BYTES = ((2**40, "T"), (2**30, "G"), (2**20, "M"), (2**10, "K"))
AGES = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """The figures of one worker.

    ``cpu_percent`` (100 is one CPU) is measured over the last ``cpu_over_s``; with ``is_cpu_average``, since its start.
    ``gpu_percent`` is the mean utilisation of the GPUs that it uses, by any process. ``queued`` are the calls of its
    actor that do not run.
    """

    cpu_percent: float | None = None
    cpu_over_s: float = 0.0
    is_cpu_average: bool = False
    rss_bytes: int | None = None
    num_threads: int | None = None
    gpu_memory_bytes: int | None = None
    gpu_percent: float | None = None
    cuda: CudaUse | None = None
    queued: int | None = None
    age_s: float | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Figure:
    """A figure of workers, and all that its column needs.

    ``value`` reads it, None if it is unknown or does not apply; ``text`` says a value in a few cells. ``of_several`` is
    a figure of several workers from those that are known; a sum of all ``is_least`` if some are unknown. ``title`` is
    above a column of the terminal that is ``width`` cells wide, with a space before it and room for the mark of the
    sorted column; ``head`` is above that of a page, and ``words`` are in sentences.
    """

    words: str
    title: str
    head: str
    width: int
    style: str = ""
    value: Callable[[WorkerFigures], float | None]
    text: Callable[[float], str]
    of_several: Callable[[Sequence[float]], float] = sum
    is_least: bool = True


def short_percent(value: float) -> str:
    """``12.3``, ``100``."""
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def short_bytes(value: float) -> str:
    """``1.2G``, ``340M``, ``12K``."""
    for size, unit in BYTES:
        if value >= size:
            amount = value / size
            return f"{amount:.1f}{unit}" if amount < 99.95 and size >= 2**30 else f"{amount:.0f}{unit}"
    return f"{value:.0f}"


def short_age(value: float) -> str:
    """``3d``, ``12h``, ``0s``."""
    return next((f"{int(value // size)}{unit}" for size, unit in AGES if value >= size), "0s")


CPU = Figure(
    words="CPU",
    title="CPU%",
    head="CPU %",
    width=7,
    style="green",
    value=lambda one: one.cpu_percent,
    text=short_percent,
)
MEMORY = Figure(
    words="memory",
    title="RSS",
    head="Memory",
    width=7,
    style="cyan",
    value=lambda one: one.rss_bytes,
    text=short_bytes,
)
GPU_MEMORY = Figure(
    words="GPU memory",
    title="GPU MEM",
    head="GPU memory",
    width=9,
    style="cyan",
    value=lambda one: one.gpu_memory_bytes,
    text=short_bytes,
)
GPU = Figure(
    words="GPU utilisation",
    title="GPU%",
    head="GPU %",
    width=6,
    style="green",
    value=lambda one: one.gpu_percent,
    text=short_percent,
    of_several=lambda known: sum(known) / len(known),
    is_least=False,
)
QUEUED = Figure(
    words="queued calls",
    title="QUEUED",
    head="Queued",
    width=8,
    value=lambda one: one.queued,
    text="{:.0f}".format,
    is_least=False,
)
AGE = Figure(
    words="age",
    title="AGE",
    head="Age",
    width=5,
    value=lambda one: one.age_s,
    text=short_age,
    of_several=max,
    is_least=False,
)
THREADS = Figure(
    words="threads",
    title="THREADS",
    head="Threads",
    width=9,
    value=lambda one: one.num_threads,
    text="{:.0f}".format,
)
FIGURES = (CPU, MEMORY, GPU_MEMORY, GPU, QUEUED, AGE, THREADS)
"""All figures, the most important ones first."""


@dataclass(frozen=True, slots=True)
class Total:
    """A figure of several workers, None if all are unknown; ``is_least`` if some are, so that it may be larger."""

    value: float | None
    is_least: bool = False


def total(figure: Figure, workers: Iterable[WorkerFigures]) -> Total:
    """One figure of several workers."""
    values = list(map(figure.value, workers))
    known = [value for value in values if value is not None]
    if not known:
        return Total(None)
    return Total(figure.of_several(known), figure.is_least and len(known) < len(values))


class FigureReader:
    """The figures of the workers of one snapshot, from the newest sample that has each process."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def of(self, worker: Worker, queued: int | None = None) -> WorkerFigures:
        """The figures of a worker with this number of queued calls."""
        process = self._processes.get(worker.worker_id)
        if process is None:
            return WorkerFigures(queued=queued)
        age_s = self._age_s(process, worker)
        cpu_percent, over_s, is_average = _cpu(process, age_s)
        return WorkerFigures(
            cpu_percent=cpu_percent,
            cpu_over_s=over_s,
            is_cpu_average=is_average,
            rss_bytes=process.rss_bytes or None,
            num_threads=process.num_threads or None,
            gpu_memory_bytes=_gpu_memory(process.gpus),
            gpu_percent=self._gpu_percent(process.gpus, self._gpus.get(worker.node_id, {})),
            cuda=process.cuda,
            queued=queued,
            age_s=age_s,
        )

    def _age_s(self, process: Process, worker: Worker) -> float | None:
        """The age at the time of the snapshot, by the clock of its node."""
        if not process.started_at:
            return None
        return max(0.0, self._snapshot.taken_at + self._ahead_s.get(worker.node_id, 0.0) - process.started_at)

    @staticmethod
    def _gpu_percent(uses: Iterable[GpuUse] | None, gpus: Mapping[int, Gpu]) -> float | None:
        used = [gpus[use.index].utilisation_percent for use in uses or () if use.index in gpus]
        known = [percent for percent in used if percent is not None]
        return sum(known) / len(known) if known else None

    @cached_property
    def _processes(self) -> dict[str, Process]:
        return newest_processes(self._snapshot)

    @cached_property
    def _gpus(self) -> dict[str, dict[int, Gpu]]:
        return {node.node_id: {gpu.index: gpu for gpu in node.host.gpus or ()} for node in self._snapshot.nodes}

    @cached_property
    def _ahead_s(self) -> dict[str, float]:
        return {node.node_id: node.clock_ahead_s or 0.0 for node in self._snapshot.nodes}


def _cpu(process: Process, age_s: float | None) -> tuple[float | None, float, bool]:
    """The use of CPU, the seconds over which it was measured, and whether it is the average since the start."""
    if process.cpu_percent is not None:
        return process.cpu_percent, process.cpu_over_s, False
    if not process.num_threads or age_s is None or age_s < MIN_AGE_S:
        return None, 0.0, False
    return 100 * process.cpu_s / age_s, age_s, True


def _gpu_memory(uses: Iterable[GpuUse] | None) -> int | None:
    if uses is None:
        return None
    sizes = [use.memory_bytes for use in uses]
    return None if None in sizes else sum(size or 0 for size in sizes)


@dataclass(frozen=True, slots=True)
class ExecutionGroup:
    """Similar executions: their ``count`` and activity, and the name and the sentence of the first.

    ``vertex`` is that of the first. ``is_whole_process`` is true for a driver's main code.
    """

    vertex: Key
    activity: Activity
    name: str
    words: str
    is_whole_process: bool = False
    file: str | None = None
    line: int | None = None
    source: str | None = None
    count: int = 1

    @property
    def text(self) -> str:
        """The sentence."""
        return f"{self.name} {self.words}"


class WorkerActivity:
    """The executions of all workers with their activities."""

    def __init__(self, index: SampleIndex, diagnosis: Diagnosis) -> None:
        self._index = index
        self._vertices = diagnosis.vertices
        self._frames: dict[int, Frame | None] = {}
        self.stuck = {
            key
            for finding in diagnosis.findings
            if finding.kind in PERMANENT
            for key in (*finding.members, *finding.blocked_behind)
        }

    def groups(self, worker_id: str) -> tuple[ExecutionGroup, ...]:
        """The executions of a worker, stuck ones first, similar ones as one group."""
        groups = grouped((self._shape(vertex), vertex) for vertex in self._executions.get(worker_id, ()))
        found = [self._group(first, 1 + len(others)) for first, *others in groups.values()]
        return tuple(sorted(found, key=lambda group: ACTIVITIES.index(group.activity)))

    def counts(self, worker_id: str) -> dict[Activity, int]:
        """The number of executions of a worker by activity."""
        counts: dict[Activity, int] = defaultdict(int)
        for vertex in self._executions.get(worker_id, ()):
            counts[self._activity(vertex)] += 1
        return dict(counts)

    def shapes(self, worker_id: str) -> frozenset[object]:
        """Equal for workers whose executions are similar."""
        return frozenset(map(self._shape, self._executions.get(worker_id, ())))

    @cached_property
    def _executions(self) -> dict[str, list[Vertex]]:
        return grouped((vertex.worker_id or "", vertex) for vertex in filter(self._is_active, self._vertices.values()))

    def _is_active(self, vertex: Vertex) -> bool:
        """Whether it is an execution, and not a thread of an idle worker that waits for its next task."""
        if vertex.worker_id is None or vertex.kind not in ("execution", "task"):
            return False
        if vertex.task_id or vertex.wait or vertex.never:
            return True
        worker = self._index.workers.get(vertex.worker_id)
        sample = self._index.worker_samples.get(vertex.worker_id)
        if (worker and worker.is_driver) or sample is None or sample.running_task_ids != ():
            return True
        return is_in_user_code(self._index, vertex)

    def _activity(self, vertex: Vertex) -> Activity:
        if vertex.key in self.stuck:
            return "stuck"
        if vertex.kind == "task" and vertex.wait is not None:
            if self._is_unreadable(vertex):
                return "unreadable"
            if vertex.wait.kind == "thread":
                return "running"
        return "waiting" if vertex.wait or vertex.never else "running"

    def _is_unreadable(self, vertex: Vertex) -> bool:
        """Whether it is a running task whose stack was not read."""
        return vertex.kind == "task" and any(self._vertices[key].unobserved for key in targets_of(vertex))

    def _group(self, vertex: Vertex, count: int) -> ExecutionGroup:
        details = details_of(self._index, vertex)
        return ExecutionGroup(
            vertex=vertex.key,
            activity=self._activity(vertex),
            name=describe(vertex),
            words=self._words(vertex, details),
            is_whole_process=self._is_whole_process(vertex),
            file=details.file,
            line=details.line,
            source=details.source,
            count=count,
        )

    def _words(self, vertex: Vertex, details: VertexDetails) -> str:
        if vertex.kind == "task" and vertex.key not in self.stuck:
            if self._is_unreadable(vertex):
                targets = (self._vertices[key] for key in targets_of(vertex))
                hidden = next(describe(target) for target in targets if target.unobserved)
                return f"runs, but its stack was not read: {hidden}"
            if vertex.wait is None or vertex.wait.kind == "thread":
                return "runs on an unknown thread"
        return predicate(self._index, self._vertices, vertex, details)

    def _is_whole_process(self, vertex: Vertex) -> bool:
        """Whether it is a driver's main thread, or a driver without stacks."""
        worker = self._index.worker_of(vertex)
        if worker is None or not worker.is_driver or vertex.task_id is not None:
            return False
        return vertex.kind == "task" or vertex.os_thread_id == worker.pid

    def _shape(self, vertex: Vertex) -> object:
        """Equal for similar executions: by name, line, and the names of the dependencies."""
        wait = vertex.wait
        execution = self._index.execution_of(vertex)
        targets = frozenset(describe(self._vertices[key]) for key in targets_of(vertex))
        return (
            self._common_name(vertex, execution),
            self._activity(vertex),
            self._user_frame(execution) if execution else None,
            wait and (wait.kind, wait.called, wait.timeout_s, targets),
        )

    def _user_frame(self, execution: Thread | Coroutine) -> Frame | None:
        if execution.stack not in self._frames:
            self._frames[execution.stack] = user_frame(self._index.snapshot.frames_of(execution))
        return self._frames[execution.stack]

    def _common_name(self, vertex: Vertex, execution: Thread | Coroutine | None) -> tuple[str, bool]:
        """The name of an execution, of an asyncio task without its number; and whether it is an asyncio task."""
        if isinstance(execution, Coroutine) and vertex.task_id is None:
            return operand_in_words(subjects.owner_of(self._index, vertex.worker_id or "", execution)), True
        return describe(vertex), False
