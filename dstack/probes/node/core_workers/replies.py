"""The reply of a core worker as plain data. Seen on Ray 2.46 and 2.60."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from dstack.probes.node.core_workers.call_errors import STAGE
from dstack.probes.node.core_workers.grpc_modules import GrpcModules
from dstack.probes.node.reading import Problem
from dstack.probes.node.wire import CoreWorker, CoreWorkerData, Questions, RefData, TaskData

MAX_PARTS = 20
ENDED = ("FINISHED", "FAILED")

_IN_GROUP = re.compile(r".+_group_(?:\d+_)?([0-9a-f]{36})")

OTHER_LANGUAGES = {1: "Java", 2: "C++"}
"""Those of Ray's workers besides Python, by their number in `Language` (Ray 2.46 to 2.60)."""


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


def as_plain(reply: Any, modules: GrpcModules, questions: Questions) -> CoreWorkerData:
    """The reply as plain data, without tasks that ended."""
    stats = reply.core_worker_stats
    states, kinds = modules.common.TaskStatus.Name, modules.common.TaskType.Name
    refs = [_ref(row, states(row.task_status)) for row in stats.object_refs]
    rows = ((row, states(row.scheduling_state)) for row in reply.owned_task_info_entries)
    pending = ((row, state) for row, state in rows if state not in ENDED)
    tasks: list[TaskData]
    if questions["details"]:
        attempts, items = _attempts(refs), Counter(ref["ref"][:48] for ref in refs if _is_item(ref))
        tasks = [_task(row, state, kinds(row.type), attempts, items) for row, state in pending]
    else:
        tasks = [{"task_id": row.task_id.hex(), "state": state} for row, state in pending]
    data: CoreWorkerData = {
        "job_id": _id(stats.job_id),
        "actor_id": _id(stats.actor_id),
        "running_task_ids": [task_id.hex() for task_id in reply.running_task_ids],
        "held": {name: sum(s.allocation for s in held.resource_slots) for name, held in stats.used_resources.items()},
        "executed_tasks": stats.num_executed_tasks,
        "is_cut": len(reply.owned_task_info_entries) < reply.tasks_total,
        "counters": _counters(reply),
        "tasks": tasks,
        "refs": refs,
    }
    if stats.language in OTHER_LANGUAGES:
        data["language"] = OTHER_LANGUAGES[stats.language]
    return data


def _id(value: bytes) -> str | None:
    """An id in hex; None for Ray's nil id, which has all bits set."""
    text = value.hex()
    return text if text.strip("f") else None


def _counters(reply: Any) -> list[int]:
    stats = reply.core_worker_stats
    return [
        reply.tasks_total,
        stats.num_pending_tasks,
        stats.num_executed_tasks,
        stats.num_running_tasks,
        stats.task_queue_length,
        stats.num_owned_objects,
        stats.num_owned_actors,
        stats.num_object_refs_in_scope,
        stats.num_local_objects,
    ]


def _ref(row: Any, state: str) -> RefData:
    ref: RefData = {"ref": row.object_id.hex()}
    if state != "NIL":
        ref["state"] = state
    if row.object_size != -1:
        ref["size_bytes"] = row.object_size
    if row.submitted_task_ref_count:
        ref["argument_uses"] = row.submitted_task_ref_count
    if row.local_ref_count:
        ref["local_uses"] = row.local_ref_count
    if row.contained_in_owned or row.pinned_in_memory:
        ref["is_contained"] = True
    if row.attempt_number:
        ref["attempt"] = row.attempt_number
    return ref


def _attempts(refs: Iterable[RefData]) -> dict[str, int]:
    return {ref["ref"][:48]: ref["attempt"] for ref in refs if "attempt" in ref}


def _is_item(ref: RefData) -> bool:
    """Whether it is a generator's value: a ref of an unfinished task of this worker other than its first."""
    is_unfinished = ref.get("state") not in (None, *ENDED)
    is_there = ref.get("size_bytes", -1) >= 0
    return is_unfinished and is_there and int.from_bytes(bytes.fromhex(ref["ref"][48:56]), "little") > 1


def _task(row: Any, state: str, kind: str, attempts: Mapping[str, int], items: Mapping[str, int]) -> TaskData:
    task_id = row.task_id.hex()
    task: TaskData = {
        "task_id": task_id,
        "state": state,
        "name": row.name or row.func_or_class_name,
        "kind": kind,
        "job_id": row.job_id.hex(),
    }
    optional: TaskData = {  # type: ignore[typeddict-item]  # the others are above
        "actor_id": row.actor_id.hex() or None,
        "parent_task_id": row.parent_task_id.hex() or None,
        "node_id": row.node_id.hex() or None,
        "attempt": attempts.get(task_id, 0),
        "required_resources": dict(row.required_resources),
        "placement_group_id": row.placement_group_id.hex() or group_asked_for(row.required_resources),
        "label_selector": dict(getattr(row, "label_selector", {})),
        "environment": list(environment_parts(row.runtime_env_info.serialized_runtime_env)),
        "items": items.get(task_id, 0),
    }
    for name, value in optional.items():
        if value:
            task[name] = value  # type: ignore[literal-required]
    return task


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
    found = (_IN_GROUP.fullmatch(name) for name in resources)
    return next((match[1] for match in found if match), None)
