"""Processes that dstack could not read itself, but that Ray's agent on their node may be able to read with a pause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dstack.model import Worker, WorkerSample
from dstack.observed import Process
from dstack.observed_node import Failure

PAUSED_BY_AGENT = "Ray's agent can read the stacks while it pauses the process for some ms."


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
