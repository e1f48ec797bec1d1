"""None"""

from __future__ import annotations

import pytest

from dstack.analysis.views.worker_state import FIGURES, Figure, Total, WorkerFigures
from dstack.report.cluster_text import total_cell, worker_cell

GIB = 2**30


@pytest.mark.parametrize(
    ("figure", "figures", "cell"),
    [
        ("cpu", WorkerFigures(cpu_percent=0.0), "0.0"),
        ("cpu", WorkerFigures(cpu_percent=99.96), "100"),
        ("cpu", WorkerFigures(cpu_percent=12.34, is_cpu_average=True), "~12.3"),
        ("memory", WorkerFigures(rss_bytes=512), "512"),
        ("memory", WorkerFigures(rss_bytes=340 * 2**20), "340M"),
        ("memory", WorkerFigures(rss_bytes=int(1.25 * GIB)), "1.2G"),
        ("memory", WorkerFigures(rss_bytes=200 * GIB), "200G"),
        ("gpu memory", WorkerFigures(gpu_memory_bytes=0), "0"),
        ("gpu", WorkerFigures(gpu_percent=93.0), "93.0"),
        ("queued", WorkerFigures(queued=1_234), "1234"),
        ("age", WorkerFigures(age_s=0.4), "0s"),
        ("age", WorkerFigures(age_s=119.0), "1m"),
        ("age", WorkerFigures(age_s=3e5), "3d"),
        ("threads", WorkerFigures(num_threads=58), "58"),
        *((figure, WorkerFigures(), "-") for figure in FIGURES),
    ],
)
def test_a_cell_is_short_and_an_unknown_figure_is_no_number(figure: Figure, figures: WorkerFigures, cell: str) -> None:
    assert worker_cell(figure, figures) == cell


def test_a_sum_of_which_a_part_is_unknown_is_a_lower_bound() -> None:
    assert total_cell("memory", Total(GIB, is_least=True)) == "≥1.0G"
    assert total_cell("memory", Total(GIB)) == "1.0G"
    assert total_cell("memory", Total(None)) == "-"
