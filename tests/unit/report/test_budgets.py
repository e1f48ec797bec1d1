"""How long the reports on all recorded snapshots are: a reader at 3 a.m. has ten seconds."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.model.diagnosis import Verdict
from dstack.report.text import WIDTH, report_text
from tests.examples.recorded import RECORDED
from tests.paths import RECORDED_CLUSTERS

MOST_LINES: Mapping[Verdict, int] = {"hang": 20, "stalled": 20, "unknown": 8, "running": 8, "idle": 8}
MOST_HEADLINES = 2
SHARE = 0.95
"""The share of the reports that has to be within these limits."""


@pytest.fixture(scope="module")
def reports() -> list[tuple[Verdict, list[str]]]:
    """The verdict and the lines of each report."""
    files = [*sorted(RECORDED.rglob("*.json.gz")), *sorted(RECORDED_CLUSTERS.glob("*.json.gz"))]
    return [_report(path) for path in files]


def _report(path: Path) -> tuple[Verdict, list[str]]:
    analysed = AnalysedSnapshot.of(load(path))
    return analysed.diagnosis.verdict, report_text(analysed).splitlines()


def test_reports_where_nothing_is_proven_are_short(reports: list[tuple[Verdict, list[str]]]) -> None:
    limited = [(MOST_LINES[verdict], lines) for verdict, lines in reports if verdict in MOST_LINES]

    assert len(limited) > 200
    assert sum(len(lines) <= most for most, lines in limited) >= SHARE * len(limited)


def test_headlines_have_two_lines(reports: list[tuple[Verdict, list[str]]]) -> None:
    def headlines(verdict: Verdict, lines: list[str]) -> int:
        indent = " " * (len(verdict) + 2)
        return 1 + len(list(takewhile(lambda line: line.startswith(indent), lines[1:])))

    counts = [headlines(verdict, lines) for verdict, lines in reports]

    assert sum(count <= MOST_HEADLINES for count in counts) >= SHARE * len(counts)
    assert max(len(line) for _, lines in reports for line in lines) <= WIDTH
