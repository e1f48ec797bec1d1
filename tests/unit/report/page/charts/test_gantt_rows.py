from __future__ import annotations

from dstack.analysis.views.timeline import Timeline
from dstack.analysis.views.timeline_rows import TimelineRows
from dstack.model import TaskAttempt
from dstack.report.page.charts.gantt_rows import MOST_LANES, GanttRows, left_out, rows_of
from tests.unit.support.histories import ACTOR, OTHER, attempt, driver_attempt, index


def shown(*attempts: TaskAttempt, most: int = 300) -> GanttRows:
    return rows_of(TimelineRows(Timeline(index(*attempts)), "worker").tracks, most)


def test_workers_are_below_their_nodes_and_what_has_not_started_is_the_last() -> None:
    found = shown(
        driver_attempt(),
        attempt(1, "load", submitted=1, started=2, ended=3, worker=1),
        attempt(2, "load", submitted=1, started=2, ended=3, worker=2, node=OTHER),
        attempt(3, "never", submitted=1),
    )

    assert [(row.kind, row.title) for row in found.rows] == [
        ("heading", "Node 10.0.0.1"),
        ("lane", "driver train.py"),
        ("lane", "worker, pid 1"),
        ("heading", "Node 10.0.0.2"),
        ("lane", "worker, pid 2"),
        ("heading", "Not started"),
        ("waiting", "never"),
    ]
    assert not list(left_out(found))


def test_unfinished_then_failed_then_long_tasks_are_preferred() -> None:
    attempts = (
        attempt(1, "short", submitted=1, started=2, ended=3, worker=1),
        attempt(2, "long", submitted=1, started=2, ended=90, worker=2),
        attempt(3, "wrong", submitted=1, started=2, ended=3, worker=3, failed=True),
        attempt(4, "open", submitted=1, started=2, worker=4),
    )
    titles = [[row.title for row in shown(*attempts, most=most).rows[1:]] for most in (2, 3, 4, 5)]

    assert titles == [[f"worker, pid {pid}" for pid in pids] for pids in ([4], [3, 4], [2, 3, 4], [1, 2, 3, 4])]
    (note,) = left_out(shown(*attempts, most=2))
    assert note.startswith("3 workers and functions left out")


def test_a_worker_with_many_lanes_has_a_row_that_counts_and_the_lanes_that_matter() -> None:
    calls = [
        attempt(number, "Server.ask", submitted=1, started=2, ended=None if number == 15 else 50, worker=1,
                kind="ACTOR_TASK", actor_id=ACTOR)
        for number in range(1, 17)
    ]  # fmt: skip
    found = shown(*calls)

    assert [row.kind for row in found.rows] == ["heading", "running", *["lane"] * MOST_LANES, "waiting"]
    assert any(1.7e9 + 100 in row.lane.bars.ends for row in found.rows if row.lane)
    assert list(left_out(found)) == [
        f"{16 - MOST_LANES} lanes of workers that run many tasks at once left out; their first row counts all."
    ]


def test_no_attempts_have_no_rows() -> None:
    assert shown() == GanttRows([], 0, 0)
