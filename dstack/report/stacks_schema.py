"""The structure of what ``dstack stacks --json`` prints, and its JSON Schema.

Fields are only ever added to ``dstack.stacks/1``: readers must ignore fields that they do not know.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

import msgspec
from msgspec import Meta

from dstack.analysis.stacks.app_threads import Activity
from dstack.analysis.stacks.peers import Why
from dstack.analysis.views.stack_groups import By
from dstack.observed import Origin
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
