"""The file systems that Ray uses on this node: of its session, of spilled objects, and of the object store.

The raylet's command line names them (seen on Ray 2.46 and 2.60). A network file system may hang: read these late.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import psutil

from dstack.probes.node.procfs import proc
from dstack.probes.node.wire import DiskData

RAYLET = "raylet"
SOCKET, SPILLING, STORE = "--raylet_socket_name=", "--fallback_directory=", "--plasma_directory="
MAX_DISKS = 16
"""So many directories are reported; a host may have raylets of several clusters."""
MAX_PATH = 1_024
MAX_BYTES = 2**62


def disks(parents: Iterable[int]) -> list[DiskData]:
    """The disks of the raylets among these parents of workers, each directory once."""
    found: dict[tuple[str, str], DiskData] = {}
    for pid in sorted(set(parents)):
        if proc.name(pid) == RAYLET:
            for use, path in _directories(proc.raylet_options(pid)):
                if (use, path) not in found and len(found) < MAX_DISKS and (disk := _disk(use, path)):
                    found[use, path] = disk
    return list(found.values())


def _directories(options: Iterable[str]) -> Iterator[tuple[str, str]]:
    for option in options:
        if option.startswith(SOCKET):  # SESSION/sockets/raylet
            yield "session", os.path.dirname(os.path.dirname(option[len(SOCKET) :]))
        elif option.startswith(SPILLING):
            yield "spilled objects", option[len(SPILLING) :]
        elif option.startswith(STORE):
            yield "object store", option[len(STORE) :]


def _disk(use: str, path: str) -> DiskData | None:
    if not os.path.isabs(path) or len(path) > MAX_PATH:
        return None
    try:
        usage = psutil.disk_usage(path)
    except OSError:
        return None
    if not 0 <= usage.free <= usage.total <= MAX_BYTES:
        return None
    return {"use": use, "path": path, "total_bytes": usage.total, "free_bytes": usage.free}
