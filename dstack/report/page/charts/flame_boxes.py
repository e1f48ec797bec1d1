"""The rectangles of a flame graph, the narrowest ones left out."""

from __future__ import annotations

from dataclasses import dataclass, field

from dstack.analysis.stacks.app_threads import PathStep
from dstack.analysis.stacks.weighted_stacks import WeightedStack, WeightedStacks

MAX_BOXES = 20_000
"""The most rectangles of one flame graph."""


@dataclass(slots=True)
class Box:
    """One rectangle: a group, or a call below the same outer calls; from ``left``, ``weight`` wide."""

    step: PathStep
    depth: int
    parent: int
    left: int
    weight: int = 0


@dataclass(slots=True)
class Boxes:
    """All rectangles of some stacks, the outer ones before the inner ones, and how many are left out."""

    total: int = 0
    boxes: list[Box] = field(default_factory=list)
    left_out: int = 0

    @property
    def levels(self) -> int:
        """The number of rows."""
        return 1 + max((box.depth for box in self.boxes), default=0)


def boxes_of(stacks: WeightedStacks, most: int = MAX_BOXES) -> Boxes:
    """The rectangles of stacks that are merged where they begin with the same groups and calls; the widest so many."""
    found = Boxes()
    path: list[int] = []
    names: list[PathStep] = []
    for stack in sorted(stacks.stacks, key=_path):
        steps = _path(stack)
        common = next((i for i, (a, b) in enumerate(zip(names, steps, strict=False)) if a != b), len(names))
        common = min(common, len(steps))
        del path[common:], names[common:]
        for step in steps[common:]:
            parent = path[-1] if path else -1
            found.boxes.append(Box(step, len(path), parent, found.total))
            path.append(len(found.boxes) - 1)
            names.append(step)
        for index in path:
            found.boxes[index].weight += stack.weight
        found.total += stack.weight
    return _widest(found, most)


def _path(stack: WeightedStack) -> list[PathStep]:
    return [*map(PathStep, stack.groups), *stack.frames]


def _widest(found: Boxes, most: int) -> Boxes:
    """The widest rectangles, at most ``most``; one is never wider than the one above it."""
    if len(found.boxes) <= most:
        return found
    order = sorted(range(len(found.boxes)), key=lambda index: (-found.boxes[index].weight, index))
    kept = sorted(order[:most])
    place = {index: at for at, index in enumerate(kept)}
    boxes = [found.boxes[index] for index in kept]
    for box in boxes:
        box.parent = place.get(box.parent, -1)
    return Boxes(found.total, boxes, len(found.boxes) - len(boxes))
