"""What the thread that takes snapshots tells the application; nothing but this goes from one to the other."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from dstack.tui.source import Look


@dataclass
class Progressed(Message):
    """Something is being done now, in a few words."""

    text: str


@dataclass
class Taken(Message):
    """A look has come in."""

    look: Look


@dataclass
class Failed(Message):
    """No snapshot could be taken: why, and what to do about it."""

    reason: str
    remedy: str | None


@dataclass
class Ended(Message):
    """The thread is done."""
