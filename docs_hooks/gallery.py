"""Render all that a user sees into one folder, to be looked at: ``python -m docs_hooks.gallery FOLDER [WORD]``.

It draws every view of the terminal UI in two sizes, every section of reports, and the pictures of the documents, in
light and dark, as PNG files; with a word, only those whose names contain it. It needs Chromium with its driver and
Selenium.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs_hooks.pictures import fixed_age
from dstack.files.sampled_file import PROFILES
from dstack.files.snapshot_file import load
from dstack.tui.app import VIEWS
from dstack.tui.snapshot_sources import Files, OpenedRecording
from tests.browsers import chromium, open_page, use_dark_theme
from tests.clusters.dstack_command import dstack
from tests.examples.recorded import recorded
from tests.paths import RECORDED_CALLS, RECORDED_PROFILE, ROOT
from tests.tui.pilots import running

SUBJECTS = {
    "deadlock": recorded("two_actors"),
    "ring": recorded("ring_of_five"),
    "healthy": recorded("slow_actor_queue"),
    "pipeline": RECORDED_CALLS,
    "profile": RECORDED_PROFILE,
}
"""What is drawn: files of snapshots, and of one profile."""
SIZES = (80, 24), (120, 36)
THEMES = {"dark": "textual-dark", "light": "textual-light"}
PAGE_WIDTHS = 1200, 500
HIGHEST = 12_000
GROWN_S = 0.5
"""How long boxes of flame graphs grow after they are drawn."""


@dataclass(frozen=True, slots=True)
class Gallery:
    """A folder of pictures; only those with ``word`` in their name are drawn."""

    folder: Path
    word: str
    browser: Any

    def is_wanted(self, name: str) -> bool:
        """Whether a picture is to be drawn."""
        return self.word in name

    def save(self, name: str, png: bytes) -> None:
        """Write one picture."""
        self.folder.joinpath(f"{name}.png").write_bytes(png)
        print(name)

    def draw_svg(self, name: str, svg: Path, *, is_dark: bool) -> None:
        """Draw a picture as the browser shows it on a page of its own."""
        use_dark_theme(self.browser, is_dark=is_dark)
        self.browser.set_window_size(1400, 1100)
        self.browser.get(svg.as_uri())
        self.save(name, self.browser.get_screenshot_as_png())


def draw_terminal(gallery: Gallery, scratch: Path) -> None:
    """Every view of each subject, in each size and theme."""
    for subject, file in SUBJECTS.items():
        is_profile = file == RECORDED_PROFILE
        for size in SIZES:
            for theme in THEMES:
                name = f"terminal_{subject}_{{}}_{size[0]}_{theme}"
                views = [view for view in (["flame"] if is_profile else VIEWS) if gallery.is_wanted(name.format(view))]
                for view, svg in asyncio.run(_screens(file, size, theme, views)).items() if views else ():
                    path = scratch / "screen.svg"
                    path.write_text(svg)
                    gallery.draw_svg(name.format(view), path, is_dark=theme == "dark")


async def _screens(file: Path, size: tuple[int, int], theme: str, views: list[str]) -> dict[str, str]:
    is_profile = file == RECORDED_PROFILE
    recordings = [OpenedRecording(file.name, PROFILES.load(file))] if is_profile else []
    screens = {}
    async with running(Files(file.name, [] if is_profile else [load(file)]), size, recordings) as (app, pilot):
        app.theme = THEMES[theme]
        for view in views:
            await pilot.press(str(list(VIEWS).index(view) + 1))
            await pilot.pause(0.5)
            screens[view] = app.export_screenshot(title=f"dstack tui {file.name}")
    return screens


def draw_pages(gallery: Gallery, scratch: Path) -> None:
    """The top and every section of the page of each subject, in each width and theme."""
    for subject, file in SUBJECTS.items():
        if not gallery.is_wanted(f"page_{subject}") and f"page_{subject}" not in gallery.word:
            continue
        page = scratch / f"{subject}.html"
        done = dstack("report", str(file), "-o", str(page))
        assert done.returncode == 0, done.stderr
        for width in PAGE_WIDTHS:
            for theme in THEMES:
                use_dark_theme(gallery.browser, is_dark=theme == "dark")
                for part, png in _parts(gallery.browser, page, width):
                    name = f"page_{subject}_{part}_{width}_{theme}"
                    if gallery.is_wanted(name):
                        gallery.save(name, png)


def _parts(browser: Any, page: Path, width: int) -> Iterator[tuple[str, bytes]]:
    browser.set_window_size(width, 900)
    open_page(browser, page)
    yield "top", browser.get_screenshot_as_png()
    browser.set_window_size(width, HIGHEST)
    open_page(browser, page)
    time.sleep(GROWN_S)
    for section in browser.find_elements("css selector", "main section"):
        yield section.get_attribute("id"), section.screenshot_as_png


def draw_documents(gallery: Gallery, _scratch: Path) -> None:
    """The pictures of the documents that are SVG; the others are PNG already."""
    for svg in sorted(ROOT.joinpath("docs").rglob("*.svg")):
        for theme in THEMES:
            name = f"document_{svg.parent.parent.name}_{svg.stem}_{theme}"
            if gallery.is_wanted(name):
                gallery.draw_svg(name, svg, is_dark=theme == "dark")


DRAWINGS: tuple[Callable[[Gallery, Path], None], ...] = draw_terminal, draw_pages, draw_documents


def main(folder: Path, word: str = "") -> None:
    """Draw all that is wanted."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, fixed_age(), chromium(Path(directory, "profile")) as browser:
        for draw in DRAWINGS:
            draw(Gallery(folder, word, browser), Path(directory))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
