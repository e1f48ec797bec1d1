"""Take the pictures of report pages in the case studies: ``python -m docs_hooks.report_pictures [STUDY]``.

It makes the report of the snapshot beside a page, opens it in Chromium, and saves sections of it. It needs Chromium
with its driver, Selenium and Pillow.
"""

from __future__ import annotations

import io
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs_hooks.pictures import CASE_STUDIES, PICTURES
from tests.browsers import chromium, open_page
from tests.clusters.dstack_command import dstack

WIDTH, HIGHEST = 1200, 6000
"""The width of the window, and its height, with which no section scrolls."""
COLOURS = 160


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a report by its id, of which the first ``height`` pixels are shown."""

    study: str
    id: str
    height: int


SECTIONS = (
    Section("slow_leaves", "waits", 340),
    Section("slow_leaves", "timeline", 588),
    Section("slow_leaves", "calls", 450),
    Section("document_pipeline", "timeline", 760),
)


def take(section: Section, browser: Any, folder: Path) -> None:
    """Save the picture of one section."""
    from PIL import Image

    page = folder / f"{section.study}.html"
    if not page.exists():
        done = dstack("report", str(CASE_STUDIES / f"{section.study}.json.gz"), "-o", str(page))
        assert done.returncode == 0, done.stderr
    browser.set_window_size(WIDTH, HIGHEST)
    open_page(browser, page)
    shown = Image.open(io.BytesIO(browser.find_element("id", section.id).screenshot_as_png))
    cropped = shown.crop((0, 2, shown.width, min(shown.height, section.height)))
    path = PICTURES / f"{section.study}_report_{section.id}.png"
    cropped.convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


def main(studies: list[str]) -> None:
    """Take the pictures of these case studies, or of all."""
    with tempfile.TemporaryDirectory() as directory, chromium(Path(directory, "profile")) as browser:
        for section in SECTIONS:
            if not studies or section.study in studies:
                take(section, browser, Path(directory))


if __name__ == "__main__":
    main(sys.argv[1:])
