"""Whether a pid is, on this host, the worker that it is said to be: pids in a container are not those of its host."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import psutil


class NotThisWorker(Exception):
    """The pid belongs to some other process."""


def port_owners() -> dict[int, int]:
    """Listening TCP port to pid, as far as this user may see; of those that share one, any."""
    try:
        return {c.laddr.port: c.pid for c in _listening(psutil.net_connections("tcp")) if c.pid}
    except (psutil.Error, OSError):
        return {}


def require_worker(pid: int, port: int, owners: dict[int, int]) -> None:
    """Raises :class:`NotThisWorker` unless the process listens on the worker's port, where that can be seen.

    Port 0 stands for none. What a worker forks has its port, too.
    """
    owner = owners.get(port)
    if not port or not owners or owner == pid:
        return
    ports = _ports_of(pid)
    if port in (ports or ()) or (owner is None and ports is None):
        return
    if owner is None:
        raise NotThisWorker(f"pid {pid} does not listen on the worker's port: it is another process, or ends now")
    if _innermost_pid(owner) == pid:
        raise NotThisWorker(f"it is pid {pid} in its container and pid {owner} here")
    raise NotThisWorker(f"pid {pid} is another process here: the worker's port belongs to pid {owner}")


def _ports_of(pid: int) -> set[int] | None:
    """The ports that a process listens on, None where that may not be seen."""
    process = psutil.Process(pid)
    connections = getattr(process, "net_connections", None) or process.connections  # its name until psutil 6
    try:
        return {c.laddr.port for c in _listening(connections("tcp"))}
    except (psutil.AccessDenied, OSError):
        return None


def _listening(connections: Iterable[Any]) -> list[Any]:
    return [one for one in connections if one.status == psutil.CONN_LISTEN]


def _innermost_pid(pid: int) -> int | None:
    """What a process is called in its own pid namespace."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return next((int(line.split()[-1]) for line in file if line.startswith("NSpid:")), None)
    return None
