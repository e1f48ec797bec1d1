"""None"""

from __future__ import annotations

from collections import Counter

import pytest

from dstack.analysis.history.slices import FAILED, FINISHED, RESOURCES, RUNNING
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.timeline import Timeline
from dstack.analysis.views.timeline_rows import TimelineRows
from dstack.files.snapshot_file import load
from dstack.model.snapshot import TaskAttempt
from dstack.report.page.gantt_bars import LATEST, MOST_LANES, GanttBars, GanttRows, bars_of, left_out, rows_of
from tests.paths import RECORDED_CALLS
from tests.unit.support.histories import ACTOR, NOW, OTHER, attempt, driver_attempt, index
from tests.unit.support.large_histories import history_snapshot


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


def test_a_wait_is_marked_on_the_bar_of_its_call_and_that_of_a_queued_call_on_the_row_of_what_waits() -> None:
    timeline = AnalysedSnapshot.of(load(RECORDED_CALLS)).timeline
    assert timeline is not None
    rows = rows_of(TimelineRows(timeline, "worker").tracks).rows
    marks = [(row.kind, mark.attempt) for row in rows if "Trainer" in row.place for mark in row.marks]

    assert sorted((kind, one.task.name, one.state) for kind, one in marks if one is not None) == [
        ("lane", "Trainer.sync", "running"),
        ("waiting", "Trainer.step", "pending"),
        ("waiting", "Trainer.version", "pending"),
    ]


def test_no_attempts_have_no_rows() -> None:
    assert shown() == GanttRows([], 0, 0)


def bars_in(timeline: Timeline, most: int) -> GanttBars:
    rows = rows_of(TimelineRows(timeline, "worker").tracks).rows
    return bars_of(rows, timeline.began_at, timeline.ended_at, most)


def series(count: int) -> list[TaskAttempt]:
    """Tasks of 0.9 s, one each second, on one worker; the last one still runs."""
    return [
        attempt(n, f"f{n % 2}", submitted=n, started=n, ended=n + 0.9, worker=1, failed=n == 3) for n in range(1, count)
    ] + [attempt(count, "last", submitted=count, started=count, worker=1)]


def test_nothing_is_merged_if_all_fits() -> None:
    found = bars_in(Timeline(index(*series(20))), 1_000)

    assert (found.merged_below_s, found.waits_left_out) == (0.0, 0)
    assert Counter(bar.kind for bar in found.bars) == {FINISHED: 18, FAILED: 1, RUNNING: 1}


def test_short_tasks_are_merged_but_not_the_latest_and_failed_ones_apart() -> None:
    found = bars_in(Timeline(index(*series(60))), 20)

    assert len(found.bars) <= 20
    assert found.merged_below_s > 0.9
    assert sum(len(bar.attempts) for bar in found.bars) == 60
    assert [len(bar.attempts) for bar in found.bars if bar.kind != FINISHED] == [1, 1]
    latest = sorted(found.bars, key=lambda bar: bar.began_at)[-LATEST:]
    assert [len(bar.attempts) for bar in latest] == [1] * LATEST
    merged = [bar for bar in found.bars if len(bar.attempts) > 1]
    assert all(0.8 < bar.busy < 1 for bar in merged)


def test_what_waits_is_counted_in_steps() -> None:
    pending = [attempt(n, "f", submitted=10.0 * n, ready=10.0 * n) for n in range(1, 4)]
    found = bars_in(Timeline(index(*pending)), 1_000)

    assert {bar.kind for bar in found.bars} == {RESOURCES}
    last = found.bars[-1]
    assert (last.mean, last.level, last.ended_at) == (3.0, 1.0, NOW + 100)
    assert len(found.bars) <= 5


@pytest.mark.parametrize(("attempts", "workers"), [(2_000, 4), (2_000, 100)])
def test_large_histories_are_bounded(attempts: int, workers: int) -> None:
    timeline = AnalysedSnapshot.of(history_snapshot(attempts, workers)).timeline
    assert timeline is not None
    found = bars_in(timeline, 1_000)

    assert 500 < len(found.bars) <= 1_000
    assert sum(bar.kind == RUNNING for bar in found.bars) == workers
    assert sum(len(bar.attempts) for bar in found.bars if not bar.is_wait) == attempts
