from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dstack.cli import main
from dstack.errors import UsageError
from dstack.files.sampled_file import RECORDINGS
from dstack.report.sampled_files import format_of, sampled_file
from tests.unit.files.test_sampled_file import RECORDING


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("a.html", ".html"),
        ("a.json", ".json"),
        ("a.json.gz", ".json.gz"),
        ("a.SpeedScope.json", ".speedscope.json"),
        ("a.folded", ".folded"),
        ("a.txt", ".txt"),
        ("-", ".folded"),
    ],
)
def test_the_longest_suffix_is_the_format(name: str, suffix: str) -> None:
    assert format_of(name) == suffix


@pytest.mark.parametrize("name", ["a", "a.svg", "a.gz", "json"])
def test_other_suffixes_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"\.speedscope\.json"):
        format_of(name)


def test_each_format_has_the_recording() -> None:
    assert RECORDINGS.loads(sampled_file(RECORDING, ".json")) == RECORDING
    assert sampled_file(RECORDING, ".json.gz").startswith(b"\x1f\x8b")
    assert b"main (train.py:9);step (train.py:3) 30\n" in sampled_file(RECORDING, ".folded")
    assert b'"$schema"' in sampled_file(RECORDING, ".speedscope.json")
    assert b"actor Trainer" in sampled_file(RECORDING, ".html")


@pytest.mark.parametrize("name", ["r.svg", "there.json"])
def test_the_file_is_refused_before_anything_is_recorded(name: str, tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("mine")
    done = CliRunner().invoke(main, ["record", "--address", "127.0.0.1:1", "-o", str(tmp_path / name)])

    assert done.exit_code == 2
    assert (tmp_path / "there.json").read_text() == "mine"
