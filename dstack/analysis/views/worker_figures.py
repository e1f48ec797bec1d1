"""What each worker uses: CPU, memory, threads and GPUs, its queue and its age. What is unknown is None, never 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from dstack.model.snapshot import Snapshot, Worker
from dstack.observed.node import Gpu
from dstack.observed.processes import GpuUse, Process

Figure = Literal["cpu", "memory", "gpu memory", "gpu", "queued", "age", "threads"]
FIGURES: tuple[Figure, ...] = ("cpu", "memory", "gpu memory", "gpu", "queued", "age", "threads")
"""All figures, the most important ones first."""
FIELDS: dict[Figure, str] = {
    "cpu": "cpu_percent",
    "memory": "rss_bytes",
    "gpu memory": "gpu_memory_bytes",
    "gpu": "gpu_percent",
    "queued": "queued",
    "age": "age_s",
    "threads": "num_threads",
}
MIN_AGE_S = 1.0
"""The use of CPU since its start is no figure of a younger process."""


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
    queued: int | None = None
    age_s: float | None = None

    def value(self, figure: Figure) -> float | None:
        """One of the figures; None if it is unknown or does not apply."""
        value: float | None = getattr(self, FIELDS[figure])
        return value


@dataclass(frozen=True, slots=True)
class Total:
    """A figure of several workers: their sum, for ``gpu`` the mean, for ``age`` the maximum; None if all are unknown.

    ``is_least`` says that some of them are unknown, so that the sum may be larger.
    """

    value: float | None
    is_least: bool = False


def total(figure: Figure, workers: Iterable[WorkerFigures]) -> Total:
    """One figure of several workers."""
    values = [one.value(figure) for one in workers]
    known = [value for value in values if value is not None]
    if not known:
        return Total(None)
    if figure == "gpu":
        return Total(sum(known) / len(known))
    if figure == "age":
        return Total(max(known))
    return Total(sum(known), is_least=figure != "queued" and len(known) < len(values))


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
        samples = (worker for sample in self._snapshot.samples for worker in sample.workers)
        return {one.worker_id: one.process for one in samples if one.process and one.process.started_at}

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
