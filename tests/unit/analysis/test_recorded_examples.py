"""Every example has a recorded snapshot with the verdict that its docstring expects, and a report that reads well."""

from __future__ import annotations

import gzip
import re

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.report.text import WIDTH
from tests.clusters.dstack_command import Json
from tests.examples.expected import ALARMS, FIRST_LINES, expected_of, first_lines
from tests.examples.recorded import NAMES, RECORDED, document_with_report, recorded, report_of
from tests.paths import EXAMPLES
from tests.unit.project.test_language import banned_in
from tests.unit.report.test_check_schema import assert_valid
from tests.unit.report.test_distinct_names import assert_nothing_reads_the_same

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
VAGUE = re.compile(r"[Ff]ind out|takes long|what delays|[Ii]nspect")
COMMANDS = re.compile(r"`([^`]+)`")
PROGRAMS = (
    "dstack stacks",
    "dstack logs",
    "dstack graph",
    "dstack record",
    "ray ",
    "serve status",
    "tail /tmp/ray/",
    "grep num_ ",
)
"""What a next step may tell the user to run."""


def assert_advice_is_concrete(document: Json) -> None:
    for advice in filter(None, (finding["advice"] for finding in document["findings"])):
        assert not VAGUE.search(advice["text"])
        assert advice["kind"] == "next" or "dstack" not in advice["text"]
        assert all(command.startswith(PROGRAMS) for command in COMMANDS.findall(advice["text"]))


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_example_has_its_expected_verdict_and_a_good_report(name: str) -> None:
    """One test for all properties: to load and diagnose a snapshot takes longer than each of them."""
    expected = expected_of(EXAMPLES / f"{name}.py")
    analysed = AnalysedSnapshot.of(load(recorded(name)))
    document = document_with_report(analysed)

    assert not list(expected.differences(document))
    report = document["report"]
    assert all(len(line) <= WIDTH for line in report.splitlines())
    assert banned_in(report) == []
    if expected.verdict in ALARMS:
        first = report.partition("\n2. ")[0].splitlines()
        assert len(first) <= (MOST_LINES_OF_LIBRARIES if "libraries" in name else MOST_LINES)
    assert_advice_is_concrete(document)
    assert_nothing_reads_the_same(analysed)
    del document["report"]
    assert_valid(analysed.snapshot, document)


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
