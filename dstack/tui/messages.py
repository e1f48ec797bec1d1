"""The messages from the thread that takes snapshots to the application, each with one value that never changes."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from dstack.errors import DstackError
from dstack.tui.source import NumberedSnapshot


@dataclass
class SnapshotProgress(Message):
    """A step has begun; ``step`` names it."""

    step: str


@dataclass
class SnapshotTaken(Message):
    """A snapshot has been taken and analysed."""

    snapshot: NumberedSnapshot


@dataclass
class SnapshotFailed(Message):
    """No snapshot could be taken."""

    error: DstackError


@dataclass
class SnapshotEnded(Message):
    """The thread has ended, with or without a snapshot."""
