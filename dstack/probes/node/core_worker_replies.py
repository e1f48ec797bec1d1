"""The reply of a core worker as an observed value, or why there is none. Seen on Ray 2.46 and 2.60."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, get_args

from dstack.observed.node import IN_STORE, CoreWorkerReply, ObjectPlace, Ref, Stage, Task, TaskKind
from dstack.probes.node.ray_messages import NEW, Piece, Protocol, name_of
from dstack.probes.node.target_process import Problem
from dstack.probes.node.wire import CoreWorker, Questions

MAX_PARTS = 20
ENDED = ("FINISHED", "FAILED")
KINDS: dict[str, TaskKind] = {kind: kind for kind in get_args(TaskKind)}
NEW_KIND = Problem("core worker", "it has tasks of a kind that dstack does not know", "truncated")

_IN_GROUP = re.compile(r".+_group_(?:\d+_)?([0-9a-f]{36})")

OTHER_LANGUAGES = {1: "Java", 2: "C++"}
"""Those of Ray's workers besides Python, by their number in `Language` (Ray 2.46 to 2.60)."""
STAGE: Stage = "core worker"


@dataclass(frozen=True)
class GrpcModules:
    """grpc, and Ray's generated modules that a request to a core worker needs, with the pieces of its protocol."""

    grpc: Any
    common: Any
    core_worker: Any
    service: Any
    protocol: Protocol


WAITS, REFS = "the tasks and refs of workers", "the refs of workers"
PLACES = "where objects are"
NO_CALL_SITE = "disabled"
MAX_CALL_SITE, MAX_MAKERS = 400, 10_000
PIECES = (
    Piece(WAITS, "CoreWorkerService", "GetCoreWorkerStats", "method", is_vital=True),
    Piece(
        WAITS,
        "GetCoreWorkerStatsRequest",
        "intended_worker_id:bytes include_memory_info:bool include_task_info:bool limit:int",
        is_vital=True,
    ),
    Piece(
        WAITS,
        "GetCoreWorkerStatsReply",
        "core_worker_stats:CoreWorkerStats owned_task_info_entries:list running_task_ids:list tasks_total:int",
        is_vital=True,
    ),
    Piece(
        WAITS,
        "CoreWorkerStats",
        "worker_id:bytes job_id:bytes actor_id:bytes language:enum object_refs:list objects_total:int"
        " used_resources:map num_pending_tasks:int num_executed_tasks:int num_running_tasks:int task_queue_length:int"
        " num_owned_objects:int num_owned_actors:int num_object_refs_in_scope:int num_local_objects:int",
        is_vital=True,
    ),
    Piece(
        "the tasks of workers",
        "TaskInfoEntry",
        "type:enum name:text func_or_class_name:text scheduling_state:enum job_id:bytes task_id:bytes"
        " parent_task_id:bytes required_resources:map node_id:bytes actor_id:bytes placement_group_id:bytes",
        is_vital=True,
    ),
    Piece("the states of tasks", "TaskStatus", "NIL PENDING_ARGS_AVAIL SUBMITTED_TO_WORKER FINISHED FAILED", "value"),
    Piece("the runtime environments of tasks", "TaskInfoEntry", "runtime_env_info:RuntimeEnvInfo"),
    Piece("the runtime environments of tasks", "RuntimeEnvInfo", "serialized_runtime_env:text"),
    Piece("the labels that tasks ask for", "TaskInfoEntry", "label_selector:map", since=NEW),
    Piece(
        REFS,
        "ObjectRefInfo",
        "object_id:bytes object_size:int local_ref_count:int submitted_task_ref_count:int contained_in_owned:list"
        " pinned_in_memory:bool task_status:enum attempt_number:int",
        is_vital=True,
    ),
    Piece("where refs were made", "ObjectRefInfo", "call_site:text"),
    Piece(PLACES, "CoreWorkerService", "GetObjectLocationsOwner", "method"),
    Piece(PLACES, "GetObjectLocationsOwnerRequest", "intended_worker_id:bytes object_ids:list"),
    Piece(PLACES, "GetObjectLocationsOwnerReply", "object_location_infos:list"),
    Piece(
        PLACES,
        "WorkerObjectLocationsPubMessage",
        "node_ids:list spilled_url:text spilled_node_id:bytes",
    ),
    Piece("what workers hold", "ResourceAllocations", "resource_slots:list", is_vital=True),
    Piece("what workers hold", "ResourceAllocations.ResourceSlot", "allocation:float", is_vital=True),
)
"""What dstack needs of the reply of a core worker, piece by piece; Ray 2.46 and 2.60."""


