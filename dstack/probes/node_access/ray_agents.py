"""Reads stacks through Ray's own agent on a node, for processes that dstack cannot read itself.

The dashboard's agent runs on every node, also without a dashboard, and serves ``ReporterService.GetTraceback`` where
Ray was installed with its extra ``default``; else its ports are -1. It runs ``py-spy dump``, through ``sudo -n`` where
that is allowed, which pauses the process for some milliseconds, and returns the text. 20 to 50 ms a process; seen on
Ray 2.46 and 2.60.
"""

from __future__ import annotations

import json
import os
import sysconfig
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from typing import Any

from dstack.model.snapshot import Job, Worker, WorkerSample
from dstack.observed.node import Failure, NodeAnswer
from dstack.observed.processes import Process, Thread
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.hosts import join_address
from dstack.probes.connection.ray_stubs import gcs_service_pb2, reporter_pb2
from dstack.probes.connection.rpc import KV, CallFailure, UnaryCall, call_all
from dstack.probes.node.ray_calls import shallow_call
from dstack.probes.node.stacks.origins import Origins, shown_role
from dstack.probes.node.stacks.source_files import SourceFiles
from dstack.probes.node.stacks.table import StackTable
from dstack.probes.node.thread_stacks import PythonThread, TextFrame
from dstack.probes.node_access.agent_texts import Sources, TextStacks, parse
from dstack.probes.node_access.answers import validated

KEY = "DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX:"
NAMESPACE = b"dashboard"
FIND_TIMEOUT_S = 1.0
MAX_TIMEOUT_S = 3.0
AT_ONCE = 4
PAUSED_BY_AGENT = "Ray's agent can read the stacks while it pauses the process for some ms."


