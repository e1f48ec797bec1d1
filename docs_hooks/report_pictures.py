"""Take the pictures of HTML pages in the documents: ``python -m docs_hooks.report_pictures [NAME]``.

It makes the page of a recorded file, opens it in Chromium, and saves its beginning or a section of it. It needs
Chromium with its driver, Selenium and Pillow. Those whose file begins with a NAME are taken, or all.
"""

from __future__ import annotations

import io
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs_hooks.pictures import CASE_STUDIES, OF_THE_TUI, PICTURES
from tests.browsers import chromium, open_page, use_dark_theme
from tests.clusters.dstack_command import dstack
from tests.paths import RECORDED_CALLS, RECORDED_PROFILE

WIDTH, HIGHEST = 1200, 6000
"""The width of the window, and its height, with which no section scrolls."""
COLOURS = 160


@dataclass(frozen=True, slots=True)
class Shot:
    """The first ``height`` pixels of the page of a file, or of the section with this id."""

    name: str
    file: Path
    height: int
    section: str = ""
    is_dark: bool = False
    folder: Path = OF_THE_TUI

    @property
    def target(self) -> Path:
        """The picture."""
        return self.folder / f"{self.name}.png"


def _study(name: str, section: str, height: int) -> Shot:
    return Shot(f"{name}_report_{section}", CASE_STUDIES / f"{name}.json.gz", height, section, folder=PICTURES)


SHOTS = (
    Shot("report", RECORDED_CALLS, 920),
    Shot("report_dark", RECORDED_CALLS, 920, is_dark=True),
    Shot("report_timeline", RECORDED_CALLS, 620, "timeline"),
    *(Shot(f"report_{one}", RECORDED_CALLS, 620, one) for one in ("waits", "calls", "stacks", "cluster")),
    Shot("profile", RECORDED_PROFILE, 1330),
    _study("slow_leaves", "waits", 340),
    _study("slow_leaves", "timeline", 588),
    _study("slow_leaves", "calls", 450),
    _study("document_pipeline", "timeline", 760),
)


def take(shot: Shot, browser: Any, folder: Path) -> None:
    """Save one picture."""
    from PIL import Image

    page = folder / f"{shot.file.name}.html"
    if not page.exists():
        done = dstack("report", str(shot.file), "-o", str(page))
        assert done.returncode == 0, done.stderr
    use_dark_theme(browser, is_dark=shot.is_dark)
    browser.set_window_size(WIDTH, HIGHEST)
    open_page(browser, page)
    shown = browser.find_element("id", shot.section) if shot.section else browser.find_element("tag name", "body")
    drawn = Image.open(io.BytesIO(shown.screenshot_as_png))
    cropped = drawn.crop((0, 2, drawn.width, min(drawn.height, shot.height)))
    cropped.convert("RGB").quantize(COLOURS).save(shot.target, optimize=True)
    print(f"{shot.target.name}: {shot.target.stat().st_size / 1000:.0f} kB")


def main(names: list[str]) -> None:
    """Take the pictures with these names, or all."""
    with tempfile.TemporaryDirectory() as directory, chromium(Path(directory, "profile")) as browser:
        for shot in SHOTS:
            if not names or shot.name.startswith(tuple(names)):
                take(shot, browser, Path(directory))


if __name__ == "__main__":
    main(sys.argv[1:])
