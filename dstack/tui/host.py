"""What a view may ask of the application that shows it, so that no view imports the application."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dstack.tui.numbered_snapshot import NumberedSnapshot
from dstack.tui.source import OpenedRecording
from dstack.vertex_keys import Key


@dataclass(frozen=True, slots=True)
class Status:
    """What the application is doing.

    ``doing`` names the current step, empty if there is none. ``every_s`` is the period of automatic snapshots, None for
    none. ``newer`` counts the snapshots received since the views were frozen. ``trouble`` is why the last attempt
    failed. ``last`` is the number of the newest snapshot if the shown one is one of several, as in a replay, else 0.
    """

    source: str = ""
    doing: str = ""
    is_frozen: bool = False
    newer: int = 0
    every_s: int | None = None
    trouble: str = ""
    last: int = 0
    is_playing: bool = False


@runtime_checkable
class Host(Protocol):
    """The application, as views know it: its snapshots, its status, and the ways to another view or snapshot.

    ``skipped`` says which files were not opened, and why.
    """

    snapshots: list[NumberedSnapshot]
    shown: NumberedSnapshot | None
    recordings: Sequence[OpenedRecording]
    skipped: Sequence[str]
    status: Status

    def go_to(self, mode: str, vertex: Key) -> None:
        """Switch to the view of this mode and select a vertex there."""
        ...

    def request_history(self) -> bool:
        """Take a snapshot with the history of tasks, and all later ones too; false if the source cannot."""
        ...

    def show_snapshot(self, snapshot: NumberedSnapshot) -> None:
        """Show one of the snapshots in all views, and freeze those of a running cluster."""
        ...

    def read_and_show(self, snapshot: NumberedSnapshot) -> None:
        """Show one of the snapshots as soon as it has been read."""
        ...

    def show_status(self) -> None:
        """Show what the application is doing."""
        ...
