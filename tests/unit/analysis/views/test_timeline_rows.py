"""The rows of a timeline: lanes and their gaps, groupings, folds and searches."""

from __future__ import annotations

import pytest

from dstack.analysis.history.slices import ARGUMENTS, FAILED, FINISHED, QUEUE, RESOURCES, RUNNING, SENT, STUCK, WAITING
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.timeline import NOT_STARTED, Timeline
from dstack.analysis.views.timeline_rows import MOST_LANES, AttemptSearch, TimelineRow, TimelineRows
from dstack.files.snapshot_file import load
from dstack.model.snapshot import TaskAttempt
from tests.paths import RECORDED_CALLS
from tests.unit.analysis.history import test_marked_spans as marked_spans
from tests.unit.analysis.history.test_marked_spans import finished, process, ran
from tests.unit.scenes import Scene
from tests.unit.support import call_histories
from tests.unit.support.histories import ACTOR, NOW, OTHER, attempt, driver_attempt, index, pipeline


def rows(*attempts: TaskAttempt) -> TimelineRows:
    return TimelineRows(Timeline(index(*attempts)), "worker")


def shown(found: list[TimelineRow]) -> list[str]:
    return [f"{'  ' * row.depth}{row.title}" for row in found]


def times(row: TimelineRow) -> list[tuple[float, float, int]]:
    """The bars of a lane, relative to the beginning of the history."""
    assert row.bars is not None
    return _times(row.bars)


def gaps(row: TimelineRow) -> list[tuple[float, float, int]]:
    assert row.gaps is not None
    return _times(row.gaps)


def _times(bars: object) -> list[tuple[float, float, int]]:
    return [
        (round(begin - NOW, 3), round(end - NOW, 3), kind)
        for begin, end, kind in zip(bars.begins, bars.ends, bars.kinds, strict=True)  # type: ignore[attr-defined]
    ]


ONE_AFTER_ANOTHER = (
    attempt(1, "load", submitted=0, ready=1, sent=2, started=3, ended=5, worker=7),
    attempt(2, "train", submitted=0, ready=6, sent=7, started=8, ended=9, failed=True, worker=7),
    attempt(3, "score", submitted=8.5, ready=8.6, sent=8.8, started=12, worker=7),
)


def test_a_lane_has_bars_and_what_each_attempt_waited_for_after_the_one_before_had_ended() -> None:
    found = rows(*ONE_AFTER_ANOTHER).rows({})

    assert shown(found) == ["node 10.0.0.1", "  worker, pid 7", "    waiting"]
    assert times(found[1]) == [(3, 5, FINISHED), (8, 9, FAILED), (12, 100, RUNNING)]
    assert gaps(found[1]) == [
        (0, 1, ARGUMENTS),
        (1, 2, RESOURCES),
        (2, 3, SENT),
        (5, 6, ARGUMENTS),
        (6, 7, RESOURCES),
        (7, 8, SENT),
        (9, 12, SENT),
    ]
    assert found[2].levels is not None
    assert found[2].levels.peak == 2


def test_calls_at_the_same_time_are_in_lanes_below_their_number() -> None:
    calls = [attempt(n, "step", submitted=0, started=1 + n, ended=10 + n, worker=7, actor_id=ACTOR) for n in range(3)]
    found = rows(*calls)

    assert shown(found.rows({}))[1:] == [
        "  actor step cccccccc, pid 7",
        "    lane 1",
        "    lane 2",
        "    lane 3",
        "    waiting",
    ]
    assert found.rows({})[1].levels is not None
    assert shown(found.rows({found.tracks[0].key: False}))[1:] == ["  actor step cccccccc, pid 7"]
    assert shown(found.rows({found.tracks[0].group_key: False})) == ["node 10.0.0.1"]


def test_more_lanes_than_can_be_seen_are_left_out_and_counted() -> None:
    calls = [
        attempt(n, "step", submitted=0, started=1 + n / 1e3, ended=10, worker=7, actor_id=ACTOR)
        for n in range(MOST_LANES + 3)
    ]
    found = rows(*calls).rows({})

    assert found[-2].title == "3 more lanes left out"
    assert found[1].levels is not None
    assert len(found[1].levels) == len(calls)


def test_attempts_without_a_start() -> None:
    found = rows(
        attempt(1, "pends", submitted=0, ready=1),
        attempt(2, "fails", submitted=0, ended=3, failed=True),
        attempt(3, "unknown", submitted=0, ended=2, worker=7),
    ).rows({})

    assert shown(found) == [
        "node 10.0.0.1",
        "  worker, pid 7",
        NOT_STARTED,
        "  fails",
        "    waiting",
        "  pends",
    ]
    assert times(found[3]) == [(3, 3, FAILED)]
    assert found[1].bars is None


