"""A snapshot of what Ray knows alone: the tables of the GCS and the history of tasks, without any process.

It is for tests, which ask often, from the process of a driver: nothing is started, and nothing is kept.
"""

from __future__ import annotations

import time

from dstack.errors import ClusterError
from dstack.model.snapshot import Snapshot
from dstack.probes.connection.connect import connect
from dstack.probes.ray_state.control_plane import take_inventory
from dstack.probes.ray_state.task_events import ask_history
from dstack.version import __version__

MOST_CALLS = 20_000
"""The most attempts of tasks that are requested, the newest ones."""


def snapshot_of_history(address: str, timeout_s: float) -> Snapshot:
    """The nodes, jobs, actors and calls of a cluster. Raises :class:`ClusterError`."""
    cluster = connect(address)
    inventory = take_inventory(cluster, timeout_s)
    history, failure = ask_history(cluster, MOST_CALLS, timeout_s)
    if history is None:
        raise ClusterError(f"The history of tasks is missing: {failure.reason if failure else 'it was not returned'}.")
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
