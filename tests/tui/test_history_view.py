"""The History view: two snapshots are picked and compared, and lines go to the other views."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from dstack.model.snapshot import Snapshot
from dstack.model.vertex_keys import Key
from dstack.tui.app import DstackApp
from dstack.tui.snapshot_sources import Files, Source
from dstack.tui.views.history_view import HistoryView
from dstack.tui.widgets.outline import Outline
from tests.tui.pilots import running, search, until
from tests.tui.pinned import require_pinned
from tests.tui.sources import Scripted
from tests.tui.test_waits_view import Cycle
from tests.unit.analysis.views.test_snapshot_diff import again

Body = Callable[[DstackApp, Pilot[Any], HistoryView], Awaitable[None]]


def three() -> tuple[Cycle, list[Snapshot]]:
    """Three snapshots of a cycle with waiters behind it: then some at another line, then with one dead."""
    scene = Cycle(6)
    snapshots = [again(scene, 0.0)]
    for worker in scene.behind[:2]:
        worker.threads[0].line = 99
    snapshots.append(again(scene, 60.0))
    scene.dies(scene.behind[5])
    snapshots.append(again(scene, 120.0))
    return scene, snapshots


def in_history(source: Source | list[Snapshot], body: Body, size: tuple[int, int] = (120, 40)) -> None:
    """Run a test in this view, after the first comparison."""

    async def run() -> None:
        given = Files("f", source) if isinstance(source, list) else source
        count = len(source) if isinstance(source, list) else 1
        async with running(given, size) as (app, pilot):
            await until(pilot, lambda: len(app.snapshots) == count)
            app.switch_mode("history")
            await until(pilot, lambda: isinstance(app.screen, HistoryView) and app.screen.shown)
            assert isinstance(app.screen, HistoryView)
            if count > 1:
                await compared(pilot, app.screen)
            await body(app, pilot, app.screen)

    asyncio.run(run())


async def compared(pilot: Pilot[Any], view: HistoryView) -> None:
    await until(pilot, lambda: view._result is not None)


def shown(view: HistoryView) -> list[str]:
    return [line.text.plain for _, line in view.query_one(Outline).visible_lines]


async def go_to_line(view: HistoryView, pilot: Pilot[Any], key: str) -> None:
    found = [line.key for _, line in view.query_one(Outline).visible_lines if line.key.startswith(key)]
    view.query_one(Outline).focus()
    view.query_one(Outline).reveal([found[0]])
    await pilot.pause()


def test_the_last_two_snapshots_are_compared_first() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: HistoryView) -> None:
        lines = shown(view)

        assert [line.split()[0] for line in lines[1:4]] == ["#1", "before", "after"]
        assert lines[3].endswith("shown in the views")
        assert "From #2 to #3, 58 s later" in lines
        assert any(line.startswith("Executions  - gone: 1  = stayed: 9") for line in lines)
        assert any(line.startswith("- gone      1 worker") for line in lines)

    in_history(three()[1], body)


def test_two_other_snapshots_are_picked_and_unpicked() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: HistoryView) -> None:
        for key in ("snapshot/2", "snapshot/1"):
            await go_to_line(view, pilot, key)
            await pilot.press("enter")
        await compared(pilot, view)

        assert "From #1 to #2, 58 s later" in shown(view)
        assert any("2 × train  /srv/app/app.py:7 → /srv/app/app.py:99" in line for line in shown(view))
        await pilot.press("p")
        await compared(pilot, view)
        assert "From #2 to #3, 58 s later" in shown(view)

    in_history(three()[1], body)


def test_unchanged_waits_show_their_duration() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: HistoryView) -> None:
        await go_to_line(view, pilot, "waits/stayed")
        await pilot.press("right")

        assert any("ray.get  the same for at least 1 min" in line for line in shown(view))

    in_history(three()[1], body)


def test_enter_goes_to_a_wait_in_the_snapshot_that_contains_it(monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[tuple[str, Key]] = []

    async def body(app: DstackApp, pilot: Pilot[Any], view: HistoryView) -> None:
        monkeypatch.setattr(app, "go_to", lambda mode, vertex: visited.append((mode, vertex)))
        await go_to_line(view, pilot, f"executions/gone/{scene.behind[5].key}")
        await pilot.press("enter")
        assert visited == [("stacks", scene.behind[5].key)]
        assert app.shown is app.snapshots[1]
        await go_to_line(view, pilot, f"waits/gone/{scene.behind[5].key}")
        await pilot.press("enter", "x")

        assert visited[1:] == [("waits", scene.behind[5].key), ("stacks", scene.behind[5].key)]

    scene, snapshots = three()
    in_history(snapshots, body)


def test_v_shows_a_snapshot_in_all_views() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: HistoryView) -> None:
        await go_to_line(view, pilot, "snapshot/1")
        await pilot.press("v")
        await until(pilot, lambda: app.shown is app.snapshots[0])

        assert shown(view)[1].endswith("shown in the views")
        assert not shown(view)[3].endswith("shown in the views")

    in_history(three()[1], body)


def test_one_snapshot_shows_a_hint_and_the_next_is_compared_at_once() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: HistoryView) -> None:
        assert "A comparison needs two snapshots: r takes another one." in shown(view)
        await pilot.press("r")
        await until(pilot, lambda: view._result is not None)

        assert any(line.startswith("From #1 to #2") for line in shown(view))

    in_history(Scripted(*three()[1][:2]), body)


def test_snapshots_that_arrive_while_frozen_are_listed() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: HistoryView) -> None:
        await pilot.press("space", "r")
        await until(pilot, lambda: any("#2" in line for line in shown(view)))

        assert app.shown is app.snapshots[0]

    in_history(Scripted(*three()[1][:2]), body)


def test_snapshots_of_different_clusters_are_not_compared() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: HistoryView) -> None:
        assert any("different clusters" in line for line in shown(view))

    first = three()[1][0]
    other = replace(
        first,
        nodes=tuple(replace(node, node_id="ab" * 28) for node in first.nodes),
        workers=tuple(replace(worker, worker_id=f"{number:054d}cd") for number, worker in enumerate(first.workers)),
        actors=(),
        samples=(),
    )
    in_history([first, other], body)


def test_the_filter_the_copy_and_the_export_use_the_shown_lines() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: HistoryView) -> None:
        await search(pilot, "gone")
        assert all("gone" in line or line.split()[0] in ("Waits", "Executions", "Findings") for line in shown(view)[:1])
        view.query_one(Outline).focus()
        await pilot.press("escape", "tab", "g", "j", "y")

        assert "#1" in app.clipboard
        assert "From #2 to #3" in (view.to_export() or "")

    in_history(three()[1], body)


@pytest.mark.usefixtures("fixed_age")
def test_the_screen_matches_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: HistoryView) -> None:
        await require_pinned(app, pilot, "history")

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        in_history(three()[1], body)
    finally:
        monkeypatch.undo()
        time.tzset()