def is_from(worker: CoreWorker, reply: Any) -> bool:
    """Whether this worker replied: Ray does not enforce ``intended_worker_id``, and ports are used again."""
    return bool(reply.core_worker_stats.worker_id.hex() == worker["worker_id"])


def omission(reply: Any) -> Problem | None:
    """What the reply leaves out, because it is cut to the limit of the request."""
    listed, total = len(reply.owned_task_info_entries), reply.tasks_total
    if listed < total:
        return Problem(STAGE, f"it returned only {listed} of its {total} tasks", "truncated")
    refs, refs_total = len(reply.core_worker_stats.object_refs), reply.core_worker_stats.objects_total
    if refs < refs_total:
        return Problem(STAGE, f"it returned only {refs} of its {refs_total} refs", "truncated")
    return None


def observed(reply: Any, modules: GrpcModules, questions: Questions) -> CoreWorkerReply:
    """The reply without tasks that ended, and cut if some are of a new kind."""
    stats = reply.core_worker_stats
    worker_id = stats.worker_id.hex()
    states, kinds = (cache(partial(name_of, enum)) for enum in (modules.common.TaskStatus, modules.common.TaskType))
    refs = tuple(_ref(row, worker_id, states(row.task_status)) for row in stats.object_refs)
    stored = [ref for ref in refs if ref.size_bytes >= IN_STORE]
    rows = ((row, states(row.scheduling_state)) for row in reply.owned_task_info_entries)
    pending = ((row, state) for row, state in rows if state not in ENDED)
    tasks: tuple[Task, ...] = ()
    task_states: dict[str, str] = {}
    has_new_kind = False
    if questions["details"]:
        with_kinds = [(row, state, KINDS.get(kinds(row.type))) for row, state in pending]
        known = [(row, state, kind) for row, state, kind in with_kinds if kind is not None]
        has_new_kind = len(known) < len(with_kinds)
        attempts, items = _attempts(refs), Counter(ref.ref[:48] for ref in refs if _is_item(ref))
        tasks = tuple(_task(row, worker_id, state, kind, attempts, items) for row, state, kind in known)
    else:
        task_states = {row.task_id.hex(): state for row, state in pending}
    return CoreWorkerReply(
        worker_id=worker_id,
        job_id=_id(stats.job_id),
        actor_id=_id(stats.actor_id),
        running_task_ids=tuple(task_id.hex() for task_id in reply.running_task_ids),
        language=OTHER_LANGUAGES.get(stats.language),
        held={name: sum(s.allocation for s in held.resource_slots) for name, held in stats.used_resources.items()},
        executed_tasks=stats.num_executed_tasks,
        is_cut=has_new_kind or len(reply.owned_task_info_entries) < reply.tasks_total,
        argument_bytes=sum(ref.size_bytes for ref in stored if ref.argument_uses),
        mapped=_mapped(refs, stats.object_refs),
        makers=_makers(stored, reply.owned_task_info_entries),
        counters=_counters(reply),
        tasks=tasks,
        task_states=task_states,
        refs=refs,
    )


def _id(value: bytes) -> str | None:
    """An id in hex; None for Ray's nil id, which has all bits set."""
    text = value.hex()
    return text if text.strip("f") else None


def _counters(reply: Any) -> tuple[int, ...]:
    stats = reply.core_worker_stats
    return (
        reply.tasks_total,
        stats.num_pending_tasks,
        stats.num_executed_tasks,
        stats.num_running_tasks,
        stats.task_queue_length,
        stats.num_owned_objects,
        stats.num_owned_actors,
        stats.num_object_refs_in_scope,
        stats.num_local_objects,
    )


def _ref(row: Any, holder_id: str, state: str) -> Ref:
    size, contained_in = row.object_size, row.contained_in_owned
    is_stored = size >= IN_STORE
    return Ref(
        ref=row.object_id.hex(),
        holder_id=holder_id,
        state=None if state == "NIL" else state,
        size_bytes=size,
        argument_uses=row.submitted_task_ref_count,
        local_uses=row.local_ref_count,
        is_contained=bool(contained_in or row.pinned_in_memory),
        attempt=row.attempt_number,
        inside=tuple(id.hex() for id in contained_in) if is_stored and contained_in else (),
        call_site=_call_site(row.call_site) if is_stored else "",
    )


def _call_site(text: str) -> str:
    """The text without what Ray writes where it records none."""
    return "" if text == NO_CALL_SITE else text[:MAX_CALL_SITE]


