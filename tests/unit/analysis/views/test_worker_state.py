"""The figures of workers: the newest reading of each process, and None for what is unknown."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dstack.analysis.views.worker_state import (
    AGE,
    CPU,
    FIGURES,
    GPU,
    MEMORY,
    QUEUED,
    Figure,
    FigureReader,
    Total,
    WorkerFigures,
    total,
)
from dstack.model.snapshot import Sample, Snapshot, Worker, WorkerSample
from dstack.observed.node import Gpu, HostFigures
from dstack.observed.processes import GpuUse, Process
from tests.unit.scenes import TAKEN_AT, Scene

GIB = 2**30
KNOWN = {"rss_bytes": 2 * GIB, "num_threads": 34, "cpu_percent": 12.5, "cpu_over_s": 0.2}


def figures_of(known: dict[str, Any], *, gpus: tuple[Gpu, ...] | None = None, ahead_s: float = 0.0) -> WorkerFigures:
    """The figures of a worker whose process has these."""
    scene = Scene()
    proc = scene.worker(scene.node(CPU=1.0))
    scene.nodes[0] = replace(scene.nodes[0], host=HostFigures(gpus=gpus), clock_ahead_s=ahead_s)
    proc.known = {"started_at": TAKEN_AT - 100.0, **known}
    return FigureReader(scene.snapshot()).of(proc.worker, queued=3)


def test_a_worker_has_the_figures_of_its_process() -> None:
    found = figures_of(KNOWN)

    assert found == WorkerFigures(
        cpu_percent=12.5, cpu_over_s=0.2, rss_bytes=2 * GIB, num_threads=34, queued=3, age_s=100.0
    )
    assert [figure.value(found) for figure in FIGURES] == [12.5, 2 * GIB, None, None, 3, 100.0, 34]


def test_a_use_that_was_not_measured_is_the_average_since_the_start() -> None:
    found = figures_of({"cpu_s": 25.0, "num_threads": 1})

    assert (found.cpu_percent, found.cpu_over_s, found.is_cpu_average) == (25.0, 100.0, True)
    assert figures_of({"cpu_s": 25.0, "num_threads": 1, "started_at": TAKEN_AT - 0.5}).cpu_percent is None


def test_a_process_of_which_only_the_stacks_are_known_has_no_figures() -> None:
    assert figures_of({"started_at": 0.0}) == WorkerFigures(queued=3)
    assert figures_of({}) == WorkerFigures(queued=3, age_s=100.0)


def test_the_age_is_by_the_clock_of_the_node() -> None:
    assert figures_of(KNOWN, ahead_s=-60.0).age_s == 40.0
    assert figures_of(KNOWN, ahead_s=-600.0).age_s == 0.0


@pytest.mark.parametrize(
    ("uses", "memory", "percent"),
    [
        (None, None, None),
        ((), 0, None),
        ((GpuUse(index=0, memory_bytes=GIB),), GIB, 90.0),
        ((GpuUse(index=0, memory_bytes=GIB), GpuUse(index=1, memory_bytes=GIB)), 2 * GIB, 50.0),
        ((GpuUse(index=0, memory_bytes=GIB), GpuUse(index=2)), None, 90.0),
        ((GpuUse(index=9, memory_bytes=0),), 0, None),
    ],
)
def test_gpus_are_those_that_the_process_uses(
    uses: tuple[GpuUse, ...] | None, memory: int | None, percent: float | None
) -> None:
    gpus = (Gpu(index=0, utilisation_percent=90.0), Gpu(index=1, utilisation_percent=10.0), Gpu(index=2))
    found = figures_of({**KNOWN, "gpus": uses}, gpus=gpus)

    assert (found.gpu_memory_bytes, found.gpu_percent) == (memory, percent)


def test_the_newest_sample_that_has_the_process_counts() -> None:
    worker = Worker(worker_id="a", node_id="n", ip="", port=1, pid=2)

    def sample(**known: Any) -> Sample:
        process = Process(pid=2, started_at=1.0, **known) if known else None
        return Sample(began_s=0, ended_s=1, workers=(WorkerSample(worker_id="a", process=process),))

    def snapshot(*samples: Sample) -> Snapshot:
        return Snapshot(dstack_version="", taken_at=10.0, address="", ray_version="", samples=samples)

    both = snapshot(sample(cpu_percent=10.0), sample(cpu_percent=70.0))
    first = snapshot(sample(cpu_percent=10.0), sample())
    assert [FigureReader(one).of(worker).cpu_percent for one in (both, first)] == [70.0, 10.0]


@pytest.mark.parametrize(
    ("figure", "field", "values", "expected"),
    [
        (MEMORY, "rss_bytes", [1, 2], Total(3)),
        (MEMORY, "rss_bytes", [1, None], Total(1, is_least=True)),
        (MEMORY, "rss_bytes", [None, None], Total(None)),
        (CPU, "cpu_percent", [], Total(None)),
        (GPU, "gpu_percent", [10.0, 50.0, None], Total(30.0)),
        (AGE, "age_s", [10.0, 50.0, None], Total(50.0)),
        (QUEUED, "queued", [4, None], Total(4)),
    ],
)
def test_a_total_is_a_lower_bound_if_a_value_is_unknown(
    figure: Figure, field: str, values: list[float | None], expected: Total
) -> None:
    assert total(figure, [WorkerFigures(**{field: value}) for value in values]) == expected  # type: ignore[arg-type]
