"""The texts of the Timeline view: what it shows, what is selected, and its rows as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.text import Text

from dstack.analysis.history.slices import (
    FAILED,
    FINISHED,
    PHASES,
    RUNNING,
    STUCK,
    WAITING,
    Bars,
    Phase,
    Slice,
    slices_of,
)
from dstack.analysis.history.task_index import Attempt, State
from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.timeline import Mark, RangeSums, Timeline
from dstack.analysis.views.timeline_rows import KIND_OF_PHASE, RowTrack, TimelineRow
from dstack.model.vertex_keys import Key
from dstack.report.critical_path_text import path_in_words
from dstack.report.rich_text import SafeText
from dstack.report.summaries import limiting_in_words
from dstack.tui.widgets.gantt import (
    FAILED_GLYPH,
    LETTERS,
    MARK_GLYPH,
    RUNNING_GLYPH,
    STUCK_GLYPH,
    WAIT_GLYPHS,
    Selection,
)
from dstack.tui.widgets.time_axis import clock
from dstack.words import SHOWN, capitalised, duration, plural, short_duration, shortly

WAITS: dict[Phase, str] = {
    "arguments": "arguments",
    "resources": "resources",
    "sent": "the way to the worker",
    "queue": "the actor's queue",
}
SHORT_WAITS: dict[Phase, str] = {"arguments": "arguments", "resources": "resources", "sent": "sent", "queue": "queue"}
STATES = {"pending": "has not started", "running": f"{RUNNING_GLYPH} runs", "finished": "finished", "failed": "failed"}
NAMES_OF_KINDS = {
    FINISHED: "finished",
    RUNNING: "running",
    WAITING: "begun, and waiting now",
    STUCK: "that can never proceed",
    FAILED: "failed",
} | {kind: f"waiting for {WAITS[phase]}" for phase, kind in KIND_OF_PHASE.items()}
NOW = {
    RUNNING: f"{RUNNING_GLYPH} runs",
    WAITING: f"{MARK_GLYPH} waits now",
    STUCK: f"{STUCK_GLYPH} stuck",
    FAILED: f"{FAILED_GLYPH} failed",
}
COUNTED: dict[State, str] = {"finished": "finished", "failed": "failed", "running": "running", "pending": "not started"}
SHOWN_FUNCTIONS, SHOWN_IN_RANGE = 4, 20
Colouring = Literal["state", "chain", "path"]
COLOURINGS: tuple[Colouring, ...] = ("state", "chain", "path")
ON_PATH = "★"
"""It precedes the names of bars on the critical path, where these are coloured."""


def short_name(name: str) -> str:
    """``Trainer.step`` of ``app.Trainer.step``."""
    return ".".join(name.split(".")[-2:])


def legend(colouring: Colouring, kinds: Collection[int]) -> Text:
    """What the glyphs and colours are, of these kinds of bars."""
    ran = {"state": "█ ran" if FINISHED in kinds else "", "chain": "coloured by chain"}
    now = [words for kind, words in NOW.items() if kind in kinds]
    waits = [(kind, phase) for phase, kind in KIND_OF_PHASE.items() if kind in kinds]
    before = [f"{WAIT_GLYPHS[kind]} {LETTERS[kind]} {SHORT_WAITS[phase]}" for kind, phase in waits]
    runs = ran.get(colouring, f"{ON_PATH} on the critical path")
    text = "  ".join(filter(None, (runs, *now)))
    return SafeText(f"{text}    before: {'  '.join(before)}" if before else text)


@dataclass(frozen=True, slots=True)
class TimelineTexts:
    """The texts of one timeline; without chains until they are linked."""

    analysed: AnalysedSnapshot
    timeline: Timeline
    is_linked: bool

    # The head

    def head(self) -> Text:
        """How long it is, how many attempts it has, and what is missing or uncertain."""
        timeline = self.timeline
        history = timeline.history.history
        count = sum(attempt.task.kind != "DRIVER_TASK" for attempt in timeline.attempts)
        text = SafeText().append(plural(count, "attempt"), "bold")
        text.append(f" in {duration(timeline.ended_at - timeline.began_at)}")
        if history.left_out:
            text.append(f"  {history.left_out:,} older ones left out", "yellow")
        if history.dropped:
            text.append(f"  {history.dropped:,} that Ray had no room for", "yellow")
        if not self.analysed.snapshot.has_one_time:
            text.append("  clocks differ: times may be off", "yellow")
        if not self.is_linked:
            return text.append("  linking chains …", "italic")
        return text.append(f"  {plural(len(timeline.chains), 'chain')}" if timeline.chains else "")

    def limits(self, colouring: Colouring) -> Iterator[Text]:
        """The step that limits the largest pipeline, the critical path if coloured, and the first node that starves."""
        linked = self.timeline.pipelines if self.is_linked else ()
        pipelines = [one for one in linked if len(one.chains) > 1 and (one.limiting is not None or one.stuck)]
        yield from (SafeText(limiting_in_words(one)) for one in pipelines[:1])
        if self.is_linked and colouring == "path" and self.timeline.critical_path is not None:
            yield SafeText(path_in_words(self.timeline.critical_path))
        yield from (SafeText(f"{capitalised(one)}.", "yellow") for one in self.analysed.starving[:1])

    # The selection

    def details(self, selection: Selection) -> Iterator[Text]:
        """What is selected: an attempt with its times, or what waits at a time."""
        row = selection.row
        attempt = attempt_of(selection)
        if row.levels is not None:
            yield from self._many(selection, row.levels.bars)
        elif attempt is None:
            yield from self._gap(selection)
        if attempt is not None and (row.bars is not None or len(selection.numbers) == 1):
            yield from self._attempt(attempt, selection)
        yield from self._marks(row, attempt)

    def tracks(self, title: str, tracks: Sequence[RowTrack]) -> Iterator[Text]:
        """What ran in the tracks of a heading, or in one: the attempts by state, then the functions by their time."""
        attempts = [one for track in tracks for one in track.attempts if one.task.kind != "DRIVER_TASK"]
        states = Counter(attempt.state for attempt in attempts)
        yield SafeText().append(title, "bold").append(f"  {plural(len(tracks), 'row')}" if len(tracks) > 1 else "")
        counts = ", ".join(f"{states[state]:,} {words}" for state, words in COUNTED.items() if states[state])
        yield SafeText(f"{plural(len(attempts), 'attempt')}{f': {counts}' if counts else ''}")
        marks = [mark for track in tracks for mark in track.marks]
        if marks:
            stuck = sum(mark.is_stuck for mark in marks)
            yield SafeText(f"{MARK_GLYPH} {len(marks):,} waiting now, {stuck:,} of them stuck")
        seconds: Counter[str] = Counter()
        for one in attempts:
            seconds[self.name(one)] += self._run_us(one)
        busiest = [
            f"{name} {short_duration(us / 1_000_000)}" for name, us in seconds.most_common(SHOWN_FUNCTIONS) if us
        ]
        if busiest:
            yield SafeText(f"Ran for: {', '.join(busiest)}")

    def _many(self, selection: Selection, bars: Bars) -> Iterator[Text]:
        """The number of bars in a cell by kind, and their functions."""
        numbers = selection.numbers
        kinds = Counter(bars.kinds[number] for number in numbers)
        text = SafeText().append(f"{selection.row.title}: " if selection.row.title else "", "bold")
        counts = (f"{count:,} {NAMES_OF_KINDS[kind]}" for kind, count in kinds.most_common())
        text.append(", ".join(counts) or "nothing", "bold")
        yield text.append(f"  {self._interval(selection.began_at, selection.ended_at)}", "dim")
        functions = Counter(self.name(bars.attempts[number]) for number in numbers)
        if functions:
            names = [f"{count:,} × {name}" for name, count in functions.most_common()]
            yield SafeText(shortly(names, shown=SHOWN_FUNCTIONS))

    def _gap(self, selection: Selection) -> Iterator[Text]:
        """What the next attempt waits for, where nothing runs."""
        gaps = selection.row.gaps
        found = gaps.within(selection.began_at, selection.ended_at) if gaps is not None else ()
        when = self._interval(selection.began_at, selection.ended_at)
        if gaps is None or not found:
            yield SafeText().append("Nothing runs here", "bold").append(f"  {when}", "dim")
            return
        longest = max(found, key=lambda number: gaps.ends[number] - gaps.begins[number])
        attempt, kind = gaps.attempts[longest], gaps.kinds[longest]
        text = SafeText().append(f"Nothing runs here. Next: {attempt.task.name}", "bold")
        yield text.append(f"  {NAMES_OF_KINDS[kind]}  {when}")
        yield self._times(attempt)

    def _attempt(self, attempt: Attempt, selection: Selection) -> Iterator[Text]:
        task = attempt.task
        text = SafeText().append(self.timeline.name_of(attempt), "bold")
        text.append(f" (attempt {task.attempt + 1})" if task.attempt else "")
        text.append(f"  {self._state(attempt)}", "bold red" if attempt.state == "failed" else "")
        text.append(self._duration(attempt))
        if (count := len(selection.numbers)) > 1:
            text.append(f"  one of {count:,} in this cell: {_kinds(selection)}", "yellow")
        yield text
        if task.error_type or task.error:
            yield SafeText(" ".join((task.error_type, task.error)).strip(), "red")
        yield self._times(attempt)
        yield self._place(attempt)

    def _state(self, attempt: Attempt) -> str:
        mark = self.timeline.mark_of.get(id(attempt))
        if mark is None or attempt.state != "running":
            return STATES[attempt.state]
        return f"{STUCK_GLYPH} can never proceed, begun" if mark.is_stuck else f"{MARK_GLYPH} waits now, begun"

    def _duration(self, attempt: Attempt) -> str:
        if attempt.started_at is None:
            return ""
        lasts = short_duration(self._run_us(attempt) / 1_000_000)
        if attempt.ended_at is None and id(attempt) in self.timeline.mark_of:
            return f" {lasts} ago"
        return f" {'for' if attempt.ended_at is None else 'after'} {lasts}"

    def _run_us(self, attempt: Attempt) -> int:
        """How long it has run; 0 if it has not begun."""
        if attempt.started_at is None:
            return 0
        end = attempt.ended_at if attempt.ended_at is not None else self.timeline.history.asked_at
        return max(0, round((end - attempt.started_at) * 1_000_000))

    def _times(self, attempt: Attempt) -> Text:
        """When it was submitted, what it waited for, and when it began to run."""
        text = SafeText(f"submitted {self._time(attempt.began_at)}", "")
        slices = {one.phase: one for one in slices_of(attempt, self.timeline.history.asked_at)}
        waits = [_wait(slices[phase]) for phase in PHASES if phase in slices and phase != "running"]
        if waits:
            text.append(f"  waited for {', '.join(waits)}")
        if attempt.started_at is not None:
            text.append(f"  ran from {self._time(attempt.started_at)}")
        elif attempt.ended_at is not None:
            text.append(f"  ended {self._time(attempt.ended_at)}; its start is not known")
        return text

    def _place(self, attempt: Attempt) -> Text:
        """Where it ran, its chain and its caller."""
        track = self.timeline.track_of(attempt)
        parts = [f"{track.title}, {track.group}" if track.group != track.title else track.title]
        chain = self.timeline.chain_of(attempt) if self.is_linked else None
        if chain is not None:
            step = next((at for at, one in enumerate(chain.attempts, 1) if one is attempt), 0)
            parts.append(f"chain {chain.number}, {step} of {len(chain.attempts)}")
        if self.is_linked and self.timeline.is_critical(attempt):
            parts.append("on the critical path")
        if (caller := self.timeline.history.caller(attempt)) is not None:
            parts.append(f"called by {self.timeline.name_of(caller)}")
        if callees := self.timeline.history.callees(attempt):
            counts = Counter(short_name(one.task.name) for one in callees).most_common()
            parts.append(f"calls {shortly([f'{count:,} × {name}' for name, count in counts], shown=SHOWN_FUNCTIONS)}")
        return SafeText("  ".join(parts), "dim")

    def _marks(self, row: TimelineRow, attempt: Attempt | None) -> Iterator[Text]:
        """The waits that the snapshot shows on this track."""
        marks = sorted(row.marks, key=lambda mark: mark.attempt is not attempt)
        for mark in marks[:SHOWN]:
            glyph, style = (STUCK_GLYPH, "red") if mark.is_stuck else (MARK_GLYPH, "magenta")
            yield SafeText().append(f"{glyph} ", style).append(mark.text)
        if len(marks) > SHOWN:
            yield SafeText(f"{len(marks) - SHOWN:,} more waits on this track", "dim")

    def name(self, attempt: Attempt) -> str:
        """The short name of a function, or that of a driver."""
        return short_name(attempt.task.name) if attempt.task.name else self.timeline.name_of(attempt)

    # A part of the time

    def sums(self, sums: RangeSums) -> Iterator[Text]:
        """What ran in a part of the time and what was waited for, then each function with its share."""
        busy_s = sum(one.seconds for one in sums.busy.values())
        ran = sum(one.attempts for one in sums.busy.values())
        first = SafeText().append(f"Range of {short_duration(sums.length_s)}", "bold")
        first.append(f" from {self._time(sums.began_at)}: ")
        first.append(f"{plural(ran, 'attempt')} ran, {busy_s / sums.length_s:.1f} at once on average", "bold")
        yield first.append(f"  {sums.failed:,} failed" if sums.failed else "", "bold red")
        waits = [
            f"{SHORT_WAITS[phase]} {short_duration(one.seconds)} ({plural(one.attempts, 'attempt')})"
            for phase, one in sums.waited.items()
        ]
        yield SafeText(f"Waited: {', '.join(waits) or 'none'}")
        for name, one in list(sums.busy.items())[:SHOWN_IN_RANGE]:
            share = 100 * one.seconds / busy_s if busy_s else 0.0
            text = SafeText(f"{share:5.1f} %  {short_duration(one.seconds):>9}  {one.attempts:>6,} × ")
            yield text.append(short_name(name), "bold")
        if (more := len(sums.busy) - SHOWN_IN_RANGE) > 0:
            yield SafeText(f"{plural(more, 'more function')}", "dim")

    # Times

    def _time(self, at: float) -> str:
        """``+12.345 s (14:03:22.125)``."""
        return f"+{at - self.timeline.began_at:.3f} s ({clock(at, digits=3)})"

    def _interval(self, began_at: float, ended_at: float) -> str:
        return f"{self._time(began_at)}, {short_duration(ended_at - began_at)} a cell"

    def location(self, vertex: Key) -> tuple[str, int] | None:
        """The line of code of an execution."""
        known = self.analysed.diagnosis.vertices.get(vertex)
        found = details_of(self.analysed.merged_index, known) if known else None
        return (found.file, found.line) if found and found.file is not None and found.line is not None else None


def attempt_of(selection: Selection | None) -> Attempt | None:
    """The attempt under the cursor; the most important of several."""
    bars = bars_of(selection.row) if selection is not None else None
    if selection is None or bars is None or selection.picked is None:
        return None
    return bars.attempts[selection.picked]


def mark_of(selection: Selection | None) -> Mark | None:
    """The wait that the snapshot shows for the attempt under the cursor, else the first on its track."""
    if selection is None or not selection.row.marks:
        return None
    attempt = attempt_of(selection)
    return next((mark for mark in selection.row.marks if mark.attempt is attempt), selection.row.marks[0])


def bars_of(row: TimelineRow) -> Bars | None:
    """The bars of a row, whether they or their number are drawn."""
    return row.bars if row.bars is not None else row.levels.bars if row.levels is not None else None


def _wait(one: Slice) -> str:
    still = " so far" if one.is_open else ""
    return f"{WAITS[one.phase]} {short_duration(one.duration_s)}{still}"


def _kinds(selection: Selection) -> str:
    bars = bars_of(selection.row)
    assert bars is not None
    kinds = Counter(bars.kinds[number] for number in selection.numbers)
    return ", ".join(f"{count:,} {NAMES_OF_KINDS[kind]}" for kind, count in kinds.most_common())
