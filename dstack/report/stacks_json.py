"""All stacks as JSON, schema ``dstack.stacks/1``: what ``dstack stacks --json`` prints, and its JSON Schema.

Fields are only ever added to ``dstack.stacks/1``: readers must ignore fields that they do not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Annotated, Literal, TypedDict

import msgspec
from msgspec import Meta

from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.stacks.app_threads import Activity, Execution, PathStep
from dstack.analysis.stacks.peers import Why
from dstack.analysis.views.all_stacks import By, ChosenStacks, StackGroup
from dstack.files.document_file import to_json
from dstack.observed.processes import Origin
from dstack.report.check_json import ranked
from dstack.report.check_schema import Json, Ranked


class StacksFrame(TypedDict):
    """One frame."""

    name: Annotated[str, Meta(description="The call that is waited in, such as ray.get, or the function")]
    function: str
    file: str
    line: int
    origin: Annotated[Origin, Meta(description="Whether the code is the user's, Ray's or another library's")]


class StacksExecution(Ranked):
    """A thread or coroutine of the application."""

    name: Annotated[str, Meta(description="Name of its call or thread; the wording may change")]
    kind: Annotated[str, Meta(description="actor CLASS, task NAME or driver SCRIPT")]
    activity: Activity
    waits_in: Annotated[str | None, Meta(description="Kind or name of the call that it is blocked in")]
    outlier: Annotated[str | None, Meta(description="How it differs from similar executions; the wording may change")]
    job_id: str | None
    worker_id: str
    actor_id: str | None
    task_id: str | None
    pid: int | None
    node_ip: str | None


class MergedStack(TypedDict):
    """All executions of a group with the same stack."""

    count: int
    frames: Annotated[list[StacksFrame], Meta(description="Outermost first")]
    executions: list[StacksExecution]


class StacksGroup(TypedDict):
    """Executions of one class, of ranks with equal stacks, or of one process."""

    name: str
    count: int
    stacks: list[MergedStack]


class UnreadProcess(TypedDict):
    """A process or call without a stack: it may be in any code."""

    name: str
    kind: str
    why: Why
    detail: Annotated[str, Meta(description="End of a sentence; the wording may change")]
    worker_id: str | None


class StacksDocument(TypedDict):
    """What ``dstack stacks --json`` prints."""

    schema: Literal["dstack.stacks/1"]
    address: str
    ray_version: str
    taken_at: Annotated[float, Meta(description="Unix time")]
    by: By
    whole: Annotated[bool, Meta(description="Whether stacks have the frames of Ray and libraries")]
    job: Annotated[str | None, Meta(description="Id of the only job")]
    count: Annotated[int, Meta(description="Number of stacks")]
    activities: Annotated[dict[str, int], Meta(description="Number of stacks by activity")]
    groups: list[StacksGroup]
    not_read: list[UnreadProcess]
    left_out_threads: Annotated[int, Meta(description="Number of threads and coroutines of Ray and its libraries")]


def stacks_schema() -> Json:
    """The JSON Schema of ``dstack.stacks/1``."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(StacksDocument)}


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
