"""Properties of all example files; the integration tests check that each hangs as it says."""

from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from dstack.cli import examples
from dstack.errors import UsageError
from dstack.model.diagnosis import VERDICTS, FindingKind
from tests.examples.expected import expected_of
from tests.paths import EXAMPLES

PATHS = sorted(path for path in EXAMPLES.rglob("*.py") if not path.stem.startswith("test_"))


def is_well_formed(path: Path) -> bool:
    expected = expected_of(path)
    text = path.read_text()
    return (
        expected.verdict in VERDICTS
        and (expected.finding in get_args(FindingKind) or expected.verdict == "idle")
        and (expected.line is None or text.count(expected.line) > 1)  # where it stands, and where it is expected
        and bool(expected.members or expected.behind or expected.outside or "look_alikes" in path.parts)
        and bool(expected.later or not expected.incomplete)
        and bool(expected.next_step or expected.verdict in ("running", "idle"))
        and "dstack" not in text
    )


def test_an_example_states_what_to_expect_and_does_not_mention_dstack() -> None:
    assert [path.stem for path in PATHS if not is_well_formed(path)] == []


def test_look_alikes_are_as_many_as_hangs_and_expect_no_hang() -> None:
    hangs, look_alikes = ([*(EXAMPLES / folder).glob("*.py")] for folder in ("hangs", "look_alikes"))

    assert len(look_alikes) >= len(hangs)
    assert {expected_of(path).verdict for path in look_alikes} <= {"running", "idle", "stalled"}


def test_an_example_is_found_by_its_name_with_or_without_its_folder() -> None:
    name = next(name for name in examples.summaries() if "/" in name)

    assert examples.find(name) == examples.find(name.rpartition("/")[2]) == EXAMPLES / f"{name}.py"
    assert max(Counter(path.stem for path in PATHS).values()) == 1
    with pytest.raises(UsageError, match="no example 'nothing'"):
        examples.find("nothing")


def test_examples_are_listed_by_folder() -> None:
    names = list(examples.summaries())
    folders = [name.rpartition("/")[0] for name in names]

    assert len(names) == len(PATHS)
    assert folders == sorted(folders)
