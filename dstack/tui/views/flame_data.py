"""The keys that select what the Flame view draws: data, interval, order, measure and comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.message import Message

from dstack.analysis.history.task_time import GROUPINGS as TASK_GROUPINGS
from dstack.analysis.history.task_time import TaskTime
from dstack.analysis.stacks.icicle import Measure
from dstack.analysis.stacks.stack_tree import ByRanks, Grouping
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.errors import as_dstack_error
from dstack.model.profile import Profile
from dstack.model.snapshot import Snapshot
from dstack.report.summaries import no_history
from dstack.tui.snapshot_sources import NO_SNAPSHOT, NumberedSnapshot
from dstack.tui.views.base import GroupedView, following
from dstack.tui.views.flame_drawings import MEASURES, Drawing, StacksDrawing, no_drawing
from dstack.tui.views.flame_selection import PARTS, DataName, FlameSelection, Part, drawing_of, lengths_s

READING = "Reading the history of tasks …"
DATA: tuple[DataName, ...] = ("stacks", "task time", "recording")
COMPUTING = "Computing …"
OF_ICICLES = ("around", "compare", "measure", "zoom_in", "zoom_out", "found")
"""The actions that need an icicle."""
RECORDED_GROUPINGS: tuple[Grouping | None, ...] = ("node", "kind", ByRanks("rank"), "job", None)
FIRST_GROUPING: dict[DataName, Grouping | None] = {"stacks": "kind", "task time": None, "recording": "kind"}


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
            "z",
            "order",
            "Order",
            id="own.order",
            tooltip="A profile or task time with the widest first, or in the order of time",
        ),
        Binding(
            "c",
            "around",
            "Functions",
            id="own.around",
            tooltip="A table of functions, with the callers and the callees of the selected one; or all again",
        ),
        Binding(
            "p",
            "interval",
            "Time",
            id="own.interval",
            tooltip="All of the history, a half, or the last 600, 60, 10 or 1 s; all of a profile, or a half of it",
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
        self.part: Part = ""
        self._in_order = False
        self.is_around = False
        self._selection: FlameSelection | None = None
        self._is_history_requested = False

    @property
    def is_of_lines(self) -> bool:
        """Whether the lines of a profile are shown instead of its icicle."""
        raise NotImplementedError

    def use(self, drawing: Drawing) -> None:
        """Draw this from now on."""
        raise NotImplementedError

    def show_all(self) -> None:
        """Leave the zoom, as its branches belong to other data."""
        raise NotImplementedError

    # The selection

    def on_mount(self) -> None:
        """Show recordings or profiles first, if any were opened; two of them compared."""
        if self.host.recordings:
            self._select_data("recording")
            self.is_compared = self._selected().recorded_baseline is not None
            self._draw_anew()

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Draw another snapshot; zoom and selection stay with their branches."""
        if self.data != "recording":
            self._draw_anew()

    def _selected(self) -> FlameSelection:
        recordings = self.host.recordings
        at = len(recordings) - 1 - self._moves
        same = [one for one in recordings[: max(at, 0)] if type(one.recording) is type(recordings[at].recording)]
        return FlameSelection(
            data=self.data,
            grouping=self.grouping,
            is_whole=self.is_whole,
            is_compared=self.is_compared,
            by_baseline=self._by_baseline,
            snapshot=self.shown,
            baseline=self._snapshot_before() if self.is_compared else None,
            recording=recordings[at] if recordings else None,
            recorded_baseline=same[-1] if same else None,
            length_s=self._length_s,
            moves=self._moves,
            part=self.part,
            in_order=self._in_order,
            is_around=self.is_around,
            is_of_lines=self.is_of_lines,
            measure=self.measure,
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
        if self.data == "stacks" and not self.is_compared and not self.is_around:
            return StacksDrawing(self.analysed.stacks, self.grouping, self.measure, self.is_whole)
        if self.data == "task time" and self.analysed.history is None:
            return no_drawing(self._why_no_history(self.analysed.snapshot))
        return None

    def _why_no_history(self, snapshot: Snapshot) -> str:
        """Request the history once, and say that it is being read, or why there is none."""
        if not self._is_history_requested:
            self._is_history_requested = self.host.request_history()
        is_coming = self._is_history_requested and not self.host.status.trouble and self.host.status.doing
        return READING if is_coming and not snapshot.lack_of_events else no_history(snapshot)

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
            return self.data == "task time" or self.profile is not None
        if action == "order":
            has_times = self.profile is not None or self.data == "task time"
            return has_times and not self.is_compared and not self.is_of_lines and not self.is_around
        if action == "lines":
            return self.profile is not None
        if action in OF_ICICLES and self.is_of_lines:
            return False
        if action == "group" and self.profile is not None:
            return False
        if action == "move":
            return self.data != "stacks"
        if action == "measure":
            return self.data == "stacks" or self.is_compared or self.is_around
        if action == "whole":
            return self.data != "task time" and self.profile is None
        return self.data == "stacks" if action == "stacks" else True

    def action_data(self) -> None:
        self._select_data(following(DATA if self.host.recordings else DATA[:2], self.data))
        self.merge_again()

    def _select_data(self, data: DataName) -> None:
        self.data = data
        self.grouping = FIRST_GROUPING[data]
        self.is_compared, self._by_baseline, self._moves = False, False, 0
        self.part, self._in_order, self.is_around = "", False, False
        self.refresh_bindings()

    @property
    def profile(self) -> Profile | None:
        """The profile that is drawn, if one is."""
        opened = self.host.recordings[len(self.host.recordings) - 1 - self._moves] if self.data == "recording" else None
        return opened.recording if opened and isinstance(opened.recording, Profile) else None

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
        if self.data == "recording" and self.profile is None and self._selected().recorded_baseline is None:
            return "There is no recording before this one."
        return ""

    def action_interval(self) -> None:
        """Select the next length of the interval, which ends with the history again; or the next part of a profile."""
        if self.profile is not None:
            self.part = following(list(PARTS), self.part)
            self._draw_anew()
        elif time := self._computed_time:
            lengths = [one for one in lengths_s(time) if one is not None or not self.is_compared]
            self._length_s, self._moves = following(lengths, self._length_s), 0
            self._draw_anew()

    def action_move(self, by: int) -> None:
        last = len(self.host.recordings) - 1 - int(self.is_compared) if self.data == "recording" else self._last_move()
        moves = max(0, min(self._moves + by, last))
        if moves != self._moves:
            self._moves, self.part = moves, ""
            self._draw_anew()
            self.refresh_bindings()

    def action_order(self) -> None:
        """Draw the order of time, or the widest first."""
        self._in_order = not self._in_order
        self.merge_again()

    def action_around(self) -> None:
        """List the functions, with callers and callees of one; or draw all again."""
        self.is_around = not self.is_around
        self.merge_again()
        self.refresh_bindings()

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
