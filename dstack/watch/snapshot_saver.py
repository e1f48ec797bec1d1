"""Saves the snapshots of a watch and their pages in so many files; what cannot be written is kept for a while."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from dstack.errors import DstackError, SnapshotFileError
from dstack.files.file_output import write_file
from dstack.files.snapshot_file import save
from dstack.model.snapshot import Snapshot
from dstack.report.page.page_maker import PageMaker
from dstack.watch.events import Events

MAX_UNSAVED = 3
OTHER = "Give another one with --dir."
"""The most snapshots that are kept in memory because they could not be written."""
SAVE_S = 0.5
"""How long the end of the watch waits for a file that is being written."""
PAST = 3
"""The most earlier snapshots that a page shows as its past."""


class DatedFiles:
    """The files ``PREFIX-YYYYmmdd-HHMMSS.json.gz`` of a directory, named by a time in UTC.

    A page of the same name, with the suffix ``.html``, is removed with its file. Other files are left alone. Creates
    the directory if needed. Raises :class:`dstack.SnapshotFileError` if it is not writable.
    """

    def __init__(self, directory: str | os.PathLike[str], prefix: str, keep: int) -> None:
        self._directory = Path(directory)
        self._prefix = prefix
        self._name = re.compile(rf"{prefix}-\d{{8}}-\d{{6}}\.json\.gz")
        self._keep = keep
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise SnapshotFileError(f"{directory} is not a directory.", "Give another one with --dir.") from error
        except OSError as error:
            raise SnapshotFileError(f"Cannot create the directory {directory}: {error.strerror}.", OTHER) from error
        if not os.access(self._directory, os.W_OK | os.X_OK):
            raise SnapshotFileError(f"The directory {directory} is not writable.", OTHER)

    def new_file(self, at: float) -> Path:
        """A free name by a time in Unix seconds, after the removal of surplus old files.

        Raises :class:`dstack.SnapshotFileError`.
        """
        try:
            for old in self.existing()[: -self._keep + 1 or None]:
                page_name(old).unlink(missing_ok=True)
                old.unlink(missing_ok=True)
        except OSError as error:
            what = f"Cannot remove old files in {self._directory}: {error.strerror}."
            raise SnapshotFileError(what, "Check the permissions of the directory.") from error
        return self._free_name(at)

    def existing(self) -> list[Path]:
        """The files, the oldest first. Raises :class:`OSError`."""
        return sorted(path for path in self._directory.iterdir() if self._name.fullmatch(path.name))

    def _free_name(self, at: float) -> Path:
        time = datetime.fromtimestamp(at, timezone.utc)
        while True:
            path = self._directory / f"{self._prefix}-{time:%Y%m%d-%H%M%S}.json.gz"
            if not os.path.lexists(path) and not os.path.lexists(page_name(path)):
                return path
            time += timedelta(seconds=1)


class SnapshotDirectory:
    """The :class:`DatedFiles` ``dstack-YYYYmmdd-HHMMSS.json.gz``, of snapshots by their time, and their pages."""

    def __init__(self, directory: str | os.PathLike[str], keep: int) -> None:
        self._files = DatedFiles(directory, "dstack", keep)

    def save(self, snapshot: Snapshot) -> Path:
        """Writes a snapshot whole or not at all, after the removal of surplus old files.

        Raises :class:`dstack.SnapshotFileError`.
        """
        path = self._files.new_file(snapshot.taken_at)
        save(snapshot, path)
        return path

    def save_page(self, snapshot: Path, page: bytes) -> Path:
        """Writes the page of a saved snapshot beside it. Raises :class:`dstack.SnapshotFileError`."""
        path = page_name(snapshot)
        write_file(path, page, force=True)
        return path

    def earlier(self, snapshot: Path, count: int) -> Sequence[Path]:
        """The last ``count`` snapshots before a saved one, the oldest first; none if they cannot be listed."""
        try:
            return [path for path in self._files.existing() if path.name < snapshot.name][-count:]
        except OSError:
            return ()


def page_name(file: Path) -> Path:
    """The name of the page of a snapshot or a profile."""
    return file.with_name(file.name.removesuffix(".json.gz") + ".html")


@dataclass(frozen=True, slots=True)
class WrittenFiles:
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

    def save(self, snapshot: Snapshot, *, with_page: bool = True) -> WrittenFiles:
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
            return WrittenFiles()
        return WrittenFiles(str(path), self._save_page(path) if with_page else None)

    def retry(self) -> None:
        """Retries to write the snapshots that could not be written."""
        while self._unsaved:
            try:
                with self._saving:
                    path = self._directory.save(self._unsaved[0])
            except SnapshotFileError:
                return
            self._unsaved.popleft()
            self._events.emit("saved", f"after a retry: {WrittenFiles(str(path), self._save_page(path))}")

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
