"""A reader who knows Ray but not dstack finds the next step in the first lines of the report of each example."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstack.analysis.diagnose import diagnose
from dstack.report.text import WIDTH, report_text
from dstack.snapshot_file import load
from tests.clusters import EXAMPLES
from tests.expected import ALARMS, FIRST_LINES, expected_of, first_lines

RECORDED = Path(__file__).parents[1] / "recorded"
NAMES = sorted(path.relative_to(RECORDED).as_posix().removesuffix(".json.gz") for path in RECORDED.rglob("*.json.gz"))
MOST_LINES = 25
"""A deadlock or hang is reported in no more; in one of Ray's libraries its own threads and loops are in the way."""
MOST_LINES_OF_LIBRARIES = 28


@pytest.mark.parametrize("name", NAMES)
def test_the_next_step_is_in_the_first_lines_of_the_report(name: str) -> None:
    snapshot = load(RECORDED / f"{name}.json.gz")
    expected = expected_of(EXAMPLES / f"{name}.py")

    report = report_text(snapshot, diagnose(snapshot))

    assert expected.shows_next_step(report), f"{expected.next_step!r} is not in\n{report}"
    assert all(len(line) <= WIDTH for line in report.splitlines())
    if expected.verdict in ALARMS:
        first = report.partition("\n2. ")[0].splitlines()
        assert len(first) <= (MOST_LINES_OF_LIBRARIES if "libraries" in name else MOST_LINES)


def test_a_next_step_is_found_across_the_lines_and_marks_of_a_report() -> None:
    head = "┌▶ 1  A.go   a.py:21   ray.get(b)\n└─    waits in ray.get\n      for B.go\n"
    report = f"{head}{chr(10) * FIRST_LINES}Fix: late"

    assert first_lines(report) == "1 A.go a.py ray.get(b) waits in ray.get for B.go"
