"""All stacks as versioned JSON, schema ``dstack.stacks/1``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import msgspec

from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.stacks.app_threads import Execution, PathStep
from dstack.analysis.views.stack_groups import By, ChosenStacks, StackGroup
from dstack.document_file import to_json
from dstack.report.check_json import ranked
from dstack.report.stacks_schema import (
    MergedStack,
    StacksDocument,
    StacksExecution,
    StacksFrame,
    StacksGroup,
    UnreadProcess,
)


def stacks_json(chosen: ChosenStacks, by: By) -> bytes:
    """The stacks as JSON, indented, with a newline at its end."""
    snapshot = chosen.snapshot
    document: StacksDocument = {
        "schema": "dstack.stacks/1",
        "address": snapshot.address,
        "ray_version": snapshot.ray_version,
        "taken_at": snapshot.taken_at,
        "by": by,
        "whole": chosen.whole,
        "job": chosen.job_id,
        "count": len(chosen.executions),
        "activities": {str(activity): count for activity, count in chosen.activities.items()},
        "groups": [_group(chosen, group) for group in chosen.groups(by)],
        "not_read": list(_not_read(chosen)),
        "left_out_threads": chosen.left_out,
    }
    return msgspec.json.format(to_json(document), indent=2) + b"\n"


def _group(chosen: ChosenStacks, group: StackGroup) -> StacksGroup:
    by_path = groupby(group.executions, key=lambda one: one.path)
    stacks = [_stack(chosen, path, list(some)) for path, some in by_path]
    stacks.sort(key=lambda stack: -stack["count"])
    return {"name": group.name, "count": len(group.executions), "stacks": stacks}


def _stack(chosen: ChosenStacks, path: tuple[PathStep, ...], executions: list[Execution]) -> MergedStack:
    return {
        "count": len(executions),
        "frames": [_frame(step) for step in path],
        "executions": [_execution(chosen, one) for one in executions],
    }


def _frame(step: PathStep) -> StacksFrame:
    return {
        "name": step.name,
        "function": step.function,
        "file": step.file,
        "line": step.line,
        "origin": step.origin,
    }


def _execution(chosen: ChosenStacks, execution: Execution) -> StacksExecution:
    vertex = chosen.stacks.vertices[execution.key]
    details = details_of(chosen.index, vertex)
    outlier = chosen.outliers.get(execution.key)
    return {
        "name": execution.name,
        "kind": execution.kind,
        "activity": execution.activity,
        "waits_in": vertex.wait.kind_name if vertex.wait else None,
        "outlier": outlier.words if outlier else None,
        "job_id": execution.peer_group.job_id,
        "worker_id": execution.worker_id,
        "actor_id": details.actor_id,
        "task_id": details.task_id,
        "pid": details.pid,
        "node_ip": details.node_ip,
        **ranked(execution.ranks),
    }


def _not_read(chosen: ChosenStacks) -> Iterator[UnreadProcess]:
    for one in chosen.absent:
        yield {
            "name": one.name,
            "kind": one.kind,
            "why": one.why,
            "detail": one.detail,
            "worker_id": one.worker_id,
        }
