"""Which cluster this very process belongs to, found without asking anybody: Ray is neither imported nor called.

What is read are attributes of ``ray._private.worker``, which the interpreter has if the program uses Ray; seen on Ray
2.46 and 2.60. Ray's own functions are left alone since those that ask the core worker abort the process where it is
just being shut down.
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

    ``is_begun_here`` is true where this process has started it, so that nobody else's work is on it.
    """

    address: str
    ip: str
    is_begun_here: bool


def connected_cluster() -> OwnCluster | None:
    """The cluster that this process is connected to as a driver or worker, None where it is not."""
    module = sys.modules.get("ray._private.worker")
    worker, node = getattr(module, "global_worker", None), getattr(module, "_global_node", None)
    if worker is None or node is None or not worker.connected:
        return None
    return OwnCluster(str(node.gcs_address), addresses.canonical(str(node.node_ip_address)), bool(node.head))


def begun_cluster() -> str | None:
    """The address of the cluster that runs in child processes of this one, None where none does.

    Raises :class:`ClusterError` where there are several.
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
    """Raises :class:`UsageError` where this process is connected by Ray Client: it does not know the GCS's address."""
    client = sys.modules.get("ray.util.client")
    if client is not None and client.num_connected_contexts() > 0:
        raise UsageError(
            "This process uses Ray Client, which does not know the address of the GCS.",
            "Give the address of the GCS, HOST:PORT.",
        )


def own_worker(snapshot: Snapshot) -> Worker | None:
    """The process that calls this, as a snapshot of its cluster lists it; None where that is not certain."""
    own = connected_cluster()
    found = [worker for worker in snapshot.workers if own and (worker.ip, worker.pid) == (own.ip, os.getpid())]
    return found[0] if len(found) == 1 else None
