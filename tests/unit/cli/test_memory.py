"""The command ``memory`` on a saved snapshot: text, JSON and wrong options."""

from __future__ import annotations

import msgspec
from click.testing import CliRunner, Result

from dstack.cli import main
from dstack.report.memory_text import MemoryDocument
from tests.examples.recorded import RECORDED

FILE = str(RECORDED / "hangs/argument_lost_with_node.json.gz")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["memory", *arguments])


def test_a_saved_snapshot_lists_its_largest_objects() -> None:
    done = run(FILE)

    assert done.exit_code == 0
    assert done.stdout.startswith("10 MiB in 1 object\n")
    assert "  load: 10 MiB in 1 object\n" in done.stdout
    assert "owned by driver argument_lost_with_node.py (pid " in done.stdout


def test_json_is_a_versioned_document() -> None:
    document = msgspec.json.decode(run(FILE, "--json").stdout, type=MemoryDocument)

    assert (document["schema"], document["objects_total"]) == ("dstack.memory/1", 1)
    assert [one["made_by"] for one in document["objects"]] == ["load"]


def test_no_objects_but_their_number_is_listed() -> None:
    assert "  1 smaller object not shown\n" in run(FILE, "--objects", "0").stdout


def test_a_file_and_an_address_are_a_usage_error() -> None:
    done = run(FILE, "--address", "10.0.0.1:6379")

    assert (done.exit_code, done.stdout) == (2, "")
    assert "FILE cannot be combined with --address" in done.stderr
