"""What the Flame view can draw, and the keys that select it: data, interval, measure and comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from textual import work
from textual.binding import Binding, BindingType
from textual.message import Message

from dstack.analysis.history.task_time import GROUPINGS as TASK_GROUPINGS
from dstack.analysis.history.task_time import Interval, TaskTime
from dstack.analysis.stacks.icicle import Measure
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
from dstack.errors import as_dstack_error
from dstack.model.recording import Recording
from dstack.tui.snapshot_sources import NO_SNAPSHOT, NumberedSnapshot, OpenedRecording
from dstack.tui.views.base import GroupedView, following
from dstack.tui.views.flame_drawings import MEASURES, Drawing, StacksDrawing, WeightedDrawing, no_drawing, share
from dstack.words import duration, plural

DataName = Literal["stacks", "task time", "recording"]
RECORDED_GROUPINGS: tuple[Grouping | None, ...] = ("node", "kind", ByRanks("rank"), "job", None)
LENGTHS_S: tuple[float, ...] = (600, 60, 10, 1)
"""The lengths of intervals, besides all of the history and a half of it."""
FEW_TAKEN = 0.95
"""A recording with a smaller part of its samples says so."""
NO_HISTORY = "This snapshot has no history of tasks. Take one with: dstack snapshot -o FILE"
READING = "Reading the history of tasks …"
DATA: tuple[DataName, ...] = ("stacks", "task time", "recording")
COMPUTING = "Computing …"
FIRST_GROUPING: dict[DataName, Grouping | None] = {"stacks": "kind", "task time": None, "recording": "kind"}


@dataclass(frozen=True, slots=True)
class FlameSelection:
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


def drawing_of(selection: FlameSelection) -> Drawing:
    """Compute the drawing of a selection; for large snapshots this takes a while."""
    if selection.data == "recording":
        return _recording(selection)
    if selection.snapshot is None:
        return no_drawing(NO_SNAPSHOT)
    analysed = selection.snapshot.analysed
    return _compared_stacks(selection, analysed) if selection.data == "stacks" else _task_time(selection, analysed)


# Stacks of two snapshots


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
    now, baseline = stacks[0], stacks[1] if len(stacks) > 1 else None
    tree = WeightedTree(now, baseline, by_baseline=selection.by_baseline)
    return WeightedDrawing(tree, tuple(head), "Nothing here. x, p and d select other data.")


def _comparison(selection: FlameSelection, now: WeightedStacks, before: WeightedStacks) -> list[str]:
    """What the widths and the changes are."""
    shares = "of each group" if selection.grouping else "of all"
    width = "before" if selection.by_baseline else "now"
    counts = [] if now.unit == "microseconds" else [f"{now.weight:,} and {before.weight:,} {now.unit}"]
    grouped = [_grouped(selection)] if selection.grouping else []
    return [f"Width: {width}", f"+ - = by share {shares}", *counts, *grouped]


def _grouped(selection: FlameSelection) -> str:
    return grouping_in_words(selection.grouping) or "not grouped"


# Recordings


def _recording(selection: FlameSelection) -> Drawing:
    if selection.recording is None:
        return no_drawing("No recording was opened: dstack tui RECORDING.json.gz")
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
        return no_drawing(NO_HISTORY)
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


@dataclass
class Computed(Message):
    """The drawing of a selection, from the thread that computes it."""

    selection: FlameSelection
    drawing: Drawing


class FlameDataView(GroupedView):
    """Selects the data; a subclass draws it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "data", "Data", id="own.data", tooltip="Draw the stacks, the time of tasks, or recordings"),
        Binding("v", "compare", "Compare", id="own.compare", tooltip="Compare with what was before"),
        Binding(
            "p",
            "interval",
            "Time",
            id="own.interval",
            tooltip="The time of tasks in all of the history, a half, or the last 600, 60, 10 or 1 s",
        ),
        Binding(
            "less_than_sign",
            "move(1)",
            "Earlier",
            key_display="<",
            show=False,
            id="own.earlier",
            tooltip="The interval before, or the previous recording",
        ),
        Binding(
            "greater_than_sign",
            "move(-1)",
            "Later",
            key_display=">",
            show=False,
            id="own.later",
            tooltip="The interval after, or the next recording",
        ),
    ]

    def __init__(self) -> None:
        super().__init__(FIRST_GROUPING["stacks"])
        self.data: DataName = "stacks"
        self.measure: Measure = "executions"
        self.is_compared = False
        self.drawing: Drawing = no_drawing()
        self._by_baseline = False
        self._length_s: float | None = None
        self._moves = 0
        self._selection: FlameSelection | None = None
        self._is_history_requested = False

    def use(self, drawing: Drawing) -> None:
        """Draw this from now on."""
        raise NotImplementedError

    def show_all(self) -> None:
        """Leave the zoom, as its branches belong to other data."""
        raise NotImplementedError

    # The selection

    def on_mount(self) -> None:
        """Show recordings first, if any were opened; two of them compared."""
        if self.host.recordings:
            self._select_data("recording")
            self.is_compared = len(self.host.recordings) > 1
            self._draw_anew()

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Draw another snapshot; zoom and selection stay with their branches."""
        if self.data != "recording":
            self._draw_anew()

    def _selected(self) -> FlameSelection:
        recordings = self.host.recordings
        at = len(recordings) - 1 - self._moves
        return FlameSelection(
            data=self.data,
            grouping=self.grouping,
            is_whole=self.is_whole,
            is_compared=self.is_compared,
            by_baseline=self._by_baseline,
            snapshot=self.shown,
            baseline=self._snapshot_before() if self.is_compared else None,
            recording=recordings[at] if recordings else None,
            recorded_baseline=recordings[at - 1] if at > 0 else None,
            length_s=self._length_s,
            moves=self._moves,
        )

    def _snapshot_before(self) -> NumberedSnapshot | None:
        """The snapshot of this run before the one that is shown."""
        shown = self.shown
        earlier = [one for one in self.host.snapshots if shown and one.number < shown.number and not one.trouble]
        return earlier[-1] if earlier else None

    def _draw_anew(self) -> None:
        """Draw the selection: stacks at once, all else when it is computed."""
        before, self._selection = self._selection, self._selected()
        at_once = self._at_once()
        if at_once is not None:
            self.use(at_once)
            return
        if before is None or before.data != self.data or not self.drawing.head:
            self.use(no_drawing(COMPUTING))
        self._compute(self._selection)

    def _at_once(self) -> Drawing | None:
        """The drawing if it takes no time, or why there is none."""
        if self.data == "recording":
            return None
        if self.analysed is None:
            return no_drawing(NO_SNAPSHOT if self.host.recordings else "")
        if self.data == "stacks" and not self.is_compared:
            return StacksDrawing(self.analysed.stacks, self.grouping, self.measure, self.is_whole)
        if self.data == "task time" and self.analysed.history is None:
            return no_drawing(self._why_no_history())
        return None

    def _why_no_history(self) -> str:
        """Request the history once, and say that it is being read, or that there is none."""
        if not self._is_history_requested:
            self._is_history_requested = self.host.request_history()
        is_coming = self._is_history_requested and not self.host.status.trouble and self.host.status.doing
        return READING if is_coming else NO_HISTORY

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _compute(self, selection: FlameSelection) -> None:
        """Compute a drawing. Runs in a thread, so it touches no widget."""
        try:
            drawing = drawing_of(selection)
        except Exception as error:
            drawing = no_drawing(f"✖ {as_dstack_error(error)}")
        self.post_message(Computed(selection, drawing))

    def on_computed(self, message: Computed) -> None:
        """Draw it unless something else was selected meanwhile."""
        if message.selection is self._selection:
            self.use(message.drawing)
            self.refresh_bindings()

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable actions that do not apply to the data."""
        if action == "interval":
            return self.data == "task time"
        if action == "move":
            return self.data != "stacks"
        if action == "measure":
            return self.data == "stacks" or self.is_compared
        if action == "whole":
            return self.data != "task time"
        return self.data == "stacks" if action == "stacks" else True

    def action_data(self) -> None:
        self._select_data(following(DATA if self.host.recordings else DATA[:2], self.data))
        self.merge_again()

    def _select_data(self, data: DataName) -> None:
        self.data = data
        self.grouping = FIRST_GROUPING[data]
        self.is_compared, self._by_baseline, self._moves = False, False, 0
        self.refresh_bindings()

    def action_compare(self) -> None:
        """Compare with the previous snapshot, interval or recording, or end the comparison."""
        reason = "" if self.is_compared else self._why_not_compared()
        if reason:
            self.notify(reason, severity="warning")
            return
        self.is_compared, self._by_baseline = not self.is_compared, False
        if self.is_compared and self.data == "task time" and self._length_s is None:
            self._length_s = 0  # the second half with the first one, as nothing is before all
        self._draw_anew()
        self.refresh_bindings()

    def _why_not_compared(self) -> str:
        if self.data == "stacks" and self._snapshot_before() is None:
            return "A comparison needs two snapshots: r takes another one."
        if self.data == "recording" and len(self.host.recordings) - 1 - self._moves < 1:
            return "There is no recording before this one."
        return ""

    def action_interval(self) -> None:
        """Select the next length of the interval, which ends with the history again."""
        if time := self._computed_time:
            lengths = [one for one in lengths_s(time) if one is not None or not self.is_compared]
            self._length_s, self._moves = following(lengths, self._length_s), 0
            self._draw_anew()

    def action_move(self, by: int) -> None:
        last = len(self.host.recordings) - 1 - int(self.is_compared) if self.data == "recording" else self._last_move()
        moves = max(0, min(self._moves + by, last))
        if moves != self._moves:
            self._moves = moves
            self._draw_anew()

    def _last_move(self) -> int:
        """How many lengths the interval can be moved before it leaves the history."""
        time = self._computed_time
        if time is None or self._length_s is None:
            return 0
        length_s = self._length_s or time.whole.length_us / 2_000_000
        return max(0, int(time.whole.length_us / 1_000_000 / length_s - 0.001))

    @property
    def _computed_time(self) -> TaskTime | None:
        """The time of tasks, unless a thread still computes it."""
        time = self.analysed.task_time if self.analysed else None
        return time if time and time.is_computed else None

    def action_measure(self) -> None:
        """Select the next measure of the width: which executions, or what was before."""
        if self.is_compared:
            self._by_baseline = not self._by_baseline
        else:
            self.measure = following(list(MEASURES), self.measure)
        self._draw_anew()

    def merge_again(self) -> None:
        """Merge again by another grouping, and show all."""
        self.show_all()
        self._draw_anew()

    @property
    def _groupings(self) -> tuple[Grouping | None, ...]:
        if self.data == "stacks":
            return super()._groupings
        return TASK_GROUPINGS if self.data == "task time" else RECORDED_GROUPINGS
