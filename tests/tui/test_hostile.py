"""Whatever a cluster's or a stranger's snapshot says, it is shown in every view and obeyed in none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from rich.style import Style
from textual.pilot import Pilot

from dstack.errors import ClusterError
from dstack.tui.app import DstackApp
from dstack.tui.outline import Outline
from dstack.tui.source import Files
from dstack.tui.views import VIEWS
from dstack.visible import UNSEEN
from tests.hostile_text import HOSTILE, hostile
from tests.tui.pilots import running, screen_text, until
from tests.tui.sources import Scripted, recorded

ATTACKED = [hostile(recorded("queue-ray-2.60")), hostile(recorded("serve-deadlock"))]


def require_harmless(app: DstackApp) -> None:
    """Of what is on the screen no character drives a terminal, and no stretch is a link or does anything clicked."""
    assert not UNSEEN.search(screen_text(app).replace("\n", ""))
    for strip in app.screen._compositor.render_strips():
        for segment in strip:
            style = segment.style or Style()
            assert style.link is None
            assert "app.quit" not in repr(style.meta)


async def require_harmless_everywhere(app: DstackApp, pilot: Pilot[Any]) -> None:
    """What a view shows, unfolded line by line, what it copies and what it exports."""
    for outline in app.screen.query(Outline):
        for _ in range(20):
            outline.action_unfold()
            outline.action_move(1)
    await pilot.press("y")
    require_harmless(app)
    for text in (app.clipboard, app._view.to_export() or ""):
        assert not UNSEEN.search(text.replace("\n", ""))


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shows_it_and_obeys_nothing(view: str) -> None:
    async def body() -> None:
        async with running(Files(HOSTILE, ATTACKED), size=(160, 60)) as (app, pilot):
            await until(pilot, lambda: len(app.looks) == 2)
            await app.switch_mode(view)
            await pilot.pause()

            await require_harmless_everywhere(app, pilot)
            assert "[bold red]x[/]" in screen_text(app)

    asyncio.run(body())


def test_a_notification_shows_it() -> None:
    async def body() -> None:
        async with running(Scripted(ATTACKED[0], ClusterError(HOSTILE, HOSTILE))) as (app, pilot):
            app.notify(HOSTILE)
            await pilot.press("r")
            await until(pilot, lambda: app.status.trouble)
            await until(pilot, lambda: len(app._notifications) == 2)
            await pilot.pause()

            require_harmless(app)
            assert "[@click=app.quit]y" in screen_text(app)

    asyncio.run(body())
