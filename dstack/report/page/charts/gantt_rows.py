"""The rows of a Gantt chart: lanes of the workers, those first that a reader of a hang needs, in a bounded number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dstack.analysis.history.task_index import Attempt
from dstack.analysis.views.timeline import NOT_STARTED, Mark
from dstack.analysis.views.timeline_bars import Levels
from dstack.analysis.views.timeline_rows import Lane, RowTrack
from dstack.words import capitalised, plural

MOST_ROWS = 300
MOST_LANES = 6
"""Of a worker with more lanes, the number of its tasks at each time is drawn too."""
FEW_TRACKS = 40
"""Of so few, each actor has a row for the calls that waited, also if none waits now."""

RowKind = Literal["heading", "lane", "running", "waiting"]


@dataclass(frozen=True, slots=True)
class GanttRow:
    """One row: the heading of a node, a lane of bars, or how many tasks ran or waited at each time.

    ``place`` is the full name of its worker with its node. The first row of a worker has its ``worker_id``.
    """

    kind: RowKind
    title: str
    place: str
    worker_id: str | None = None
    lane: Lane | None = None
    levels: Levels | None = None
    marks: Sequence[Mark] = ()


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
    place = f"{track.title}, {track.group}"
    worker_id = None if track.group == NOT_STARTED else track.key
    marks = track.marks
    title = track.title
    if track.running is not None and len(track.lanes) + track.lanes_left_out > MOST_LANES:
        yield GanttRow("running", title, place, worker_id, levels=track.running, marks=marks)
        title, worker_id, marks = "", None, ()
    for number in _shown_lanes(track.lanes):
        name = title or f"lane {number + 1}"
        yield GanttRow("lane", name, place, worker_id, lane=track.lanes[number], marks=marks)
        title, worker_id, marks = "", None, ()
    if _shows_waits(track, is_one_of_few=is_one_of_few):
        yield GanttRow("waiting", title or "waiting", place, worker_id, levels=track.waiting, marks=marks)


def _shown_lanes(lanes: Sequence[Lane]) -> list[int]:
    order = sorted(range(len(lanes)), key=lambda number: (-max(lanes[number].bars.kinds, default=0), number))
    return sorted(order[:MOST_LANES])


def _shows_waits(track: RowTrack, *, is_one_of_few: bool) -> bool:
    if not track.lanes:
        return True
    if any(attempt.state == "pending" for attempt in track.attempts):
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
