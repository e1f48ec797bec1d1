"""Ranks, dimensions and labels in every view: eight trainers, one of them in other code than the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from dstack.model.snapshot import Snapshot
from dstack.observed.processes import Process
from dstack.tui.app import VIEWS, DstackApp
from dstack.tui.snapshot_sources import Files
from dstack.tui.views.base import View
from dstack.tui.views.cluster_view import ClusterView
from dstack.tui.views.flame_view import FlameView
from dstack.tui.views.history_view import HistoryView
from dstack.tui.views.stacks_view import StacksView
from dstack.tui.views.verdict_view import VerdictView
from dstack.tui.views.waits_view import WaitsView
from dstack.tui.widgets.outline import Outline
from tests.tui.pilots import running, search, until
from tests.tui.pinned import require_pinned
from tests.tui.test_stacks_view import at, merged, page, press, texts, tree
from tests.unit.analysis.views.test_snapshot_diff import again
from tests.unit.scenes.ranks import groups_of, training

Body = Callable[[DstackApp, Pilot[Any], Any], Awaitable[None]]
SIZE = (120, 40)


def trained(is_elsewhere: Callable[[int], bool] = lambda rank: rank == 3) -> Snapshot:
    """A snapshot of the trainers, the first of which has a label."""
    scene, (first, *_) = training(is_elsewhere)
    first.known["labels"] = {"stage": "rollout"}
    return scene.sample().second_sample().snapshot()


def in_view(view: type[View], body: Body, snapshot: Snapshot | None = None) -> None:
    """Run the body in a view of the trainers."""
    mode = next(name for name, one in VIEWS.items() if one is view)

    async def whole() -> None:
        async with running(Files("ranks.json", [snapshot or trained()]), SIZE) as (app, pilot):
            app.switch_mode(mode)
            await until(pilot, lambda: isinstance(app.screen, view) and app.screen.shown)
            await body(app, pilot, app.screen)

    asyncio.run(whole())


def lines(view: View) -> list[str]:
    return texts(view.query_one(Outline))


@pytest.mark.parametrize(
    ("view", "keys"),
    [(WaitsView, ""), (StacksView, ""), (StacksView, "mn"), (FlameView, ""), (FlameView, "bbbbjj"), (ClusterView, "")],
    ids=["waits", "stacks", "merged", "flame", "flame-by-tp", "cluster"],
)
@pytest.mark.usefixtures("fixed_age")
def test_the_screen_matches_its_picture(view: type[View], keys: str, request: pytest.FixtureRequest) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: View) -> None:
        await press(pilot, *keys)
        await require_pinned(app, pilot, f"ranks-{request.node.callspec.id}")

    in_view(view, body)


@pytest.mark.parametrize("view", [WaitsView, StacksView, ClusterView])
def test_a_filter_finds_a_rank_and_no_other(view: type[View]) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: View) -> None:
        for text, ranks in (("rank:3", "3"), ("tp:1 dp:0", "15"), ("stage:rollout", "0"), ("rank:33", "")):
            await search(pilot, text)
            # similar workers are grouped below rank 0, so the filter shows it above them
            found = {rank for rank in "01234567" if any(f'"t{rank}"' in line for line in lines(view))}
            assert found - {"0"} == set(ranks) - {"0"}, text
            assert bool(found) == bool(ranks), text
            await press(pilot, "escape")

    in_view(view, body)


def test_the_findings_are_filtered_by_rank() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: View) -> None:
        await search(pilot, "rank:3")
        found = [line.strip() for line in lines(view)]
        assert [line for line in found if line.startswith("2  Trainer.step ")]
        assert not [line for line in found if line.startswith("1  driver") or "7 of 8" in line]
        await search(pilot, "rank:77")
        assert lines(view) == []

    in_view(VerdictView, body)


def test_merged_stacks_are_filtered_by_rank() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await press(pilot, "m")
        await search(pilot, "tp:1 step")
        assert merged(view).root.count == 4
        assert lines(view)[0].startswith("3 × step  ranks 1, 5, 7  3 waiting")

    in_view(StacksView, body)


def test_the_flame_marks_the_frames_of_a_rank() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await search(pilot, "rank:3")
        assert [(cell.label, cell.weight) for cell in view._found()] == [("actor Trainer", 8), ("step", 1)]
        await press(pilot, "escape")
        await search(pilot, "rank:4 all_reduce")
        assert [cell.label for cell in view._found()] == ["torch.distributed.all_reduce"]
        await press(pilot, "escape")
        await search(pilot, "rank:9")
        assert view._found() == []

    in_view(FlameView, body)


@pytest.mark.parametrize(("view", "before"), [(StacksView, "m"), (FlameView, "")])
def test_b_selects_ranks_dimensions_and_labels_and_the_palette_names_each(view: type[View], before: str) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView | FlameView) -> None:
        await press(pilot, *before)
        assert view.analysed
        groupings = view.analysed.stacks.groupings
        start = view.grouping
        found = []
        for _ in groupings:
            await press(pilot, "b")
            found.append(view.grouping)
        assert view.grouping == start
        assert set(found) == set(groupings)

        commands = {one.title: one.callback for one in app.get_system_commands(app.screen)}
        commands["Group by pp"]()
        await pilot.pause()
        root = merged(view).root if isinstance(view, StacksView) else view.drawing.root
        assert [branch.place.name for branch in root.children if branch.place][:2] == ["pp 0", "pp 1"]
        assert {"No groups", "Group by class", "Group by rank", "Group by stage"} <= commands.keys()

    in_view(view, body)


def test_the_palette_offers_no_groupings_without_merged_stacks() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        assert not any(one.title.startswith("Group ") for one in app.get_system_commands(app.screen))

    in_view(StacksView, body)


def test_outliers_are_named_by_their_ranks() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        await press(pilot, "m", "n")
        assert at(tree(view)).startswith("2 × step  ranks 4-5 (all of pp 1, dp 0)  ! 2 outliers")
        words = " ".join(" ".join(texts(page(view))).split())
        assert "2 outliers: ranks 4-5 (all of pp 1, dp 0) are in other code than ranks 0-3, 6-7" in words

    in_view(StacksView, body, trained(lambda rank: rank in (4, 5)))


def test_the_history_names_ranks_and_is_filtered_by_rank() -> None:
    scene, trainers = training()
    snapshots = [again(scene, 0.0)]
    trainers[3].threads[0].line = 99
    snapshots.append(again(scene, 60.0))

    async def whole() -> None:
        async with running(Files("ranks.json", snapshots), SIZE) as (app, pilot):
            await until(pilot, lambda: len(app.snapshots) == 2)
            app.switch_mode("history")
            await until(pilot, lambda: isinstance(app.screen, HistoryView) and app.screen._result)
            (view,) = (one for one in [app.screen] if isinstance(one, HistoryView))
            text = "\n".join(lines(view))
            assert "Trainer.step  rank 3 (tp 1, pp 0, dp 1)  /srv/app/app.py:20 → /srv/app/app.py:99" in text
            await search(pilot, "rank:5")
            found = [line for line in lines(view) if "rank " in line]
            assert len(found) == 2, "its wait and its execution, of seven similar ones"
            assert all("rank 5 (tp 1, pp 1, dp 0)" in line for line in found)

    asyncio.run(whole())


def test_a_child_process_has_its_own_rank() -> None:
    scene, trainers = training()
    child = Process(pid=77, started_at=1.0, name="engine", process_groups=groups_of(6))
    trainers[0].known["children"] = (child,)

    async def body(app: DstackApp, pilot: Pilot[Any], view: StacksView) -> None:
        assert any(line.startswith("child process engine  rank 6 (tp 0, pp 1, dp 1)") for line in lines(view))
        await search(pilot, "rank:6")
        assert {rank for rank in "01234567" if any(f'"t{rank}"' in line for line in lines(view))} == {"0", "6"}

    in_view(StacksView, body, scene.snapshot())
