"""Figures of workers in a few cells."""

from __future__ import annotations

import pytest

from dstack.analysis.views.worker_state import (
    AGE,
    CPU,
    FIGURES,
    GPU,
    GPU_MEMORY,
    MEMORY,
    QUEUED,
    THREADS,
    Figure,
    Total,
    WorkerFigures,
)
from dstack.report.cluster_text import total_cell, worker_cell

GIB = 2**30


@pytest.mark.parametrize(
    ("figure", "figures", "cell"),
    [
        (CPU, WorkerFigures(cpu_percent=0.0), "0.0"),
        (CPU, WorkerFigures(cpu_percent=99.96), "100"),
        (CPU, WorkerFigures(cpu_percent=12.34, is_cpu_average=True), "~12.3"),
        (MEMORY, WorkerFigures(rss_bytes=512), "512"),
        (MEMORY, WorkerFigures(rss_bytes=340 * 2**20), "340M"),
        (MEMORY, WorkerFigures(rss_bytes=int(1.25 * GIB)), "1.2G"),
        (MEMORY, WorkerFigures(rss_bytes=200 * GIB), "200G"),
        (GPU_MEMORY, WorkerFigures(gpu_memory_bytes=0), "0"),
        (GPU, WorkerFigures(gpu_percent=93.0), "93.0"),
        (QUEUED, WorkerFigures(queued=1_234), "1234"),
        (AGE, WorkerFigures(age_s=0.4), "0s"),
        (AGE, WorkerFigures(age_s=119.0), "1m"),
        (AGE, WorkerFigures(age_s=3e5), "3d"),
        (THREADS, WorkerFigures(num_threads=58), "58"),
        *((figure, WorkerFigures(), "-") for figure in FIGURES),
    ],
)
def test_a_cell_is_short_and_an_unknown_figure_is_no_number(figure: Figure, figures: WorkerFigures, cell: str) -> None:
    assert worker_cell(figure, figures) == cell


def test_a_sum_of_which_a_part_is_unknown_is_a_lower_bound() -> None:
    assert total_cell(MEMORY, Total(GIB, is_least=True)) == "≥1.0G"
    assert total_cell(MEMORY, Total(GIB)) == "1.0G"
    assert total_cell(MEMORY, Total(None)) == "-"
