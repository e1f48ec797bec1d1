"""The Flame view's data: the time of tasks in intervals, recordings, and comparisons of two of a kind."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from dstack.cli.saved_files import open_files
from dstack.files import snapshot_file
from dstack.files.sampled_file import RECORDINGS
from dstack.model.snapshot import Snapshot
from dstack.report.summaries import NO_HISTORY
from dstack.tui.app import DstackApp
from dstack.tui.snapshot_sources import NO_SNAPSHOT, Files, OpenedRecording, Source
from dstack.tui.views.flame_data import READING
from dstack.tui.views.flame_drawings import StacksDrawing, WeightedDrawing
from dstack.tui.views.flame_view import FlameView
from dstack.tui.widgets.chart import Chart
from dstack.words import UNSEEN
from tests.fuzzing.hostile_text import HOSTILE
from tests.tui.pilots import running, screen_text, search, until
from tests.tui.pinned import require_pinned
from tests.tui.sources import LACK, Scripted, recorded
from tests.tui.test_flame_view import Body, figures, head, labels, opened
from tests.tui.test_stacks_view import press, team
from tests.unit.analysis.history.histories import attempt, snapshot_with
from tests.unit.analysis.stacks.recordings import frame, recording, thread

BUSY = (frame("ray_main_loop"), frame("train", 5), frame("step", 10))
LOADING = (frame("ray_main_loop"), frame("train", 6), frame("load_batch", 20))
EARLIER = recording({(thread(rank), stack): 10 for rank in (0, 1) for stack in (BUSY, LOADING)}, seconds=20)
LATER = recording(
    {(thread(0), BUSY): 10, (thread(0), LOADING): 10, (thread(1), BUSY): 19, (thread(1), LOADING): 1},
    began_at=EARLIER.began_at + 100,
)
BEFORE, AFTER = OpenedRecording("before.json.gz", EARLIER), OpenedRecording("after.json.gz", LATER)


def pipeline() -> Snapshot:
    """A driver of 40 s: loading takes 4 s of 10 s in its first half, and 8 s in its second; a retry; a running task."""
    loads = [(0, 4), (10, 14), (20, 28), (30, 38)]
    return snapshot_with(
        [
            attempt("driver", 0, None, kind="DRIVER_TASK"),
            *(attempt(f"load{at}", at, end, name="load_batch", by="driver") for at, end in loads),
            *(attempt(f"part{at}", at, end - 1, name="read_shard", by=f"load{at}") for at, end in loads),
            *(attempt(f"more{at}", at, end - 1, name="read_shard", by=f"load{at}") for at, end in loads),
            attempt("step0", 4, 9, name="Trainer.step", by="driver", kind="ACTOR_TASK", failed=True, node_id="n2"),
            attempt("step0", 9, 10, name="Trainer.step", by="driver", kind="ACTOR_TASK", number=1, node_id="n2"),
            attempt("last", 38, None, name="save", by="driver"),
        ],
        asked_s=40,
    )


def in_flame(
    body: Body,
    source: Source | None = None,
    recordings: Sequence[OpenedRecording] = (),
    size: tuple[int, int] = (120, 24),
) -> None:
    """Run the body in the Flame view of a source, by default the pipeline's snapshot."""

    async def whole() -> None:
        async with running(source or Files("pipeline.json", [pipeline()]), size, recordings) as (app, pilot):
            app.switch_mode("flame")
            await until(pilot, lambda: isinstance(app.screen, FlameView))
            assert isinstance(app.screen, FlameView)
            await body(app, pilot, app.screen)

    asyncio.run(whole())


async def drawn(pilot: Pilot[Any], view: FlameView, *words: str) -> None:
    """Wait until the line above the chart, or the empty chart, has these words."""
    await until(pilot, lambda: all(word in f"{head(view)} {view.drawing.empty}" for word in words))


async def task_time(pilot: Pilot[Any], view: FlameView) -> None:
    await press(pilot, "d")
    await drawn(pilot, view, "Task time")
    assert isinstance(view.drawing, WeightedDrawing)


def test_d_shows_the_time_of_tasks_and_the_figures_have_attempts() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await task_time(pilot, view)
        assert labels(view) == [
            ["all"],
            ["driver train.py"],
            ["load_batch", "Trainer.step", "save"],
            ["read_shard"],
        ]
        assert "all 40 s" in head(view)
        await press(pilot, "j", "j")
        assert "44 s of 1 min = 73 %" in figures(view)
        assert "4.0 s while no task below it ran" in figures(view)
        assert "4 attempts ran for 24 s together" in figures(view)
        await press(pilot, "l")
        assert "2 attempts ran for 6.0 s together, 1 failed" in figures(view)
        await press(pilot, "y")
        assert app.clipboard.endswith("driver train.py\nTrainer.step")
        assert view.to_open() is None

    in_flame(body)


