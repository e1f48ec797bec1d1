"""The cluster that this process belongs to or has begun, found without importing or calling Ray.

It reads attributes of ``ray._private.worker``, which is loaded if the program uses Ray; seen on Ray 2.46 and 2.60.
Ray's own functions ask the core worker, which aborts the process while it is being shut down.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import psutil

from dstack.errors import ClusterError, UsageError
from dstack.model.snapshot import Snapshot, Worker
from dstack.probes.connection.hosts import canonical

_FLAG = "--gcs-address="
IDLE_TITLE = "ray::IDLE"
WORKER_TITLE = re.compile(r"ray::(?!IDLE_|SPILL_|RESTORE_|DELETE_|DashboardA|RuntimeEnv)")
"""The name of a process that runs calls or an actor, or waits for a call; agents, and workers that move objects, have
others (Ray 2.46 to 2.60). The kernel keeps 15 characters of a name."""


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
    return OwnCluster(str(node.gcs_address), canonical(str(node.node_ip_address)), bool(node.head))


@contextlib.contextmanager
def before_disconnecting(do: Callable[[], None]) -> Iterator[None]:
    """Call ``do`` whenever the program disconnects with ``ray.shutdown()``, before it takes effect."""
    ray: Any = sys.modules.get("ray")
    original = getattr(ray, "shutdown", None)
    if original is None:
        yield
        return

    @functools.wraps(original)
    def shutdown(*arguments: object, **named: object) -> object:
        if connected_cluster() is not None:
            do()
        return original(*arguments, **named)

    ray.shutdown = shutdown
    try:
        yield
    finally:
        if ray.shutdown is shutdown:
            ray.shutdown = original


def begun_cluster() -> str | None:
    """The address of the cluster that runs in child processes of this one, or None.

    Raises :class:`ClusterError` if there are several.
    """
    found = addresses_below(psutil.Process())
    if len(found) > 1:
        raise ClusterError(
            f"This process started several Ray clusters: {', '.join(sorted(found))}.",
            "Give the address of one of them.",
        )
    return found.pop() if found else None


def addresses_below(process: psutil.Process) -> set[str]:
    """The addresses of the clusters that run in child processes of a process."""
    return addresses_of(process.children(recursive=True))


def addresses_of(processes: Iterable[psutil.Process]) -> set[str]:
    """The addresses of the clusters that run in some of these processes."""
    return {address for process in processes for address in _gcs_addresses(process)}


def _gcs_addresses(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return [word.removeprefix(_FLAG) for word in process.cmdline() if word.startswith(_FLAG)]
    return []


def worker_title(process: psutil.Process) -> str:
    """How Ray names a worker: ``ray::`` and what it runs, :data:`IDLE_TITLE` if nothing; empty for other processes."""
    with contextlib.suppress(psutil.Error):
        title = process.name()
        return title if WORKER_TITLE.match(title) else ""
    return ""


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


START_S = 60.0
END_S = 5.0


@contextlib.contextmanager
def running_example(path: Path) -> Iterator[str]:
    """The GCS address of the cluster the program has started, once it prints ``ready``.

    Raises :class:`ClusterError` with the end of its output if it is not ready within a minute.
    """
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    with tempfile.TemporaryFile("w+") as output:
        program = psutil.Popen(
            [sys.executable, str(path)], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        family: set[psutil.Process] = {program}
        try:
            _wait_until_ready(program, output)
            family.update(program.children(recursive=True))
            yield _gcs_address(family)
        finally:
            _end(family)


def _wait_until_ready(program: psutil.Popen, output: IO[str]) -> None:
    deadline = time.monotonic() + START_S
    while "ready" not in _lines(output):
        if program.poll() is not None or time.monotonic() > deadline:
            what = "ended early" if program.poll() is not None else f"did not start within {START_S:.0f} s"
            last = " ".join(_lines(output)[-3:]) or "no output"
            raise ClusterError(f"The example {what}: {last}", "Try again on a less busy host.")
        time.sleep(0.05)


def _lines(output: IO[str]) -> list[str]:
    output.seek(0)
    return output.read().splitlines()


def _gcs_address(family: set[psutil.Process]) -> str:
    for address in chain.from_iterable(map(_gcs_addresses, family)):
        return address
    raise ClusterError("The Ray cluster of the example was not found.", "Try again on a less busy host.")


def _end(family: set[psutil.Process]) -> None:
    """Ends the driver, which ends its cluster; what is left after a while is killed, by its pid."""
    for process in tuple(family):
        with contextlib.suppress(psutil.Error):
            family.update(process.children(recursive=True))
    drivers = [process for process in family if isinstance(process, psutil.Popen)]
    for process in drivers:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(family, timeout=END_S)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=END_S)
