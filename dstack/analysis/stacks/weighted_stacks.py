"""Stacks with weights: what flame graphs, comparisons and exporters of stacks work on, whatever was counted.

As one prefix tree they are shown alone or compared with others. What is compared are shares, in percent of all or of
the first group, as two recordings are seldom of the same length, and two snapshots seldom of as many processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Literal

from dstack.analysis.index.shown_frames import fold_imports, is_importer, is_ray_core
from dstack.analysis.stacks.app_threads import Execution, shown_step, step_of
from dstack.analysis.stacks.icicle import Weights
from dstack.analysis.stacks.stack_tree import Grouping, PathBranch, group_of
from dstack.model.profile import PathStep
from dstack.model.recording import RecordedThread, Recording

Unit = Literal["executions", "samples", "microseconds"]


@dataclass(frozen=True, slots=True)
class WeightedStack:
    """One stack below its groups, both outermost first, and what it adds to the width of all of them: 0 or more."""

    groups: tuple[str, ...]
    frames: tuple[PathStep, ...]
    weight: int


@dataclass(frozen=True, slots=True)
class WeightedStacks:
    """Stacks of one kind of weight; unless they are in the order of time, no two have the same groups and frames."""

    name: str
    unit: Unit
    stacks: tuple[WeightedStack, ...]

    @classmethod
    def summed(
        cls, name: str, unit: Unit, stacks: Iterable[tuple[tuple[str, ...], tuple[PathStep, ...], int]]
    ) -> WeightedStacks:
        """Groups, frames and weights as stacks, the weights of equal ones added; those without weight are left out."""
        weights: Counter[tuple[tuple[str, ...], tuple[PathStep, ...]]] = Counter()
        for groups, frames, weight in stacks:
            weights[groups, frames] += weight
        found = (WeightedStack(*stack, weight) for stack, weight in weights.items() if weight > 0)
        return cls(name, unit, tuple(sorted(found, key=lambda one: (one.groups, one.frames))))

    @property
    def weight(self) -> int:
        """The sum of all weights."""
        return sum(stack.weight for stack in self.stacks)


def stacks_of(name: str, executions: Iterable[Execution], by: Sequence[Grouping] = ("kind",)) -> WeightedStacks:
    """The stacks of executions, each counted once, below one group for each of ``by``."""
    counted = ((tuple(group_of(one, each) for each in by), one.path, 1) for one in executions)
    return WeightedStacks.summed(name, "executions", counted)


RecordedGrouping = Literal["node", "kind", "rank", "job", "process", "thread"]
LEVELS: tuple[RecordedGrouping, ...] = ("node", "kind", "rank")
"""The groups of a merged recording, outermost first."""


def recorded_stacks(
    recording: Recording, by: Sequence[RecordedGrouping] = LEVELS, *, whole: bool = True, unfolded: bool = False
) -> WeightedStacks:
    """The samples as stacks, below one group for each of ``by``.

    Unless ``whole``, stacks begin at the first frame of the application, if they have one. Unless ``unfolded``, an
    import is one frame.
    """
    paths = list(_paths(recording, unfolded=unfolded))
    paths = paths if whole else [path[_first_own(path) :] for path in paths]
    groups = [_groups(thread, by) for thread in recording.threads]
    stacks = ((groups[one.thread], paths[one.stack], one.samples) for one in recording.counts)
    return WeightedStacks.summed("recording", "samples", stacks)


def app_samples(recording: Recording) -> int:
    """The samples that show more than Ray's core and the standard library, of which threads run in every cluster."""
    frames = [recording.frames_of(count) for count in recording.counts]
    of_ray = [is_ray_core(each) or all(frame.origin == "stdlib" for frame in each) for each in frames]
    return sum(count.samples for count, is_ray in zip(recording.counts, of_ray, strict=True) if not is_ray)


Side = Literal["callers", "callees"]


def stacks_around(stacks: WeightedStacks, step: PathStep, side: Side) -> WeightedStacks:
    """The stacks with a function, from its outermost call on: down to its callees, or up to its callers and groups."""
    wanted = without_line(step)
    found: list[WeightedStack] = []
    for stack in stacks.stacks:
        at = next((at for at, one in enumerate(stack.frames) if without_line(one) == wanted), None)
        if at is None:
            continue
        above = (*map(PathStep, stack.groups), *stack.frames[:at])
        further = stack.frames[at + 1 :] if side == "callees" else above[::-1]
        found.append(WeightedStack((), (step, *further), stack.weight))
    return WeightedStacks(stacks.name, stacks.unit, tuple(found))