def test_the_interval_has_a_length_and_moves() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await task_time(pilot, view)
        whole = view.icicle.weight
        await press(pilot, "p")
        await drawn(pilot, view, "last 20 s")
        half = view.icicle.weight
        await press(pilot, "less_than_sign")
        await drawn(pilot, view, "20 s, ended 20 s before the snapshot")
        assert half + view.icicle.weight == whole
        await press(pilot, "less_than_sign", "greater_than_sign", "p")
        await drawn(pilot, view, "last 10 s")
        await press(pilot, "p")
        await drawn(pilot, view, "last 1.0 s")
        assert labels(view)[-1] == ["save"]
        assert "1 attempt ran for 1.0 s, 1 not ended" not in figures(view), "all is selected"
        await press(pilot, "p")
        await drawn(pilot, view, "all 40 s")

    in_flame(body)


def test_v_compares_with_the_interval_before() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await task_time(pilot, view)
        await press(pilot, "v")
        await drawn(pilot, view, "last 20 s, compared with the 20 s before", "Width: now")
        text = screen_text(app)
        assert "+ load_batch 30 s  +34.4 points" in text
        assert "= driver train.py" in text
        await press(pilot, "j", "j")
        assert "+ from 54 % (14 s of 26 s) to 88 % (30 s of 34 s)" in figures(view)
        assert "2 attempts ran for 16 s together; before: 2 attempts ran for 8.0 s together" in figures(view)
        await press(pilot, "m")
        await drawn(pilot, view, "Width: before")
        assert "- Trainer.step 6.0 s" in screen_text(app), "it is only in the interval before"
        await press(pilot, "v")
        await drawn(pilot, view, "last 20 s  ")
        assert "compared" not in head(view)

    in_flame(body)


def test_task_time_is_grouped_filtered_and_zoomed() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await task_time(pilot, view)
        await press(pilot, "b")
        await drawn(pilot, view, "by class")
        assert sorted(labels(view)[1]) == ["actor Trainer", "drivers", "tasks"]
        await press(pilot, "b")
        await drawn(pilot, view, "by node")
        assert labels(view)[1] == ["node 10.0.0.1", "node 10.0.0.2"]
        await press(pilot, "j")
        assert "attempts ran for" in figures(view)
        await search(pilot, "read_shard")
        assert screen_text(app).count("*read_shard") == 1
        await press(pilot, "escape", "enter")
        assert labels(view)[0] == ["node 10.0.0.1"]
        await press(pilot, "d")
        await until(pilot, lambda: isinstance(view.drawing, StacksDrawing))
        assert labels(view)[:1] in ([], [["all"]]), "a zoom belongs to its data"

    in_flame(body)


def test_the_history_is_requested_when_there_is_none() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await press(pilot, "d")
        await drawn(pilot, view, "Task time")
        assert len(app.snapshots) == 2

    bare = replace(pipeline(), history=None)
    in_flame(body, Scripted(bare, pipeline()))


def test_without_a_history_the_view_says_so() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await press(pilot, "d")
        await drawn(pilot, view, NO_HISTORY)
        assert NO_HISTORY in screen_text(app)
        assert READING not in screen_text(app)
        await press(pilot, "p", "less_than_sign", "v", "b", "m", "j", "enter", "backspace", "y", "n")

    in_flame(body, Files("bare.json", [replace(pipeline(), history=None)]))


def test_a_lack_of_events_is_said_in_rows_that_fit() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await press(pilot, "d")
        await until(pilot, lambda: "Ray has no events." in screen_text(app))
        text = " ".join(screen_text(app).split())
        assert f"This snapshot has no history of tasks. Ray has no events. {remedy}" in text

    remedy = "Start the dashboard on the head node, and do so before anything else is started there."
    lack = dataclasses.replace(LACK, remedy=remedy)
    in_flame(body, Files("bare.json", [replace(pipeline(), history=None, failures=(lack,))]))


def test_v_compares_the_stacks_of_two_snapshots() -> None:
    async def body() -> None:
        async with running(Scripted(team(8).snapshot(), team().snapshot())) as (app, pilot):
            view = await opened(app, pilot)
            await press(pilot, "v")
            assert "compared" not in head(view), "there is one snapshot"
            await press(pilot, "r")
            await until(pilot, lambda: len(app.snapshots) == 2 and view.shown is app.snapshots[-1])
            await press(pilot, "v")
            await drawn(pilot, view, "Stacks of #2 compared with #1", "11 and 9 executions", "by class")
            assert "+ threading.Barrier.wait 9" in screen_text(app)
            await press(pilot, "j", "j")
            assert "+ from 88 % (7 of 8) to 90 % (9 of 10): +2.5 points" in figures(view)
            await press(pilot, "v")
            assert isinstance(view.drawing, StacksDrawing)

    asyncio.run(body())


