"""Draw the pictures of the terminal UI: ``python -m docs_hooks.pictures [NAME]``.

Those of the case studies are of the snapshots beside their pages, those of ``docs/tui.md`` of recorded ones.
Each picture is a screen. After a change of the snapshots or the terminal UI, inspect the pictures.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from dstack.files.sampled_file import PROFILES, RECORDINGS
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot
from dstack.tui.app import VIEWS
from dstack.tui.snapshot_sources import Files, OpenedRecording
from dstack.tui.views import bars
from tests.examples.recorded import RECORDED
from tests.paths import RECORDED_CALLS, RECORDED_CLUSTERS, RECORDED_PROFILE, ROOT
from tests.tui.pilots import running, search
from tests.tui.test_history_view import three

CASE_STUDIES = ROOT / "docs" / "case-studies"
PICTURES = CASE_STUDIES / "pictures"
OF_THE_TUI = ROOT / "docs" / "pictures"
AGE_S = 5.0
"""The age of every snapshot in the pictures."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A screen: the view, the keys pressed in it, and the words of its filter; of a snapshot, recording or profile.

    The snapshot is that of a ``study``, or another ``file``, or they are ``made``; then the picture is one of the
    terminal UI's page.
    """

    study: str
    view: str
    keys: tuple[str, ...] = ()
    filtered: str = ""
    size: tuple[int, int] = (120, 30)
    suffix: str = ""
    is_recording: bool = False
    is_profile: bool = False
    file: Path | None = None
    made: Callable[[], list[Snapshot]] | None = None

    @property
    def name(self) -> str:
        """The name of the file, without its suffix."""
        return self.study if self.is_of_the_tui else f"{self.study}_{self.view}{self.suffix}"

    @property
    def is_of_the_tui(self) -> bool:
        """Whether it is on the page about the terminal UI."""
        return self.file is not None or self.made is not None

    @property
    def snapshots(self) -> list[Snapshot]:
        """The snapshots that it shows."""
        return self.made() if self.made else [] if self.is_recording or self.is_profile else [load(self.source)]

    @property
    def source(self) -> Path:
        """The snapshot, recording or profile."""
        return self.file or CASE_STUDIES / f"{self.study}.json.gz"

    @property
    def target(self) -> Path:
        """The picture."""
        return (OF_THE_TUI if self.is_of_the_tui else PICTURES) / f"{self.name}.svg"


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
    Picture("verdict", "verdict", size=(110, 27), file=RECORDED / "two_actors.json.gz"),
    Picture("waits", "waits", size=(110, 20), file=RECORDED / "hangs" / "async_lock.json.gz"),
    Picture("flame", "flame", size=(110, 20), file=RECORDED_CLUSTERS / "torch-mesh-ray-2.60.json.gz"),
    Picture("task_time", "flame", TASK_TIME, size=(110, 20), file=RECORDED_CALLS),
    Picture("task_time_compared", "flame", (*TASK_TIME, "p", "v"), size=(110, 20), file=RECORDED_CALLS),
    Picture("cluster", "cluster", ("b",), size=(120, 22), file=RECORDED_CLUSTERS / "tune-hang-ray-2.60.json.gz"),
    Picture("timeline", "timeline", size=(124, 34), file=RECORDED_CALLS),
    Picture("profile", "flame", ("down",) * 4, size=(120, 22), file=RECORDED_PROFILE, is_profile=True),
    Picture("profile_lines", "flame", ("L",), size=(130, 30), file=RECORDED_PROFILE, is_profile=True),
    Picture("stacks", "stacks", size=(120, 22), file=RECORDED / "two_actors.json.gz"),
    Picture("calls", "calls", size=(124, 30), file=RECORDED_CALLS),
    Picture("history", "history", size=(120, 32), made=lambda: three()[1]),
)


async def draw(picture: Picture) -> None:
    """Write one picture."""
    file = picture.source
    recordings = []
    if picture.is_recording:
        recordings.append(OpenedRecording(file.name, RECORDINGS.load(file)))
    if picture.is_profile:
        recordings.append(OpenedRecording(file.name, PROFILES.load(file)))
    snapshots = Files(file.name, picture.snapshots)
    async with running(snapshots, picture.size, recordings) as (app, pilot):
        await pilot.press(str(list(VIEWS).index(picture.view) + 1))
        await pilot.pause(0.5)
        if picture.filtered:
            await search(pilot, picture.filtered)
        for key in picture.keys:
            await pilot.press(key)
            await pilot.pause(0.3)
        svg = app.export_screenshot(title=f"dstack tui {file.name}")
    picture.target.write_text("\n".join(_stripped(svg)) + "\n")


def _stripped(svg: str) -> Iterator[str]:
    """The lines without spaces at their ends, which say nothing."""
    return (line.rstrip() for line in svg.splitlines())


def fixed_age() -> AbstractContextManager[object]:
    """Within it, all snapshots have the age of pictures."""
    return mock.patch.object(bars, "now_for", lambda shown: shown.analysed.snapshot.taken_at + AGE_S)


def main(names: list[str]) -> None:
    """Draw the pictures with one of these names, or all."""
    PICTURES.mkdir(exist_ok=True)
    with fixed_age():
        for picture in PICTURES_OF:
            if not names or picture.name in names or picture.study in names:
                asyncio.run(draw(picture))
                print(picture.target.name)


if __name__ == "__main__":
    main(sys.argv[1:])
