"""Asks all workers and drivers for their running tasks, submitted tasks and refs. Seen on Ray 2.46 and 2.60.

``GetCoreWorkerStats`` is served by C++ threads: it answers while Python is blocked or holds the GIL.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec

from dstack.model import ACTOR_HANDLE, Failure, Ref, Task, Worker, is_at_hand
from dstack.probes.connection import addresses
from dstack.probes.connection.connect import Metadata
from dstack.probes.connection.ray_stubs import common_pb2, core_worker_pb2, core_worker_pb2_grpc
from dstack.probes.connection.rpc import Call, CallFailure, call_all

LIMIT = 2_000_000
"""The most tasks and refs that one worker lists. Ray cuts to an arbitrary subset, so a cut is always reported."""

MAX_PARTS = 20
ENDED = ("FINISHED", "FAILED")

_IN_GROUP = re.compile(r".+_group_(?:\d+_)?([0-9a-f]{36})")


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


def ask_core_workers(
    workers: Sequence[Worker], metadata: Metadata, timeout_s: float, sample: int = 1, *, with_refs: bool = True
) -> tuple[dict[str, CoreWorkerStats], list[Failure]]:
    """The answers by worker id, and a failure for each missing or incomplete answer."""
    replies = call_all([stats_call(worker, timeout_s, with_refs=with_refs) for worker in workers], metadata)
    answers: dict[str, CoreWorkerStats] = {}
    failures: list[Failure] = []
    for worker, reply in zip(workers, replies, strict=True):
        problem = _objection(worker, reply)
        if problem:
            failures.append(
                Failure(
                    stage="core worker",
                    reason=problem.reason,
                    cause=problem.cause,
                    node_id=worker.node_id,
                    worker_id=worker.worker_id,
                    pid=worker.pid,
                    elapsed_s=round(timeout_s, 2) if problem.cause == "timeout" else 0.0,
                    sample=sample,
                )
            )
        if is_from(worker, reply):
            answers[worker.worker_id] = _stats(worker.worker_id, reply)
    return answers, failures


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


def stats_call(worker: Worker, timeout_s: float, *, with_refs: bool = True, limit: int = LIMIT) -> Call:
    """The request to one worker for its running tasks, submitted tasks and refs."""
    request = core_worker_pb2.GetCoreWorkerStatsRequest(
        intended_worker_id=bytes.fromhex(worker.worker_id),
        include_memory_info=with_refs,
        include_task_info=True,
        limit=limit,
    )
    stub = core_worker_pb2_grpc.CoreWorkerServiceStub
    return Call(addresses.join(worker.ip, worker.port), stub, "GetCoreWorkerStats", request, timeout_s)


def is_from(worker: Worker, reply: Any) -> bool:
    """Whether this worker replied: Ray does not enforce ``intended_worker_id``, and ports are used again."""
    return not isinstance(reply, CallFailure) and reply.core_worker_stats.worker_id.hex() == worker.worker_id


def _objection(worker: Worker, reply: Any) -> CallFailure | None:
    if isinstance(reply, CallFailure):
        return reply
    if not is_from(worker, reply):
        return CallFailure("it has ended: another worker uses its port", "ended")
    listed, total = len(reply.owned_task_info_entries), reply.tasks_total
    if listed < total:
        return CallFailure(f"it returned only {listed} of its {total} tasks", "truncated")
    refs, refs_total = len(reply.core_worker_stats.object_refs), reply.core_worker_stats.objects_total
    return CallFailure(f"it returned only {refs} of its {refs_total} refs", "truncated") if refs < refs_total else None


def _stats(worker_id: str, reply: Any) -> CoreWorkerStats:
    stats = reply.core_worker_stats
    refs = [_ref(worker_id, row) for row in stats.object_refs]
    attempts = {ref.ref[:48]: ref.attempt for ref in refs if ref.attempt}
    items = Counter(ref.ref[:48] for ref in refs if _is_item(ref))
    tasks = [_task(worker_id, row, attempts, items) for row in reply.owned_task_info_entries]
    job_id, actor_id = stats.job_id.hex(), stats.actor_id.hex()
    return CoreWorkerStats(
        worker_id=worker_id,
        job_id=None if not job_id.strip("f") else job_id,
        actor_id=None if not actor_id.strip("f") else actor_id,
        running_task_ids=tuple(task_id.hex() for task_id in reply.running_task_ids),
        held={name: sum(s.allocation for s in held.resource_slots) for name, held in stats.used_resources.items()},
        executed_tasks=stats.num_executed_tasks,
        tasks=[task for task in tasks if task.state not in ENDED],
        refs=refs,
    )


def _ref(worker_id: str, row: Any) -> Ref:
    state = common_pb2.TaskStatus.Name(row.task_status)
    return Ref(
        ref=row.object_id.hex(),
        holder_id=worker_id,
        state=None if state == "NIL" else state,
        size_bytes=row.object_size,
        argument_uses=row.submitted_task_ref_count,
        local_uses=row.local_ref_count,
        is_contained=bool(row.contained_in_owned) or row.pinned_in_memory,
        attempt=row.attempt_number,
    )


def _is_item(ref: Ref) -> bool:
    """Whether it is a generator's value: a ref of an unfinished task of this worker other than its first."""
    is_unfinished = ref.state not in (None, *ENDED)
    return is_unfinished and ref.size_bytes >= 0 and int.from_bytes(bytes.fromhex(ref.ref[48:56]), "little") > 1


def _task(worker_id: str, row: Any, attempts: dict[str, int], items: Mapping[str, int]) -> Task:
    task_id = row.task_id.hex()
    return Task(
        task_id=task_id,
        owner_id=worker_id,
        name=row.name or row.func_or_class_name,
        kind=common_pb2.TaskType.Name(row.type),
        state=common_pb2.TaskStatus.Name(row.scheduling_state),
        job_id=row.job_id.hex(),
        actor_id=row.actor_id.hex() or None,
        parent_task_id=row.parent_task_id.hex() or None,
        node_id=row.node_id.hex() or None,
        attempt=attempts.get(task_id, 0),
        required_resources=dict(row.required_resources),
        placement_group_id=row.placement_group_id.hex() or group_asked_for(row.required_resources),
        label_selector=dict(getattr(row, "label_selector", {})),
        environment=environment_parts(row.runtime_env_info.serialized_runtime_env),
        items=items.get(task_id, 0),
    )


@lru_cache(maxsize=128)
def environment_parts(serialized: str) -> tuple[str, ...]:
    """The names of the parts of a runtime environment, as Ray serialises it to JSON; none if it is malformed."""
    try:
        parts = msgspec.json.decode(serialized or "{}", type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return ()
    return tuple(sorted(name for name in parts if not name.startswith("_")))[:MAX_PARTS]


def group_asked_for(resources: Iterable[str]) -> str | None:
    """The placement group that a task asks for by the names of its resources, as ``CPU_group_0_ID``.

    Its owner fills in no id of the group, on Ray 2.46 to 2.60.
    """
    found = (_IN_GROUP.fullmatch(name) for name in resources)
    return next((match[1] for match in found if match), None)