@dataclass(slots=True)
class FunctionWeight:
    """A function: the weight of all stacks that it is in, counted once each, and of those that end in it."""

    step: PathStep
    total: int = 0
    own: int = 0


def functions_of(stacks: WeightedStacks) -> list[FunctionWeight]:
    """All functions, those with the largest total first."""
    found: dict[tuple[str, ...], FunctionWeight] = {}
    for stack in stacks.stacks:
        for key, step in {without_line(step): step for step in reversed(stack.frames)}.items():
            found.setdefault(key, FunctionWeight(step)).total += stack.weight
        if stack.frames:
            found[without_line(stack.frames[-1])].own += stack.weight
    return sorted(found.values(), key=lambda one: (-one.total, -one.own, one.step))


def places_of(stacks: WeightedStacks, step: PathStep) -> tuple[int, int]:
    """The weight of all stacks with a function, each counted once, and the number of paths that lead to it."""
    wanted, weight, paths = without_line(step), 0, set()
    for stack in stacks.stacks:
        found = (at for at, one in enumerate(stack.frames) if one.name == step.name and without_line(one) == wanted)
        if (at := next(found, None)) is not None:
            weight += stack.weight
            paths.add((stack.groups, stack.frames[: at + 1]))
    return weight, len(paths)


def innermost_of(stacks: WeightedStacks) -> list[FunctionWeight]:
    """The functions of the application that were innermost, or the last steps without any; the most time first."""
    found: dict[tuple[str, ...], FunctionWeight] = {}
    for stack in stacks.stacks:
        own = (step for step in reversed(stack.frames) if step.origin == "user" and step.is_frame)
        if (step := next(own, stack.frames[-1] if stack.frames else None)) is not None:
            found.setdefault(without_line(step), FunctionWeight(step)).own += stack.weight
    return sorted(found.values(), key=lambda one: (-one.own, one.step))


def by_function(*recordings: WeightedStacks) -> tuple[WeightedStacks, ...]:
    """The same stacks with functions instead of lines: each function has its first line in any of them.

    Two recordings of one program are rarely at the same lines of a loop, and never after its source was edited.
    """
    steps = {step for one in recordings for stack in one.stacks for step in stack.frames}
    first = {without_line(step): step for step in sorted(steps, key=lambda step: -step.line)}
    return tuple(
        WeightedStacks.summed(one.name, one.unit, (_by_first_lines(stack, first) for stack in one.stacks))
        for one in recordings
    )


def _by_first_lines(
    stack: WeightedStack, first: dict[tuple[str, ...], PathStep]
) -> tuple[tuple[str, ...], tuple[PathStep, ...], int]:
    return stack.groups, tuple(first[without_line(step)] for step in stack.frames), stack.weight


def without_line(step: PathStep) -> tuple[str, ...]:
    """Equal for the same function, whichever of its lines."""
    return step.name, step.file, step.function, step.origin


def _paths(recording: Recording, *, unfolded: bool) -> Iterator[tuple[PathStep, ...]]:
    """The path of each stack."""
    steps = tuple(map(step_of, recording.frames))
    importers = {index for index, frame in enumerate(recording.frames) if is_importer(frame)}
    for stack in recording.stacks:
        if unfolded or importers.isdisjoint(stack):
            yield tuple(steps[index] for index in reversed(stack))
        else:
            shown = list(fold_imports([recording.frames[index] for index in stack]))
            yield tuple(map(shown_step, reversed(shown)))


def _first_own(path: Sequence[PathStep]) -> int:
    """The index of the first frame of the application; 0 if there is none."""
    return next((index for index, step in enumerate(path) if step.origin == "user"), 0)


def _groups(thread: RecordedThread, by: Sequence[RecordedGrouping]) -> tuple[str, ...]:
    """Its groups; only a thread that would have none at all is in a group for those."""
    found = tuple(group for one in by if (group := _group(thread, one)))
    return found or tuple(f"no {one}" for one in by[:1])


def _group(thread: RecordedThread, by: RecordedGrouping) -> str:
    """The name of a group: ``node 10.0.0.1``, ``actor Trainer``, ``rank 3``; empty for threads without a rank."""
    if by == "rank":
        return "" if thread.rank is None else f"rank {thread.rank}"
    if by == "process":
        return f"{thread.kind} {thread.name}".rstrip() + f" (pid {thread.pid}, {thread.node})"
    if by == "thread":
        return f'thread "{thread.thread_name}"' if thread.thread_name else f"thread {thread.os_thread_id}"
    return {"node": thread.node, "kind": thread.kind, "job": f"job {thread.job_id}" if thread.job_id else "no job"}[by]


