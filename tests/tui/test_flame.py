"""The flame view: cells by keys and mouse, zoom, what is counted, groups, search, and the way to the stacks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from textual.pilot import Pilot
from textual.widgets import Static

from benchmarks.bench_merging import snapshot_of
from dstack.analysis.stacks.icicle import Cell
from dstack.model import Snapshot
from dstack.tui.app import DstackApp
from dstack.tui.source import Files
from dstack.tui.views.flame.view import FlameView
from dstack.tui.views.stacks.view import StacksView
from dstack.tui.widgets.chart import Chart
from dstack.tui.widgets.detail import Detail
from tests.tui.pilots import running, screen_text, search, until
from tests.tui.sources import Scripted, recorded
from tests.tui.test_stacks import at, press, team, tree
from tests.unit.scenes import Scene

Body = Callable[[DstackApp, Pilot[Any], FlameView], Awaitable[None]]


def seen(snapshot: Snapshot, body: Body, size: tuple[int, int] = (120, 40)) -> None:
    """Runs the body in the flame view of a snapshot."""

    async def whole() -> None:
        async with running(Files("hang.json", [snapshot]), size=size) as (app, pilot):
            await body(app, pilot, await opened(app, pilot))

    asyncio.run(whole())


async def opened(app: DstackApp, pilot: Pilot[Any]) -> FlameView:
    app.switch_mode("flame")
    await until(pilot, lambda: isinstance(app.screen, FlameView) and app.screen.look)
    assert isinstance(app.screen, FlameView)
    return app.screen


def selected(view: FlameView) -> Cell:
    cell = view.query_one(Chart).cell
    assert cell
    return cell


def labels(view: FlameView) -> list[list[str]]:
    return [[cell.label for cell in row] for row in view.icicle.rows]


def figures(view: FlameView) -> str:
    return view.query_one(Detail).text.plain


def head(view: FlameView) -> str:
    return str(view.query_one("#head", Static).content)


def test_the_widest_stand_left_below_their_group() -> None:
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

    seen(team().snapshot(), body)


def test_keys_go_to_the_cells_around_and_the_figures_follow() -> None:
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

    seen(team().snapshot(), body)


def test_enter_makes_a_frame_as_wide_as_all_and_backspace_goes_out() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await press(pilot, "j", "j", "enter")
        assert labels(view)[0] == ["step"]
        assert view.icicle.rows[0][0].width == 120
        assert "⌫ all › actor Trainer › step" in head(view)
        assert selected(view).label == "step"
        await press(pilot, "backspace")
        assert labels(view)[0] == ["all"]
        assert selected(view).label == "step", "what was selected still is"
        await press(pilot, "i", "enter")
        assert labels(view)[0] == ["all"], "enter on the one on top goes out, too"

    seen(team().snapshot(), body)


def test_a_click_selects_and_another_zooms() -> None:
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
        assert labels(view)[0] == ["driver train.py"], "there is nothing"

    seen(team().snapshot(), body)


def test_x_counts_all_who_waits_and_who_runs() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        seen_weights = [(head(view).split("  ")[0], view.icicle.weight)]
        for _ in range(2):
            await press(pilot, "x")
            seen_weights.append((head(view).split("  ")[0], view.icicle.weight))
        assert seen_weights == [
            ("Width: all threads and coroutines", 11),
            ("Width: waiting ones", 10),
            ("Width: running ones", 1),
        ]

    seen(team().snapshot(), body)


def test_where_nobody_runs_it_says_so() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.gets(scene.task("work", by=driver))

    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await press(pilot, "x", "x")
        assert "No such executions" in screen_text(app)
        await press(pilot, "j", "l", "enter", "G", "y", "n", "t")

    seen(scene.snapshot(), body)


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

    seen(team().snapshot(), body)


def test_w_shows_whole_stacks() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        assert "folded" in head(view)
        before = len(view.icicle.rows)
        await press(pilot, "w")
        assert len(view.icicle.rows) > before
        assert "folded" not in head(view)

    seen(recorded("tune-hang"), body)


def test_what_is_looked_for_is_marked_and_n_goes_from_one_to_the_next() -> None:
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

    seen(team().snapshot(), body)


def test_t_goes_to_the_branch_among_the_stacks() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await press(pilot, "G", "t")
        await until(pilot, lambda: isinstance(app.screen, StacksView) and app.screen.is_merged)
        assert isinstance(app.screen, StacksView)
        assert "9 × threading.Barrier.wait" in at(tree(app.screen))

    seen(team().snapshot(), body)


def test_another_look_keeps_zoom_and_selection() -> None:
    async def body() -> None:
        async with running(Scripted(team().snapshot(), team(8).snapshot())) as (app, pilot):
            view = await opened(app, pilot)
            await press(pilot, "j", "enter", "j")
            assert selected(view).weight == 9
            await press(pilot, "r")
            await until(pilot, lambda: len(app.looks) == 2 and view.look is app.looks[-1])

            assert labels(view)[0] == ["actor Trainer"]
            assert (selected(view).label, selected(view).weight) == ("step", 7)

    asyncio.run(body())


def test_a_zoom_on_what_is_gone_ends() -> None:
    async def body() -> None:
        async with running(Scripted(team().snapshot(), recorded("tune-hang"))) as (app, pilot):
            view = await opened(app, pilot)
            await press(pilot, "j", "enter", "r")
            await until(pilot, lambda: len(app.looks) == 2 and view.look is app.looks[-1])

            assert labels(view)[0] == ["all"]

    asyncio.run(body())


def test_it_is_drawn_as_wide_as_the_terminal() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await pilot.resize_terminal(200, 50)
        await until(pilot, lambda: view.icicle.rows[0][0].width == 200)

    seen(team().snapshot(), body, (80, 24))


def test_what_is_copied_exported_and_opened() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await press(pilot, "j", "j", "y")
        assert app.clipboard.startswith("step  /srv/app/app.py:20")
        assert view.to_open() == ("/srv/app/app.py", 20)
        exported = view.to_export()
        assert exported
        assert "|threading.Barrier.wait 9" in exported

    seen(team().snapshot(), body)


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

    seen(snapshot_of(3_000), body)


def test_labels_from_a_target_are_harmless() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.threads[0].function = "[red]\x1b[31mevil"

    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await press(pilot, "G")
        text = screen_text(app)
        assert "\x1b" not in text
        assert "[red]\\x1b[31mevil" in text
        await press(pilot, "t")
        await until(pilot, lambda: isinstance(app.screen, StacksView))
        assert "[red]\\x1b[31mevil" in screen_text(app)

    seen(scene.snapshot(), body)


def test_nothing_seen_is_said() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        assert "No such executions" in screen_text(app)
        await press(pilot, "j", "k", "h", "l", "g", "G", "enter", "backspace", "x", "b", "w", "n", "y")

    seen(Snapshot(dstack_version="0", taken_at=0.0, address="", ray_version="2.60.0"), body)