def _makers(stored: Sequence[Ref], rows: Iterable[Any]) -> dict[str, str]:
    """The names of the tasks that returned the largest of these values, by id."""
    largest = sorted(stored, key=lambda ref: -ref.size_bytes)[:MAX_MAKERS]
    tasks = {ref.ref[:48] for ref in largest if ref.state in ENDED}
    if not tasks:
        return {}
    return {id: row.name or row.func_or_class_name for row in rows if (id := row.task_id.hex()) in tasks}


def owned_values(reply: CoreWorkerReply, most: int) -> list[str]:
    """The largest values in the object store that a worker owns, by id: its reply names their states."""
    owned = (ref for ref in reply.refs if ref.state in ENDED and ref.size_bytes >= IN_STORE)
    return [ref.ref for ref in sorted(owned, key=lambda ref: -ref.size_bytes)[:most]]


def places(ids: Sequence[str], reply: Any) -> dict[str, ObjectPlace]:
    """Where these values are, by the reply of their owner to ``GetObjectLocationsOwner``, if it knows."""
    rows = zip(ids, reply.object_location_infos, strict=False)
    return {
        id: ObjectPlace(
            node_ids=tuple(sorted(node.hex() for node in row.node_ids)),
            is_spilled=bool(row.spilled_url),
            spilled_on=_id(row.spilled_node_id) if row.spilled_url else None,
        )
        for id, row in rows
        if row.node_ids or row.spilled_url
    }


def _mapped(refs: Sequence[Ref], rows: Sequence[Any]) -> dict[str, int]:
    """The objects that the process uses in shared memory: Ray pins them as long."""
    contained = (number for number, ref in enumerate(refs) if ref.is_contained and ref.size_bytes > 0)
    return {refs[number].ref: refs[number].size_bytes for number in contained if rows[number].pinned_in_memory}


def _attempts(refs: Iterable[Ref]) -> dict[str, int]:
    return {ref.ref[:48]: ref.attempt for ref in refs if ref.attempt}


def _is_item(ref: Ref) -> bool:
    """Whether it is a generator's value: a ref of an unfinished task of this worker other than its first."""
    is_unfinished = ref.state not in (None, *ENDED)
    return is_unfinished and ref.size_bytes >= 0 and int.from_bytes(bytes.fromhex(ref.ref[48:56]), "little") > 1


def _task(
    row: Any, owner_id: str, state: str, kind: TaskKind, attempts: Mapping[str, int], items: Mapping[str, int]
) -> Task:
    task_id = row.task_id.hex()
    return Task(
        task_id=task_id,
        owner_id=owner_id,
        name=row.name or row.func_or_class_name,
        kind=kind,
        state=state,
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


def environment_parts(serialized: str) -> tuple[str, ...]:
    """The names of the parts of a runtime environment, as Ray serialises it to JSON; none if it is malformed."""
    if serialized in ("", "{}"):
        return ()
    try:
        parts = json.loads(serialized)
    except (ValueError, RecursionError):
        return ()
    names = parts if isinstance(parts, dict) else ()
    return tuple(sorted(name for name in names if not name.startswith("_")))[:MAX_PARTS]


def group_asked_for(resources: Iterable[str]) -> str | None:
    """The placement group that a task asks for by the names of its resources, as ``CPU_group_0_ID``.

    Its owner fills in no id of the group, on Ray 2.46 to 2.60.
    """
    found = (_IN_GROUP.fullmatch(name) for name in resources if "_group_" in name)
    return next((match[1] for match in found if match), None)


def explained(codes: Any, error: Any, address: str, timeout_s: float) -> Problem:
    """The problem of a failed call; ``codes`` is ``grpc.StatusCode``."""
    code = error.code()
    if code == codes.DEADLINE_EXCEEDED:
        return timed_out(timeout_s)
    if code == codes.UNAVAILABLE:
        reason = f"nothing answers at {address}: the process has ended, or its network is down"
        return Problem(STAGE, reason, "unreachable")
    if code == codes.UNAUTHENTICATED:
        return Problem(STAGE, "it rejects the token", "permission")
    return Problem(STAGE, f"it returned the error {code.name.lower()}: {str(error.details())[:120]}")


def timed_out(timeout_s: float) -> Problem:
    """The problem of a call without a reply in time."""
    return Problem(STAGE, f"no answer within {timeout_s:.1f} s: stopped, overloaded, or its network is down", "timeout")
