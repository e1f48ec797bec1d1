"""Flame graphs: of the stacks, of the time of tasks, and of recordings."""

from __future__ import annotations

from collections.abc import Iterator

from dstack.analysis.history.task_time import TaskTime
from dstack.analysis.stacks.weighted_stacks import recorded_stacks
from dstack.analysis.views.stack_groups import ChosenStacks
from dstack.recording import Recording
from dstack.report.page.charts.flame_chart import Flame, flame_section
from dstack.report.page.section import ReportData, Section
from dstack.report.summaries import recording_summary, shortfalls
from dstack.words import duration, plural

MOST_RECORDINGS = 6
MOST_BOXES = 10_000
"""The most rectangles of one flame graph, as there are several."""
OWN_TIME = (
    "The width is the time in which tasks ran, also while they slept or waited. A caller is as wide as the calls below "
    "it, and calls that ran in parallel stand side by side."
)


def section(data: ReportData) -> Section | None:
    """The flame graphs that have any width; None if none has."""
    flames = [flame for flame in _flames(data) if flame.stacks.stacks]
    return flame_section("flame", "Flame graphs", flames, MOST_BOXES) if flames else None


def _flames(data: ReportData) -> Iterator[Flame]:
    yield _stacks(data.stacks)
    if data.analysed.task_time is not None:
        yield _task_time(data, data.analysed.task_time)
    left_out = len(data.recordings) - MOST_RECORDINGS
    notes = (f"{plural(left_out, 'more recording')} left out.",) if left_out > 0 else ()
    for name, recording in data.recordings[:MOST_RECORDINGS]:
        yield _recording(name, recording, notes)


def _stacks(stacks: ChosenStacks) -> Flame:
    absent = len(stacks.absent)
    notes = (f"{plural(absent, 'process or call', 'processes or calls')} without a stack.",) if absent else ()
    title = f"Stacks ({plural(len(stacks.executions), 'thread or coroutine', 'threads and coroutines')})"
    return Flame(title, stacks.weighted("class"), notes)


def _task_time(data: ReportData, time: TaskTime) -> Flame:
    history = data.analysed.snapshot.history
    notes = [OWN_TIME]
    if history and (missing := history.left_out + history.dropped):
        notes.append(f"{plural(missing, 'older attempt')} not in the history.")
    if time.without_times:
        notes.append(f"{plural(time.without_times, 'attempt')} without a known begin.")
    return Flame(f"Task time ({duration(time.whole.length_us / 1e6)})", time.stacks(), tuple(notes))


def _recording(name: str, recording: Recording, notes: tuple[str, ...]) -> Flame:
    return Flame(
        f"Recording {name} ({duration(recording.duration_s)})",
        recorded_stacks(recording),
        (f"{recording_summary(recording)}.", *shortfalls(recording), *notes),
    )
