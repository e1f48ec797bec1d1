"""The figures of workers as cells of a table: each in a few characters, below its title."""

from __future__ import annotations

from dstack.analysis.views.worker_figures import Figure, Total, WorkerFigures

UNKNOWN = "-"
BYTES = ((2**40, "T"), (2**30, "G"), (2**20, "M"), (2**10, "K"))
AGES = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def worker_cell(figure: Figure, figures: WorkerFigures) -> str:
    """A figure in a few cells; ``~`` marks an average since the start of the process."""
    value = figures.value(figure)
    if value is None:
        return UNKNOWN
    return ("~" if figure == "cpu" and figures.is_cpu_average else "") + _short(figure, value)


def total_cell(figure: Figure, total: Total) -> str:
    """A total in a few cells; ``≥`` marks a sum without some unknown figures."""
    if total.value is None:
        return UNKNOWN
    return ("≥" if total.is_least else "") + _short(figure, total.value)


def _short(figure: Figure, value: float) -> str:
    if figure in ("memory", "gpu memory"):
        return short_bytes(value)
    if figure == "age":
        return next((f"{int(value // size)}{unit}" for size, unit in AGES if value >= size), "0s")
    if figure in ("cpu", "gpu"):
        return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
    return f"{value:.0f}"


def short_bytes(value: float) -> str:
    """``1.2G``, ``340M``, ``12K``."""
    for size, unit in BYTES:
        if value >= size:
            amount = value / size
            return f"{amount:.1f}{unit}" if amount < 99.95 and size >= 2**30 else f"{amount:.0f}{unit}"
    return f"{value:.0f}"
