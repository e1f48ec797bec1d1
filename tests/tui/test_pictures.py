"""The Stacks and Flame views of a real deadlock between two Serve deployments, and the bars of all views."""

from __future__ import annotations

import asyncio

import pytest

from dstack.tui.app import VIEWS
from dstack.tui.snapshot_sources import Files
from tests.tui.pilots import running
from tests.tui.pinned import bars_of, require_pinned
from tests.tui.sources import recorded


@pytest.mark.parametrize("view", ["stacks", "flame"])
@pytest.mark.usefixtures("fixed_age")
def test_the_screen_matches_its_picture(view: str) -> None:
    async def body() -> None:
        async with running(Files("shop.json", [recorded("serve-coroutines")]), (120, 40)) as (app, pilot):
            await pilot.press(str(list(VIEWS).index(view) + 1))
            await pilot.pause()
            await require_pinned(app, pilot, view)

    asyncio.run(body())


@pytest.mark.usefixtures("fixed_age")
def test_the_bars_match_their_picture() -> None:
    async def body() -> None:
        async with running(Files("shop.json", [recorded("serve-coroutines")]), (80, 24)) as (app, pilot):
            await require_pinned(app, pilot, "bars", bars_of)

    asyncio.run(body())
