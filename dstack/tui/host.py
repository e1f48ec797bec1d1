"""What a view may ask of the application that shows it, so that no view imports the application."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dstack.tui.source import NumberedSnapshot, OpenedRecording
from dstack.vertex_keys import Key


@dataclass(frozen=True, slots=True)
class Status:
    """What the application is doing.

    ``doing`` names the current step, empty if there is none. ``every_s`` is the period of automatic snapshots, None for
    none. ``newer`` counts the snapshots received since the views were frozen. ``trouble`` is why the last attempt
    failed.
    """

    source: str = ""
    doing: str = ""
    is_frozen: bool = False
    newer: int = 0
    every_s: int | None = None
    trouble: str = ""


@runtime_checkable
class Host(Protocol):
    """The application, as views know it: its snapshots, its status, and the ways to another view or snapshot."""

    snapshots: list[NumberedSnapshot]
    shown: NumberedSnapshot | None
    recordings: Sequence[OpenedRecording]
    status: Status

    def go_to(self, mode: str, vertex: Key) -> None:
        """Switch to the view of this mode and select a vertex there."""
        ...

    def request_history(self) -> bool:
        """Take a snapshot with the history of tasks, and all later ones too; false if the source cannot."""
        ...

    def show_snapshot(self, snapshot: NumberedSnapshot) -> None:
        """Show one of the snapshots in all views, and freeze them."""
        ...
