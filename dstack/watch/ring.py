"""The files of a watch: so many snapshots at most, the oldest of which make room for new ones."""

from __future__ import annotations

import os
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

from dstack.errors import SnapshotFileError
from dstack.model import Snapshot
from dstack.snapshot_file import save

_NAME = re.compile(r"dstack-\d{8}-\d{6}\.json\.gz")


class Ring:
    """Files ``dstack-YYYYmmdd-HHMMSS.json.gz``, by when they were taken in UTC. No others are ever touched.

    Makes the directory if there is none. Raises :class:`dstack.SnapshotFileError` if nothing can be written there.
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
        """Writes a snapshot whole or not at all, after as many of the oldest files are gone as it needs.

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
        """Ours, the oldest first."""
        return sorted(path for path in self._directory.iterdir() if _NAME.fullmatch(path.name))

    def _free_name(self, taken_at: float) -> Path:
        at = datetime.fromtimestamp(taken_at, timezone.utc)
        while os.path.lexists(path := self._directory / f"dstack-{at:%Y%m%d-%H%M%S}.json.gz"):
            at += timedelta(seconds=1)
        return path
