"""What a selection of the Flame view draws: stacks, task time, recordings and profiles, alone or compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dstack.analysis.history.task_time import Interval, TaskTime
from dstack.analysis.stacks.hot_lines import HotFile, HotLine, hot_files
from dstack.analysis.stacks.icicle import Measure, weigh_by
from dstack.analysis.stacks.iterations import Iterations, iterations_of
from dstack.analysis.stacks.profiles import ProfileInterval, halves, profile_stacks, stacks_in_time, whole
from dstack.analysis.stacks.stack_tree import ByRanks, Grouping, grouping_in_words
from dstack.analysis.stacks.weighted_stacks import (
    RecordedGrouping,
    WeightedStacks,
    WeightedTree,
    by_function,
    functions_of,
    recorded_stacks,
    stacks_of,
)
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.profile import Profile, Sampled
from dstack.model.recording import Recording
from dstack.report.profile_text import steps_in_words
from dstack.report.rich_text import SafeText
from dstack.report.summaries import no_history
from dstack.tui.snapshot_sources import NO_SNAPSHOT, NumberedSnapshot, OpenedRecording
from dstack.tui.views.flame_drawings import Drawing, StacksDrawing, WeightedDrawing, no_drawing, share
from dstack.tui.widgets.outline import Line
from dstack.words import duration, plural

DataName = Literal["stacks", "task time", "recording"]
Part = Literal["", "last half", "first half"]
PARTS: tuple[Part, ...] = ("", "last half", "first half")
LENGTHS_S: tuple[float, ...] = (600, 60, 10, 1)
"""The lengths of intervals, besides all of the history and a half of it."""
NO_TASK = "No task ran in this interval. p, < and > select another."
FEW_TAKEN = 0.95
"""A recording with a smaller part of its samples says so."""

BAR_WIDTH = 20
OWN, BELOW = "█", "▒"
"""Of a bar: the time in which the last frame is there, and the other time of the paths through a line."""
HEIGHTS = "▁▂▃▄▅▆▇█"
MOST_COLUMNS = 100
NO_LINES = "No frame of the application was sampled."


@dataclass(frozen=True, slots=True)
class FlameSelection:
    """What to draw, and how.

    ``length_s`` and ``moves`` choose the interval of a history: None for all, 0 for a half, and how many lengths before
    its end it ends. ``baseline`` and ``recorded_baseline`` are compared with, and so is the interval before, if
    ``is_compared``. ``part`` is a part of a profile.
    With ``is_of_lines`` also its lines are made, with ``is_around`` a list of functions.
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
    part: Part = ""
    in_order: bool = False
    is_around: bool = False
    is_of_lines: bool = False
    measure: Measure = "executions"

    @property
    def is_in_order(self) -> bool:
        """Whether to draw the order of time; comparisons and functions have none."""
        return self.in_order and not self.is_compared and not self.is_around


def drawing_of(selection: FlameSelection) -> Drawing:
    """Compute the drawing of a selection; for large snapshots this takes a while."""
    if selection.data == "recording":
        return _sampled(selection)
    if selection.snapshot is None:
        return no_drawing(NO_SNAPSHOT)
    analysed = selection.snapshot.analysed
    if selection.data == "task time":
        return _task_time(selection, analysed)
    return _compared_stacks(selection, analysed) if selection.is_compared else _stacks(selection, analysed)


# Stacks of one or two snapshots


def _stacks(selection: FlameSelection, analysed: AnalysedSnapshot) -> Drawing:
    """The stacks of a snapshot, with their functions."""
    one = StacksDrawing(analysed.stacks, selection.grouping, selection.measure, selection.is_whole)
    counted = filter(weigh_by(selection.measure), analysed.stacks.running(whole=selection.is_whole).executions)
    return _compared(selection, [stacks_of("stacks", counted, _by(selection.grouping))], one.head)


def _compared_stacks(selection: FlameSelection, analysed: AnalysedSnapshot) -> Drawing:
    if selection.baseline is None or selection.snapshot is None:
        return no_drawing("A comparison needs two snapshots: r takes another one, v ends the comparison.")
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


def _compared(selection: FlameSelection, stacks: Sequence[WeightedStacks], head: Sequence[str]) -> WeightedDrawing:
    """The drawing of stacks, or of the first ones compared with the second ones."""
    stacks = by_function(*stacks) if selection.is_around else stacks
    now, baseline = stacks[0], stacks[1] if len(stacks) > 1 else None
    tree = WeightedTree(now, baseline, by_baseline=selection.by_baseline, in_order=selection.is_in_order)
    functions = functions_of(now) if selection.is_around else ()
    return WeightedDrawing(tree, head, "Nothing here. m, p and d select other data.", functions=functions)


