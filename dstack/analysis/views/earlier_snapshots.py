"""Snapshots before the one that is shown, of which only one or two have to be in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.errors import DstackError
from dstack.model import Snapshot


class LoadableSnapshot(Protocol):
    """A snapshot that can be read at any time, from any thread."""

    def load(self) -> Snapshot:
        """Read it. Raises :class:`dstack.DstackError`."""
        ...


class EarlierSnapshots:
    """Saved snapshots in the order of their time, which each pass reads and diagnoses again.

    With a ``job``, the id of one, only those in which it is known. ``skipped`` are the errors of those that the last
    pass could not read.
    """

    def __init__(self, files: Sequence[LoadableSnapshot], job: str | None = None) -> None:
        self._files = files
        self._job = job
        self.skipped: list[DstackError] = []

    def __iter__(self) -> Iterator[AnalysedSnapshot]:
        self.skipped = []
        for file in self._files:
            try:
                snapshot = file.load()
            except DstackError as error:
                self.skipped.append(error)
                continue
            if self._job is None or any(job.job_id == self._job for job in snapshot.jobs):
                yield AnalysedSnapshot.of(snapshot, job=self._job)
