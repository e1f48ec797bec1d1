"""Expected screens, as text files beside the tests; ``DSTACK_PIN=1`` writes them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from dstack.tui.app import DstackApp
from dstack.tui.views.bars import TopBar
from tests.tui.pilots import DEADLINE_S, screen_text

PICTURES = Path(__file__).with_name("pictures")


BOTTOM = 1
"""The rows of the bar below. One picture of their own shows the bars: so their change concerns no other."""


def top_of(app: DstackApp) -> int:
    """The rows of the bar above."""
    return app.screen.query_one(TopBar).size.height


def body_of(app: DstackApp) -> str:
    """The text of the view between its bars."""
    return "\n".join(screen_text(app).split("\n")[top_of(app) : -BOTTOM])


def bars_of(app: DstackApp) -> str:
    """The text of the bars."""
    rows = screen_text(app).split("\n")
    return "\n".join((*rows[: top_of(app)], *rows[-BOTTOM:]))


async def require_pinned(
    app: DstackApp, pilot: Pilot[Any], name: str, shown: Callable[[DstackApp], str] = body_of
) -> None:
    """Wait until the view equals the expected one of this name."""
    path = PICTURES / f"{name}.txt"
    if os.environ.get("DSTACK_PIN"):
        await pilot.pause()
        PICTURES.mkdir(exist_ok=True)
        path.write_text(shown(app) + "\n")
    expected = path.read_text()
    end = time.monotonic() + DEADLINE_S
    while shown(app) + "\n" != expected and time.monotonic() < end:
        await pilot.pause(0.05)
    assert shown(app) + "\n" == expected, f"{name} differs; check it, and write it again with DSTACK_PIN=1"