def _comparison(selection: FlameSelection, now: WeightedStacks, before: WeightedStacks) -> list[str]:
    """What the widths and the changes are."""
    shares = "of each group" if selection.grouping else "of all"
    counts = [] if now.unit == "microseconds" else [f"{now.weight:,} and {before.weight:,} {now.unit}"]
    grouped = [_grouped(selection)] if selection.grouping else []
    return [_width(selection), f"+ - = by share {shares}", *counts, *grouped]


def _width(selection: FlameSelection) -> str:
    return f"Width: {'before' if selection.by_baseline else 'now'}"


def _grouped(selection: FlameSelection) -> str:
    return grouping_in_words(selection.grouping) or "not grouped"


# Recordings and profiles


def _sampled(selection: FlameSelection) -> Drawing:
    """The drawing of a recording or a profile."""
    if selection.recording is None:
        return no_drawing("No recording or profile was opened: dstack tui RECORDING.json.gz")
    is_profile = isinstance(selection.recording.recording, Profile)
    stacks, head = _profiles(selection) if is_profile else _recordings(selection)
    drawing = _compared(selection, stacks, head)
    sampled = selection.recording.recording
    return _with_source(drawing, sampled, selection) if isinstance(sampled, Profile) else drawing


def _with_source(drawing: WeightedDrawing, profile: Profile, selection: FlameSelection) -> WeightedDrawing:
    lines = tuple(profile_lines(profile, part_of(profile, selection.part))) if selection.is_of_lines else ()
    return replace(drawing, lines=lines, sources=profile.sources)


def _recordings(selection: FlameSelection) -> tuple[Sequence[WeightedStacks], list[str]]:
    opened = _compared_ones(selection)
    recordings = [one.recording for one in opened if isinstance(one.recording, Recording)]
    stacks: Sequence[WeightedStacks] = [_stacks_of(one, selection) for one in recordings]
    head = [f"Recording {_about(opened[0])}"]
    if len(opened) > 1:
        stacks = by_function(*stacks)
        head[0] += f" compared with {_about(opened[1])}"
        head += [*_comparison(selection, *stacks), "functions without lines"]
    else:
        head += [plural(stacks[0].weight, "sample"), _grouped(selection)]
    return stacks, [*head, *_not_recorded(recordings)]


def _compared_ones(selection: FlameSelection) -> list[OpenedRecording]:
    """What is drawn, and what it is compared with, if it is."""
    baseline = selection.recorded_baseline if selection.is_compared else None
    return [one for one in (selection.recording, baseline) if one is not None]


def _profiles(selection: FlameSelection) -> tuple[Sequence[WeightedStacks], list[str]]:
    """The stacks of a profile, of its parts, or of two profiles; and what they are."""
    opened = _compared_ones(selection)
    profiles = [one.recording for one in opened if isinstance(one.recording, Profile)]
    head = [f"Profile {_about(opened[0])}"]
    if selection.is_compared and (selection.part or len(profiles) == 1):
        first, last = halves(profiles[0])
        stacks: Sequence[WeightedStacks] = [profile_stacks(profiles[0], one) for one in (last, first)]
        head[0] += f": {PARTS[1]} compared with the {PARTS[2]}"
    elif selection.is_compared:
        stacks = by_function(*map(profile_stacks, profiles))
        head[0] += f" compared with {_about(opened[1])}"
    else:
        make = stacks_in_time if selection.is_in_order else profile_stacks
        stacks = [make(profiles[0], part_of(profiles[0], selection.part))]
        head[0] += f": {selection.part}" if selection.part else ""
        head.append(_order(selection))
    if selection.is_compared:
        head += [_width(selection), "+ - = by share"]
    return stacks, [*head, *_failures(profiles)]


def part_of(profile: Profile, part: Part) -> ProfileInterval:
    """A part of a profile by its name."""
    first, last = halves(profile)
    return {"": whole(profile), "first half": first, "last half": last}[part]


def _not_recorded(recordings: Sequence[Recording]) -> list[str]:
    """What the recordings do not have."""
    taken, wanted = (sum(getattr(one.coverage, name) for one in recordings) for name in ("taken", "wanted"))
    parts = [f"{share(taken, wanted)} of the wanted samples taken"] if taken < FEW_TAKEN * wanted else []
    return parts + _failures(recordings)


