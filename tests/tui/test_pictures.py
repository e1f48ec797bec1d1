"""The screens of the Stacks and Flame views of a real deadlock between two Serve deployments."""

from __future__ import annotations

import asyncio

import pytest

from dstack.tui.app import VIEWS
from dstack.tui.snapshot_sources import Files
from tests.tui.pilots import running
from tests.tui.pinned import require_pinned
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
