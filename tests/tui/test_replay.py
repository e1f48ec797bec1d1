"""Replay: keys step through snapshots of files or of a running cluster, play them, and changes are marked."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.binding import Binding
from textual.pilot import Pilot

from dstack.cli.saved_files import open_files
from dstack.files.snapshot_file import save
from dstack.model.snapshot import Snapshot
from dstack.tui import app as app_module
from dstack.tui import snapshot_sources
from dstack.tui.app import KEPT_SNAPSHOTS, VIEWS, DstackApp
from dstack.tui.snapshot_sources import Files, NumberedSnapshot, Source
from dstack.tui.views.history_view import HistoryView
from dstack.tui.widgets.outline import Outline
from dstack.tui.widgets.span_chart import SpanChart
from tests.tui.pilots import running, screen_text, until
from tests.tui.sources import Scripted
from tests.tui.test_history_view import three
from tests.unit.analysis.views.test_snapshot_diff import Pair, again

Body = Callable[[DstackApp, Pilot[Any]], Awaitable[None]]
EARLIER, LATER, FIRST, LAST = "left_square_bracket", "right_square_bracket", "left_curly_bracket", "right_curly_bracket"


def replaying(source: Source | list[Snapshot], body: Body) -> None:
    """Run a test from the first snapshot on."""

    async def run() -> None:
        given = Files("saved", source) if isinstance(source, list) else source
        async with running(given, (140, 40)) as (app, pilot):
            await body(app, pilot)

    asyncio.run(run())


def saved(directory: Path, snapshots: list[Snapshot]) -> Files:
    """A directory of these snapshots, in the order of their time, and beside them what was in it before."""
    for number, snapshot in enumerate(snapshots):
        save(snapshot, directory / f"dstack-{number:02}.json.gz")
    found = open_files([str(directory)])
    return Files(directory.name, found.snapshots, [error.message for error in found.skipped])


def numbered(app: DstackApp, number: int) -> Callable[[], bool]:
    """Whether this snapshot is on the screen."""
    return lambda: app.shown is not None and app.shown.number == number and f"snapshot {number} of" in screen_text(app)


def lines(app: DstackApp) -> list[str]:
    return [line.text.plain for _, line in app.screen.query_one(Outline).visible_lines]


def _is_newest(app: DstackApp, number: int) -> bool:
    return app.snapshots[-1].number == number


def _is_of_replay(binding: Binding) -> bool:
    return (binding.id or "").startswith(("app.play", "app.snapshot-"))


def test_keys_step_through_the_snapshots_in_every_view(tmp_path: Path) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        for number in range(1, len(VIEWS) + 1):
            await pilot.press(str(number), EARLIER)
            await until(pilot, numbered(app, 2))
            await pilot.press(LATER)
            await until(pilot, numbered(app, 3))
            active = app.screen.active_bindings.values()
            replay = {one.binding.description for one in active if _is_of_replay(one.binding)}
            assert len(replay) == 5, "a view has a key of its own for it"
            assert replay.isdisjoint(one.binding.description for one in active if one.node is not app)
        for key, shown in ((FIRST, 1), (EARLIER, 1), (LAST, 3), (LATER, 3)):
            await pilot.press(key)
            await until(pilot, numbered(app, shown))
        assert not app.status.is_frozen

    replaying(saved(tmp_path, three()[1]), body)


def test_the_top_bar_has_the_place_and_what_has_changed(tmp_path: Path) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "+1 ~1 findings, +1 -1 waits, -1 worker" in screen_text(app))
        await pilot.press(EARLIER)
        await until(pilot, lambda: "~2 waits" in screen_text(app))
        await pilot.press(EARLIER)
        await until(pilot, numbered(app, 1))
        assert "wait" not in screen_text(app).splitlines()[1]

    replaying(saved(tmp_path, three()[1]), body)


def test_p_plays_from_the_first_snapshot_and_stops_at_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        shown: list[int] = []
        show = app.show_snapshot

        def noted(snapshot: NumberedSnapshot) -> None:
            shown.append(snapshot.number)
            show(snapshot)

        monkeypatch.setattr(app, "show_snapshot", noted)
        app._play_at(50)
        await until(pilot, lambda: ", playing" in screen_text(app))
        await until(pilot, lambda: not app.status.is_playing)

        assert shown == [1, 2, 3]
        assert numbered(app, 3)()
        assert ", playing" not in screen_text(app)

    replaying(saved(tmp_path, three()[1]), body)


def test_p_pauses_and_so_does_a_step(tmp_path: Path) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        for key in ("P", EARLIER):
            await pilot.press("P")
            await until(pilot, lambda: app.status.is_playing and app.shown and app.shown.number == 1)
            await pilot.press(key)
            assert not app.status.is_playing
            await pilot.press(LAST)
            await until(pilot, numbered(app, 3))

    replaying(saved(tmp_path, three()[1]), body)


def test_the_palette_has_each_rate(tmp_path: Path) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert {"Play", "Previous snapshot", "Next snapshot", "Play 2 snapshots per second"} <= titles

    replaying(saved(tmp_path, three()[1]), body)


def test_one_file_has_nothing_to_step_to() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await pilot.press(EARLIER, LATER, FIRST, LAST, "P", "6")

        assert not app.status.is_playing
        assert "#1, " in screen_text(app)
        assert not app.screen.query_one(SpanChart).display

    replaying(three()[1][:1], body)


def test_a_running_cluster_is_frozen_at_an_earlier_snapshot_until_the_newest() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await pilot.press("r")
        await until(pilot, lambda: len(app.snapshots) == 2 and "#2, " in screen_text(app))
        assert "~2 waits" in screen_text(app)
        await pilot.press(EARLIER)
        await until(pilot, lambda: "FROZEN, 1 newer  snapshot 1 of 2" in screen_text(app))
        await pilot.press("r")
        await until(pilot, lambda: "FROZEN, 2 newer  snapshot 1 of 3" in screen_text(app))
        await pilot.press(LATER, LATER)
        await until(pilot, lambda: "FROZEN" not in screen_text(app) and "#3, " in screen_text(app))

    replaying(Scripted(*three()[1]), body)


def test_of_a_large_running_cluster_few_snapshots_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = three()[1]
    monkeypatch.setattr(app_module, "KEPT_WORKERS", 2 * len(snapshots[0].workers))

    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        for number in (2, 3):
            await pilot.press("r")
            await until(pilot, partial(_is_newest, app, number))
        assert [one.number for one in app.snapshots] == [2, 3]

    replaying(Scripted(*snapshots), body)


def test_a_damaged_snapshot_is_reported_and_passed(tmp_path: Path) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: len(app._notifications) == 2)
        said = " ".join(note.message for note in app._notifications)
        assert "dstack-03.json is not a valid snapshot" in said
        assert "dstack-01.json.gz is not a valid snapshot" in said
        await pilot.press(EARLIER)
        await until(pilot, numbered(app, 1))
        await pilot.press("6")
        await until(pilot, lambda: any("dstack-01.json.gz is not a valid snapshot" in line for line in lines(app)))
        await until(pilot, lambda: any(line.startswith("From #1 to #3") for line in lines(app)))
        assert "Skipped: 1 file" in lines(app)
        await pilot.press(LATER)
        await until(pilot, numbered(app, 3))

    saved(tmp_path, three()[1])
    (tmp_path / "dstack-03.json").write_text("{")
    with gzip.open(tmp_path / "dstack-01.json.gz", "wb") as file:
        file.write(b'{"schema": "dstack.snapshot", "version": [2, 0], "taken_at": 1700000060.0}')
    replaying(saved(tmp_path, []), body)


def series(count: int) -> Iterator[Snapshot]:
    """Snapshots a minute apart."""
    scene = Pair()
    for number in range(count):
        yield again(scene, 60.0 * number)


def test_all_files_are_kept_and_few_of_them_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_sources, "IN_MEMORY", 3)
    count = KEPT_SNAPSHOTS + 5

    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: all(one.summary for one in app.snapshots))
        assert len(app.snapshots) == count
        assert isinstance(app.source, Files)
        assert sum(map(app.source.saved.is_prepared, app.snapshots)) == 3
        await pilot.press(FIRST)
        await until(pilot, numbered(app, 1))
        for number in range(2, 8):
            await pilot.press(LATER)
            await until(pilot, numbered(app, number))

    replaying(saved(tmp_path, list(series(count))), body)


def test_findings_are_marked_in_the_verdict() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        assert any(line.startswith("~ changed  1. deadlock: Bob.go") for line in lines(app))
        assert any(line.startswith("+ new  2. running: driver ") for line in lines(app))
        await pilot.press(LATER)
        await until(pilot, numbered(app, 4))
        assert any(line.startswith("- gone  running: driver ") for line in lines(app))
        assert any(line.startswith("~ changed  1. deadlock: Ann.go") for line in lines(app))

    snapshots = three()[1]
    replaying_at(3, [*snapshots, replace(snapshots[0], taken_at=snapshots[2].taken_at + 60)], body)


def replaying_at(number: int, snapshots: list[Snapshot], body: Body) -> None:
    """Run a test from this snapshot on."""

    async def stepped(app: DstackApp, pilot: Pilot[Any]) -> None:
        app.read_and_show(app.snapshots[number - 1])
        await until(pilot, numbered(app, number))
        await body(app, pilot)

    replaying(snapshots, stepped)


def test_waits_are_marked_and_those_that_are_gone_are_listed() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await pilot.press("2")
        await until(pilot, lambda: any(line.startswith("- gone  1 wait") for line in lines(app)))
        assert any(line.startswith("+ train (pending)  executor") for line in lines(app))
        await pilot.press("G", "right", "right")
        assert any(line.startswith("- train  ray.get") for line in lines(app))
        await pilot.press(EARLIER)
        await until(pilot, numbered(app, 2))
        assert any(line.startswith("~ 2 × train") for line in lines(app))

    replaying_at(3, three()[1], body)


def test_stacks_and_workers_are_marked() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await pilot.press("5")
        await until(pilot, lambda: any(line.startswith("- gone  1 worker") for line in lines(app)))
        await pilot.press("3", EARLIER)
        await until(pilot, lambda: sum(line.startswith("~ waits") for line in lines(app)) == 2)

    replaying_at(3, three()[1], body)


def test_the_chart_shows_verdicts_and_findings_over_time() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: all(one.summary for one in app.snapshots))
        await pilot.press("6")
        await until(pilot, lambda: isinstance(app.screen, HistoryView) and "Findings" in "".join(lines(app)))
        chart = app.screen.query_one(SpanChart)
        verdicts, deadlock, blocked = chart.as_text().splitlines()
        assert "".join(verdicts.split()[1:]) == "DDD"
        assert deadlock.split("…")[1].strip().replace("─", "") == "●●●"
        assert blocked.strip().endswith("●")
        assert "D deadlock  H hang" in screen_text(app)
        await pilot.press("down", "left")
        assert "From #1 to #3, 2 min" in screen_text(app)
        assert "#2  " in screen_text(app)
        await pilot.press("home", "enter")
        await until(pilot, numbered(app, 1))
        await pilot.press("plus", "plus", "0", "minus", "tab", "j")
        assert app.screen.query_one(Outline).has_focus

    replaying(three()[1], body)


def test_the_comparison_follows_the_shown_snapshot() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any]) -> None:
        await pilot.press("6")
        await until(pilot, lambda: "From #2 to #3, 58 s later" in lines(app))
        await pilot.press(EARLIER)
        await until(pilot, lambda: "From #1 to #2, 58 s later" in lines(app))

    replaying(three()[1], body)