def test_groups_by_function_and_by_chain() -> None:
    timeline = Timeline(index(*pipeline([[(1, 2), (3, 4)], [(2, 3), (4, 6)]])))

    by_function = TimelineRows(timeline, "function")
    assert [(track.title, len(track.attempts)) for track in by_function.tracks] == [("step_0", 2), ("step_1", 2)]
    by_chain = TimelineRows(timeline, "chain").rows({})
    chains = [row for row in by_chain if row.depth == 1]
    assert [row.title for row in chains] == [f"chain {chain.number}" for chain in timeline.chains]
    assert len(chains) == 2
    assert times(chains[0]) == [(1, 2, FINISHED), (3, 4, FINISHED)]


def test_what_is_in_no_chain_is_in_a_track_of_its_own() -> None:
    found = TimelineRows(Timeline(index(driver_attempt(), *ONE_AFTER_ANOTHER[:1])), "chain")
    assert sum(len(track.attempts) for track in found.tracks) == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("load", ["load"]),
        ("failed", ["train"]),
        ("pid 7 running", ["score"]),
        ("10.0.0.2", []),
        ("valueerror", ["train"]),
        ("", ["load", "train", "score"]),
        (ONE_AFTER_ANOTHER[0].task_id[:16], ["load"]),
        (f"{ONE_AFTER_ANOTHER[0].task_id[:16]} train", []),
    ],
)
def test_a_search_finds_attempts_with_all_words(words: str, expected: list[str]) -> None:
    found = rows(*ONE_AFTER_ANOTHER)
    search = AttemptSearch(found, words.split())
    lanes = [row.bars for row in found.rows({}, search) if row.bars is not None]

    assert sum(map(search.count, found.tracks)) == len(expected)
    assert [one.task.name for bars in lanes for one in bars.attempts] == expected
    assert [one.task.name for one in found.failures(search)] == [name for name in expected if name == "train"]


def test_an_attempt_is_found_in_its_row() -> None:
    found = rows(*ONE_AFTER_ANOTHER, attempt(9, "pends", submitted=0, node=OTHER))
    by_name = {one.task.name: one for one in found.timeline.attempts}

    for name, began_at in (("load", 3), ("train", 8), ("score", 12)):
        track, key, at = found.find(by_name[name]) or (None, "", 0.0)
        assert track is found.tracks[0]
        assert key == f"{track.key}/0"
        assert at - NOW == pytest.approx(began_at)
    track, key, at = found.find(by_name["pends"]) or (None, "", 0.0)
    assert track is found.tracks[1]
    assert key == f"{track.key}/waiting"


def test_calls_in_the_queue_of_an_actor() -> None:
    call = attempt(1, "A.f", submitted=0, ready=0, sent=1, started=6, ended=7, worker=7, kind="ACTOR_TASK")
    assert (1, 6, QUEUE) in gaps(rows(call).rows({})[1])


def test_open_attempts_that_wait_or_never_proceed_have_kinds_of_their_own() -> None:
    analysed = AnalysedSnapshot.of(load(RECORDED_CALLS))
    assert analysed.timeline
    found = TimelineRows(analysed.timeline, "worker")
    bars = [lane.bars for track in found.tracks for lane in track.lanes]
    kinds = {
        attempt.task.name or attempt.task.kind: kind
        for one in bars
        for attempt, kind in zip(one.attempts, one.kinds, strict=True)
        if attempt.ended_at is None
    }

    assert kinds == {"DRIVER_TASK": STUCK, "Trainer.sync": STUCK, "Rollout.pause": STUCK}


def test_an_open_attempt_that_waits_for_running_work_is_waiting() -> None:
    scene = Scene()
    driver = scene.driver()
    inner, _ = scene.run("inner", by=driver)
    outer, worker = scene.run("outer", by=driver)
    worker.gets(inner)
    history = [call_histories.attempt(one, driver, started=-5.0) for one in (inner, outer)]
    analysed = AnalysedSnapshot.of(call_histories.with_history(scene, history))
    assert analysed.timeline
    rows = TimelineRows(analysed.timeline, "worker").tracks
    kinds = {one.name: lane.bars.kinds[0] for row in rows for lane in row.lanes for one in [lane.bars.attempts[0].task]}

    assert kinds == {"inner": RUNNING, "outer": WAITING}


def test_spans_have_lanes_of_their_own_the_outer_ones_first() -> None:
    spans = [finished("load", 1, 3), finished("read", 1, 2), finished("parse", 2, 3), finished("train", 3, 4)]
    history = marked_spans.history_of([ran("x", 0, 5)], process(9, spans))
    found = TimelineRows(Timeline(history), "worker")

    drawn = [row for row in found.rows({}) if row.title == "spans"]
    assert [[one.task.name for one in row.bars.attempts] for row in drawn if row.bars] == [
        ['span "load"', 'span "train"'],
        ['span "read"', 'span "parse"'],
    ]
    search = AttemptSearch(found, ["parse"])
    assert [search.matches(row.lane.bars) for row in drawn if row.lane] == [b"\0\0", b"\0\1"]
