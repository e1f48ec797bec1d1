"""The Stacks and Flame views of a real deadlock between two Serve deployments look as they did."""

from __future__ import annotations

import asyncio

import pytest

from dstack.tui.source import Files
from dstack.tui.views.registry import VIEWS
from tests.tui.pilots import running
from tests.tui.pinned import assert_pinned
from tests.tui.sources import recorded

SIZES = [(80, 24), (120, 40), (200, 60)]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("view", ["stacks", "flame"])
@pytest.mark.usefixtures("still_clock")
def test_it_looks_as_it_did(view: str, size: tuple[int, int]) -> None:
    async def body() -> None:
        async with running(Files("shop.json", [recorded("serve-coroutines")]), size) as (app, pilot):
            await pilot.press(str(list(VIEWS).index(view) + 1))
            await pilot.pause()
            assert_pinned(app, f"{view}-{size[0]}x{size[1]}")

    asyncio.run(body())
