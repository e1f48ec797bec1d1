"""Findings over a series of snapshots: from when to when each of them stands."""

from __future__ import annotations

from dstack.analysis.views.snapshot_changes import SnapshotChanges
from dstack.analysis.views.verdict_history import FindingSpan, FindingSummary, SnapshotSummary, finding_spans
from tests.tui.test_history import three
from tests.unit.analysis.views.test_snapshot_diff import analysed


def snapshot(*findings: tuple[str, int | None]) -> SnapshotSummary:
    """A summary with findings by their words, and their numbers in the snapshot before."""
    found = tuple(FindingSummary("deadlock", words, before) for words, before in findings)
    return SnapshotSummary("deadlock", "", found)


def span(words: str, first: int, last: int) -> FindingSpan:
    return FindingSpan("deadlock", words, first, last)


def test_a_finding_stands_as_long_as_it_is_continued_and_has_its_last_words() -> None:
    series = [snapshot(("a", None)), snapshot(("b", None), ("a and c", 0)), snapshot(("b", 0)), snapshot()]

    assert finding_spans(series) == [span("a and c", 0, 1), span("b", 1, 2)]


def test_a_finding_that_comes_back_is_another_one() -> None:
    assert finding_spans([snapshot(("a", None)), snapshot(), snapshot(("a", None))]) == [
        span("a", 0, 0),
        span("a", 2, 2),
    ]


def test_an_unknown_snapshot_ends_a_finding() -> None:
    assert finding_spans([snapshot(("a", None)), None, snapshot(("a", 0))]) == [span("a", 0, 0), span("a", 2, 2)]


def test_a_summary_has_the_verdict_the_coverage_and_the_changes() -> None:
    first, second = (analysed(one) for one in three()[1][:2])

    summary = SnapshotSummary.of(second, SnapshotChanges.between(first, second))

    assert summary.verdict == "deadlock"
    assert summary.coverage == "1 finding, 10/10 workers"
    assert summary.changes == "~2 waits"
    assert [one.before for one in summary.findings] == [0]
    assert [one.before for one in SnapshotSummary.of(first, None).findings] == [None]
