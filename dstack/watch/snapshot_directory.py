"""The files of a watch: a limited number of snapshots and their pages, the oldest of which are removed for new ones."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from dstack.errors import SnapshotFileError
from dstack.file_output import write_file
from dstack.model import Snapshot
from dstack.snapshot_file import save

_NAME = re.compile(r"dstack-\d{8}-\d{6}\.json\.gz")


class SnapshotDirectory:
    """Files ``dstack-YYYYmmdd-HHMMSS.json.gz``, named by the time of the snapshot in UTC, and their ``.html`` pages.

    A page is removed with its snapshot. Other files are left alone. Creates the directory if needed. Raises
    :class:`dstack.SnapshotFileError` if it is not writable.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int) -> None:
        self._directory = Path(directory)
        self._keep = keep
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SnapshotFileError(f"Cannot create the directory {directory}: {error.strerror}.") from error
        if not os.access(self._directory, os.W_OK | os.X_OK):
            raise SnapshotFileError(f"The directory {directory} is not writable.", "Give another one with --dir.")

    def save(self, snapshot: Snapshot) -> Path:
        """Writes a snapshot whole or not at all, after the removal of surplus old files.

        Raises :class:`dstack.SnapshotFileError`.
        """
        try:
            for old in self._files()[: -self._keep + 1 or None]:
                _page_name(old).unlink(missing_ok=True)
                old.unlink(missing_ok=True)
        except OSError as error:
            raise SnapshotFileError(f"Cannot remove old snapshots in {self._directory}: {error.strerror}.") from error
        path = self._free_name(snapshot.taken_at)
        save(snapshot, path)
        return path

    def save_page(self, snapshot: Path, page: bytes) -> Path:
        """Writes the page of a saved snapshot beside it. Raises :class:`dstack.SnapshotFileError`."""
        path = _page_name(snapshot)
        write_file(path, page, force=True)
        return path

    def earlier(self, snapshot: Path, count: int) -> Sequence[Path]:
        """The last ``count`` snapshots before a saved one, the oldest first; none if they cannot be listed."""
        try:
            return [path for path in self._files() if path.name < snapshot.name][-count:]
        except OSError:
            return ()

    def _files(self) -> list[Path]:
        """The files of watches, the oldest first."""
        return sorted(path for path in self._directory.iterdir() if _NAME.fullmatch(path.name))

    def _free_name(self, taken_at: float) -> Path:
        at = datetime.fromtimestamp(taken_at, timezone.utc)
        while True:
            path = self._directory / f"dstack-{at:%Y%m%d-%H%M%S}.json.gz"
            if not os.path.lexists(path) and not os.path.lexists(_page_name(path)):
                return path
            at += timedelta(seconds=1)


def _page_name(snapshot: Path) -> Path:
    return snapshot.with_name(snapshot.name.removesuffix(".json.gz") + ".html")