class Agents:
    """Ray's agents on the nodes of one cluster; caches their addresses."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._addresses: dict[str, str | None] = {}

    def stacks_of(
        self, workers: Sequence[Worker], jobs: Sequence[Job], deadline: float, sample: int
    ) -> tuple[NodeAnswer, list[Failure]]:
        """Reads these workers through agents; returns the answer of a node's probe, and the failures.

        ``deadline`` is a ``time.monotonic()``. No agent is asked for more than a few processes at once.
        """
        nodes = {worker.node_id for worker in workers}
        without = nodes - self.present_on(nodes, deadline - time.monotonic())
        texts = _Texts(jobs)
        failures = [_no_agent(node, sample) for node in sorted(without)]
        for some in _rounds([worker for worker in workers if self._has(worker.node_id)]):
            began = time.monotonic()
            left = min(MAX_TIMEOUT_S, deadline - began)
            calls = [self._call(worker, left) for worker in some] if left > 0 else []
            replies = call_all(calls, self._cluster.metadata)
            elapsed_ms = (time.monotonic() - began) * 1000
            for worker, reply in zip_longest(some, replies):
                problem = _objection(reply) or texts.add(worker, reply.output, elapsed_ms)
                if problem is not None:
                    failures.append(_failure(worker, problem, sample))
        return texts.result(), failures

    def present_on(self, node_ids: set[str], timeout_s: float) -> set[str]:
        """The nodes that have an agent, by the GCS; pauses no process."""
        self._find(node_ids, min(FIND_TIMEOUT_S, timeout_s))
        return set(filter(self._has, node_ids))

    def _has(self, node_id: str) -> bool:
        return self._addresses.get(node_id) is not None

    def _find(self, node_ids: set[str], timeout_s: float) -> None:
        missing = sorted(node_ids - self._addresses.keys())
        if not missing:
            return
        keys = {f"{KEY}{node_id}".encode(): node_id for node_id in missing}

        def message() -> Any:
            return gcs_service_pb2.InternalKVMultiGetRequest(keys=list(keys), namespace=NAMESPACE)

        call = UnaryCall(self._cluster.address, KV, "InternalKVMultiGet", message, timeout_s)
        (reply,) = call_all([call], self._cluster.metadata)
        rows = () if isinstance(reply, CallFailure) else reply.results
        found = {keys.get(row.key): _address(row.value) for row in rows}
        self._addresses.update({node_id: found.get(node_id) for node_id in missing})

    def _call(self, worker: Worker, timeout_s: float) -> UnaryCall:
        def message() -> Any:
            return reporter_pb2.GetTracebackRequest(pid=worker.pid)

        address = self._addresses[worker.node_id] or ""
        return UnaryCall(address, ("ReporterService", "reporter"), "GetTraceback", message, timeout_s)


def _rounds(workers: Sequence[Worker]) -> list[list[Worker]]:
    """Divides workers into batches with a few of each node."""
    rounds: list[list[Worker]] = []
    seen: Counter[str] = Counter()
    for worker in workers:
        number = seen[worker.node_id] // AT_ONCE
        seen[worker.node_id] += 1
        rounds += [[]] if number == len(rounds) else []
        rounds[number].append(worker)
    return rounds


class _Texts:
    """Converts py-spy's texts into the answer of a node's probe."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._origins = Origins()
        self._sources = Sources(jobs, self._origins.is_user)
        self._table = StackTable(self._origins, SourceFiles())
        self._processes: dict[str, Process] = {}
        self._began_at = time.time()

    def add(self, worker: Worker, text: str, elapsed_ms: float) -> CallFailure | None:
        """Adds a text, or returns why it is unusable; ``elapsed_ms`` is an upper bound of the pause of its process."""
        stacks = parse(text)
        if stacks is None:
            return CallFailure("its reply is not the output of py-spy", "malformed")
        if stacks.pid != worker.pid or not _is_likely(worker, stacks):
            return CallFailure(f"pid {worker.pid} is another process there: {stacks.title[:80]!r}", "identity")
        if not stacks.threads:
            return CallFailure("its reply has no threads", "malformed")
        self._processes[worker.worker_id] = Process(
            pid=worker.pid,
            started_at=0.0,
            access="text stack",
            paused_ms=round(elapsed_ms, 2),
            threads=tuple(self._thread(worker, thread) for thread in stacks.threads),
        )
        return None

    def result(self) -> NodeAnswer:
        """The answer with all texts."""
        return validated(
            NodeAnswer(
                frames=tuple(self._table.frames),
                stacks=tuple(self._table.stacks),
                sources=self._table.sources,
                processes=self._processes,
                clock=(self._began_at, time.time()),
            )
        )

    def _whole_path(self, file: str) -> str:
        """py-spy removes an entry of ``sys.path`` from the beginning of a path."""
        return self._sources.path_of(file) or _installed(file) or file

    def _thread(self, worker: Worker, shown: PythonThread[TextFrame]) -> Thread:
        thread = replace(shown, frames=list(map(self._with_whole_path, shown.frames)))
        call = shallow_call(thread.frames, self._sources.terms_of)
        return Thread(
            os_thread_id=thread.os_thread_id,
            name=thread.name,
            stack=self._table.add(thread.frames, "/"),
            role=shown_role(thread, pid=worker.pid, is_driver=worker.is_driver, origins=self._origins),
            on_cpu=thread.is_running,
            call=None if thread.is_running else call,
        )

    def _with_whole_path(self, frame: TextFrame) -> TextFrame:
        return TextFrame(replace(frame.position, file=self._whole_path(frame.position.file)))


def _is_likely(worker: Worker, stacks: TextStacks) -> bool:
    """Whether the title may be this worker's: Ray's titles begin with ``ray::``, a driver's is arbitrary."""
    return worker.is_driver or stacks.title.startswith("ray::") or "default_worker.py" in stacks.title


def _objection(reply: Any) -> CallFailure | None:
    if reply is None:
        return CallFailure("no time was left to read it", "timeout")
    if isinstance(reply, CallFailure):
        return reply
    if reply.success:
        return None
    lines = [line.strip() for line in reply.output[:4000].splitlines()]
    line = next((line for line in lines if line.startswith("Error: ")), lines[0] if lines else "no reason given")
    refused = any("permission denied" in line.lower() for line in lines)
    reason = line.removeprefix("Error: ")[:200] + (" (permission denied)" if refused else "")
    return CallFailure(reason, "permission" if refused else "other")


