"""The cluster that this process belongs to, found without importing or calling Ray.

It reads attributes of ``ray._private.worker``, which is loaded if the program uses Ray; seen on Ray 2.46 and 2.60.
Ray's own functions ask the core worker, which aborts the process while it is being shut down.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass

import psutil

from dstack.errors import ClusterError, UsageError
from dstack.model import Snapshot, Worker
from dstack.probes.connection import addresses

_FLAG = "--gcs-address="


@dataclass(frozen=True)
class OwnCluster:
    """The cluster that this process is connected to, by the address of its GCS; ``ip`` is this node's.

    ``is_begun_here`` is true if this process has started it, so no other program uses it.
    """

    address: str
    ip: str
    is_begun_here: bool


def connected_cluster() -> OwnCluster | None:
    """The cluster that this process is connected to as a driver or worker, or None."""
    module = sys.modules.get("ray._private.worker")
    worker, node = getattr(module, "global_worker", None), getattr(module, "_global_node", None)
    if worker is None or node is None or not worker.connected:
        return None
    return OwnCluster(str(node.gcs_address), addresses.canonical(str(node.node_ip_address)), bool(node.head))


def begun_cluster() -> str | None:
    """The address of the cluster that runs in child processes of this one, or None.

    Raises :class:`ClusterError` if there are several.
    """
    found = {address for child in psutil.Process().children(recursive=True) for address in _gcs_addresses(child)}
    if len(found) > 1:
        raise ClusterError(
            f"This process started several Ray clusters: {', '.join(sorted(found))}.",
            "Give the address of one of them.",
        )
    return found.pop() if found else None


def _gcs_addresses(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return [word.removeprefix(_FLAG) for word in process.cmdline() if word.startswith(_FLAG)]
    return []


def require_no_client() -> None:
    """Raises :class:`UsageError` if this process uses Ray Client, which does not know the GCS's address."""
    client = sys.modules.get("ray.util.client")
    if client is not None and client.num_connected_contexts() > 0:
        raise UsageError(
            "This process uses Ray Client, which does not know the address of the GCS.",
            "Give the address of the GCS, HOST:PORT.",
        )


def own_worker(snapshot: Snapshot) -> Worker | None:
    """The worker of the calling process in a snapshot of its cluster; None if that is not certain."""
    own = connected_cluster()
    found = [worker for worker in snapshot.workers if own and (worker.ip, worker.pid) == (own.ip, os.getpid())]
    return found[0] if len(found) == 1 else None
