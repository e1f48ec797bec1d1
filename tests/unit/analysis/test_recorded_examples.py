"""Every example has a recorded snapshot, whose verdict is the one that the example's docstring expects."""

from __future__ import annotations

import gzip

import pytest

from dstack.report.text import WIDTH
from tests.examples.expected import ALARMS, FIRST_LINES, expected_of, first_lines
from tests.examples.recorded import NAMES, RECORDED, document_with_report, recorded
from tests.paths import EXAMPLES

MOST_LINES = 25
"""The most lines of the report of a deadlock or hang; findings in Ray's libraries have longer chains."""
MOST_LINES_OF_LIBRARIES = 28


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_example_has_its_expected_verdict_and_next_step(name: str) -> None:
    expected = expected_of(EXAMPLES / f"{name}.py")
    document = document_with_report(recorded(name))

    assert not list(expected.differences(document))
    report = document["report"]
    assert all(len(line) <= WIDTH for line in report.splitlines())
    if expected.verdict in ALARMS:
        first = report.partition("\n2. ")[0].splitlines()
        assert len(first) <= (MOST_LINES_OF_LIBRARIES if "libraries" in name else MOST_LINES)


def test_a_next_step_is_found_across_the_lines_and_marks_of_a_report() -> None:
    head = "┌▶ 1  A.go   a.py:21   ray.get(b)\n└─    waits in ray.get\n      for B.go\n"
    report = f"{head}{chr(10) * FIRST_LINES}Fix: late"

    assert first_lines(report) == "1 A.go a.py ray.get(b) waits in ray.get for B.go"


def test_every_record_has_an_example() -> None:
    files = {path.relative_to(RECORDED).as_posix().removesuffix(".json.gz") for path in RECORDED.rglob("*.gz")}

    assert files == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_has_no_path_of_the_recording_machine(name: str) -> None:
    assert b"/root/" not in gzip.decompress(recorded(name).read_bytes())
