"""Drives the terminal UI without a terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from textual.pilot import Pilot
from textual.widgets import Input

from dstack.tui.app import DstackApp
from dstack.tui.snapshot_sources import OpenedRecording, Source

DEADLINE_S = 60.0


@contextlib.asynccontextmanager
async def running(
    source: Source, size: tuple[int, int] = (120, 40), recordings: Sequence[OpenedRecording] = ()
) -> AsyncIterator[tuple[DstackApp, Pilot[Any]]]:
    """Run the application, from its first snapshot or error on."""
    app = DstackApp(source, recordings)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.shown is not None or app.status.trouble)
        yield app, pilot


async def until(pilot: Pilot[Any], condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not hold in time"
        await pilot.pause(0.01)
    await pilot.pause()


async def search(pilot: Pilot[Any], words: str) -> None:
    """Filter the view by these words, and focus its body."""
    await pilot.press("slash")
    pilot.app.screen.query_one("#filter", Input).value = words
    await pilot.press("enter")
    await pilot.pause()


def screen_text(app: DstackApp) -> str:
    """The text on the screen."""
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())
