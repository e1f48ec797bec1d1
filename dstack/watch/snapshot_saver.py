"""Saves the snapshots of a watch and their pages; what cannot be written stays in memory for a while."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from dstack.errors import DstackError, SnapshotFileError
from dstack.model import Snapshot
from dstack.page_maker import PageMaker
from dstack.watch.events import Events
from dstack.watch.snapshot_directory import SnapshotDirectory

MAX_UNSAVED = 3
"""The most snapshots that are kept in memory because they could not be written."""
SAVE_S = 0.5
"""How long the end of the watch waits for a file that is being written."""
PAST = 3
"""The most earlier snapshots that a page shows as its past."""


@dataclass(frozen=True, slots=True)
class SavedFiles:
    """The names of a snapshot's file and of its page; None for what is not written."""

    snapshot: str | None = None
    page: str | None = None

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.snapshot, self.page))) or "not saved"


class SnapshotSaver:
    """Saves snapshots, and their pages if it has a :class:`PageMaker`; a failure is an event."""

    def __init__(self, directory: SnapshotDirectory, events: Events, pages: PageMaker | None = None) -> None:
        self._directory = directory
        self._events = events
        self._pages = pages
        self._unsaved: deque[Snapshot] = deque(maxlen=MAX_UNSAVED)
        self._saving = threading.Lock()

    @property
    def unsaved(self) -> int:
        """The number of snapshots in memory that could not be written yet."""
        return len(self._unsaved)

    def save(self, snapshot: Snapshot, *, with_page: bool = True) -> SavedFiles:
        """Saves a snapshot and its page, or keeps the snapshot in memory."""
        try:
            with self._saving:
                path = self._directory.save(snapshot)
        except SnapshotFileError as error:
            dropped = " The oldest unsaved snapshot is dropped." if len(self._unsaved) == MAX_UNSAVED else ""
            self._unsaved.append(snapshot)
            self._events.emit(
                "unsaved", f"{error.message} The snapshot stays in memory until it can be saved.{dropped}"
            )
            return SavedFiles()
        return SavedFiles(str(path), self._save_page(path) if with_page else None)

    def retry(self) -> None:
        """Retries to write the snapshots that could not be written."""
        while self._unsaved:
            try:
                with self._saving:
                    path = self._directory.save(self._unsaved[0])
            except SnapshotFileError:
                return
            self._unsaved.popleft()
            self._events.emit("saved", f"after a retry: {SavedFiles(str(path), self._save_page(path))}")

    def stop(self) -> None:
        """Ends the making of a page; a file that is being written is completed."""
        if self._pages is not None:
            self._pages.cancel()
        self._saving.acquire(timeout=SAVE_S)

    def _save_page(self, snapshot: Path) -> str | None:
        if self._pages is None:
            return None
        try:
            page = self._pages.page_of(snapshot, self._directory.earlier(snapshot, PAST))
            with self._saving:
                return str(self._directory.save_page(snapshot, page))
        except DstackError as error:
            if not self._pages.is_cancelled:
                self._events.emit("unsaved", f"no page of {snapshot}: {error}")
            return None
