"""What the Flame view can draw, and the drawing of what is selected. It runs in a thread, so it touches no widget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dstack.analysis.history.task_time import Interval, TaskTime
from dstack.analysis.stacks.stack_tree import ByRanks, Grouping, grouping_in_words
from dstack.analysis.stacks.weighted_stacks import (
    RecordedGrouping,
    WeightedStacks,
    WeightedTree,
    by_function,
    recorded_stacks,
    stacks_of,
)
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.recording import Recording
from dstack.tui.numbered_snapshot import NumberedSnapshot
from dstack.tui.source import NO_SNAPSHOT, OpenedRecording
from dstack.tui.views.flame.drawing import Drawing, NoDrawing, share
from dstack.tui.views.flame.weighted_drawing import WeightedDrawing
from dstack.words import duration, plural

DataName = Literal["stacks", "task time", "recording"]
RECORDED_GROUPINGS: tuple[Grouping | None, ...] = ("node", "kind", ByRanks("rank"), "job", None)
LENGTHS_S: tuple[float, ...] = (600, 60, 10, 1)
"""The lengths of intervals, besides all of the history and a half of it."""
FEW_TAKEN = 0.95
"""A recording with a smaller part of its samples says so."""
NO_HISTORY = "This snapshot has no history of tasks. Take one with: dstack snapshot -o FILE"
READING = "Reading the history of tasks …"


@dataclass(frozen=True, slots=True)
class Selection:
    """What to draw, and how.

    ``length_s`` and ``moves`` choose the interval of a history: None for all, 0 for a half, and how many lengths before
    its end it ends. ``baseline`` and ``recorded_baseline`` are compared with, and so is the interval before, if
    ``is_compared``.
    """

    data: DataName
    grouping: Grouping | None = None
    is_whole: bool = False
    is_compared: bool = False
    by_baseline: bool = False
    snapshot: NumberedSnapshot | None = None
    baseline: NumberedSnapshot | None = None
    recording: OpenedRecording | None = None
    recorded_baseline: OpenedRecording | None = None
    length_s: float | None = None
    moves: int = 0


def drawing_of(selection: Selection) -> Drawing:
    """Compute the drawing of a selection; for large snapshots this takes a while."""
    if selection.data == "recording":
        return _recording(selection)
    if selection.snapshot is None:
        return NoDrawing(NO_SNAPSHOT)
    analysed = selection.snapshot.analysed
    return _compared_stacks(selection, analysed) if selection.data == "stacks" else _task_time(selection, analysed)


# Stacks of two snapshots


def _compared_stacks(selection: Selection, analysed: AnalysedSnapshot) -> Drawing:
    if selection.baseline is None or selection.snapshot is None:
        return NoDrawing("A comparison needs two snapshots: r takes another one, v ends the comparison.")
    stacks = [
        stacks_of("stacks", one.stacks.running(whole=selection.is_whole).executions, _by(selection.grouping))
        for one in (analysed, selection.baseline.analysed)
    ]
    head = [
        f"Stacks of #{selection.snapshot.number} compared with #{selection.baseline.number}",
        *_comparison(selection, *stacks),
    ]
    return _compared(selection, stacks, head)


def _by(grouping: Grouping | None) -> tuple[Grouping, ...]:
    return () if grouping is None else (grouping,)


def _compared(selection: Selection, stacks: Sequence[WeightedStacks], head: Sequence[str]) -> WeightedDrawing:
    now, baseline = stacks[0], stacks[1] if len(stacks) > 1 else None
    tree = WeightedTree(now, baseline, by_baseline=selection.by_baseline)
    return WeightedDrawing(tree, tuple(head), "Nothing here. x, p and d select other data.")


def _comparison(selection: Selection, now: WeightedStacks, before: WeightedStacks) -> list[str]:
    """What the widths and the changes are."""
    shares = "of each group" if selection.grouping else "of all"
    width = "before" if selection.by_baseline else "now"
    counts = [] if now.unit == "microseconds" else [f"{now.weight:,} and {before.weight:,} {now.unit}"]
    grouped = [_grouped(selection)] if selection.grouping else []
    return [f"Width: {width}", f"+ - = by share {shares}", *counts, *grouped]


def _grouped(selection: Selection) -> str:
    return grouping_in_words(selection.grouping) or "not grouped"


# Recordings


def _recording(selection: Selection) -> Drawing:
    if selection.recording is None:
        return NoDrawing("No recording was opened: dstack tui RECORDING.json.gz")
    opened = [selection.recording]
    if selection.is_compared and selection.recorded_baseline is not None:
        opened.append(selection.recorded_baseline)
    stacks: Sequence[WeightedStacks] = [_stacks_of(one.recording, selection) for one in opened]
    head = [f"Recording {_about(opened[0])}"]
    if len(opened) > 1:
        stacks = by_function(*stacks)
        head[0] += f" compared with {_about(opened[1])}"
        head += [*_comparison(selection, *stacks), "functions without lines"]
    else:
        head += [plural(stacks[0].weight, "sample"), _grouped(selection)]
    return _compared(selection, stacks, [*head, *_not_recorded(opened)])


def _not_recorded(opened: Sequence[OpenedRecording]) -> list[str]:
    """What the recordings do not have."""
    taken, wanted = (sum(getattr(one.recording.coverage, name) for one in opened) for name in ("taken", "wanted"))
    failures = sum(len(one.recording.failures) for one in opened)
    parts = [f"{share(taken, wanted)} of the wanted samples taken"] if taken < FEW_TAKEN * wanted else []
    return parts + ([plural(failures, "failure")] if failures else [])


def _stacks_of(recording: Recording, selection: Selection) -> WeightedStacks:
    by = selection.grouping
    name: RecordedGrouping | None = "rank" if isinstance(by, ByRanks) else by
    return recorded_stacks(recording, () if name is None else (name,), whole=selection.is_whole)


def _about(opened: OpenedRecording) -> str:
    return f"{opened.name} ({duration(opened.recording.duration_s)})"


# The time of tasks


def _task_time(selection: Selection, analysed: AnalysedSnapshot) -> Drawing:
    time = analysed.task_time
    if time is None:
        return NoDrawing(NO_HISTORY)
    interval = interval_of(time, selection.length_s, selection.moves)
    intervals = [interval, interval.moved(-1)] if selection.is_compared else [interval]
    stacks = [time.stacks(one, selection.grouping) for one in intervals]
    runs = [time.runs(one, selection.grouping) for one in intervals]
    head = [f"Task time: {interval_in_words(time, interval)}"]
    if selection.is_compared:
        head[0] += f", compared with the {_length(interval)} before"
        head += _comparison(selection, *stacks)
    else:
        head.append(_grouped(selection))
    tree = WeightedTree(stacks[0], stacks[1] if selection.is_compared else None, by_baseline=selection.by_baseline)
    head += _left_out(selection, time, interval, analysed)
    return WeightedDrawing(
        tree, tuple(head), "No task ran in this interval. p, < and > select another.", runs[0], runs[-1]
    )


def _left_out(selection: Selection, time: TaskTime, interval: Interval, analysed: AnalysedSnapshot) -> list[str]:
    """What the history does not have."""
    history = analysed.snapshot.history
    parts = []
    if selection.is_compared and interval.moved(-1).began_us < time.whole.began_us:
        parts.append("the history begins later than the interval before")
    if history and (missing := history.left_out + history.dropped):
        parts.append(f"{plural(missing, 'older attempt')} not in the history")
    if time.without_times:
        parts.append(f"{plural(time.without_times, 'attempt')} without a known begin")
    return parts


def lengths_s(time: TaskTime) -> tuple[float | None, ...]:
    """The lengths of intervals that make sense for a history: all, a half, and those that are shorter."""
    whole_s = time.whole.length_us / 1_000_000
    return (None, 0, *(one for one in LENGTHS_S if one < whole_s))


def interval_of(time: TaskTime, length_s: float | None, moves: int) -> Interval:
    """An interval of a length, which ends so many lengths before the history does."""
    whole = time.whole
    if length_s is None:
        return whole
    if not length_s:
        return time.halves()[1].moved(-moves)
    return Interval(whole.ended_us - round(length_s * 1_000_000), whole.ended_us).moved(-moves)


def interval_in_words(time: TaskTime, interval: Interval) -> str:
    """``all 44 s``, ``last 10 s``, ``10 s, ended 20 s before the snapshot``."""
    ended_us = time.whole.ended_us - interval.ended_us
    if interval == time.whole:
        return f"all {_length(interval)}"
    if not ended_us:
        return f"last {_length(interval)}"
    return f"{_length(interval)}, ended {duration(ended_us / 1_000_000)} before the snapshot"


def _length(interval: Interval) -> str:
    return duration(interval.length_us / 1_000_000)
