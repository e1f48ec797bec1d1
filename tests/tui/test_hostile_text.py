"""Hostile text in a snapshot is shown in every view, and executed in none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.style import Style
from textual.pilot import Pilot
from textual.widgets import Input

from dstack.errors import ClusterError
from dstack.tui.app import VIEWS, DstackApp
from dstack.tui.snapshot_sources import Files
from dstack.tui.widgets.gantt import Gantt
from dstack.tui.widgets.outline import Outline
from dstack.words import UNSEEN
from tests.fuzzing.hostile_text import HOSTILE, hostile
from tests.tui.pilots import running, screen_text, until
from tests.tui.sources import Scripted, recorded
from tests.unit.support.large_histories import with_history

ATTACKED = [hostile(with_history(recorded(name))) for name in ("queue-ray-2.60", "serve-deadlock")]


def require_harmless(app: DstackApp) -> None:
    """No character on the screen controls a terminal, and no text is a link or an action."""
    assert not UNSEEN.search(screen_text(app).replace("\n", ""))
    for strip in app.screen._compositor.render_strips():
        for segment in strip:
            style = segment.style or Style()
            assert style.link is None
            assert "app.quit" not in repr(style.meta)


async def require_harmless_everywhere(app: DstackApp, pilot: Pilot[Any]) -> None:
    """The lines of a view, unfolded one by one, its copy and its export are harmless."""
    for outline in app.screen.query(Outline):
        for _ in range(20):
            outline.action_unfold()
            outline.action_move(1)
    for gantt in app.screen.query(Gantt):
        await until(pilot, partial(getattr, gantt, "rows"))
        await pilot.press("f")
    await pilot.press("y")
    require_harmless(app)
    for text in (app.clipboard, app.view.to_export() or ""):
        assert not UNSEEN.search(text.replace("\n", ""))


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shows_hostile_text_and_executes_nothing(view: str) -> None:
    async def body() -> None:
        async with running(Files(HOSTILE, ATTACKED), size=(160, 60)) as (app, pilot):
            await until(pilot, lambda: len(app.snapshots) == 2)
            await app.switch_mode(view)
            await pilot.pause()

            await require_harmless_everywhere(app, pilot)
            assert "[bold red]x[/]" in screen_text(app)

    asyncio.run(body())


def test_a_notification_and_an_error_show_hostile_text() -> None:
    async def body() -> None:
        async with running(Scripted(ATTACKED[0], ClusterError(HOSTILE, HOSTILE))) as (app, pilot):
            app.notify(HOSTILE)
            await pilot.press("r")
            await until(pilot, lambda: app.status.trouble)
            await until(pilot, lambda: len(app._notifications) == 1)
            await pilot.pause()

            require_harmless(app)
            assert "[@click=app.quit]y" in screen_text(app)

    asyncio.run(body())


@pytest.mark.parametrize(
    ("file", "line", "opened"),
    [
        ("good.py", 3, ["+3", "{here}/good.py"]),
        ("-c.py", -5, ["+1", "{here}/-c.py"]),
        ("+!x.py", 1, ["+1", "{here}/+!x.py"]),
        ("$(touch x); .py", 1, ["+1", "{here}/$(touch x); .py"]),
        ("../../etc/passwd", 1, None),
        ("/etc/passwd", 1, None),
        ("fifo.py", 1, None),
        ("/dev/zero", 1, None),
        ("gone\0.py", 1, None),
    ],
)
def test_an_editor_receives_the_name_of_a_source_file_and_nothing_else(
    file: str, line: int, opened: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VISUAL", "vi -n")
    os.mkfifo("fifo.py")
    for name in ("good.py", "-c.py", "+!x.py", "$(touch x); .py"):
        Path(name).touch()
    ran: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **options: ran.append(command))

    async def body() -> None:
        async with running(Scripted(ATTACKED[0])) as (app, pilot):
            monkeypatch.setattr(app, "suspend", contextlib.nullcontext)
            monkeypatch.setattr(app.view, "to_open", lambda: (file, line))
            await pilot.press("o")
            await pilot.pause()
            require_harmless(app)

    asyncio.run(body())
    assert ran == ([] if opened is None else [["vi", "-n", *(one.format(here=tmp_path) for one in opened)]])


def test_without_a_terminal_no_editor_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.py").touch()

    async def body() -> None:
        async with running(Scripted(ATTACKED[0])) as (app, pilot):
            monkeypatch.setattr(app.view, "to_open", lambda: (str(tmp_path / "good.py"), 1))
            await pilot.press("o")
            await until(pilot, lambda: app._notifications)
            assert [one.message for one in app._notifications] == ["No terminal for an editor."]

    asyncio.run(body())


def test_a_picture_is_readable_by_its_owner_only_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "mine.svg").symlink_to("elsewhere")

    async def body() -> None:
        async with running(Scripted(ATTACKED[0])) as (app, pilot):
            for name in ("mine.svg", "new.svg"):
                (command,) = (one for one in app.get_system_commands(app.screen) if one.title == "Screenshot")
                command.callback()
                await until(pilot, lambda: app.screen.query("#path"))
                app.screen.query_one("#path", Input).value = str(tmp_path / name)
                await pilot.press("enter")
                await until(pilot, lambda: not app.screen.query("#path"))

    umask = os.umask(0)
    try:
        asyncio.run(body())
    finally:
        os.umask(umask)
    assert (tmp_path / "new.svg").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "elsewhere").exists()
