"""Samples of one cluster in quick succession, for a profile.

The control plane is read once a second, in between it counts as unchanged. What has not moved is not read again.
"""

from __future__ import annotations

import time
from concurrent.futures import Future

from dstack.errors import ClusterError
from dstack.model.snapshot import Snapshot
from dstack.observed.reading_options import ReadingOptions
from dstack.probes.cluster import ClusterProbe, Progress
from dstack.probes.connection.background import begin
from dstack.probes.node_access.node_readers import Budget, Extras, ProbeSession
from dstack.probes.observations import Observations
from dstack.probes.ray_state.control_plane import Inventory, take_inventory

LISTED_EVERY_S = 1.0
"""How often the control plane is read."""


class ClusterRounds(ClusterProbe):
    """Takes one sample after another, with the probes of a session.

    Raises :class:`dstack.errors.ClusterError` on construction when the cluster cannot be reached.
    """

    def __init__(self, session: ProbeSession, address: str | None, progress: Progress) -> None:
        super().__init__(session, address, ReadingOptions(), progress)
        self._progress = lambda _: None
        self._listed_at = 0.0
        self._listing: Future[Inventory] | None = None

    def take(self, deadline_s: float) -> Snapshot:
        """A snapshot with one sample. Raises :class:`ClusterError` if the control plane cannot be read at first."""
        budget = Budget.of(1, deadline_s)
        self._observed = Observations()
        self._list(budget)
        wanted = {worker.worker_id for worker in self._inventory.workers}
        self._sample(self._inventory, wanted, budget, Extras(children=True, starting=True))
        return self.snapshot()

    def _list(self, budget: Budget) -> None:
        """Note the current inventory; the last one if there is no newer one yet."""
        if not self._listed_at:
            self._inventory, self._listed_at = take_inventory(self.cluster, budget.rpc_timeout_s()), time.monotonic()
        if self._listing is None and time.monotonic() - self._listed_at > LISTED_EVERY_S:
            self._listing = begin(lambda: take_inventory(self.cluster, budget.rpc_timeout_s()))
        if self._listing is not None and self._listing.done():
            listing, self._listing, self._listed_at = self._listing, None, time.monotonic()
            try:
                self._inventory = listing.result()
            except ClusterError as error:
                self._note_unlisted(error)

    def _note_unlisted(self, error: ClusterError) -> None:
        self._observed.notes[f"The control plane could not be read for a time: {error.message}"] = None
