"""Validates that a pid is the expected worker on this host: pids in a container differ from those of the host."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import psutil

from dstack.observed.node import Cause
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.procfs import proc


class NotThisWorker(Exception):
    """The pid belongs to another process; ``cause`` is one of :data:`dstack.observed.node.Cause`.

    It is ``namespace`` where the worker has another pid here, ``identity`` where it may have ended.
    """

    def __init__(self, reason: str, *, cause: Cause) -> None:
        super().__init__(reason)
        self.cause = cause


class PortOwners:
    """The processes that listen on TCP ports of this network namespace, as of the first use."""

    @cached_property
    def _sockets(self) -> Mapping[int, Collection[str]]:
        return proc.listening_sockets()

    def owns(self, pid: int, port: int) -> bool:
        """Whether a process visibly listens on a port."""
        return proc.has_socket(pid, self._sockets.get(port, ()))

    @cached_property
    def pids(self) -> Mapping[int, int | None]:
        """The pid by port, None if hidden from this user; empty if all are hidden; any one of several processes."""
        try:
            listening = _listening(psutil.net_connections("tcp"))
        except (psutil.Error, OSError):
            return {}
        return {one.laddr.port: one.pid for one in sorted(listening, key=lambda one: one.pid or 0)}


def require_worker(pid: int, port: int, owners: PortOwners) -> None:
    """Raise :class:`NotThisWorker` unless the process listens on the worker's port, as far as that is visible.

    Port 0 means none. Forks of a worker have its port, too. Raises ``psutil.NoSuchProcess`` if the worker has ended:
    the pid does not exist, and no process of another PID namespace listens on the port.
    """
    if not port or owners.owns(pid, port):
        return
    if not psutil.pid_exists(pid):
        error = _objection(pid, port, owners.pids)
        raise error if error.cause == "namespace" else psutil.NoSuchProcess(pid)
    if not owners.pids:
        return
    ports = _ports_of(pid)
    if port in (ports or ()) or (owners.pids.get(port) is None and ports is None):
        return
    raise _objection(pid, port, owners.pids)


def _objection(pid: int, port: int, owners: Mapping[int, int | None]) -> NotThisWorker:
    """Why the pid is not the worker's, by the process that listens on the worker's port."""
    if owners and port not in owners:
        reason = f"pid {pid} does not listen on the worker's port: it is another process, or it is ending"
        return NotThisWorker(reason, cause="identity")
    owner = owners.get(port)
    if owner is None:
        reason = f"pid {pid} is not the worker here: the worker seems to run in another PID namespace"
        return NotThisWorker(reason, cause="namespace")
    pids = proc.namespace_pids(owner)
    if pids[1:] and pids[-1] == pid:
        return NotThisWorker(f"it is pid {pid} in its container and pid {owner} here", cause="namespace")
    reason = f"pid {pid} is another process here: the worker's port belongs to pid {owner}"
    return NotThisWorker(reason, cause="namespace" if pids[1:] else "identity")


def _ports_of(pid: int) -> set[int] | None:
    """The ports that a process listens on, None where they are hidden from this user."""
    process = psutil.Process(pid)
    connections = getattr(process, "net_connections", None) or process.connections  # its name until psutil 6
    try:
        return {one.laddr.port for one in _listening(connections("tcp"))}
    except (psutil.AccessDenied, OSError):
        return None


def _listening(connections: Iterable[Any]) -> list[Any]:
    return [one for one in connections if one.status == psutil.CONN_LISTEN]
