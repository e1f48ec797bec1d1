"""The thread that takes snapshots, its messages to the application, and when the next snapshot is due."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from textual.app import App
from textual.message import Message

from dstack.errors import DstackError, as_dstack_error
from dstack.model.snapshot import Snapshot
from dstack.tui.snapshots import LiveSource, NumberedSnapshot


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


class SnapshotTaker:
    """Takes snapshots in a thread, one at a time, and posts the results to the application."""

    def __init__(self, source: LiveSource, app: App[Any]) -> None:
        self._source = source
        self._app = app
        self._is_busy = False
        self._is_wanted = False
        self._due_at: float | None = None

    def start(self, before: NumberedSnapshot | None) -> bool:
        """Take the snapshot after this one; false if one is in progress.

        A request during a snapshot is remembered: :meth:`end` reports it.
        """
        self._is_wanted = self._is_busy
        if self._is_busy:
            return False
        self._is_busy = True
        self._app.run_worker(partial(self._take, before), thread=True, exit_on_error=False)
        return True

    def end(self) -> bool:
        """Accept new requests; true if one came during the snapshot that has ended."""
        self._is_busy = False
        return self._is_wanted

    def schedule(self, every_s: int | None) -> None:
        """Make the next snapshot due after this time; after the end of the current one, if there is one."""
        self._due_at = time.monotonic() + every_s if every_s and not self._is_busy else None

    def is_due(self) -> bool:
        """Whether the scheduled time has come; true once for each :meth:`schedule`."""
        if self._due_at is None or time.monotonic() < self._due_at:
            return False
        self._due_at = None
        return True

    def _take(self, before: NumberedSnapshot | None) -> None:
        """Take and analyse a snapshot. Runs in a thread, so it touches no widget."""
        number = before.number + 1 if before else 1
        known = before.analysed if before else None
        post = self._app.post_message

        def progress(step: str) -> None:
            post(SnapshotProgress(step))

        def early(snapshot: Snapshot) -> None:
            post(SnapshotTaken(NumberedSnapshot.of(number, snapshot, known, is_final=False)))

        try:
            post(SnapshotTaken(NumberedSnapshot.of(number, self._source.take(progress, early), known)))
        except Exception as error:
            post(SnapshotFailed(as_dstack_error(error)))
        finally:
            post(SnapshotEnded())
            gc.collect()  # parts of an analysis refer to each other, and may hold a former snapshot
