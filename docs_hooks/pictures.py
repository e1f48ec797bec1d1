"""Draw the pictures of the case studies: ``python -m docs_hooks.pictures [NAME]``, from the snapshots beside the pages.

Each picture is a screen of the terminal UI. After a change of the snapshots or the terminal UI, inspect the pictures.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from dstack import recording_file
from dstack.snapshot_file import load
from dstack.tui.app import VIEWS
from dstack.tui.snapshots import Files, OpenedRecording
from dstack.tui.views import base
from tests.paths import ROOT
from tests.tui.pilots import running, search

CASE_STUDIES = ROOT / "docs" / "case-studies"
PICTURES = CASE_STUDIES / "pictures"
AGE_S = 5.0
"""The age of every snapshot in the pictures."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A screen: the view, the keys pressed in it, and the words of its filter; of a snapshot or a recording."""

    study: str
    view: str
    keys: tuple[str, ...] = ()
    filtered: str = ""
    size: tuple[int, int] = (120, 30)
    suffix: str = ""
    is_recording: bool = False

    @property
    def name(self) -> str:
        """The name of the file, without its suffix."""
        return f"{self.study}_{self.view}{self.suffix}"


TASK_TIME = ("d",)
PICTURES_OF = (
    Picture("slow_leaves", "stacks", ("down",) * 3, filtered="7978de0e", size=(140, 26)),
    Picture("slow_leaves", "flame", TASK_TIME, size=(120, 20)),
    Picture("document_pipeline", "cluster", size=(120, 28)),
    Picture("document_pipeline", "timeline", ("b",), size=(120, 36)),
    Picture("register_center", "timeline"),
    Picture("register_center", "waits", size=(120, 20)),
    Picture("rlhf_roles", "flame", TASK_TIME, size=(120, 20)),
    Picture("rlhf_roles", "timeline", size=(120, 26)),
    Picture("rlhf_roles_cpu", "flame", size=(120, 20), is_recording=True),
    Picture("rollout_polling", "calls", ("down", "enter"), size=(120, 26)),
    Picture("rollout_polling", "cluster", size=(120, 20)),
)


async def draw(picture: Picture) -> None:
    """Write one picture."""
    file = CASE_STUDIES / f"{picture.study}.json.gz"
    recordings = [OpenedRecording(file.name, recording_file.load(file))] if picture.is_recording else []
    snapshots = Files(file.name, [] if picture.is_recording else [load(file)])
    async with running(snapshots, picture.size, recordings) as (app, pilot):
        await pilot.press(str(list(VIEWS).index(picture.view) + 1))
        await pilot.pause(0.5)
        if picture.filtered:
            await search(pilot, picture.filtered)
        for key in picture.keys:
            await pilot.press(key)
            await pilot.pause(0.3)
        svg = app.export_screenshot(title=f"dstack tui {file.name}")
    (PICTURES / f"{picture.name}.svg").write_text("\n".join(_stripped(svg)) + "\n")


def _stripped(svg: str) -> Iterator[str]:
    """The lines without spaces at their ends, which say nothing."""
    return (line.rstrip() for line in svg.splitlines())


def main(names: list[str]) -> None:
    """Draw the pictures with one of these names, or all."""
    PICTURES.mkdir(exist_ok=True)
    with mock.patch.object(base, "now_for", lambda shown: shown.analysed.snapshot.taken_at + AGE_S):
        for picture in PICTURES_OF:
            if not names or picture.name in names or picture.study in names:
                asyncio.run(draw(picture))
                print(Path(picture.name).with_suffix(".svg"))


if __name__ == "__main__":
    main(sys.argv[1:])
