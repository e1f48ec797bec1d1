"""Every example has a recorded snapshot, whose verdict is the one that the example's docstring expects."""

from __future__ import annotations

import gzip
import re

import pytest

from dstack.report.text import WIDTH
from tests.examples.expected import ALARMS, FIRST_LINES, expected_of, first_lines
from tests.examples.recorded import NAMES, RECORDED, document_with_report, recorded, report_of
from tests.paths import EXAMPLES
from tests.unit.project.test_language import banned_in

MOST_LINES = 25
"""The most lines of the report of a deadlock or hang; findings in Ray's libraries have longer chains."""
MOST_LINES_OF_LIBRARIES = 28
USER_LINE = 8
"""The last line of a report that may be the first with a line of the application."""
MACHINERY = (
    'thread "StreamingExecutor"',
    'thread "ray-data-',
    "MonitoringThread",
    "Thread-1",
    "listen_for_change",
    "code that can use",
    "already available and being fetched",
)
"""What only serves a library."""


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_example_has_its_expected_verdict_and_next_step(name: str) -> None:
    expected = expected_of(EXAMPLES / f"{name}.py")
    document = document_with_report(recorded(name))

    assert not list(expected.differences(document))
    report = document["report"]
    assert all(len(line) <= WIDTH for line in report.splitlines())
    assert banned_in(report) == []
    if expected.verdict in ALARMS:
        first = report.partition("\n2. ")[0].splitlines()
        assert len(first) <= (MOST_LINES_OF_LIBRARIES if "libraries" in name else MOST_LINES)


@pytest.mark.parametrize("name", [name for name in NAMES if "look_alikes/libraries/" in name])
def test_a_report_on_a_library_that_works_begins_with_the_application(name: str) -> None:
    lines = report_of(name).splitlines()
    beginning = " ".join(line.strip() for line in lines[:FIRST_LINES])

    assert any(re.search(rf"({name.rpartition('/')[2]}|sitecustomize)\.py:\d+", line) for line in lines[:USER_LINE])
    assert not [words for words in MACHINERY if words in beginning]


def test_a_next_step_is_found_across_the_lines_and_marks_of_a_report() -> None:
    head = "┌▶ 1  A.go   a.py:21   ray.get(b)\n└─    waits in ray.get\n      for B.go\n"
    report = f"{head}{chr(10) * FIRST_LINES}Fix: late"

    assert first_lines(report) == "1 A.go a.py ray.get(b) waits in ray.get for B.go"


def test_every_record_has_an_example() -> None:
    files = {path.relative_to(RECORDED).as_posix().removesuffix(".json.gz") for path in RECORDED.rglob("*.gz")}

    assert files == set(NAMES)


def test_no_record_has_a_path_of_the_recording_machine() -> None:
    assert [name for name in NAMES if b"/root/" in gzip.decompress(recorded(name).read_bytes())] == []
