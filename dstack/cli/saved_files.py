"""Files and directories named on a command line: snapshots, recordings and profiles, and which were skipped."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dstack.cli.output import show_progress
from dstack.errors import DstackError, SnapshotFileError

if TYPE_CHECKING:
    from dstack.model.profile import Sampled
    from dstack.model.snapshot import Snapshot

SUFFIXES = (".json", ".json.gz")


class _Header(msgspec.Struct):
    """What places a file in the order of time, without its content."""

    schema: str = ""
    taken_at: float = 0.0


@dataclass(slots=True)
class SavedFile:
    """A snapshot file; ``taken_at`` is in Unix seconds."""

    path: Path
    taken_at: float
    _checked: Snapshot | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name of the file, without its directory."""
        return self.path.name

    def load(self) -> Snapshot:
        """Read it, unless :meth:`check` has just done so. Raises :class:`dstack.DstackError`."""
        from dstack.files.snapshot_file import load

        checked, self._checked = self._checked, None
        return checked or load(self.path)

    def check(self) -> None:
        """Read it for the next :meth:`load`. Raises :class:`dstack.DstackError`."""
        self._checked = self.load()


@dataclass(slots=True)
class SavedFiles:
    """Snapshots that are not loaded yet, and recordings and profiles, both in the order of their time.

    ``skipped`` are the errors of files that could not be read, and ``older_profiles`` counts those that were left out.
    """

    snapshots: list[SavedFile] = field(default_factory=list)
    recordings: list[tuple[str, Sampled]] = field(default_factory=list)
    skipped: list[DstackError] = field(default_factory=list)
    older_profiles: int = 0

    def leave_out_older_profiles(self, kept: int) -> None:
        """Leave out all profiles but the latest of those after the first ``kept`` recordings and profiles."""
        from dstack.model.profile import Profile

        profiles = [one for one in self.recordings[kept:] if isinstance(one[1], Profile)]
        older = {id(one) for one in sorted(profiles, key=lambda one: one[1].began_at)[:-1]}
        self.recordings = [one for one in self.recordings if id(one) not in older]
        self.older_profiles += len(older)


@show_progress("reading")
def open_files(names: Sequence[str], *, only_latest_profile: bool = False) -> SavedFiles:
    """Find the snapshots, recordings and profiles; files of other kinds in a directory are left out.

    With ``only_latest_profile`` the older profiles of each directory are left out, as those of a watch. Raises the
    first error if nothing can be read, and :class:`SnapshotFileError` for a directory that has no such files.
    """
    files = SavedFiles()
    known: set[str] = set()
    for name in names:
        kept = len(files.recordings)
        for path in _in_directory(name) if os.path.isdir(name) else [Path(name)]:
            if (real := os.path.realpath(path)) in known:
                continue
            known.add(real)
            try:
                _open(path, files)
            except DstackError as error:
                files.skipped.append(error)
        if only_latest_profile and os.path.isdir(name):
            files.leave_out_older_profiles(kept)
    files.snapshots.sort(key=lambda one: (one.taken_at, one.path))
    files.recordings.sort(key=lambda one: one[1].began_at)
    _require_newest(files)
    if not files.snapshots and not files.recordings:
        raise files.skipped[0] if files.skipped else _no_files(names)
    return files


def _in_directory(name: str) -> list[Path]:
    try:
        return [path for path in sorted(Path(name).iterdir()) if path.name.endswith(SUFFIXES) and path.is_file()]
    except OSError as error:
        raise SnapshotFileError(
            f"Cannot read the directory {name}: {error.strerror}.", "Check its permissions."
        ) from error


def _open(path: Path, files: SavedFiles) -> None:
    """Add a file by its schema, which for a snapshot is all that is read."""
    from dstack.files import snapshot_file
    from dstack.files.sampled_file import PROFILES, RECORDINGS

    data = snapshot_file.FORMAT.read(path)
    for format in (RECORDINGS, PROFILES):
        if format.is_schema_of(data):
            files.recordings.append((path.name, format.loads(data, name=str(path))))
            return
    try:
        header = msgspec.json.decode(data, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        header = _Header()
    if header.schema != snapshot_file.FORMAT.schema:
        snapshot_file.FORMAT.decode(data, str(path))  # raises the error that says why
    files.snapshots.append(SavedFile(path, header.taken_at))


def _require_newest(files: SavedFiles) -> None:
    """Leave out the newest snapshots up to the first one that can be loaded, which is shown first."""
    while files.snapshots:
        try:
            files.snapshots[-1].check()
        except DstackError as error:
            files.skipped.append(error)
            files.snapshots.pop()
        else:
            return


def _no_files(names: Sequence[str]) -> SnapshotFileError:
    return SnapshotFileError(
        f"There are no snapshots, recordings or profiles in {', '.join(names)}.",
        "dstack watch --dir DIR and dstack snapshot -o FILE save some.",
    )
