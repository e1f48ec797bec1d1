"""The samples of a recording as weighted stacks, below groups such as node, class and rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dstack.analysis.stacks.app_threads import PathStep
from dstack.analysis.stacks.weighted_stacks import WeightedStack, WeightedStacks
from dstack.model import Frame
from dstack.recording import RecordedThread, Recording

RecordedGrouping = Literal["node", "kind", "rank", "job", "process", "thread"]
LEVELS: tuple[RecordedGrouping, ...] = ("node", "kind", "rank")
"""The groups of a merged recording, outermost first."""


def recorded_stacks(
    recording: Recording,
    by: Sequence[RecordedGrouping] = LEVELS,
    *,
    only_running: bool = False,
    whole: bool = True,
) -> WeightedStacks:
    """The samples as stacks, below one group for each of ``by``.

    ``only_running`` are the samples of threads that ran. Unless ``whole``, stacks begin at the first frame of the
    application, if they have one.
    """
    frames = tuple(map(_step, recording.frames))
    paths = [tuple(frames[index] for index in reversed(stack)) for stack in recording.stacks]
    paths = paths if whole else [path[_first_own(path) :] for path in paths]
    groups = [_groups(thread, by) for thread in recording.threads]
    counted = (one for one in recording.counts if one.is_running or not only_running)
    stacks = ((groups[one.thread], paths[one.stack], one.samples) for one in counted)
    return WeightedStacks.summed("recording", "samples", stacks)


def by_function(*recordings: WeightedStacks) -> tuple[WeightedStacks, ...]:
    """The same stacks with functions instead of lines: each function has its first line in any of them.

    Two recordings of one program are rarely at the same lines of a loop, and never after its source was edited.
    """
    steps = {step for one in recordings for stack in one.stacks for step in stack.frames}
    first = {_without_line(step): step for step in sorted(steps, key=lambda step: -step.line)}
    return tuple(
        WeightedStacks.summed(one.name, one.unit, (_by_first_lines(stack, first) for stack in one.stacks))
        for one in recordings
    )


def _by_first_lines(
    stack: WeightedStack, first: dict[tuple[str, ...], PathStep]
) -> tuple[tuple[str, ...], tuple[PathStep, ...], int]:
    return stack.groups, tuple(first[_without_line(step)] for step in stack.frames), stack.weight


def _without_line(step: PathStep) -> tuple[str, ...]:
    return step.name, step.file, step.function, step.origin


def _step(frame: Frame) -> PathStep:
    return PathStep(frame.function, frame.file, frame.line, frame.function, frame.origin)


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
