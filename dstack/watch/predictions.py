"""The possible deadlocks that a watch has reported, and what it remembers of the calls that it predicts from.

A snapshot has the source of jobs that run, and the waits of its moment. So the watch adds to each snapshot what earlier
ones have shown of the calls in its history: then the last calls of a job that has ended are known with their source.
"""

from __future__ import annotations

from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.prediction import PossibleDeadlock
from dstack.model.snapshot import Snapshot
from dstack.observed.outlines import ProgramOutline


class PossibleDeadlocks:
    """Each is new once, by what a reader sees of it; what is remembered is bounded by the history of a snapshot."""

    def __init__(self) -> None:
        self._outlines: tuple[ProgramOutline, ...] = ()
        self._waits: tuple[tuple[str, str], ...] = ()
        self._known: set[object] = set()

    def completed(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the source and the waits that earlier ones have shown of the calls in its history."""
        if snapshot.history is None:
            return snapshot
        tasks = {one.task_id for one in snapshot.history.attempts}
        jobs = {one.job_id for one in snapshot.history.attempts} | {one.job_id for one in snapshot.outlines}
        known = {one.job_id: one for one in (*self._outlines, *snapshot.outlines)}
        self._outlines = tuple(one for one in known.values() if one.job_id in jobs)
        earlier = tuple(pair for pair in self._waits if tasks.issuperset(pair))
        return replace(snapshot, outlines=self._outlines, earlier_waits=earlier)

    def new(self, analysed: AnalysedSnapshot) -> list[PossibleDeadlock]:
        """Those of a completed snapshot that no earlier one had."""
        if analysed.history is None:
            return []
        self._waits = tuple(sorted(analysed.shown_waits))
        found = [one for one in analysed.prediction.possible if one.shape not in self._known]
        self._known.update(one.shape for one in found)
        return found

    def __len__(self) -> int:
        return len(self._known)