def test_recordings_alone_open_in_the_flame_view_compared() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await drawn(
            pilot, view, "Recording after.json.gz (10 s) compared with before.json.gz (20 s)", "40 and 40 samples"
        )
        assert "of each group" in head(view)
        assert labels(view)[1:] == [["actor Trainer"], ["train"], ["step", "load_batch"]]
        await press(pilot, "G")
        assert "+ from 50 % (20 of 40) to 72 % (29 of 40): +22.5 points" in figures(view)
        assert "functions without lines" in head(view)
        await press(pilot, "v")
        await drawn(pilot, view, "Recording after.json.gz (10 s)  40 samples  by class")
        assert labels(view)[2] == ["train", "train"], "without a comparison, lines are distinguished"
        assert view.to_open() == ("/srv/app/train.py", 10)
        await press(pilot, "W")
        await until(pilot, lambda: labels(view)[2] == ["ray_main_loop"])
        await press(pilot, "b")
        await drawn(pilot, view, "by rank")
        assert sorted(labels(view)[1]) == ["rank 0", "rank 1"]
        await press(pilot, "less_than_sign")
        await drawn(pilot, view, "Recording before.json.gz")

    in_flame(body, Files("two", []), [BEFORE, AFTER])


def test_the_other_views_say_that_there_is_no_snapshot() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        for key in "123567":
            await press(pilot, key)
            assert NO_SNAPSHOT in screen_text(app)
            await press(pilot, "j", "k", "enter", "y", "b", "slash", "escape")
        await press(pilot, "4", "d")
        await drawn(pilot, view, NO_SNAPSHOT)
        await press(pilot, "d")
        await drawn(pilot, view, NO_SNAPSHOT)
        await press(pilot, "d")
        await drawn(pilot, view, "Recording after.json.gz")

    in_flame(body, Files("two", []), [BEFORE, AFTER])


def test_a_recording_beside_a_snapshot() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await drawn(pilot, view, "Recording before.json.gz")
        await press(pilot, "v")
        assert "compared" not in head(view)
        await press(pilot, "d")
        await until(pilot, lambda: isinstance(view.drawing, StacksDrawing))
        await press(pilot, "d")
        await drawn(pilot, view, "Task time")

    in_flame(body, recordings=[BEFORE])


def test_the_schema_of_a_file_says_what_it_is(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("after.json", "before.json.gz", "pipeline.json")]
    RECORDINGS.save(LATER, paths[0])
    RECORDINGS.save(EARLIER, paths[1])
    snapshot_file.save(pipeline(), paths[2])

    found = open_files(paths)

    assert [one.load() for one in found.snapshots] == [pipeline()]
    assert found.recordings == [("before.json.gz", EARLIER), ("after.json", LATER)]


def test_hostile_names_of_tasks_and_frames_are_harmless() -> None:
    evil = snapshot_with([attempt("a", 0, 3, name=HOSTILE), attempt("b", 1, 2, name=HOSTILE, by="a")], asked_s=4)
    shown = OpenedRecording(HOSTILE, recording({(thread(0, kind=HOSTILE), (frame(HOSTILE),)): 3}))

    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await drawn(pilot, view, "Recording")
        for _ in range(3):
            await press(pilot, "j", "y", "G", "y")
            assert not UNSEEN.search(screen_text(app).replace("\n", ""))
            assert not UNSEEN.search((view.to_export() or "").replace("\n", ""))
            await press(pilot, "d")
            await pilot.app.workers.wait_for_complete()
            await pilot.pause()
        assert "[bold red]x[/]" in screen_text(app)

    in_flame(body, Files(HOSTILE, [evil]), [shown], (160, 40))


def test_many_attempts_are_drawn() -> None:
    """Of 20,000 attempts in 200 functions only the widest calls are drawn; nothing is lost."""
    many = [attempt("driver", 0, None, kind="DRIVER_TASK")]
    for number in range(20_000):
        by = "driver" if number % 10 == 0 else f"t{number - 1}"
        many.append(attempt(f"t{number}", number / 10, number / 10 + 5, name=f"step_{number % 2_000}", by=by))

    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await task_time(pilot, view)
        assert view.drawing.root.count > 200
        assert any(cell.is_folded for row in view.icicle.rows for cell in row)
        assert view.query_one(Chart).cell

    in_flame(body, Files("many.json", [snapshot_with(many, asked_s=2_100)]))


@pytest.mark.parametrize("name", ["task-time", "task-time-compared", "recordings-compared"])
@pytest.mark.usefixtures("fixed_age")
def test_the_screen_matches_its_picture(name: str) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        if name == "recordings-compared":
            await drawn(pilot, view, "compared")
        else:
            await task_time(pilot, view)
        if name == "task-time-compared":
            await press(pilot, "v")
            await drawn(pilot, view, "compared")
        await press(pilot, "j", "j")
        await require_pinned(app, pilot, name)

    is_recorded = name == "recordings-compared"
    in_flame(body, Files("two", []) if is_recorded else None, [BEFORE, AFTER] if is_recorded else (), (120, 40))


def test_a_snapshot_without_history_of_real_ray_keeps_its_stacks() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await until(pilot, lambda: view.icicle.rows)
        before = labels(view)
        await press(pilot, "d")
        await drawn(pilot, view, NO_HISTORY)
        await press(pilot, "d")
        await until(pilot, lambda: labels(view) == before)

    in_flame(body, Files("hang.json", [recorded("tune-hang")]))
