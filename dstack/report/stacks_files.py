"""Stacks for other programs: JSON, folded stacks, and the file format of speedscope.

The JSON is what ``dstack stacks --json`` prints, schema ``dstack.stacks/1``. Fields are only ever added to it: readers
must ignore fields that they do not know. Folded stacks are lines, as flamegraph.pl, inferno and speedscope read them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Annotated, Literal, TypedDict

import msgspec
from msgspec import Meta

from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.stacks.app_threads import Activity, Execution
from dstack.analysis.stacks.peers import Why
from dstack.analysis.stacks.weighted_stacks import Unit, WeightedStack, WeightedStacks
from dstack.analysis.views.all_stacks import By, ChosenStacks, StackGroup
from dstack.files.document_file import to_json
from dstack.model.profile import PathStep
from dstack.observed.processes import Origin
from dstack.report.check_json import ranked
from dstack.report.check_schema import Json, Ranked
from dstack.version import __version__
from dstack.words import grouped, visible

SEPARATOR = ";"
SELF = "(self)"
"""Ends a stack whose last name would be read as a second number; readers take two numbers for a comparison."""
_ENDS_IN_NUMBER = re.compile(r"(^|\s)[\d.]+\s*$")
SPEEDSCOPE_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
ValueUnit = Literal["none", "microseconds"]
UNITS: dict[Unit, ValueUnit] = {"executions": "none", "samples": "none", "microseconds": "microseconds"}


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
        "frames": [_json_frame(step) for step in path],
        "executions": [_execution(chosen, one) for one in executions],
    }


def _json_frame(step: PathStep) -> StacksFrame:
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


def folded(stacks: WeightedStacks) -> bytes:
    """``group;group;outermost (file:line);innermost (file:line) WEIGHT``, sorted; equal lines are added up."""
    weights: Counter[str] = Counter()
    for stack in stacks.stacks:
        weights[_folded_line(stack)] += stack.weight
    lines = (f"{line} {weight}\n" for line, weight in sorted(weights.items()) if weight > 0)
    return "".join(lines).encode()


def _folded_line(stack: WeightedStack) -> str:
    names = [_escaped(group) for group in stack.groups] + [_escaped(_folded_frame(step)) for step in stack.frames]
    if not names or _ENDS_IN_NUMBER.search(names[-1]):
        names.append(SELF)
    return SEPARATOR.join(names)


def _folded_frame(step: PathStep) -> str:
    """``function (file:line)`` as in py-spy's raw format; a step without a file is only its name."""
    if not step.file:
        return step.name
    return f"{step.name} ({step.file}:{step.line})" if step.line else f"{step.name} ({step.file})"


def _escaped(name: str) -> str:
    """The name in one piece: without separators, line ends and control characters, and not empty."""
    return visible(name).replace(SEPARATOR, r"\x3b").strip() or "(no name)"


class _Place(TypedDict):
    name: str


class SharedFrame(_Place, total=False):
    """A frame, or a group of stacks, which has only a name."""

    file: str
    line: int


class SharedFrames(TypedDict):
    """The frames that all profiles refer to by their position."""

    frames: list[SharedFrame]


class SampledProfile(TypedDict):
    """Stacks, outermost frame first, and their weights in the same order."""

    type: Literal["sampled"]
    name: str
    unit: ValueUnit
    startValue: int
    endValue: int
    samples: list[list[int]]
    weights: list[int]


SpeedscopeFile = TypedDict(
    "SpeedscopeFile",
    {
        "$schema": str,
        "exporter": str,
        "name": str,
        "activeProfileIndex": int,
        "shared": SharedFrames,
        "profiles": list[SampledProfile],
    },
)


def speedscope(stacks: WeightedStacks) -> bytes:
    """One profile for each path of groups; where there are several, the first has all stacks, with groups as frames."""
    builder = _Builder(UNITS[stacks.unit])
    groups = grouped((stack.groups, stack) for stack in stacks.stacks)
    profiles = [builder.profile(stacks.name, stacks.stacks, with_groups=True)] if len(groups) != 1 else []
    profiles += [builder.profile(" / ".join(path) or stacks.name, members) for path, members in groups.items()]
    document: SpeedscopeFile = {
        "$schema": SPEEDSCOPE_SCHEMA,
        "exporter": f"dstack {__version__}",
        "name": visible(stacks.name),
        "activeProfileIndex": 0,
        "shared": {"frames": builder.frames},
        "profiles": profiles,
    }
    return msgspec.json.encode(document) + b"\n"


class _Builder:
    """Profiles that share one table of frames."""

    def __init__(self, unit: ValueUnit) -> None:
        self.frames: list[SharedFrame] = []
        self._unit = unit
        self._positions: dict[PathStep, int] = {}

    def profile(self, name: str, stacks: Iterable[WeightedStack], *, with_groups: bool = False) -> SampledProfile:
        """A profile of these stacks."""
        members = [stack for stack in stacks if stack.weight > 0]
        return {
            "type": "sampled",
            "name": visible(name),
            "unit": self._unit,
            "startValue": 0,
            "endValue": sum(stack.weight for stack in members),
            "samples": [self._sample(stack, with_groups) for stack in members],
            "weights": [stack.weight for stack in members],
        }

    def _sample(self, stack: WeightedStack, with_groups: bool) -> list[int]:
        groups = map(PathStep, stack.groups) if with_groups else ()
        return [self._position(step) for step in (*groups, *stack.frames)]

    def _position(self, step: PathStep) -> int:
        step = PathStep(step.name, step.file, step.line)
        if step not in self._positions:
            self._positions[step] = len(self.frames)
            self.frames.append(_shared_frame(step))
        return self._positions[step]


def _shared_frame(step: PathStep) -> SharedFrame:
    frame: SharedFrame = {"name": visible(step.name) or "(no name)"}
    if step.file:
        frame["file"] = visible(step.file)
        if step.line:
            frame["line"] = step.line
    return frame
