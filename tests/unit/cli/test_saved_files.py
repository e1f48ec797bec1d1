"""Files and directories on a command line: their order, other files between them, and damaged ones."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from dstack.cli.saved_files import open_files
from dstack.errors import DstackError, SnapshotFileError, UsageError
from dstack.files import snapshot_file
from dstack.files.sampled_file import RECORDINGS
from tests.unit.analysis.stacks.recordings import frame, recording, thread
from tests.unit.analysis.views.test_snapshot_diff import Pair, again


def save(directory: Path, **times: float) -> None:
    """Snapshots by their names and times."""
    first = again(Pair(), 0.0)
    for name, taken_at in times.items():
        snapshot_file.save(replace(first, taken_at=taken_at), directory / f"{name}.json.gz")


def test_snapshots_of_directories_and_files_are_in_the_order_of_their_time(tmp_path: Path) -> None:
    (tmp_path / "watched").mkdir()
    save(tmp_path / "watched", late=30.0, early=10.0)
    save(tmp_path, between=20.0)
    (tmp_path / "watched" / "dstack.html").write_text("<html>")
    (tmp_path / "watched" / "below.json").mkdir()
    recorded = recording({(thread(0), (frame("train", 5),)): 30})
    RECORDINGS.save(recorded, tmp_path / "watched" / "recording.json")

    names = [str(tmp_path / name) for name in ("watched", "between.json.gz", "watched/late.json.gz")]
    found = open_files(names)

    assert [one.name for one in found.snapshots] == ["early.json.gz", "between.json.gz", "late.json.gz"]
    assert [one.load().taken_at for one in found.snapshots] == [10.0, 20.0, 30.0]
    assert found.recordings == [("recording.json", recorded)]
    assert not found.skipped


def test_damaged_and_foreign_files_are_skipped_with_their_reason(tmp_path: Path) -> None:
    save(tmp_path, good=10.0, newest=20.0)
    (tmp_path / "cut.json.gz").write_bytes((tmp_path / "good.json.gz").read_bytes()[:100])
    (tmp_path / "foreign.json").write_text('{"name": "x"}')
    (tmp_path / "other.json").write_text('{"schema": "other/1", "version": [1, 0]}')
    with gzip.open(tmp_path / "newest.json.gz", "wb") as file:
        file.write(b'{"schema": "dstack.snapshot", "version": [2, 0], "taken_at": 99.0}')

    found = open_files([str(tmp_path)])

    assert [one.name for one in found.snapshots] == ["good.json.gz"]
    reasons = " ".join(error.message for error in found.skipped)
    assert "cut.json.gz is not valid gzip" in reasons
    assert "foreign.json is not a valid snapshot" in reasons
    assert "other.json has the schema other/1" in reasons
    assert "newest.json.gz is not a valid snapshot" in reasons


def test_one_damaged_file_is_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('{"schema"')

    with pytest.raises(SnapshotFileError, match=r"cut\.json is not a valid snapshot"):
        open_files([str(tmp_path / "cut.json")])
    with pytest.raises(SnapshotFileError, match=r"missing\.json: no such file"):
        open_files([str(tmp_path / "missing.json")])
    (tmp_path / "page.html").touch()
    with pytest.raises(UsageError, match="not a valid name"):
        open_files([str(tmp_path / "page.html")])


def test_an_empty_directory_says_so(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<html>")

    with pytest.raises(SnapshotFileError, match="There are no snapshots, recordings or profiles in") as caught:
        open_files([str(tmp_path)])
    assert "dstack watch --dir" in (caught.value.remedy or "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all directories")
def test_an_unreadable_directory_says_so(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)

    with pytest.raises(DstackError, match=r"Cannot read the directory .*: Permission denied"):
        open_files([str(tmp_path / "closed")])
