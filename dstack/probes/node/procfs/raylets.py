"""What the raylets of this host start, workers and installations of runtime environments, and their reports.

A raylet starts a worker as ``python setup_worker.py`` or ``python default_worker.py``, perhaps through another program
that runs it, such as ``uv``. Ray lists the process nowhere before it connects, after Python's own start and the import
of Ray. Shortly before, it changes its command line to ``ray::IDLE``. Processes in a container are left out: their pids
are others there. Seen on Ray 2.60.

A raylet starts one agent, which runs pip, conda or uv as its own child processes (seen on Ray 2.46 and 2.60). A host
may have raylets of several clusters; they are distinguished by the id of their node.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from dstack.observed.node import EnvironmentSetup, RayletCount, RayletReport
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.children import is_python
from dstack.probes.node.redaction import masked_command
from dstack.probes.node.wire import ReadTarget

WORKER_SCRIPTS = ("ray/_private/workers/default_worker.py", "ray/_private/workers/setup_worker.py")
"""Where a worker's process begins; seen on Ray 2.46 and 2.60."""
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
WORKER_WORDS = 64
"""How many words of a command are searched for a worker's script: a container or shell may begin it."""
FOLDER, FILE = "--log_dir=", "debug_state.txt"
MAX_BYTES = 1 << 20
"""How much of the file is read: each worker has a line in it."""
NODE = re.compile(r"^Node ID: ([0-9a-f]{56})$", re.MULTILINE)
WAITING_FOR_MEMORY = re.compile(r"^num_waiting_for_plasma_memory: (\d{1,15})$", re.MULTILINE)
ARGUMENT_BYTES = re.compile(r"^Total size of pinned (?:lease|task) arguments: (\d{1,18})$", re.MULTILINE)

SHARE = "RAY_max_task_args_memory_fraction"
"""The share of the object store that arguments may take, by default 0.7 (Ray 2.46 to 2.60)."""

COUNTS: Mapping[str, RayletCount] = {
    "Infeasible queue length": "infeasible requests",
    "num_waiting_for_resource": "waiting for resources",
    "num_waiting_for_remote_node_resources": "waiting for other nodes",
    "num_tasks_waiting_for_workers": "waiting for workers",
    "Waiting leases size": "waiting for arguments",
    "process_failed_pending_registration": "late registrations",
    "process_failed_rate_limited": "starts over the limit",
    "process_failed_runtime_env_setup_failed": "failed environments",
    "num PYTHON pending start requests": "pending starts",
    "num PYTHON pending registration requests": "pending registrations",
    "num PYTHON workers": "workers",
    "num idle workers": "idle workers",
    "num objects queued": "queued pulls",
    "num bytes being pulled (all)": "pulled bytes",
    "num objects pending restore": "pending restores",
    "num objects pending spill": "pending spills",
    "num bytes pending spill": "bytes to spill",
    "num bytes currently spilled": "spilled bytes",
    "pinned objects size": "pinned bytes",
}
"""Lines of the file, seen on Ray 2.60."""
COUNT = re.compile(rf"^(?:- )?({'|'.join(map(re.escape, COUNTS))}): (\d{{1,18}})$", re.MULTILINE)


@dataclass(frozen=True)
class WorkerProcess:
    """A process that runs a worker of a node; ``job_id`` is None while it may run for any job."""

    pid: int
    worker_id: str
    node_id: str
    job_id: str | None

    def as_target(self) -> ReadTarget:
        """The process as one to read; it has no port yet."""
        return {"worker_id": self.worker_id, "pid": self.pid, "port": 0, "is_driver": False}


def unlisted_workers(
    raylets: Iterable[tuple[str, int]],
    listed: Collection[str],
    known: Collection[int],
    children: Mapping[int, Collection[int]],
) -> Iterator[WorkerProcess]:
    """The workers below these raylets, by the ids of their nodes, without the ``listed`` ids and ``known`` pids."""
    for node_id, raylet in raylets:
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


def raylet_reports(
    raylets: Iterable[tuple[str, int]], children: Mapping[int, Collection[int]]
) -> Iterator[RayletReport]:
    """What these raylets, by the ids of their nodes, last wrote about their queues, as far as that can be read.

    It is in ``debug_state.txt`` of a raylet's folder for logs, every 10 s, and in no reply of a raylet or of the GCS.
    Raylets of one host that share a session share the file; then it is that of the last writer, which names its node.
    """
    found = dict(raylets)
    for node_id, folder in log_folders(found.items()).items():
        if report := _report(node_id, found[node_id], os.path.join(folder, FILE)):
            yield replace(report, starting=sum(map(_is_starting, children.get(found[node_id], ()))))


def _is_starting(pid: int) -> bool:
    """Whether a child of a raylet is to become a worker: one that has connected shows another title."""
    words = proc.command(pid, WORKER_WORDS)
    figures = proc.figures(pid) if any(script in word for word in words for script in WORKER_SCRIPTS) else None
    return figures is not None and figures.state != "Z"


