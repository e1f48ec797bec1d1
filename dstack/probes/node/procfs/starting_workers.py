"""Worker processes that are starting: children of a raylet that Ray lists nowhere yet. Seen on Ray 2.60.

A raylet starts a worker as ``python setup_worker.py`` or ``python default_worker.py``, perhaps through another program
that runs it, such as ``uv``. The process is listed when it connects, after Python's own start and the import of Ray.
Shortly before, it changes its command line to ``ray::IDLE``. Processes in a container are left out: their pids are
others there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.children import is_python
from dstack.probes.node.procfs.environment_setups import raylets
from dstack.probes.node.stacks.origins import WORKER_SCRIPTS
from dstack.probes.node.wire import Target

FIRST_OPTIONS = 4
IDLE_TITLE = "ray::IDLE"
WORKER_ID = re.compile(r"--worker[-_]id=([0-9a-f]{56})$")
OTHER_TYPE = re.compile(r"--worker[-_]type=(?!WORKER$)")
"""A worker that moves objects to disk and back; it takes no tasks."""
JOB_ID = re.compile(r"[0-9a-f]{8}")
ANY_JOB = "f" * 8
"""The job in the environment of a worker that was started before any job needs it."""
MAX_BETWEEN = 3
"""The most programs between a raylet and a worker."""


@dataclass(frozen=True)
class WorkerProcess:
    """A process that runs a worker of a node; ``job_id`` is None while it may run for any job."""

    pid: int
    worker_id: str
    node_id: str
    job_id: str | None

    def as_target(self) -> Target:
        """The process as one to read; it has no port yet."""
        return {"worker_id": self.worker_id, "pid": self.pid, "port": 0, "is_driver": False}


def unlisted_workers(
    node_ids: Collection[str],
    listed: Collection[str],
    known: Collection[int],
    children: Mapping[int, Collection[int]],
) -> Iterator[WorkerProcess]:
    """The worker processes of these nodes that are not among the ``listed`` ids and the ``known`` pids."""
    for node_id, raylet in raylets(node_ids, children) if node_ids else ():
        for pid in _python_below(raylet, known, children):
            if (found := _worker(pid, node_id)) and found.worker_id not in listed:
                yield found


def _python_below(raylet: int, known: Collection[int], children: Mapping[int, Collection[int]]) -> Iterator[int]:
    """The Python processes below a raylet, through other programs, but not through Python."""
    parents: Collection[int] = (raylet,)
    for _ in range(1 + MAX_BETWEEN):
        below = [pid for parent in parents for pid in children.get(parent, ()) if pid not in known]
        runs_python = {pid: is_python(pid) for pid in below}
        yield from (pid for pid in below if runs_python[pid])
        parents = [pid for pid in below if not runs_python[pid]]


def _worker(pid: int, node_id: str) -> WorkerProcess | None:
    options = proc.ray_options(pid)
    runs_script = any(word.endswith(WORKER_SCRIPTS) for word in options[:FIRST_OPTIONS])
    is_worker = runs_script or [word.strip() for word in proc.command(pid, 1)] == [IDLE_TITLE]
    if not is_worker or any(map(OTHER_TYPE.match, options)) or len(proc.namespace_pids(pid)) > 1:
        return None
    figures = proc.figures(pid)
    if figures is None or figures.state == "Z":
        return None
    stated = next((match[1] for match in map(WORKER_ID.match, options) if match), None)
    job = proc.variable(pid, "RAY_JOB_ID")
    return WorkerProcess(
        pid=pid,
        worker_id=stated or _digest(node_id, pid, figures.birth),
        node_id=node_id,
        job_id=job if JOB_ID.fullmatch(job) and job != ANY_JOB else None,
    )


def _digest(node_id: str, pid: int, birth: proc.Birth) -> str:
    """An id of as many digits as a worker's, for a process that states none."""
    return hashlib.sha224(f"{node_id} {pid} {birth.start_ticks}".encode()).hexdigest()
