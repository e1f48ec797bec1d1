"""The snapshots of a server: those of files, and those that it takes of a running cluster."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.collector import Collector
from dstack.errors import UsageError
from dstack.model import Snapshot

MAX_KEPT = 5
"""The most snapshots of a running cluster that are kept."""


class Snapshots:
    """Snapshots by number, from 1 on; those of files come first. A context manager, which ends the session.

    Methods may be called from several threads; one snapshot is taken at a time.
    """

    def __init__(self, collector: Collector | None, saved: Sequence[Snapshot]) -> None:
        self._collector = collector
        self._saved = len(saved)
        self._kept = dict(enumerate(map(AnalysedSnapshot.of, saved), start=1))
        self._last = self._saved
        self._lock = threading.Lock()

    def __enter__(self) -> Snapshots:
        return self

    def __exit__(self, *_: object) -> None:
        if self._collector is not None:
            self._collector.cancel()

    def new(self) -> int:
        """The number of a new snapshot of the running cluster; without one, of the last file.

        Raises :class:`dstack.ClusterError` if the cluster cannot be read.
        """
        if self._collector is None:
            return self._last
        with self._lock:
            analysed = AnalysedSnapshot.of(self._collector.take())
            self._last += 1
            self._kept[self._last] = analysed
            if (oldest := self._last - MAX_KEPT) > self._saved:
                del self._kept[oldest]
            return self._last

    def last(self) -> int:
        """The number of the newest snapshot; takes one if there is none."""
        return self._last or self.new()

    def get(self, number: int) -> AnalysedSnapshot:
        """The snapshot with a number. Raises :class:`UsageError` if it is not kept."""
        try:
            return self._kept[number]
        except KeyError:
            known = ", ".join(map(str, self._kept)) or "none"
            raise UsageError(f"There is no snapshot {number}.", f"These are kept: {known}.") from None