def log_folders(raylets: Iterable[tuple[str, int]]) -> dict[str, str]:
    """The folders of these raylets' logs, as their command lines name them, by the ids of their nodes."""
    options = ((node_id, option) for node_id, raylet in raylets for option in proc.ray_options(raylet))
    return {node_id: option[len(FOLDER) :] for node_id, option in options if option.startswith(FOLDER)}


def _report(node_id: str, raylet: int, path: str) -> RayletReport | None:
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
        argument_share=_share(proc.variable(raylet, SHARE)),
        counts={COUNTS[name]: int(count) for name, count in COUNT.findall(text) if int(count)},
    )


def _share(text: str) -> float | None:
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0.0 < share <= 1.0 else None


RAYLET = "raylet"
AGENT_TITLE, AGENT_SCRIPT = "ray::RuntimeEnvAgent", "ray/_private/runtime_env/agent/main.py"
NODE_ID = re.compile(r"--node[_-]id=([0-9a-f]{56})$")
SETUP_LOG = re.compile(r"runtime_env_setup-\w+\.log$")
INSTALLERS = ("pip", "pip3", "conda", "mamba", "uv", "virtualenv")
LOG_PREFIX = re.compile(r"^[\d-]+ [\d:,.]+\s+[A-Z]+ \S+:\d+ -- ")
"""What Ray writes before a line of a command's output."""
SHELLS = ("sh", "bash", "dash")
RAYLET_WORDS = 40
AGENT_WORDS = 30
COMMAND_WORDS = 40
MAX_SETUPS = 16
TAIL_BYTES = 1 << 12
MAX_LOGS = 1_000


def environment_setups(node_ids: Collection[str]) -> list[EnvironmentSetup]:
    """The installations that run now for these nodes, oldest first, at most :data:`MAX_SETUPS`."""
    children = proc.children()
    found: list[EnvironmentSetup] = []
    for node_id, raylet in raylets(node_ids, children):
        for agent in filter(_is_agent, children[raylet]):
            found += _setups_of(node_id, agent, children)
    return sorted(found, key=lambda setup: setup.started_at)[:MAX_SETUPS]


def raylets(node_ids: Collection[str], parents: Iterable[int]) -> Iterator[tuple[str, int]]:
    """The raylets of these nodes, by the id of the node, among the processes that have children."""
    for pid in list(parents):
        if proc.name(pid) == RAYLET:
            node_id = _first(NODE_ID, proc.arguments(pid, RAYLET_WORDS))
            if node_id in node_ids:
                yield node_id, pid


def _setups_of(node_id: str, agent: int, children: dict[int, list[int]]) -> Iterator[EnvironmentSetup]:
    for child in children[agent][:MAX_SETUPS]:
        pid = _within_shells(child, children)
        figures, words = proc.figures(pid), proc.command(pid, COMMAND_WORDS)
        if figures is None or not words:
            continue
        yield EnvironmentSetup(
            node_id=node_id,
            pid=pid,
            command=masked_command(" ".join(_without_interpreter(words))),
            started_at=figures.started_at,
            output=masked_command(LOG_PREFIX.sub("", _last_line(_output_of(pid, agent)))),
        )


def _without_interpreter(words: list[str]) -> list[str]:
    """``pip install torch`` of ``/usr/bin/python3 -m pip install torch`` or ``python3 /usr/bin/pip install torch``."""
    program, *arguments = words
    if os.path.basename(program).startswith("python") and arguments:
        if arguments[0] == "-m" and len(arguments) > 1:
            return arguments[1:]
        if os.path.basename(arguments[0]) in INSTALLERS:
            program, *arguments = arguments
    return [os.path.basename(program), *arguments]


def _is_agent(pid: int) -> bool:
    words = proc.command(pid, AGENT_WORDS)
    return bool(words) and (words[0].startswith(AGENT_TITLE) or any(word.endswith(AGENT_SCRIPT) for word in words))


def _within_shells(pid: int, children: dict[int, list[int]]) -> int:
    """The only program that a shell runs, in place of the shell."""
    for _ in SHELLS:
        below = children[pid]
        if os.path.basename(proc.program(pid)) not in SHELLS or len(below) != 1:
            break
        pid = below[0]
    return pid


def _output_of(pid: int, agent: int) -> str:
    """The file that a setup writes to; where that is a pipe, the newest of the logs that the agent has open."""
    file = proc.file_at(pid, 1)
    if os.path.isfile(file):
        return file
    files = (proc.file_at(agent, descriptor) for descriptor in proc.descriptors(agent)[:MAX_LOGS])
    logs = [file for file in files if SETUP_LOG.search(file)]
    return max(logs, key=_changed_at, default="")


def _changed_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _last_line(path: str) -> str:
    """The last line of a regular file that is not empty, from its last 4 KiB."""
    try:
        if not os.path.isfile(path):
            return ""
        with open(path, "rb") as file:
            file.seek(max(0, os.stat(path).st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _first(pattern: re.Pattern[str], words: list[str]) -> str:
    return next((match[1] for match in map(pattern.search, words) if match), "")
