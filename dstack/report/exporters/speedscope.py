"""Stacks in the file format of speedscope (https://www.speedscope.app/file-format-schema.json)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypedDict

import msgspec

from dstack.analysis.stacks.app_threads import PathStep
from dstack.analysis.stacks.weighted_stacks import Unit, WeightedStack, WeightedStacks
from dstack.version import __version__
from dstack.words import grouped, visible

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
ValueUnit = Literal["none", "microseconds"]
UNITS: dict[Unit, ValueUnit] = {"executions": "none", "samples": "none", "microseconds": "microseconds"}


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
        "$schema": SCHEMA,
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
            self.frames.append(_frame(step))
        return self._positions[step]


def _frame(step: PathStep) -> SharedFrame:
    frame: SharedFrame = {"name": visible(step.name) or "(no name)"}
    if step.file:
        frame["file"] = visible(step.file)
        if step.line:
            frame["line"] = step.line
    return frame
