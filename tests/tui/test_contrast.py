"""Text and marks can be read in the dark and the light theme: their contrast is at least 4.5:1 in every view."""

from __future__ import annotations

import asyncio
import re

import pytest
from rich.color import Color as RichColor
from textual.color import Color
from textual.filter import ANSIToTruecolor, DimFilter

from dstack.files.sampled_file import PROFILES
from dstack.files.snapshot_file import load
from dstack.tui.app import VIEWS, DstackApp
from dstack.tui.snapshot_sources import Files, OpenedRecording
from tests.paths import RECORDED_CALLS, RECORDED_PROFILE
from tests.tui.pilots import running

LEAST = 4.5
DRAWN = re.compile(r"[\s\u2500-\u259f]*")
"""Lines, edges and blocks."""
COLOURS_OF_TIMELINE = 3


def luminance(colour: RichColor) -> float:
    """The relative luminance, as WCAG 2.2 defines it."""
    shares = (part / 255 for part in colour.get_truecolor())
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def unreadable(app: DstackApp) -> list[tuple[str, str, float]]:
    """Text on the screen with its style and too little contrast."""
    found = []
    for strip in app.screen._compositor.render_strips():
        segments = list(strip)
        for line_filter in (ANSIToTruecolor(app.ansi_theme), DimFilter()):
            segments = line_filter.apply(segments, Color.parse("black"))
        for text, style, _ in segments:
            if DRAWN.fullmatch(text) or style is None or style.color is None or style.bgcolor is None:
                continue
            lighter, darker = sorted(map(luminance, (style.color, style.bgcolor)), reverse=True)
            contrast = (lighter + 0.05) / (darker + 0.05)
            if contrast < LEAST:
                found.append((text.strip(), str(style), round(contrast, 1)))
    return found


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light"])
def test_every_view_can_be_read(theme: str) -> None:
    async def body() -> None:
        profile = OpenedRecording(RECORDED_PROFILE.name, PROFILES.load(RECORDED_PROFILE))
        async with running(Files("pipeline", [load(RECORDED_CALLS)]), (120, 40), [profile]) as (app, pilot):
            app.theme = theme
            await pilot.pause()
            for number, view in enumerate(VIEWS, 1):
                await pilot.press(str(number))
                await pilot.pause()
                assert not unreadable(app), view
            await pilot.press("7")
            for _ in range(COLOURS_OF_TIMELINE):
                await pilot.press("c")
                await pilot.pause()
                assert not unreadable(app)
            await pilot.press("4", "d", "d")
            await pilot.pause()
            assert not unreadable(app)

    asyncio.run(body())
