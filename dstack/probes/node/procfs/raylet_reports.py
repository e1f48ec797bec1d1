"""What a raylet writes every 10 s about its queue: why requests for workers are not granted. Seen on Ray 2.60.

It is in ``debug_state.txt`` of the raylet's folder for logs, and in no reply of a raylet or of the GCS. Raylets of one
host that share a session share the file; then it is that of the last writer, which names its node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator

from dstack.observed_node import RayletReport
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.environment_setups import raylets

FOLDER, FILE = "--log_dir=", "debug_state.txt"
MAX_BYTES = 1 << 16
"""How much of the file is read: the queue is at its beginning."""
NODE = re.compile(r"^Node ID: ([0-9a-f]{56})$", re.MULTILINE)
WAITING_FOR_MEMORY = re.compile(r"^num_waiting_for_plasma_memory: (\d{1,15})$", re.MULTILINE)
ARGUMENT_BYTES = re.compile(r"^Total size of pinned (?:lease|task) arguments: (\d{1,18})$", re.MULTILINE)


def raylet_reports(node_ids: Collection[str], parents: Iterable[int]) -> Iterator[RayletReport]:
    """The last reports of the raylets of these nodes, as far as they can be read."""
    for node_id, raylet in raylets(node_ids, parents):
        folder = next((one for one in proc.ray_options(raylet) if one.startswith(FOLDER)), FOLDER)[len(FOLDER) :]
        if folder and (report := _report(node_id, os.path.join(folder, FILE))):
            yield report


def _report(node_id: str, path: str) -> RayletReport | None:
    try:
        with open(path, "rb") as file:
            written_at = os.stat(file.fileno()).st_mtime
            text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    node, waiting, size = NODE.search(text), WAITING_FOR_MEMORY.search(text), ARGUMENT_BYTES.search(text)
    if node is None or node[1] != node_id or waiting is None or size is None:
        return None
    return RayletReport(
        node_id=node_id,
        written_at=written_at,
        waiting_for_memory=int(waiting[1]),
        argument_bytes=int(size[1]),
    )
