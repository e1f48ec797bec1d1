"""The columns of figures beside the lines of the Cluster view, right-aligned at the edge of the screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from dstack.analysis.views.worker_figures import Figure, Total, WorkerFigures
from dstack.analysis.views.worker_groups import Column, Order
from dstack.report.figure_cells import UNKNOWN, total_cell, worker_cell

TITLES: dict[Figure, str] = {
    "cpu": "CPU%",
    "memory": "RSS",
    "gpu memory": "GPU MEM",
    "gpu": "GPU%",
    "queued": "QUEUED",
    "age": "AGE",
    "threads": "THREADS",
}
WORDS: dict[Column, str] = {
    "activity": "activity",
    "name": "name",
    "cpu": "CPU",
    "memory": "memory",
    "gpu memory": "GPU memory",
    "gpu": "GPU utilisation",
    "queued": "queued calls",
    "age": "age",
    "threads": "threads",
}
WIDTHS: dict[Figure, int] = {"cpu": 7, "memory": 7, "gpu memory": 9, "gpu": 6, "queued": 8, "age": 5, "threads": 9}
"""Each with a space before it, and room for the mark of the sorted column."""
MIN_TEXT = 54
"""So many cells stay for the text of a line before a column is left out."""
STYLES: dict[Figure, str] = {"cpu": "green", "memory": "cyan", "gpu memory": "cyan", "gpu": "green"}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that fit on the screen, in their order."""

    figures: tuple[Figure, ...] = ()

    @classmethod
    def that_fit(cls, known: Sequence[Figure], width: int, order: Order) -> Columns:
        """The most important of the ``known`` figures that leave enough cells for text; always the sorted one."""
        left = width - MIN_TEXT - (WIDTHS[order.figure] if order.figure else 0)
        found: set[Figure] = {order.figure} if order.figure else set()
        for figure in known:
            if figure not in found:
                left -= WIDTHS[figure]
                if left < 0:
                    break
                found.add(figure)
        return cls(tuple(figure for figure in WIDTHS if figure in found))

    @property
    def width(self) -> int:
        """The width of all columns."""
        return sum(WIDTHS[figure] for figure in self.figures)

    def header(self, left: str, width: int, order: Order) -> Text:
        """The line of titles, with a mark at the sorted column."""
        cells = {figure: TITLES[figure] + (mark_of(order) if figure == order.figure else "") for figure in self.figures}
        text = Text(left, "dim", no_wrap=True, end="")
        text.truncate(max(1, width - self.width), overflow="ellipsis", pad=True)
        for figure in self.figures:
            text.append(cells[figure].rjust(WIDTHS[figure]), "bold" if figure == order.figure else "dim")
        return text

    def of_worker(self, figures: WorkerFigures) -> Text:
        """The cells of one worker."""
        return self._cells({figure: worker_cell(figure, figures) for figure in self.figures})

    def of_total(self, totals: Mapping[Figure, Total]) -> Text:
        """The cells of a group."""
        return self._cells({figure: total_cell(figure, totals[figure]) for figure in self.figures})

    def _cells(self, cells: Mapping[Figure, str]) -> Text:
        text = Text(end="")
        for figure in self.figures:
            cell = cells[figure]
            text.append(cell.rjust(WIDTHS[figure]), "dim" if cell == UNKNOWN else STYLES.get(figure, ""))
        return text


def beside(text: Text, cells: Text) -> Callable[[int, Console], Sequence[Text]]:
    """The layout of a line: its text, cut off where the cells begin; made once for each width."""
    made: dict[int, list[Text]] = {}

    def rows(width: int, _: Console) -> Sequence[Text]:
        if width not in made:
            row = text.copy()
            row.truncate(max(1, width - cells.cell_len), overflow="ellipsis", pad=True)
            made.clear()
            made[width] = [row.append_text(cells)]
        return made[width]

    return rows


def mark_of(order: Order) -> str:
    """``▼`` if the largest or last comes first, else ``▲``."""
    return "▼" if order.is_descending else "▲"
