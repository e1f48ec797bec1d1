"""The rows and bars of a Gantt chart: those first that a reader of a hang needs, each in a bounded number."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from dstack.analysis.history.slices import NOTHING, OPEN, Bars, Levels
from dstack.analysis.history.task_index import Attempt
from dstack.analysis.views.timeline import NOT_STARTED, Mark
from dstack.analysis.views.timeline_rows import Lane, RowTrack
from dstack.words import capitalised, plural

MOST_ROWS = 300
MOST_LANES = 6
"""Of a worker with more lanes, the number of its tasks at each time is drawn too."""
FEW_TRACKS = 40
"""Of so few, each actor has a row for the calls that waited, also if none waits now."""

RowKind = Literal["heading", "lane", "spans", "running", "waiting"]
MOST_BARS = 10_000
MOST_STEPS, FEWEST_STEPS = 120, 8
"""How many steps of time a row has that counts tasks."""
WIDEST_CELLS = 8
"""A busy bar is at most so many times as wide as the bars that are merged, so that it shows when a worker was busy."""
LATEST = 5
"""So many bars at the end of each lane are never merged."""
HALVINGS, STEPS_OF_A_HALVING = 22, 4
"""Bars are merged that are shorter than a 4,000,000th part of the time, or than a larger one: see :func:`bars_of`."""


@dataclass(frozen=True, slots=True)
class GanttRow:
    """One row: the heading of a node, a lane of bars or of spans, or how many tasks ran or waited at each time.

    ``place`` is the full name of its worker with its node. The first row of a worker has its name and ``worker_id``.
    """

    kind: RowKind
    title: str
    place: str
    worker_id: str | None = None
    lane: Lane | None = None
    levels: Levels | None = None
    marks: Sequence[Mark] = ()
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class GanttRows:
    """The rows that are shown, and how much is left out: workers or functions, and lanes of those that are shown."""

    rows: Sequence[GanttRow]
    tracks_left_out: int
    lanes_left_out: int


def rows_of(tracks: Sequence[RowTrack], most: int = MOST_ROWS) -> GanttRows:
    """At most so many rows, in the order of the tracks.

    Tracks with tasks that have not ended are preferred, then those with failures, then those with long tasks.
    """
    made = {track.key: list(_rows(track, is_one_of_few=len(tracks) <= FEW_TRACKS)) for track in tracks}
    shown: dict[str, list[GanttRow]] = {}
    headings: set[str] = set()
    free = most
    for track in sorted(tracks, key=_importance):
        rows = made[track.key]
        needed = len(rows) + (track.group_key not in headings)
        if needed <= free:
            shown[track.key] = rows
            headings.add(track.group_key)
            free -= needed
    kept = [track for track in tracks if track.key in shown]
    lanes = sum(len(track.lanes) + track.lanes_left_out for track in kept)
    lanes_shown = sum(row.kind == "lane" for rows in shown.values() for row in rows)
    return GanttRows(list(_with_headings(kept, shown)), len(tracks) - len(kept), lanes - lanes_shown)


def _with_headings(tracks: Iterable[RowTrack], rows: dict[str, list[GanttRow]]) -> Iterator[GanttRow]:
    group = None
    for track in tracks:
        if track.group_key != group:
            group = track.group_key
            yield GanttRow("heading", capitalised(track.group), track.group)
        yield from rows[track.key]


def _rows(track: RowTrack, *, is_one_of_few: bool) -> Iterator[GanttRow]:
    """Its lanes, the most important ones if there are many, and the number of tasks where they say less than it."""
    rows = list(_untitled_rows(track, is_one_of_few=is_one_of_few))
    of_rows = {id(mark) for row in rows for mark in row.marks}
    others = [mark for mark in track.marks if id(mark) not in of_rows]
    worker_id = None if track.group == NOT_STARTED else track.key
    marks = [*rows[0].marks, *others]
    yield replace(rows[0], title=track.title, worker_id=worker_id, marks=marks, is_first=True)
    yield from rows[1:]


def _untitled_rows(track: RowTrack, *, is_one_of_few: bool) -> Iterator[GanttRow]:
    """Waits are marked on the bar of their call; those of calls that have not begun, on the row of what waits."""
    place = f"{track.title}, {track.group}"
    if track.running is not None and len(track.lanes) + track.lanes_left_out > MOST_LANES:
        yield GanttRow("running", "", place, levels=track.running)
    for number in _shown_lanes(track.lanes):
        lane = track.lanes[number]
        open_ = {id(one) for one, kind in zip(lane.bars.attempts, lane.bars.kinds, strict=True) if kind in OPEN}
        marks = [mark for mark in track.marks if id(mark.attempt) in open_]
        yield GanttRow("lane", f"lane {number + 1}", place, lane=lane, marks=marks)
    for lane in track.spans[:MOST_LANES]:
        yield GanttRow("spans", "spans", place, lane=lane)
    queued = [mark for mark in track.marks if mark.attempt is not None and mark.attempt.state == "pending"]
    if queued or _shows_waits(track, is_one_of_few=is_one_of_few):
        yield GanttRow("waiting", "waiting", place, levels=track.waiting, marks=queued)


def _shown_lanes(lanes: Sequence[Lane]) -> list[int]:
    order = sorted(range(len(lanes)), key=lambda number: (-max(lanes[number].bars.kinds, default=0), number))
    return sorted(order[:MOST_LANES])


def _shows_waits(track: RowTrack, *, is_one_of_few: bool) -> bool:
    if not track.lanes or any(attempt.state == "pending" for attempt in track.attempts):
        return True
    is_actor = any(attempt.task.kind == "ACTOR_TASK" for attempt in track.attempts)
    return is_one_of_few and is_actor and len(track.waiting) > 0


def _importance(track: RowTrack) -> tuple[bool, bool, bool, float]:
    """Smaller for what is more important."""
    tasks = [attempt for attempt in track.attempts if attempt.task.kind != "DRIVER_TASK"]
    is_unfinished = any(attempt.state in ("running", "pending") for attempt in tasks)
    has_failed = any(attempt.state == "failed" for attempt in tasks)
    longest = max((_duration_s(attempt, track.asked_at) for attempt in tasks), default=0.0)
    return not track.marks, not is_unfinished, not has_failed, -longest


def _duration_s(attempt: Attempt, asked_at: float) -> float:
    return (asked_at if attempt.ended_at is None else attempt.ended_at) - attempt.began_at


def left_out(rows: GanttRows) -> Iterator[str]:
    """Sentences about the rows that are not shown."""
    if count := rows.tracks_left_out:
        what = plural(count, "worker or function", "workers and functions")
        yield f"{what} left out: those shown have unfinished, failed or long tasks."
    if count := rows.lanes_left_out:
        yield f"{plural(count, 'lane')} of workers that run many tasks at once left out; their first row counts all."


@dataclass(frozen=True, slots=True)
class GanttBar:
    """One bar on a row, in Unix seconds: of one attempt, of several, or of a count.

    ``busy`` is the part of a merged bar that its attempts fill. ``level`` is None for attempts; else it is the height
    of the bar, 1 for the most of its row, and ``mean`` the number of attempts.
    """

    row: int
    began_at: float
    ended_at: float
    kind: int
    attempts: Sequence[Attempt] = ()
    is_wait: bool = False
    busy: float = 1.0
    level: float | None = None
    mean: float = 0.0


@dataclass(frozen=True, slots=True)
class GanttBars:
    """The bars of all rows; bars shorter than ``merged_below_s`` are merged, and such waits left out."""

    bars: Sequence[GanttBar]
    merged_below_s: float
    waits_left_out: int


def bars_of(rows: Sequence[GanttRow], began_at: float, ended_at: float, most: int = MOST_BARS) -> GanttBars:
    """At most so many bars, unless all of them are needed for what runs or ended last.

    Nothing is merged if that is enough; else as little as possible.
    """
    counted = list(_counted(rows, began_at, ended_at, most // 4))
    free = most - len(counted)
    steps = reversed(range(HALVINGS * STEPS_OF_A_HALVING))
    cells = [0.0, *((ended_at - began_at) / 2 ** (step / STEPS_OF_A_HALVING) for step in steps)]
    cell_s = cells[bisect_left(cells[:-1], True, key=lambda cell: _number(rows, cell) <= free)]
    lanes = [(number, row.lane) for number, row in enumerate(rows) if row.lane is not None]
    waits = [bar for number, lane in lanes for bar in _waits(number, lane.gaps, cell_s)]
    runs = [bar for number, lane in lanes for bar in _runs(number, lane.bars, cell_s)]
    return GanttBars([*waits, *runs, *counted], cell_s, sum(len(lane.gaps) for _, lane in lanes) - len(waits))


def _number(rows: Sequence[GanttRow], cell_s: float) -> int:
    """How many bars lanes have."""
    lanes = [row.lane for row in rows if row.lane is not None]
    return sum(sum(1 for _ in _groups(lane.bars, cell_s)) + sum(_long(lane.gaps, cell_s)) for lane in lanes)


def _long(bars: Bars, cell_s: float) -> Iterator[bool]:
    return (end - begin >= cell_s for begin, end in zip(bars.begins, bars.ends, strict=True))


def _groups(bars: Bars, cell_s: float) -> Iterator[list[int]]:
    """The numbers of the bars that are drawn as one; what failed is merged apart from what finished."""
    open_: dict[int, list[int]] = {}
    latest = len(bars) - LATEST
    begins, ends, kinds = bars.begins, bars.ends, bars.kinds
    for number in range(len(bars)):
        begin, kind = begins[number], kinds[number]
        known = open_.get(kind)
        if number >= latest or kind in OPEN or ends[number] - begin >= cell_s:
            yield [number]
        elif known and begin - ends[known[-1]] < cell_s and ends[number] - begins[known[0]] <= WIDEST_CELLS * cell_s:
            known.append(number)
        else:
            if known:
                yield known
            open_[kind] = [number]
    yield from open_.values()


def _runs(row: int, bars: Bars, cell_s: float) -> Iterator[GanttBar]:
    """The bars of attempts that ran, failed ones above the others."""
    groups = sorted(_groups(bars, cell_s), key=lambda group: (bars.kinds[group[0]], group[0]))
    for group in groups:
        began, ended = bars.begins[group[0]], bars.ends[group[-1]]
        filled = sum(bars.ends[number] - bars.begins[number] for number in group)
        busy = filled / (ended - began) if ended > began else 1.0
        yield GanttBar(row, began, ended, bars.kinds[group[0]], [bars.attempts[n] for n in group], busy=busy)


def _waits(row: int, gaps: Bars, cell_s: float) -> Iterator[GanttBar]:
    """What attempts of a lane waited for, without the short waits."""
    for number, is_long in enumerate(_long(gaps, cell_s)):
        if is_long:
            attempts = [gaps.attempts[number]]
            yield GanttBar(row, gaps.begins[number], gaps.ends[number], gaps.kinds[number], attempts, is_wait=True)


def _counted(rows: Sequence[GanttRow], began_at: float, ended_at: float, most: int) -> Iterator[GanttBar]:
    """The bars of rows that count, in steps of time; the more such rows, the fewer steps."""
    counting = [(number, row.levels) for number, row in enumerate(rows) if row.levels is not None]
    steps = min(MOST_STEPS, max(FEWEST_STEPS, most // max(1, len(counting))))
    edges = [began_at + (ended_at - began_at) * step / steps for step in range(steps + 1)]
    for number, levels in counting:
        if ended_at > began_at:
            yield from _levels(number, levels, edges)


def _levels(row: int, levels: Levels, edges: Sequence[float]) -> Iterator[GanttBar]:
    """Steps with equal numbers are one bar."""
    means = enumerate((kind, round(mean, 2)) for kind, mean, _ in levels.means(edges))
    for (kind, mean), some in groupby(means, key=lambda one: one[1]):
        places = [place for place, _ in some]
        if kind != NOTHING:
            began, ended = edges[places[0]], edges[places[-1] + 1]
            yield GanttBar(row, began, ended, kind, level=mean / levels.peak, mean=mean)