Change = Literal["more", "less", "same"]
NOTICEABLE = 1.0
"""A share that changed by less, in percentage points, counts as the same."""


@dataclass(frozen=True, slots=True)
class WeightedPath:
    """A stack with its groups as one path, its weight, and the weight of the same stack before."""

    path: tuple[PathStep, ...]
    weight: int
    before: int


WeightedBranch = PathBranch[WeightedPath]


class OrderedBranch(PathBranch[WeightedPath]):
    """All stacks with a common beginning that follow each other; the same beginning may come back later."""

    @cached_property
    def children(self) -> tuple[OrderedBranch, ...]:
        """The branches it parts into, in their order."""
        found: list[OrderedBranch] = []
        begin = self.begin
        for step, alike in groupby(self.entries, key=lambda entry: entry.path[self.depth : self.depth + 1]):
            end = begin + sum(1 for _ in alike)
            if step:
                found.append(OrderedBranch(self._tree, begin, end, self.depth + 1))
            begin = end
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Shares:
    """The weights of a branch now and before, and its shares of its group or of all, in percent; 0 of nothing."""

    weight: int
    total: int
    before: int
    total_before: int

    @property
    def now(self) -> float:
        """The share now."""
        return 100 * self.weight / self.total if self.total else 0.0

    @property
    def then(self) -> float:
        """The share before."""
        return 100 * self.before / self.total_before if self.total_before else 0.0

    @property
    def points(self) -> float:
        """The difference in percentage points."""
        return self.now - self.then

    @property
    def change(self) -> Change:
        """Whether the share has changed noticeably."""
        return "more" if self.points >= NOTICEABLE else "less" if self.points <= -NOTICEABLE else "same"


class WeightedTree:
    """A tree of weighted stacks; ``baseline`` are those that it is compared with, if any.

    The widths are those of ``stacks``, or of the baseline if ``by_baseline``, which shows what has disappeared. With
    ``in_order``, stacks are merged only where they follow each other, and there is no baseline.
    """

    def __init__(
        self,
        stacks: WeightedStacks,
        baseline: WeightedStacks | None = None,
        *,
        by_baseline: bool = False,
        in_order: bool = False,
    ) -> None:
        self.unit = stacks.unit
        self.stacks = stacks
        self.baseline = baseline
        self.by_baseline = by_baseline
        self.in_order = in_order
        self.root = _ordered_tree(stacks) if in_order else _tree(stacks, baseline)
        sides = (stacks, baseline) if baseline else (stacks,)
        self._groups = {stack.groups[0] for side in sides for stack in side.stacks if stack.groups}
        self._now = Weights(self.root, lambda entry: entry.weight)
        self._before = Weights(self.root, lambda entry: entry.before)
        self.weights = self._before if by_baseline and baseline is not None else self._now

    def ordered(self, branches: Iterable[WeightedBranch]) -> list[WeightedBranch]:
        """Those with any width, the widest first, or in their order."""
        wide = [branch for branch in branches if self.weights.of(branch) > 0]
        return wide if self.in_order else sorted(wide, key=lambda branch: -self.weights.of(branch))

    def shares(self, branches: Iterable[WeightedBranch]) -> Shares:
        """The weights and shares of branches of one group; those of a group itself are of all."""
        found = tuple(branches)
        whole = self._group(found[0]) if found else self.root
        return Shares(
            sum(map(self._now.of, found)),
            self._now.of(whole),
            sum(map(self._before.of, found)),
            self._before.of(whole),
        )

    def _group(self, branch: WeightedBranch) -> WeightedBranch:
        """The outermost group that a branch is in, else the root."""
        path = branch.path
        return self.root.find(path[:1]) if len(path) > 1 and path[0].name in self._groups else self.root


def _ordered_tree(stacks: WeightedStacks) -> OrderedBranch:
    entries = [WeightedPath((*map(PathStep, stack.groups), *stack.frames), stack.weight, 0) for stack in stacks.stacks]
    return OrderedBranch(entries, 0, len(entries), 0)


def _tree(stacks: WeightedStacks, baseline: WeightedStacks | None) -> WeightedBranch:
    weights: dict[tuple[PathStep, ...], list[int]] = {}
    groups: dict[str, PathStep] = {}
    for at, side in enumerate((stacks, baseline)):
        for stack in side.stacks if side else ():
            above = tuple(groups.setdefault(name, PathStep(name)) for name in stack.groups)
            weights.setdefault((*above, *stack.frames), [0, 0])[at] += stack.weight
    entries = sorted(
        (WeightedPath(path, now, before) for path, (now, before) in weights.items()), key=attrgetter("path")
    )
    return WeightedBranch(entries, 0, len(entries), 0)
