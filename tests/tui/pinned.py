"""Expected screens, as text files beside the tests; ``DSTACK_PIN=1`` writes them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from dstack.tui.app import DstackApp
from tests.tui.pilots import DEADLINE_S, screen_text

PICTURES = Path(__file__).with_name("pictures")


async def require_pinned(app: DstackApp, pilot: Pilot[Any], name: str) -> None:
    """Wait until the screen equals the expected one of this name."""
    path = PICTURES / f"{name}.txt"
    if os.environ.get("DSTACK_PIN"):
        await pilot.pause()
        PICTURES.mkdir(exist_ok=True)
        path.write_text(screen_text(app) + "\n")
    expected = path.read_text()
    end = time.monotonic() + DEADLINE_S
    while screen_text(app) + "\n" != expected and time.monotonic() < end:
        await pilot.pause(0.05)
    assert screen_text(app) + "\n" == expected, f"{name} differs; check it, and write it again with DSTACK_PIN=1"
