"""The targets of a node's probe, and which processes are on this host."""

from __future__ import annotations

import socket
from collections.abc import Iterable

import psutil

from dstack.model import Worker
from dstack.probes.connection import addresses
from dstack.probes.node import wire
from dstack.probes.node_access.foreign_pythons import foreign_python
from dstack.probes.node_access.raylet_symbols import thread_context_of


def targets(workers: Iterable[Worker]) -> list[wire.Target]:
    """The workers as targets of :class:`dstack.probes.node.probe.NodeProbe`."""
    return [{"worker_id": w.worker_id, "pid": w.pid, "port": w.port, "is_driver": w.is_driver} for w in workers]


def with_environment(target: wire.Target) -> wire.Target:
    """A target on this host, with its environment if it runs another Python than dstack."""
    pid = target["pid"]
    python = foreign_python(pid)
    return {**target, "python": python, "thread_context": thread_context_of(pid)} if python else target


def own_addresses() -> set[str]:
    """All IP addresses of this host, in their canonical spelling."""
    families = (socket.AF_INET, socket.AF_INET6)
    found = (one for group in psutil.net_if_addrs().values() for one in group if one.family in families)
    return {addresses.canonical(one.address) for one in found}
