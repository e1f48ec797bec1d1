"""The workers of a cluster as rows of a table; of a large cluster one row for similar workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dstack.analysis.stacks.app_threads import Activity
from dstack.analysis.stacks.rank_sets import RankSets
from dstack.analysis.views.inventory import Inventory, WorkerSummary, group_similar_workers
from dstack.analysis.views.worker_figures import FIGURES, Figure, total
from dstack.report.cluster_words import queued_calls
from dstack.report.figure_cells import total_cell, worker_cell
from dstack.report.paths import place_of
from dstack.vertex_keys import Key
from dstack.words import listed

MAX_ROWS = 2_000
"""Of more workers, similar ones share a row; of more rows, the first ones are shown: stuck workers come first."""


@dataclass(frozen=True, slots=True)
class FigureCell:
    """A figure in words, and the number to sort by; None if it is unknown."""

    text: str
    value: float | None


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker, or ``count`` similar ones with the pid and the node of the first; ``stack`` is the id of its stack.

    ``does`` is its activity, or the number of its executions by activity. ``notes`` are its queue, its resources and
    why it was not read.
    """

    activity: Activity
    count: int
    nodes: int
    name: str
    ranks: str
    pid: int
    node: str
    does: str
    place: str
    stack: str | None
    notes: tuple[str, ...]
    figures: tuple[FigureCell, ...]
    terms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerTable:
    """The rows, the figures that any of the workers has, and how many workers have no row."""

    rows: tuple[WorkerRow, ...]
    figures: tuple[Figure, ...]
    left_out: int

    @property
    def is_grouped(self) -> bool:
        """Whether a row is of several workers."""
        return any(row.count > 1 for row in self.rows)


def worker_table(
    inventory: Inventory, summaries: Sequence[WorkerSummary], ids: Mapping[Key, str], rank_sets: RankSets
) -> WorkerTable:
    """The table of these workers, stuck ones first; ``ids`` are those of the elements with stacks."""
    groups = group_similar_workers(summaries) if len(summaries) > MAX_ROWS else [[one] for one in summaries]
    figures = tuple(one for one in FIGURES if any(some.figures.value(one) is not None for some in summaries))
    maker = _RowMaker(inventory, ids, rank_sets, figures)
    left_out = sum(map(len, groups[MAX_ROWS:]))
    return WorkerTable(tuple(map(maker.row, groups[:MAX_ROWS])), figures, left_out)


@dataclass(frozen=True, slots=True)
class _RowMaker:
    inventory: Inventory
    ids: Mapping[Key, str]
    rank_sets: RankSets
    figures: tuple[Figure, ...]

    def row(self, similar: Sequence[WorkerSummary]) -> WorkerRow:
        """The row of one worker or of several similar ones."""
        first, worker = similar[0], similar[0].worker
        does, place, stack = self._activity(first)
        return WorkerRow(
            activity=first.activity,
            count=len(similar),
            nodes=len({one.worker.node_id for one in similar}),
            name=first.name,
            ranks=self._ranks(similar),
            pid=worker.pid,
            node=worker.ip,
            does=does,
            place=place,
            stack=stack,
            notes=tuple(self._notes(first)),
            figures=tuple(self._cell(figure, similar) for figure in self.figures),
            terms=tuple(sorted({term for one in similar for term in one.ranks.terms})),
        )

    def _ranks(self, similar: Sequence[WorkerSummary]) -> str:
        if len(similar) == 1:
            return similar[0].ranks.in_words
        found = self.rank_sets.rank_set([one.worker.worker_id for one in similar])
        return found.words if found else ""

    def _activity(self, one: WorkerSummary) -> tuple[str, str, str | None]:
        """What it does, at which line, and the id of its stack."""
        executions = self.inventory.executions(one.worker.worker_id)
        if not executions:
            return "", "", None
        first = executions[0]
        words = first.words if first.is_whole_process else first.text
        if sum(one.counts.values()) > 1:
            words = f"{listed([f'{count:,} {activity}' for activity, count in one.counts.items()])}; {words}"
        place = place_of(first.file, first.line) if first.file else ""
        return words, place, self.ids.get(first.vertex)

    def _notes(self, one: WorkerSummary) -> list[str]:
        held = self.inventory.held_by(one.worker.worker_id)
        queued = queued_calls(self.inventory, one) if one.queued else ""
        return [note for note in (f"holds {held}" if held else "", queued, one.trouble or "") if note]

    def _cell(self, figure: Figure, similar: Sequence[WorkerSummary]) -> FigureCell:
        if len(similar) == 1:
            own = similar[0].figures
            return FigureCell(worker_cell(figure, own), own.value(figure))
        summed = total(figure, (one.figures for one in similar))
        return FigureCell(total_cell(figure, summed), summed.value)
