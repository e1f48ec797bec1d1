"""The replies of core workers, asked by the probes of their nodes or, where those cannot, from here.

Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from dstack.errors import ClusterError
from dstack.model import ACTOR_HANDLE, Failure, Ref, Task, Worker, is_at_hand
from dstack.probes.connection import ray_stubs
from dstack.probes.connection.connect import Metadata
from dstack.probes.node import wire
from dstack.probes.node.core_workers.asking import CoreWorkers
from dstack.probes.node.core_workers.grpc_modules import CannotAsk
from dstack.probes.node.core_workers.replies import ENDED

LIMIT = 2_000_000
"""The most tasks and refs that one worker lists. Ray cuts to an arbitrary subset, so a cut is always reported."""


@dataclass
class CoreWorkerStats:
    """One worker's answer. Tasks that ended are left out; ``refs`` are all it knows.

    ``held`` is what came with its last lease: in a placement group it names the bundle, which its task's entry does
    only where the task asked for one. A CPU that is lent back while the task waits is still in it.
    """

    worker_id: str
    job_id: str | None
    actor_id: str | None
    running_task_ids: tuple[str, ...]
    held: dict[str, float] = field(default_factory=dict)
    executed_tasks: int = 0
    tasks: list[Task] = field(default_factory=list)
    refs: list[Ref] = field(default_factory=list)


def questions(
    metadata: Metadata, timeout_s: float, *, with_refs: bool = True, details: bool = True, limit: int = LIMIT
) -> wire.Questions:
    """How core workers are asked; by default for everything that a sample needs."""
    return {
        "metadata": list(metadata),
        "timeout_s": timeout_s,
        "limit": limit,
        "details": details,
        "with_refs": with_refs,
    }


def address_of(worker: Worker) -> wire.CoreWorker:
    """Where a node's probe asks the worker."""
    return {"worker_id": worker.worker_id, "ip": worker.ip, "port": worker.port, "pid": worker.pid}


def stats_of(worker_id: str, data: wire.CoreWorkerData) -> CoreWorkerStats:
    """The reply of this worker, asked for details. Raises :class:`msgspec.ValidationError`, as for unknown kinds."""
    tasks = [{**task, "owner_id": worker_id} for task in data["tasks"]]
    refs = [{**ref, "holder_id": worker_id} for ref in data["refs"]]
    return CoreWorkerStats(
        worker_id=worker_id,
        job_id=data["job_id"],
        actor_id=data["actor_id"],
        running_task_ids=tuple(data["running_task_ids"]),
        held=data["held"],
        executed_tasks=data["executed_tasks"],
        tasks=msgspec.convert(tasks, list[Task]),
        refs=msgspec.convert(refs, list[Ref]),
    )


def ask_core_workers(
    workers: Sequence[Worker],
    metadata: Metadata,
    timeout_s: float,
    sample: int = 1,
    *,
    with_refs: bool = True,
    deadline: float | None = None,
) -> tuple[dict[str, CoreWorkerStats], list[Failure]]:
    """The answers by worker id, and a failure for each missing or incomplete answer.

    Asks from here, for workers on nodes whose probe cannot. At most 64 are asked at the same time, each for
    ``timeout_s``, and none after ``deadline``, a ``time.monotonic()``.
    """
    found, failures = ask_directly(workers, questions(metadata, timeout_s, with_refs=with_refs), deadline)
    node_of = {worker.worker_id: worker.node_id for worker in workers}
    stats = {worker_id: stats_of(worker_id, data) for worker_id, data in found.items()}
    return stats, [failure_of(one, node_of, sample) for one in failures]


def ask_directly(
    workers: Sequence[Worker], questions: wire.Questions, deadline: float | None = None
) -> tuple[dict[str, wire.CoreWorkerData], list[wire.FailureData]]:
    """The replies by worker id, as of a node's probe, and the failures. Keeps no connection.

    Raises :class:`dstack.errors.ClusterError` if Ray's gRPC modules or its TLS certificates cannot be loaded.
    """
    try:
        replies = CoreWorkers(ray_stubs, kept=0).ask(
            [address_of(worker) for worker in workers], questions, float("inf") if deadline is None else deadline
        )
    except CannotAsk as error:
        raise ClusterError(f"dstack cannot ask core workers: {error}.", "Install ray[default].") from error
    return replies.found, replies.failures


def failure_of(data: wire.FailureData, node_of: Mapping[str, str], sample: int) -> Failure:
    """A failure of a core worker, with the node on which it runs."""
    node_id = node_of.get(data.get("worker_id", ""))
    return msgspec.convert({**data, "node_id": node_id, "sample": sample}, Failure)


def relevant_refs(answers: Iterable[CoreWorkerStats], awaited: set[str], unread: Collection[str] = ()) -> list[Ref]:
    """The refs that waits depend on, possible missing arguments of pending tasks, and handles of actors.

    A worker in ``unread`` may wait for any absent ref that it holds; one present ref represents all refs that would
    have to be fetched.
    """
    answers = list(answers)
    awaited = awaited | _held_by(answers, unread)
    return [
        ref
        for answer in answers
        for ref in answer.refs
        if ref.ref in awaited or ref.ref.startswith(ACTOR_HANDLE) or _may_be_a_missing_argument(ref)
    ]


def _held_by(answers: Sequence[CoreWorkerStats], unread: Collection[str]) -> set[str]:
    if not unread:
        return set()
    refs = (ref for answer in answers for ref in answer.refs)
    given = {ref.ref for ref in refs if (ref.size_bytes >= 0 or ref.state in ENDED) and not ref.attempt}
    found: set[str] = set()
    for answer in answers:
        if answer.worker_id in unread:
            held = [ref for ref in answer.refs if ref.local_uses and not ref.ref.startswith(ACTOR_HANDLE)]
            to_fetch = (ref.ref for ref in held if ref.ref in given and not is_at_hand(ref))
            found.update((*(ref.ref for ref in held if ref.ref not in given), *islice(to_fetch, 1)))
    return found


def _may_be_a_missing_argument(ref: Ref) -> bool:
    """Whether a submitted task takes the ref and its value is unknown here; borrowers know neither it nor its state."""
    return bool(ref.argument_uses) and ref.size_bytes < 0 and ref.state not in ENDED
