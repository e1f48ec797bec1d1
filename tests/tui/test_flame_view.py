"""The Flame view: cells by keys and mouse, zoom, measures, groupings, filter, and the way to the Stacks view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from textual.pilot import Pilot
from textual.widgets import Static

from benchmarks.made_up_snapshots import with_many_stacks
from dstack.analysis.stacks.icicle import IcicleCell
from dstack.model.snapshot import Snapshot
from dstack.tui.app import DstackApp
from dstack.tui.snapshot_sources import Files
from dstack.tui.views.flame_view import FlameView
from dstack.tui.views.stacks_view import StacksView
from dstack.tui.widgets.chart import Chart
from dstack.tui.widgets.outline import Detail
from tests.tui.pilots import running, screen_text, search, until
from tests.tui.sources import Scripted, recorded
from tests.tui.test_stacks_view import at, press, team, tree
from tests.unit.scenes import Scene

Body = Callable[[DstackApp, Pilot[Any], FlameView], Awaitable[None]]


def in_flame(snapshot: Snapshot, body: Body, size: tuple[int, int] = (120, 40)) -> None:
    """Run the body in the Flame view of a snapshot."""

    async def whole() -> None:
        async with running(Files("hang.json", [snapshot]), size=size) as (app, pilot):
            await body(app, pilot, await opened(app, pilot))

    asyncio.run(whole())


async def opened(app: DstackApp, pilot: Pilot[Any]) -> FlameView:
    app.switch_mode("flame")
    await until(pilot, lambda: isinstance(app.screen, FlameView) and app.screen.shown)
    assert isinstance(app.screen, FlameView)
    return app.screen


def selected(view: FlameView) -> IcicleCell[Any]:
    cell = view.query_one(Chart).cell
    assert cell
    return cell


def labels(view: FlameView) -> list[list[str]]:
    return [[cell.label for cell in row] for row in view.icicle.rows]


def figures(view: FlameView) -> str:
    return view.query_one(Detail).text.plain


def head(view: FlameView) -> str:
    return str(view.query_one("#head", Static).content)


def test_the_widest_cells_are_leftmost_below_their_group() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        assert labels(view)[:3] == [
            ["all"],
            ["actor Trainer", "driver train.py"],
            ["step", "step", "run"],
        ]
        assert sum(cell.width for cell in view.icicle.rows[1]) == 120
        text = screen_text(app)
        assert "actor Trainer 10" in text
        assert "threading.Barrier.wait 9" in text

    in_flame(team().snapshot(), body)


def test_keys_select_adjacent_cells_and_the_figures_follow() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        assert selected(view).label == "all"
        await press(pilot, "j")
        assert selected(view).label == "actor Trainer"
        assert "10 of 11 = 91 %" in figures(view)
        assert "9 waiting, 1 running" in figures(view)
        await press(pilot, "l")
        assert selected(view).label == "driver train.py"
        await press(pilot, "h", "G")
        assert selected(view).label == "threading.Barrier.wait"
        await press(pilot, "k")
        assert selected(view).label == "step"
        assert "/srv/app/app.py:20" in figures(view)
        assert "return step_of(me)" in figures(view)
        await press(pilot, "g")
        assert selected(view).label == "all"

    in_flame(team().snapshot(), body)


def test_enter_zooms_into_a_frame_and_backspace_zooms_out() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await press(pilot, "j", "j", "enter")
        assert labels(view)[0] == ["step"]
        assert view.icicle.rows[0][0].width == 120
        assert "⌫ all › actor Trainer › step" in head(view)
        assert selected(view).label == "step"
        await press(pilot, "backspace")
        assert labels(view)[0] == ["all"]
        assert selected(view).label == "step", "the selection stays"
        await press(pilot, "i", "enter")
        assert labels(view)[0] == ["all"], "enter on the top cell zooms out, too"

    in_flame(team().snapshot(), body)


def test_a_click_selects_and_a_second_click_zooms() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        cell = view.icicle.rows[1][1]
        await pilot.click(Chart, offset=(cell.start + 1, 1))
        assert selected(view).label == "driver train.py"
        await pilot.click(Chart, offset=(cell.start + 1, 1))
        await pilot.pause()
        assert labels(view)[0] == ["driver train.py"]
        await pilot.click(Chart, offset=(1, 20), button=3)
        assert labels(view)[0] == ["all"]
        await pilot.click(Chart, offset=(cell.start + 1, 1))
        await pilot.pause()
        assert labels(view)[0] == ["driver train.py"]
        await pilot.click(Chart, offset=(1, 20))
        assert labels(view)[0] == ["driver train.py"], "no cell is there"

    in_flame(team().snapshot(), body)


def test_x_counts_all_waiting_or_running_executions() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        weights = [(head(view).split("  ")[0], view.icicle.weight)]
        for _ in range(2):
            await press(pilot, "m")
            weights.append((head(view).split("  ")[0], view.icicle.weight))
        assert weights == [
            ("Width: all threads and coroutines", 11),
            ("Width: waiting ones", 10),
            ("Width: running ones", 1),
        ]

    in_flame(team().snapshot(), body)


def test_without_running_executions_a_hint_is_shown() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.gets(scene.task("work", by=driver))

    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await press(pilot, "m", "m")
        assert "No such executions" in screen_text(app)
        await press(pilot, "j", "l", "enter", "G", "y", "n", "x")

    in_flame(scene.snapshot(), body)


def test_b_groups_by_node_job_nothing_and_class() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        groups = []
        for _ in range(4):
            await press(pilot, "b")
            groups.append(labels(view)[1])
        assert groups == [
            ["node 10.0.0.2"],
            ["job 01000000 train.py"],
            ["step", "run", "step"],
            ["actor Trainer", "driver train.py"],
        ]

    in_flame(team().snapshot(), body)


def test_w_shows_whole_stacks() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        assert "folded" in head(view)
        before = len(view.icicle.rows)
        await press(pilot, "W")
        assert len(view.icicle.rows) > before
        assert "folded" not in head(view)

    in_flame(recorded("tune-hang"), body)


def test_the_filter_marks_matches_and_n_selects_the_next() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await search(pilot, "app.py")
        assert screen_text(app).count("*step") == 2
        found = []
        for _ in range(4):
            await press(pilot, "n")
            found.append(selected(view).label)
        assert found == ["step", "step", "run", "step"]
        await press(pilot, "N")
        assert selected(view).label == "run"
        await press(pilot, "escape")
        assert "*step" not in screen_text(app)

    in_flame(team().snapshot(), body)


def test_t_goes_to_the_branch_in_the_stacks_view() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await press(pilot, "G", "x")
        await until(pilot, lambda: isinstance(app.screen, StacksView) and app.screen.is_merged)
        assert isinstance(app.screen, StacksView)
        assert "9 × threading.Barrier.wait" in at(tree(app.screen))

    in_flame(team().snapshot(), body)


def test_zoom_and_selection_survive_another_snapshot() -> None:
    async def body() -> None:
        async with running(Scripted(team().snapshot(), team(8).snapshot())) as (app, pilot):
            view = await opened(app, pilot)
            await press(pilot, "j", "enter", "j")
            assert selected(view).weight == 9
            await press(pilot, "r")
            await until(pilot, lambda: len(app.snapshots) == 2 and view.shown is app.snapshots[-1])

            assert labels(view)[0] == ["actor Trainer"]
            assert (selected(view).label, selected(view).weight) == ("step", 7)

    asyncio.run(body())


def test_a_zoom_ends_when_its_branch_disappears() -> None:
    async def body() -> None:
        async with running(Scripted(team().snapshot(), recorded("tune-hang"))) as (app, pilot):
            view = await opened(app, pilot)
            await press(pilot, "j", "enter", "r")
            await until(pilot, lambda: len(app.snapshots) == 2 and view.shown is app.snapshots[-1])

            assert labels(view)[0] == ["all"]

    asyncio.run(body())


def test_the_icicle_is_as_wide_as_the_terminal() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await pilot.resize_terminal(200, 50)
        await until(pilot, lambda: view.icicle.rows[0][0].width == 200)

    in_flame(team().snapshot(), body, (80, 24))


def test_copy_export_and_open() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await press(pilot, "j", "j", "y")
        assert app.clipboard.startswith("step  /srv/app/app.py:20")
        assert view.to_open() == ("/srv/app/app.py", 20)
        exported = view.to_export()
        assert exported
        assert "|threading.Barrier.wait 9" in exported

    in_flame(team().snapshot(), body)


def test_thousands_of_executions_fold_and_open() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        assert view.icicle.weight == 3_000
        folded = next(cell for row in view.icicle.rows for cell in row if cell.is_folded)
        assert sum(branch.count for branch in folded.branches) == folded.weight
        await press(pilot, "b")
        more = view.icicle.rows[1][-1]
        assert more.label.startswith("… ")
        await pilot.click(Chart, offset=(more.start + 1, 1))
        assert "narrow branches" in figures(view)
        await press(pilot, "enter")
        assert set(view.icicle.rows[0][0].branches) <= set(more.branches)
        await press(pilot, "backspace")
        assert labels(view)[0] == ["all"]

    in_flame(with_many_stacks(3_000), body)


def test_labels_from_a_target_are_harmless() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.threads[0].function = "[red]\x1b[31mevil"

    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await press(pilot, "G")
        text = screen_text(app)
        assert "\x1b" not in text
        assert "[red]\\x1b[31mevil" in text
        await press(pilot, "x")
        await until(pilot, lambda: isinstance(app.screen, StacksView))
        assert "[red]\\x1b[31mevil" in screen_text(app)

    in_flame(scene.snapshot(), body)


def test_an_empty_snapshot_is_shown_as_such() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        assert "No such executions" in screen_text(app)
        await press(pilot, "j", "k", "h", "l", "g", "G", "enter", "backspace", "m", "b", "W", "n", "y")

    in_flame(Snapshot(dstack_version="0", taken_at=0.0, address="", ray_version="2.60.0"), body)
