"""The command ``stacks`` on saved snapshots: formats, files and wrong options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dstack.cli import main
from tests.examples.recorded import RECORDED

FILE = str(RECORDED / "two_actors.json.gz")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["stacks", *arguments])


def test_text_is_the_default() -> None:
    done = run(FILE)

    assert done.exit_code == 0
    assert done.stdout.startswith("3 stacks of 3 processes: 3 waiting\n")
    assert "1 × driver two_actors.py  in ray.get at two_actors.py:" in done.stdout


@pytest.mark.parametrize("form", [["--json"], ["--format", "json"]])
def test_json_is_a_versioned_document(form: list[str]) -> None:
    document = json.loads(run(FILE, *form, "--by", "process").stdout)

    assert (document["schema"], document["by"], document["count"]) == ("dstack.stacks/1", "process", 3)


def test_folded_stacks_end_in_their_number() -> None:
    lines = run(FILE, "--format", "folded").stdout.splitlines()

    assert len(lines) == 3
    assert all(line.endswith(") 1") for line in lines)


def test_a_file_is_kept_unless_forced_and_the_next_step_is_named(tmp_path: Path) -> None:
    out = tmp_path / "stacks.json"

    first = run(FILE, "--format", "speedscope", "-o", str(out))
    again = run(FILE, "--format", "speedscope", "-o", str(out))
    forced = run(FILE, "-o", str(out), "--force")

    assert (first.exit_code, again.exit_code, forced.exit_code) == (0, 2, 0)
    assert first.stderr == f"Saved {out}. Open it at https://www.speedscope.app\n"
    assert "already exists" in again.stderr
    assert out.read_text().startswith("3 stacks of 3 processes")
    assert forced.stdout == ""


@pytest.mark.parametrize(
    "wrong",
    [
        [FILE, "--address", "auto"],
        [FILE, "--native"],
        [FILE, "--json", "--format", "folded"],
        [FILE, "--by", "colour"],
        [FILE, "--job", "nothing"],
    ],
)
def test_wrong_usage_ends_with_2(wrong: list[str]) -> None:
    assert run(*wrong).exit_code == 2


def test_a_missing_file_ends_with_3() -> None:
    assert run("nowhere.json").exit_code == 3


@pytest.mark.parametrize("form", [[], ["--by", "process"]])
def test_only_the_stacks_with_some_words_are_printed(form: list[str]) -> None:
    text = run(FILE, "--only", "Cashier.order", *form).stdout

    assert text.startswith("1 stack of 1 process: 1 waiting\n")
    assert "Cashier.order" in text
    assert "Kitchen.cook  " not in text


def test_words_that_no_stack_has_leave_none() -> None:
    assert run(FILE, "--only", "nothing").stdout.startswith("0 stacks of 0 processes\n")