def _address(value: bytes) -> str | None:
    """``HOST:PORT`` of the gRPC server, from ``[ip, http port, gRPC port]``; None where it serves none."""
    try:
        ip, _, port = json.loads(value)
    except (ValueError, TypeError):
        return None
    if not isinstance(ip, str) or not isinstance(port, int) or not 0 < port < 65536:
        return None
    return join_address(ip, port)


@cache
def _installed(file: str) -> str | None:
    """The short path of a library or standard file, if this Python has the file."""
    if os.path.isabs(file) or ".." in file.split("/") or "\0" in file:
        return None
    folders = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return next((path for folder in folders if os.path.isfile(path := os.path.join(folder, file))), None)


def _failure(worker: Worker, problem: CallFailure, sample: int) -> Failure:
    return Failure(
        stage="stacks",
        reason=f"Ray's agent on its node could not read it either: {problem.reason}",
        cause=problem.cause,
        node_id=worker.node_id,
        worker_id=worker.worker_id,
        pid=worker.pid,
        sample=sample,
    )


def _no_agent(node_id: str, sample: int) -> Failure:
    return Failure(
        stage="stacks",
        reason="the node has no Ray agent that could read it instead",
        cause="missing",
        remedy='Install Ray with its agent there: pip install "ray[default]".',
        node_id=node_id,
        sample=sample,
    )


def unread_workers(
    workers: Sequence[Worker], processes: Mapping[str, Process], failures: Iterable[Failure]
) -> list[Worker]:
    """The workers without stacks, except those whose process is absent or another one, by a failure."""
    wrong = {failure.worker_id for failure in failures if failure.stage == "process"}
    with_threads = {worker_id for worker_id, process in processes.items() if process.threads}
    done = wrong | with_threads
    return [worker for worker in workers if worker.worker_id not in done]


def completed(processes: Mapping[str, Process], stacks: Mapping[str, Process]) -> dict[str, Process]:
    """The processes, some with the threads that Ray's agents have read."""
    return {**processes, **{id: _with_threads(processes.get(id, read), read) for id, read in stacks.items()}}


def unknown_waits(workers: Iterable[WorkerSample]) -> set[str]:
    """The workers whose waits could be read and were not."""
    return {worker.worker_id for worker in workers if not _is_whole(worker.process)}


def with_pause_as_remedy(
    failures: Iterable[Failure], unread: Sequence[Worker], nodes: set[str], sample: int
) -> list[Failure]:
    """The failures, with ``--pause`` as the remedy for unread workers on nodes with an agent."""
    workers = {worker.worker_id for worker in unread if worker.node_id in nodes}

    def is_meant(failure: Failure) -> bool:
        return failure.sample == sample and _may_be_read_by_agent(failure, workers, nodes)

    return [replace(one, remedy=_remedy(one)) if is_meant(one) else one for one in failures]


def _may_be_read_by_agent(failure: Failure, workers: set[str], nodes: set[str]) -> bool:
    """Whether the process was not read, and its node's agent may be able to read it."""
    if failure.stage == "stacks":
        return failure.worker_id in workers and failure.cause in ("permission", "missing")
    return failure.stage == "node probe" and failure.node_id in nodes and failure.cause in ("timeout", "ended", "other")


def _remedy(failure: Failure) -> str:
    return (
        f"{failure.remedy} Or use --pause: {PAUSED_BY_AGENT}" if failure.remedy else f"Use --pause: {PAUSED_BY_AGENT}"
    )


def _with_threads(process: Process, read: Process) -> Process:
    return replace(process, threads=read.threads, access=read.access, paused_ms=read.paused_ms)


def _is_whole(process: Process | None) -> bool:
    return process is not None and bool(process.threads) and process.access == "memory"
