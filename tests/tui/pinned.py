"""Expected screens, as text files beside the tests; ``DSTACK_PIN=1`` writes them."""

from __future__ import annotations

import os
from pathlib import Path

from dstack.tui.app import DstackApp
from tests.tui.pilots import screen_text

PICTURES = Path(__file__).with_name("pictures")


def assert_pinned(app: DstackApp, name: str) -> None:
    """The screen equals the expected one of this name."""
    text = screen_text(app) + "\n"
    path = PICTURES / f"{name}.txt"
    if os.environ.get("DSTACK_PIN"):
        PICTURES.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{name} differs; check it, and write it again with DSTACK_PIN=1"
