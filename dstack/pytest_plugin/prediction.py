"""Predicts deadlocks from the calls of each test; loaded only with ``--dstack-predict``.

Workers report task events once a second by default. The plugin makes the clusters that tests start report more often
(:data:`REPORTS`), so that the calls of a test are there at its end. A cluster that was started before may lack the
last second of a test.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.errors import ClusterError
from dstack.model.prediction import PossibleDeadlock
from dstack.model.snapshot import Snapshot
from dstack.probes.connection.cluster_variables import REPORT_INTERVAL_MS
from dstack.probes.connection.connect import connect
from dstack.probes.connection.own_cluster import before_disconnecting, connected_cluster
from dstack.probes.node.outlines import TestOutlines
from dstack.probes.ray_state.control_plane import take_inventory
from dstack.probes.ray_state.task_events import ask_history
from dstack.report.prediction_text import possible_text
from dstack.version import __version__

REPORTS = (REPORT_INTERVAL_MS, "20")
"""How often processes of clusters that tests start report task events."""
REPORTED_S = 0.03
TIMEOUT_S = 5.0
MOST_CALLS = 20_000
"""The most attempts of tasks that are requested, the newest ones."""


@dataclass
class Predictor:
    """Predicts at the end of each test, or of its connection to a cluster.

    ``spent_s`` is the time that it took, beside ``tests_s`` of the tests. Each possible deadlock is named once.
    """

    address: str | None = None
    spent_s: float = 0.0
    tests_s: float = 0.0
    _kept: list[Snapshot | ClusterError] = field(default_factory=list)
    """What Ray knew of the calls of the test whenever it left a cluster, and at its end."""
    _known: set[object] = field(default_factory=set)
    _outlines: TestOutlines = field(default_factory=TestOutlines)

    @contextmanager
    def during_test(self) -> Iterator[None]:
        """While a test runs: what Ray knows of its calls is kept before ``ray.shutdown`` ends a cluster of its own."""
        self._kept.clear()
        with nullcontext() if self.address else before_disconnecting(self._keep):
            yield

    def _keep(self) -> None:
        own = connected_cluster()
        if address := self.address or (own.address if own else None):
            begin = time.monotonic()
            try:
                self._kept.append(_snapshot(address))
            except ClusterError as error:
                self._kept.append(error)
            self.spent_s += time.monotonic() - begin

    def at_end_of(self, item: pytest.Item, began: float) -> list[str]:
        """The texts of the deadlocks that the calls of a test make possible and no test before has shown.

        ``began`` is the Unix time at which its setup began. Raises :class:`dstack.ClusterError`.
        """
        self.tests_s += time.time() - began
        self._keep()
        begin = time.monotonic()
        try:
            found = [one for kept in self._kept for one in self._possible(kept, item, began)]
        finally:
            self.spent_s += time.monotonic() - begin
        return [possible_text(one) for one in found if self._is_new(one)]

    def _possible(self, kept: Snapshot | ClusterError, item: pytest.Item, began: float) -> Sequence[PossibleDeadlock]:
        if isinstance(kept, ClusterError):
            raise kept
        return AnalysedSnapshot.of(self._of_test(kept, item, began)).prediction.possible

    def _of_test(self, snapshot: Snapshot, item: pytest.Item, began: float) -> Snapshot:
        """The snapshot with the calls of a test, which has passed, and the outlines of its file.

        The test is what the driver runs, and has come to its end. Actors from before count if it has called them.
        """
        history = snapshot.history
        if history is None:
            return snapshot
        drivers = [one for one in history.attempts if one.kind == "DRIVER_TASK"]
        ended = (replace(one, states={**one.states, "FINISHED": snapshot.taken_at}) for one in drivers)
        calls = [one for one in history.attempts if one.kind != "DRIVER_TASK"]
        own = [one for one in calls if min(one.states.values(), default=0.0) >= began]
        called = {one.actor_id for one in own}
        before = (one for one in calls if one.kind == "ACTOR_CREATION_TASK" and one not in own)
        attempts = (*ended, *(one for one in before if one.actor_id in called), *own)
        jobs = {one.job_id for one in attempts}
        name = item.nodeid.partition("::")[2]
        path = str(Path(item.path).resolve())
        outlines = tuple(self._outlines.of_test(path, name, job) for job in jobs)
        return replace(snapshot, history=replace(history, attempts=attempts), outlines=outlines)

    def _is_new(self, possible: PossibleDeadlock) -> bool:
        is_new = possible.shape not in self._known
        self._known.add(possible.shape)
        return is_new


def _snapshot(address: str) -> Snapshot:
    """What Ray alone knows of a cluster: nodes, jobs, actors and calls. Raises :class:`ClusterError`."""
    began = time.monotonic()
    cluster = connect(address)
    inventory = take_inventory(cluster, TIMEOUT_S)
    time.sleep(max(0.0, began + REPORTED_S - time.monotonic()))
    history, failure = ask_history(cluster, MOST_CALLS, TIMEOUT_S)
    if history is None:
        reason = failure.reason if failure else "it was not returned"
        raise ClusterError(f"The history of tasks is missing: {reason}.", failure.remedy if failure else "Try again.")
    return Snapshot(
        dstack_version=__version__,
        taken_at=time.time(),
        address=cluster.address,
        ray_version=cluster.ray_version,
        nodes=inventory.nodes,
        jobs=inventory.jobs,
        actors=inventory.actors,
        workers=inventory.workers,
        history=history,
    )