def _failures(sampled: Sequence[Sampled]) -> list[str]:
    failures = sum(len(one.failures) for one in sampled)
    return [plural(failures, "failure")] if failures else []


def _stacks_of(recording: Recording, selection: FlameSelection) -> WeightedStacks:
    by = selection.grouping
    name: RecordedGrouping | None = "rank" if isinstance(by, ByRanks) else by
    whole = selection.is_whole
    return recorded_stacks(recording, () if name is None else (name,), whole=whole, unfolded=whole)


def _about(opened: OpenedRecording) -> str:
    return f"{opened.name} ({duration(opened.recording.duration_s)})"


# The time of tasks


def _task_time(selection: FlameSelection, analysed: AnalysedSnapshot) -> Drawing:
    time = analysed.task_time
    if time is None:
        return no_drawing(no_history(analysed.snapshot))
    interval = interval_of(time, selection.length_s, selection.moves)
    intervals = [interval, interval.moved(-1)] if selection.is_compared else [interval]
    make = time.stacks_in_order if selection.is_in_order else time.stacks
    stacks = [make(one, selection.grouping) for one in intervals]
    runs = [time.runs(one, selection.grouping) for one in intervals]
    head = [f"Task time: {interval_in_words(time, interval)}"]
    if selection.is_compared:
        head[0] += f", compared with the {_length(interval)} before"
        head += _comparison(selection, *stacks)
    else:
        head += [_order(selection), _grouped(selection)]
    head += _left_out(selection, time, interval, analysed)
    drawing = _compared(selection, stacks, head)
    return replace(drawing, empty=NO_TASK, runs=runs[0], runs_before=runs[-1])


def _order(selection: FlameSelection) -> str:
    return "in the order of time" if selection.is_in_order else "widest first"


def _left_out(selection: FlameSelection, time: TaskTime, interval: Interval, analysed: AnalysedSnapshot) -> list[str]:
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


# The lines of a profile


def profile_lines(profile: Profile, within: ProfileInterval) -> Iterator[Line]:
    """The steps of its loops, and the files with the most time in an interval, each with its lines."""
    for found in iterations_of(profile):
        head, *others = steps_in_words(found)
        place = (found.place.file, found.place.line)
        children = [Line(f"steps/{found.root}/bars", SafeText(_heights(found), "cyan"), data=place)]
        children += [Line(f"steps/{found.root}/{text}", SafeText(text), hanging_indent=2) for text in others]
        title = SafeText(f"Steps: {head}", "bold")
        yield Line(f"steps/{found.root}", title, children, is_open=True, data=place, hanging_indent=2)
    for file in hot_files(profile, within=within):
        title = SafeText().append(file.file, "bold").append(f"  {_percent(file, file.weight_us).strip()}", "dim")
        lines = tuple(row for line in file.lines for row in _rows(file, line))
        yield Line(f"lines/{file.file}", title, lines, is_open=True, data=(file.file, 1))


def _heights(found: Iterations) -> str:
    """A column for each of the last iterations, as high as it was long."""
    longest_us = found.longest.length_us
    return "".join(
        HEIGHTS[round(one.length_us / longest_us * (len(HEIGHTS) - 1))] for one in found.each[-MOST_COLUMNS:]
    )


def _rows(file: HotFile, line: HotLine) -> Iterator[Line]:
    """A line of source; before it a mark for those that are left out."""
    key = f"lines/{file.file}/{line.number}"
    if line.is_after_gap and line is not file.lines[0]:
        yield Line(f"{key}/gap", SafeText(" " * (22 + BAR_WIDTH) + "⋮", "dim"))
    text = SafeText().append(f"{_percent(file, line.weight_us)} {_percent(file, line.own_us)} ")
    text.append(_bar(file, line), "cyan").append(f" {line.number:>5}  ", "dim")
    text.append("not read" if line.text is None else line.text, "" if line.weight_us else "dim")
    location = (file.file, line.number)
    yield Line(key, text, data=location)


def _percent(file: HotFile, weight_us: int) -> str:
    return f"{file.share(weight_us):5.1f} %" if weight_us else " " * 7


def _bar(file: HotFile, line: HotLine) -> str:
    """As wide as the share of the line; the part of its own time is solid."""
    own, whole = (round(BAR_WIDTH * file.share(one) / 100) for one in (line.own_us, line.weight_us))
    return (OWN * own + BELOW * (whole - own)).ljust(BAR_WIDTH)
