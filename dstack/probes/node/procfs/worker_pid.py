"""Whether a pid is, on this host, the worker that it is said to be: pids in a container are not those of its host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import psutil

from dstack.probes.node.procfs import proc

PortOwners = Mapping[int, int | None]
"""The listening TCP ports of this network namespace, IPv4 and IPv6, and the pid where this user may see it."""


class NotThisWorker(Exception):
    """The pid belongs to some other process; ``cause`` is one of :data:`dstack.model.Cause`.

    That is ``namespace`` where the worker has another pid here, ``identity`` where it may have ended.
    """

    def __init__(self, reason: str, *, cause: str) -> None:
        super().__init__(reason)
        self.cause = cause


def port_owners() -> PortOwners:
    """Who listens on which port, nothing where that cannot be seen; of processes that share one, any."""
    try:
        listening = _listening(psutil.net_connections("tcp"))
    except (psutil.Error, OSError):
        return {}
    return {one.laddr.port: one.pid for one in sorted(listening, key=lambda one: one.pid or 0)}


def require_worker(pid: int, port: int, owners: PortOwners) -> None:
    """Raises :class:`NotThisWorker` unless the process listens on the worker's port, where that can be seen.

    Port 0 stands for none. What a worker forks has its port, too. Raises ``psutil.NoSuchProcess`` where the worker
    has ended: there is no such pid, and no process of another PID namespace listens on the port.
    """
    if not port or owners.get(port) == pid:
        return
    if not psutil.pid_exists(pid):
        error = _objection(pid, port, owners)
        raise error if error.cause == "namespace" else psutil.NoSuchProcess(pid)
    if not owners:
        return
    ports = _ports_of(pid)
    if port in (ports or ()) or (owners.get(port) is None and ports is None):
        return
    raise _objection(pid, port, owners)


def _objection(pid: int, port: int, owners: PortOwners) -> NotThisWorker:
    """Why the pid is not the worker's, by the process that listens on the worker's port."""
    if owners and port not in owners:
        reason = f"pid {pid} does not listen on the worker's port: it is another process, or ends now"
        return NotThisWorker(reason, cause="identity")
    owner = owners.get(port)
    if owner is None:
        reason = f"pid {pid} is not the worker's here: the worker seems to run in another PID namespace"
        return NotThisWorker(reason, cause="namespace")
    pids = proc.namespace_pids(owner)
    if pids[1:] and pids[-1] == pid:
        return NotThisWorker(f"it is pid {pid} in its container and pid {owner} here", cause="namespace")
    reason = f"pid {pid} is another process here: the worker's port belongs to pid {owner}"
    return NotThisWorker(reason, cause="namespace" if pids[1:] else "identity")


def _ports_of(pid: int) -> set[int] | None:
    """The ports that a process listens on, None where that may not be seen."""
    process = psutil.Process(pid)
    connections = getattr(process, "net_connections", None) or process.connections  # its name until psutil 6
    try:
        return {one.laddr.port for one in _listening(connections("tcp"))}
    except (psutil.AccessDenied, OSError):
        return None


def _listening(connections: Iterable[Any]) -> list[Any]:
    return [one for one in connections if one.status == psutil.CONN_LISTEN]
