"""The application: snapshots arrive, fail, are frozen and saved, and it quits at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.command import DiscoveryHit, Hit
from textual.widgets import Input

from dstack.errors import ClusterError
from dstack.files.snapshot_file import load
from dstack.model.snapshot import ClusterPoll, Job, Node, WorkerPoll
from dstack.observed.node import HostFigures
from dstack.tui.app import VIEWS, CommandLines, Dialog, DstackApp
from dstack.tui.output_app import AskPath
from dstack.tui.snapshot_sources import ClusterPolled, Files, PollFailed
from dstack.tui.views.bars import KeyBar
from dstack.tui.views.base import NO_LOG, View
from dstack.tui.widgets.outline import Outline
from tests.examples.recorded import RECORDED
from tests.tui.pilots import running, screen_text, until
from tests.tui.sources import Gated, Scripted, recorded
from tests.unit.project.test_language import banned_in

DEADLOCK, IDLE = recorded("serve-deadlock"), recorded("serve-idle")


def run(body: Callable[[], Awaitable[None]]) -> None:
    """Run an asynchronous test."""

    async def whole() -> None:
        await body()

    asyncio.run(whole())


def test_the_first_snapshot_is_shown_with_its_coverage_and_age() -> None:
    async def body() -> None:
        async with running(Files("hang.json", [DEADLOCK])) as (app, _):
            text = screen_text(app)

        assert app.shown
        assert app.shown.analysed.diagnosis.verdict.upper() in text
        assert "observed 5/5 workers" in text
        assert "hang.json" in text

    run(body)


def test_the_final_snapshot_replaces_its_preliminary_form() -> None:
    async def body() -> None:
        async with running(Scripted([IDLE, DEADLOCK])) as (app, pilot):
            await until(pilot, lambda: app.shown and app.shown.is_final)

            assert [one.number for one in app.snapshots] == [1]
            assert app.shown
            assert app.shown.analysed.snapshot is DEADLOCK

    run(body)


def test_r_takes_another_snapshot_and_the_cursor_stays() -> None:
    async def body() -> None:
        async with running(Scripted(DEADLOCK)) as (app, pilot):
            await pilot.press("j", "j")
            outline = app.screen.query_one(Outline)
            before = outline.cursor_line
            await pilot.press("r")
            await until(pilot, lambda: len(app.snapshots) == 2)

            assert before
            assert outline.cursor_line
            assert outline.cursor_line.key == before.key
            assert app.shown is app.snapshots[-1]

    run(body)


def test_r_during_a_snapshot_takes_one_more_after_it() -> None:
    async def body() -> None:
        source = Gated(DEADLOCK)
        async with running(source) as (app, pilot):
            await pilot.press("r", "r", "r")
            source.gate.set()
            await until(pilot, lambda: len(app.snapshots) == 3 and not app.status.doing)

            assert source.calls == 3

    run(body)


def test_space_freezes_the_views_while_snapshots_arrive() -> None:
    async def body() -> None:
        async with running(Scripted(DEADLOCK, IDLE)) as (app, pilot):
            await pilot.press("space", "r")
            await until(pilot, lambda: len(app.snapshots) == 2)
            assert app.shown is app.snapshots[0]
            assert "FROZEN, 1 newer" in screen_text(app)

            await pilot.press("space")

            assert app.shown is app.snapshots[1]

    run(body)


def test_a_failure_is_shown_with_its_remedy_and_the_last_snapshot_stays() -> None:
    async def body() -> None:
        failing = ClusterError("No Ray cluster answers at 10.0.0.1:6379.", "Is it up?")
        async with running(Scripted(DEADLOCK, failing)) as (app, pilot):
            await pilot.press("r")
            await until(pilot, lambda: app.status.trouble)

            assert app.shown is app.snapshots[0]
            assert "! No Ray cluster answers at 10.0.0.1:6379. Is it up?" in screen_text(app)
            assert not app._notifications

    run(body)


def test_an_error_before_the_first_snapshot_replaces_the_verdict() -> None:
    async def body() -> None:
        async with running(Scripted(ClusterError("There is no Ray cluster here.", "Start one."))) as (app, _):
            assert "✖ There is no Ray cluster here." in screen_text(app)
            assert "No snapshot. Start one." in screen_text(app)

    run(body)


def test_a_selects_the_periods_of_automatic_snapshots() -> None:
    async def body() -> None:
        async with running(Scripted(DEADLOCK)) as (app, pilot):
            periods = []
            for _ in range(4):
                await pilot.press("a")
                periods.append(app.status.every_s)

            assert periods == [60, None, 5, 15]

    run(body)


def test_each_file_is_a_snapshot_and_no_further_ones_are_offered() -> None:
    async def body() -> None:
        async with running(Files("two files", [IDLE, DEADLOCK])) as (app, pilot):
            await until(pilot, lambda: len(app.snapshots) == 2)
            await pilot.press("r", "a", "space")

            assert [one.analysed.snapshot for one in app.snapshots] == [IDLE, DEADLOCK]
            assert app.status.every_s is None
            assert not app.status.is_frozen

    run(body)


@pytest.mark.parametrize("script", [(None,), (DEADLOCK, None)])
def test_q_quits_while_a_snapshot_hangs(script: tuple[Any, ...]) -> None:
    """It hangs until it is cancelled, so that quitting cannot wait for its end."""

    async def body() -> None:
        app = DstackApp(Scripted(*script))
        async with app.run_test() as pilot:
            if len(script) > 1:
                await until(pilot, lambda: app.shown)
                await pilot.press("r")
            await until(pilot, lambda: app.status.doing)
            await pilot.press("q")
            await until(pilot, lambda: app.return_code == 0)

    run(body)


def test_s_saves_the_shown_snapshot_and_overwrites_no_file(tmp_path: Path) -> None:
    async def body() -> None:
        path = tmp_path / "kept.json.gz"
        async with running(Files("f", [DEADLOCK])) as (app, pilot):
            for expected in ("Wrote", "exists"):
                await pilot.press("s")
                await until(pilot, lambda: isinstance(app.screen, AskPath))
                app.screen.query_one(Input).value = str(path)
                await pilot.press("enter")
                await until(pilot, lambda: any(expected in note.message for note in app._notifications))  # noqa: B023

        assert load(path) == DEADLOCK

    run(body)


def test_e_writes_the_view_to_a_file(tmp_path: Path) -> None:
    async def body() -> None:
        path = tmp_path / "shown.txt"
        async with running(Files("f", [DEADLOCK])) as (app, pilot):
            await pilot.press("e")
            await until(pilot, lambda: isinstance(app.screen, AskPath))
            app.screen.query_one(Input).value = str(path)
            await pilot.press("enter")
            await until(pilot, path.exists)
            assert app.shown
            summary = app.shown.analysed.diagnosis.findings[0].summary

        assert " ".join(summary.split()[:4]) in path.read_text()

    run(body)


def test_a_tick_after_the_last_screen_is_harmless() -> None:
    async def body() -> None:
        async with running(Files("f", [DEADLOCK])) as (app, _):
            pass
        assert not app.screen_stack
        app._tick()

    run(body)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_the_help_of_a_view_is_in_plain_words(view: type[View]) -> None:
    assert banned_in(view.__doc__ or "") == []


def test_y_copies_the_finding_under_the_cursor() -> None:
    async def body() -> None:
        async with running(Files("f", [DEADLOCK])) as (app, pilot):
            await pilot.press("j", "y")
            assert app.shown

            assert app.shown.analysed.diagnosis.findings[0].summary in " ".join(app.clipboard.split())
            assert "Next:" in app.clipboard

    run(body)


def test_the_filter_shows_only_lines_with_the_words_and_escape_clears_it() -> None:
    async def body() -> None:
        async with running(Files("f", [DEADLOCK])) as (app, pilot):
            outline = app.screen.query_one(Outline)
            everything = len(list(outline.visible_lines))
            await pilot.press("slash", *"next:")
            found = [line.text.plain for _, line in outline.visible_lines]
            await pilot.press("escape")

            assert found
            assert len(found) < everything
            assert all("Next:" in text or "." in text.split()[0] for text in found)
            assert len(list(outline.visible_lines)) == everything

    run(body)


@pytest.mark.parametrize(
    ("mode", "keys", "name"),
    [
        ("verdict", (), "actor Reader"),
        ("stacks", ("j",), "driver thread_raised.py"),
        ("cluster", ("j", "right", "j", "j", "j", "j"), "actor Reader"),
    ],
)
def test_l_shows_the_logs_of_the_selected_processes(mode: str, keys: tuple[str, ...], name: str) -> None:
    async def body() -> None:
        async with running(Files("f", [load(str(RECORDED / "hangs/thread_raised.json.gz"))])) as (app, pilot):
            await app.switch_mode(mode)
            await pilot.press(*keys, "l")
            await until(pilot, lambda: isinstance(app.screen, Dialog))
            text = screen_text(app)
            await pilot.press("l")
            assert isinstance(app.screen, View)

        lines = text.splitlines()
        title = next(number for number, line in enumerate(lines) if "Last lines of logs" in line)
        assert name in lines[title + 2]
        assert "Exception in thread loader: KeyError: 'rows'" in text

    run(body)


def test_l_says_where_to_find_logs_that_were_not_read() -> None:
    async def body() -> None:
        async with running(Files("f", [DEADLOCK])) as (app, pilot):
            await pilot.press("l")
            await until(pilot, lambda: app._notifications)
            assert [note.message for note in app._notifications] == [NO_LOG]

    run(body)


def test_help_names_the_keys_and_every_key_is_in_the_command_palette() -> None:
    async def body() -> None:
        async with running(Files("f", [DEADLOCK]), (120, 50)) as (app, pilot):
            commands = {command.title for command in app.get_system_commands(app.screen)}
            await pilot.press("question_mark")
            assert isinstance(app.screen, Dialog)
            text = screen_text(app)
            await pilot.press("escape")

        assert {"Copy", "Export", "Filter", "Help", "Open", "Quit", "Save", "Verdict"} <= commands
        groups = ("Views", "Move", "Look closer", "Find", "Save and copy")
        assert all(group in text for group in groups)
        assert "Verdict, Waits, Stacks, Flame, Cluster, History, Timeline, Calls" in text
        assert "↑ k up" in text
        assert all(f" {key}  " in text for key in ["/", "l", "o", "y", "s", "e", "?", "q"])

    run(body)


def test_the_command_palette_has_one_line_for_each_command() -> None:
    async def body() -> None:
        async with running(Files("f", [DEADLOCK])) as (app, _):
            commands = CommandLines(app.screen)
            every = [hit async for hit in commands.discover()]
            found = [hit async for hit in commands.search("verd")]

        assert len(every) > 10
        for hit in (*every, *found):
            assert isinstance(hit, DiscoveryHit | Hit)
            assert not hit.help
            assert "\n" not in str(hit.prompt)
        assert next(str(hit.prompt).split() for hit in found if isinstance(hit, Hit))[:3] == ["Verdict", "Go", "to"]

    run(body)


def test_help_and_quit_are_at_the_end_of_the_keys_of_every_view() -> None:
    async def body() -> None:
        async with running(Files("f", [DEADLOCK, IDLE]), (80, 24)) as (app, pilot):
            for name in VIEWS:
                await app.switch_mode(name)
                for width in (40, 80, 120):
                    await pilot.resize_terminal(width, 24)
                    assert screen_text(app).splitlines()[-1].endswith(" ? Help  q Quit"), (name, width)

    run(body)


def test_a_click_on_a_key_presses_it() -> None:
    async def body() -> None:
        async with running(Files("f", [DEADLOCK]), (80, 24)) as (app, pilot):
            await pilot.click(KeyBar, offset=(80 - len("Help  q Quit "), 0))
            await until(pilot, lambda: isinstance(app.screen, Dialog))

    run(body)


POLLS = [
    ClusterPoll(workers=(WorkerPoll(worker_id="w", pending={}, finished=finished),), jobs=(Job(job_id="0b"),))
    for finished in (10, 40)
]


def test_polls_show_tasks_per_second_and_load() -> None:
    async def body() -> None:
        async with running(Scripted(DEADLOCK)) as (app, pilot):
            busy = Node(node_id="n", ip="10.0.0.9", host=HostFigures(cpu_percent=50.0))
            app.post_message(ClusterPolled(POLLS[0], 100.0))
            app.post_message(ClusterPolled(replace(POLLS[1], nodes=(busy,)), 110.0))
            await until(pilot, lambda: app.activity.latest() is not None)
            app.show_status()
            await until(pilot, lambda: "3.0/s" in screen_text(app))

            assert "10.0.0.9" in screen_text(app)
            assert " 50%" in screen_text(app)

    run(body)


def test_a_change_is_followed_by_a_snapshot_and_a_poll_alone_is_not() -> None:
    async def body() -> None:
        source = Scripted(DEADLOCK)
        source.polls = POLLS
        async with running(source) as (app, pilot):
            taker = app._taker
            assert taker
            await until(pilot, lambda: not app.status.doing)
            assert not taker.is_due(5, has_changed=True)  # a moment ago

            taker._ended = 0.0
            assert taker.is_due(5, has_changed=True)
            taker._ended = time.monotonic() - 10
            assert taker.is_due(5, has_changed=True)
            assert not taker.is_due(5, has_changed=False)
            assert not taker.is_due(15, has_changed=True)
            taker._took_s = 30.0
            assert not taker.is_due(5, has_changed=True)  # it would be in progress for most of the time

            taker._took_s = 0.0
            for poll in POLLS:
                app.post_message(ClusterPolled(poll, time.time()))
            await until(pilot, lambda: app.activity.has_changed)
            app._tick()
            await until(pilot, lambda: len(app.snapshots) == 2)
            assert not app.activity.has_changed

    run(body)


def test_a_cluster_that_does_not_answer_is_one_banner_until_it_answers() -> None:
    async def body() -> None:
        async with running(Scripted(DEADLOCK)) as (app, pilot):
            verdict = app.screen.query_one("#verdict")
            for _ in range(3):
                app.post_message(PollFailed(ClusterError("Nothing listens there.")))
            await until(pilot, lambda: app.status.lost_at)
            text = screen_text(app)

            assert "No answer since " in text
            assert "showing snapshot 1" in text
            assert verdict.has_class("lost")
            assert not app._notifications

            app.post_message(ClusterPolled(POLLS[0], time.time()))
            await until(pilot, lambda: app.status.lost_at is None)

            assert "No answer" not in screen_text(app)
            assert verdict.has_class(app.shown.analysed.diagnosis.verdict)  # type: ignore[union-attr]

    run(body)
