"""The snapshot files of a watch: a limited number, the oldest of which are removed for new ones."""

from __future__ import annotations

import os
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

from dstack.errors import SnapshotFileError
from dstack.model import Snapshot
from dstack.snapshot_file import save

_NAME = re.compile(r"dstack-\d{8}-\d{6}\.json\.gz")


class SnapshotDirectory:
    """Files ``dstack-YYYYmmdd-HHMMSS.json.gz``, named by the time of the snapshot in UTC. Other files are left alone.

    Creates the directory if needed. Raises :class:`dstack.SnapshotFileError` if it is not writable.
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
                old.unlink(missing_ok=True)
        except OSError as error:
            raise SnapshotFileError(f"Cannot remove old snapshots in {self._directory}: {error.strerror}.") from error
        path = self._free_name(snapshot.taken_at)
        save(snapshot, path)
        return path

    def _files(self) -> list[Path]:
        """The files of watches, the oldest first."""
        return sorted(path for path in self._directory.iterdir() if _NAME.fullmatch(path.name))

    def _free_name(self, taken_at: float) -> Path:
        at = datetime.fromtimestamp(taken_at, timezone.utc)
        while os.path.lexists(path := self._directory / f"dstack-{at:%Y%m%d-%H%M%S}.json.gz"):
            at += timedelta(seconds=1)
        return path
